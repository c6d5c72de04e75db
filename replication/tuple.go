package replication

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/mvsync/mvsync/ingest"
)

// Row messages are decoded here and not by pglogrepl: its 22 allocations for a row of eight columns cost more than all
// the rest of the way from the socket to a transaction. One copy of the message's text serves all values of its rows.

// errTruncated is a message that ends before it should.
var errTruncated = errors.New("message ends early")

// The marks within row messages.
const (
	tupleNew  = 'N'
	tupleKey  = 'K'
	tupleFull = 'O'
)

// rowReader cuts a row message into values. text is a copy of data as a string, into which the values point.
type rowReader struct {
	data []byte
	text string
	at   int
}

func newRowReader(message []byte) rowReader {
	return rowReader{data: message, text: string(message), at: 1}
}

func (r *rowReader) byte() (byte, error) {
	if r.at >= len(r.data) {
		return 0, errTruncated
	}
	b := r.data[r.at]
	r.at++
	return b, nil
}

func (r *rowReader) uint32() (uint32, error) {
	if len(r.data)-r.at < 4 {
		return 0, errTruncated
	}
	n := binary.BigEndian.Uint32(r.data[r.at:])
	r.at += 4
	return n, nil
}

// columns reads the number of columns that a tuple has, which must be the table's.
func (r *rowReader) columns(want int) error {
	if len(r.data)-r.at < 2 {
		return errTruncated
	}
	n := int(binary.BigEndian.Uint16(r.data[r.at:]))
	r.at += 2
	if n != want {
		return fmt.Errorf("the row has %d columns, its relation %d", n, want)
	}
	return nil
}

// tuple reads one row image into row, which has the table's length.
func (r *rowReader) tuple(row ingest.Row) error {
	if err := r.columns(len(row)); err != nil {
		return err
	}
	for i := range row {
		kind, err := r.byte()
		if err != nil {
			return err
		}
		switch kind {
		case pglogrepl.TupleDataTypeNull:
			row[i] = ingest.Null
		case pglogrepl.TupleDataTypeToast:
			row[i] = ingest.Missing
		case pglogrepl.TupleDataTypeText:
			if row[i], err = r.value(); err != nil {
				return err
			}
		default:
			return fmt.Errorf("a value is of kind %q, want n, u or t", kind)
		}
	}
	return nil
}

func (r *rowReader) value() (ingest.Value, error) {
	n, err := r.uint32()
	if err != nil {
		return ingest.Value{}, err
	}
	if int64(n) > int64(len(r.data)-r.at) {
		return ingest.Value{}, errTruncated
	}
	text := r.text[r.at : r.at+int(n)]
	r.at += int(n)
	return ingest.Text(text), nil
}

// arena hands out rows and changes in blocks: the garbage collector sees a few large objects where a transaction has many
// small ones. Blocks grow with the transaction, so that a small one does not hold a large block.
type arena struct {
	values  []ingest.Value
	changes []ingest.Change
	nvalues int // size of the next block
	nchange int
}

const (
	firstValues, mostValues  = 16, 4096
	firstChanges, mostChange = 2, 512
)

func (a *arena) row(n int) ingest.Row {
	if n > len(a.values) {
		a.nvalues = min(max(2*a.nvalues, firstValues), mostValues)
		a.values = make([]ingest.Value, max(a.nvalues, n))
	}
	row := a.values[:n:n]
	a.values = a.values[n:]
	return ingest.Row(row)
}

func (a *arena) change() *ingest.Change {
	if len(a.changes) == 0 {
		a.nchange = min(max(2*a.nchange, firstChanges), mostChange)
		a.changes = make([]ingest.Change, a.nchange)
	}
	c := &a.changes[0]
	a.changes = a.changes[1:]
	return c
}

// identityOnly makes of row what an old image under a key identity is: the server sends NULL for columns outside it,
// which says nothing of their values.
func identityOnly(table *ingest.Table, row ingest.Row) {
	for i := range row {
		if !table.Columns[i].Identity {
			row[i] = ingest.Missing
		}
	}
}

// fill completes the new image from the old one: an unchanged value that the server did not send again is what it was.
func fill(row, old ingest.Row) {
	for i := range row {
		if row[i].IsMissing() {
			row[i] = old[i]
		}
	}
}

// insert decodes an I message behind its relation id.
func (r *rowReader) insert(table *ingest.Table, a *arena) (*ingest.Change, error) {
	mark, err := r.byte()
	if err != nil {
		return nil, err
	}
	if mark != tupleNew {
		return nil, fmt.Errorf("an insert has a row marked %q", mark)
	}
	row := a.row(len(table.Columns))
	if err := r.tuple(row); err != nil {
		return nil, err
	}
	c := a.change()
	*c = ingest.Change{Table: table, Op: ingest.Insert, New: row}
	return c, nil
}

// update decodes a U message behind its relation id.
func (r *rowReader) update(table *ingest.Table, a *arena) (*ingest.Change, error) {
	mark, err := r.byte()
	if err != nil {
		return nil, err
	}
	old, row := a.row(len(table.Columns)), a.row(len(table.Columns))
	sent := mark == tupleKey || mark == tupleFull
	if sent {
		if err := r.old(table, mark, old); err != nil {
			return nil, err
		}
		if mark, err = r.byte(); err != nil {
			return nil, err
		}
	}
	if mark != tupleNew {
		return nil, fmt.Errorf("an update has a row marked %q", mark)
	}
	if err := r.tuple(row); err != nil {
		return nil, err
	}
	if !sent {
		// The server leaves the old image out where the update left the identity alone.
		copy(old, row)
		identityOnly(table, old)
	}
	fill(row, old)
	c := a.change()
	*c = ingest.Change{Table: table, Op: ingest.Update, Old: old, New: row}
	return c, nil
}

// delete decodes a D message behind its relation id.
func (r *rowReader) delete(table *ingest.Table, a *arena) (*ingest.Change, error) {
	mark, err := r.byte()
	if err != nil {
		return nil, err
	}
	if mark != tupleKey && mark != tupleFull {
		return nil, fmt.Errorf("a delete has a row marked %q", mark)
	}
	old := a.row(len(table.Columns))
	if err := r.old(table, mark, old); err != nil {
		return nil, err
	}
	c := a.change()
	*c = ingest.Change{Table: table, Op: ingest.Delete, Old: old}
	return c, nil
}

// old reads an old image. Only under the leaf's own FULL is it whole; the message's mark alone does not say so.
func (r *rowReader) old(table *ingest.Table, mark byte, row ingest.Row) error {
	if err := r.tuple(row); err != nil {
		return err
	}
	if mark != tupleFull || !table.Full {
		identityOnly(table, row)
	}
	return nil
}
