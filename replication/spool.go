package replication

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"github.com/mvsync/mvsync/ingest"
)

// collector gathers the changes of one transaction: in memory up to limit bytes, beyond that in a file, so that the size
// of somebody's transaction does not matter (INV-8).
type collector struct {
	dir   string
	limit int64

	list   ingest.List
	bytes  int64
	counts tally
	spool  *spool
}

// tally counts changes by table and operation, for the observer.
type tally map[tallyKey]int

type tallyKey struct {
	table *ingest.Table
	op    ingest.Op
}

func newCollector(dir string, limit int64) *collector {
	return &collector{dir: dir, limit: limit, counts: tally{}}
}

func (c *collector) add(change *ingest.Change) error {
	c.counts[tallyKey{change.Table, change.Op}]++
	if c.spool != nil {
		return c.spool.write(change)
	}
	c.list = append(c.list, change)
	c.bytes += change.Bytes()
	if c.bytes <= c.limit {
		return nil
	}
	return c.spill()
}

// spill moves what was gathered to a file.
func (c *collector) spill() error {
	spool, err := newSpool(c.dir)
	if err != nil {
		return err
	}
	for _, change := range c.list {
		if err := spool.write(change); err != nil {
			return errors.Join(err, spool.Close())
		}
	}
	c.spool, c.list, c.bytes = spool, nil, 0
	return nil
}

// finish returns the changes; the collector is of no use afterwards.
func (c *collector) finish() (ingest.Changes, error) {
	if c.spool == nil {
		return collected{List: c.list, bytes: c.bytes, counts: c.counts}, nil
	}
	if err := c.spool.flush(); err != nil {
		return nil, errors.Join(err, c.spool.Close())
	}
	c.spool.counts = c.counts
	return c.spool, nil
}

func (c *collector) discard() {
	if c.spool != nil {
		_ = c.spool.Close() // the file has no name and nobody reads it
	}
}

// collected is a list that knows its size, which was added up while it grew.
type collected struct {
	ingest.List
	bytes  int64
	counts tally
}

// Bytes implements [ingest.Changes].
func (c collected) Bytes() int64 { return c.bytes }

// spool holds the changes of a transaction in a file that is removed from its folder as soon as it is made: the space
// is free again when the file is closed, or when the process ends, however it ends.
type spool struct {
	file   *os.File
	out    *bufio.Writer
	size   int64 // bytes written
	n      int
	tables []*ingest.Table // as the file numbers them
	number map[*ingest.Table]int
	buffer []byte
	counts tally
}

const spoolBuffer = 128 << 10

func newSpool(dir string) (*spool, error) {
	file, err := os.CreateTemp(dir, "mvsync-spool-*")
	if err != nil {
		return nil, fmt.Errorf("spool a large transaction: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("spool a large transaction: %w", err), file.Close())
	}
	return &spool{
		file: file, out: bufio.NewWriterSize(file, spoolBuffer), number: map[*ingest.Table]int{},
	}, nil
}

// The form of a change in the file: the table's number, the operation, and the two images, each as the number of values
// plus one (0: no image) and the values, each as its length plus two (0: NULL, 1: missing) and its text. Numbers are
// varints.
const (
	spooledNull    = 0
	spooledMissing = 1
	spooledText    = 2
)

func (s *spool) write(c *ingest.Change) error {
	number, ok := s.number[c.Table]
	if !ok {
		number = len(s.tables)
		s.number[c.Table] = number
		s.tables = append(s.tables, c.Table)
	}
	b := binary.AppendUvarint(s.buffer[:0], uint64(number))
	b = append(b, byte(c.Op))
	b = appendRow(appendRow(b, c.Old), c.New)
	s.buffer = b
	s.n++
	s.size += int64(len(b))
	if _, err := s.out.Write(b); err != nil {
		return fmt.Errorf("spool a large transaction: %w", err)
	}
	return nil
}

func appendRow(b []byte, row ingest.Row) []byte {
	if row == nil {
		return binary.AppendUvarint(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(len(row))+1)
	for _, v := range row {
		switch {
		case v.IsNull():
			b = binary.AppendUvarint(b, spooledNull)
		case v.IsMissing():
			b = binary.AppendUvarint(b, spooledMissing)
		default:
			text := v.Text()
			b = binary.AppendUvarint(b, uint64(len(text))+spooledText)
			b = append(b, text...)
		}
	}
	return b
}

func (s *spool) flush() error {
	if err := s.out.Flush(); err != nil {
		return fmt.Errorf("spool a large transaction: %w", err)
	}
	s.out, s.buffer = nil, nil
	return nil
}

// Len implements [ingest.Changes].
func (s *spool) Len() int { return s.n }

// Bytes implements [ingest.Changes]: nothing is in memory.
func (s *spool) Bytes() int64 { return 0 }

// Close implements [ingest.Changes].
func (s *spool) Close() error {
	if err := s.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close a spooled transaction: %w", err)
	}
	return nil
}

// All implements [ingest.Changes]. Iterations do not disturb one another.
func (s *spool) All() iter.Seq2[*ingest.Change, error] {
	return func(yield func(*ingest.Change, error) bool) {
		in := bufio.NewReaderSize(io.NewSectionReader(s.file, 0, s.size), spoolBuffer)
		for range s.n {
			c, err := s.read(in)
			if err != nil {
				yield(nil, fmt.Errorf("read a spooled transaction: %w", err))
				return
			}
			if !yield(c, nil) {
				return
			}
		}
	}
}

func (s *spool) read(in *bufio.Reader) (*ingest.Change, error) {
	number, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, err
	}
	if number >= uint64(len(s.tables)) {
		return nil, fmt.Errorf("there is no table %d in it", number)
	}
	op, err := in.ReadByte()
	if err != nil {
		return nil, err
	}
	c := &ingest.Change{Table: s.tables[number], Op: ingest.Op(op)}
	if c.Old, err = readRow(in); err != nil {
		return nil, err
	}
	c.New, err = readRow(in)
	return c, err
}

func readRow(in *bufio.Reader) (ingest.Row, error) {
	n, err := binary.ReadUvarint(in)
	if err != nil || n == 0 {
		return nil, err
	}
	row := make(ingest.Row, n-1)
	for i := range row {
		length, err := binary.ReadUvarint(in)
		if err != nil {
			return nil, err
		}
		switch length {
		case spooledNull:
			row[i] = ingest.Null
		case spooledMissing:
			row[i] = ingest.Missing
		default:
			text := make([]byte, length-spooledText)
			if _, err := io.ReadFull(in, text); err != nil {
				return nil, err
			}
			row[i] = ingest.Text(string(text))
		}
	}
	return row, nil
}
