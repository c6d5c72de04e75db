package ingest

import (
	"encoding/binary"
	"unsafe"
)

// slab holds packed rows in a few large blocks without a pointer, so that millions of
// rows cost the garbage collector nothing. What was written is never changed, and a
// block lives as long as anything refers to it.
type slab struct {
	blocks [][]byte
	size   int64 // of all packed rows, those no longer of use included
}

// ref says where in a slab a packed row stands; the zero ref: nowhere.
type ref uint64

// Blocks double from the first to the most: a set of one row, of which there are many,
// holds little, and one of many rows wastes little.
const (
	firstBlock = 256
	mostBlock  = 256 << 10
)

// add appends a packed row, which is not empty.
func (s *slab) add(packed []byte) ref {
	need := len(packed) + binary.MaxVarintLen64
	last := len(s.blocks) - 1
	if last < 0 || cap(s.blocks[last])-len(s.blocks[last]) < need {
		size := firstBlock
		if last >= 0 {
			size = min(2*cap(s.blocks[last]), mostBlock)
		}
		s.blocks = append(s.blocks, make([]byte, 0, max(size, need)))
		last++
	}
	block := s.blocks[last]
	r := ref(last+1)<<32 | ref(len(block)) // a block larger than 4 GiB begins with its only row
	block = binary.AppendUvarint(block, uint64(len(packed)))
	s.blocks[last] = append(block, packed...)
	s.size += int64(len(packed))
	return r
}

// at returns a packed row, "" for the zero ref.
func (s *slab) at(r ref) string {
	if r == 0 {
		return ""
	}
	block := s.blocks[r>>32-1][uint32(r):]
	n, width := binary.Uvarint(block)
	// As strings.Builder does: bytes that are never changed may serve as a string.
	return unsafe.String(&block[width], int(n))
}
