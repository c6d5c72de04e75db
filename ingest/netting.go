package ingest

import "hash/maphash"

// netting maps keys to their net change: the packed images before and after. Keys
// stand in the order in which they first changed. It holds no pointer but to a few
// large pieces of memory.
type netting struct {
	seed  maphash.Seed
	slab  slab
	rows  []netRow
	table []uint32 // a hash table with linear probing: index of the row + 1; 0: free
	live  int      // rows that are not void
	held  int64    // length of the packed images of live rows
}

// netRow is a key's net change. Where both images are gone it is void: one of them
// remains for the key until the next compaction.
type netRow struct {
	before, after ref
	hash          uint32
	klen          uint32 // length of the key, a prefix of either image
}

// nothing is the after image of a void row.
const nothing = ^ref(0)

func (r *netRow) void() bool { return r.after == nothing }

// netOverhead is the memory of a row beside its packed images: its netRow and its slots
// of the hash table, both with the slack of something that has just grown, and half of
// what its images may leave behind.
const netOverhead = 80

// Garbage that is not worth a compaction.
const (
	slackBytes = 16 << 10
	slackRows  = 256
)

func newNetting() *netting { return &netting{seed: maphash.MakeSeed()} }

// bytes estimates the memory held for what is live. The rest is bounded by it, see compact.
func (n *netting) bytes() int64 { return int64(n.live)*netOverhead + n.held }

// spot is where a key stands, or belongs.
type spot struct {
	row  int // -1: nowhere
	slot uint32
	hash uint32
}

// find looks a key up. What it gives holds until the next change.
func (n *netting) find(key []byte) spot {
	s := spot{row: -1, hash: uint32(maphash.Bytes(n.seed, key))}
	if len(n.table) == 0 {
		return s
	}
	mask := uint32(len(n.table) - 1)
	for s.slot = s.hash & mask; ; s.slot = (s.slot + 1) & mask {
		at := n.table[s.slot]
		if at == 0 {
			return s
		}
		if r := &n.rows[at-1]; r.hash == s.hash && n.key(r) == string(key) {
			s.row = int(at - 1)
			return s
		}
	}
}

func (n *netting) key(r *netRow) string {
	if r.before != 0 {
		return n.slab.at(r.before)[:r.klen]
	}
	return n.slab.at(r.after)[:r.klen]
}

// images returns a row's packed images; those of row -1 and of a void one are empty.
func (n *netting) images(row int) (before, after string) {
	b, a := n.refs(row)
	return n.slab.at(b), n.slab.at(a)
}

func (n *netting) refs(row int) (before, after ref) {
	if row < 0 || n.rows[row].void() {
		return 0, 0
	}
	return n.rows[row].before, n.rows[row].after
}

// place sets the images of a key at the spot that find gave.
func (n *netting) place(s spot, key []byte, before, after ref) {
	if s.row >= 0 {
		n.set(s.row, before, after)
		return
	}
	if 4*(len(n.rows)+1) > 3*len(n.table) {
		n.grow(max(16, 2*len(n.table)))
		s.slot = n.free(s.hash)
	}
	n.rows = append(n.rows, netRow{before: before, after: after, hash: s.hash, klen: uint32(len(key))})
	n.table[s.slot] = uint32(len(n.rows))
	n.live++
	n.held += int64(len(n.slab.at(before)) + len(n.slab.at(after)))
}

// free returns the slot for a key of that hash which is not in the table.
func (n *netting) free(hash uint32) uint32 {
	mask := uint32(len(n.table) - 1)
	slot := hash & mask
	for n.table[slot] != 0 {
		slot = (slot + 1) & mask
	}
	return slot
}

// set replaces the images of a row.
func (n *netting) set(row int, before, after ref) {
	r := &n.rows[row]
	if !r.void() {
		n.live--
		n.held -= int64(len(n.slab.at(r.before)) + len(n.slab.at(r.after)))
	}
	if before == 0 && after == 0 {
		if r.before == 0 {
			r.before = r.after
		}
		r.after = nothing
		return
	}
	r.before, r.after = before, after
	n.live++
	n.held += int64(len(n.slab.at(before)) + len(n.slab.at(after)))
}

func (n *netting) grow(size int) {
	n.table = make([]uint32, size)
	for i := range n.rows {
		n.table[n.free(n.rows[i].hash)] = uint32(i + 1)
	}
}

// compact lets go of images that were replaced and of rows that came to stand as
// before, once they are half as much as what is live: a row that changes all the time,
// or rows that come and go, take no more memory for it.
func (n *netting) compact() {
	garbage, void := n.slab.size-n.held, len(n.rows)-n.live
	if garbage <= n.held/2+slackBytes && void <= n.live/2+slackRows {
		return
	}
	old, rows := n.slab, n.rows
	n.slab, n.rows = slab{}, make([]netRow, 0, n.live)
	move := func(r ref) ref {
		if r == 0 {
			return 0
		}
		return n.slab.add([]byte(old.at(r)))
	}
	for _, r := range rows {
		if r.void() {
			continue
		}
		r.before, r.after = move(r.before), move(r.after)
		n.rows = append(n.rows, r)
	}
	size := 16
	for 4*(len(n.rows)+1) > 3*size {
		size *= 2
	}
	n.grow(size)
}
