package ingest

import (
	"iter"
	"time"

	"github.com/jackc/pglogrepl"
)

// LSN is a position in the write-ahead log.
type LSN = pglogrepl.LSN

// Op is what a change did to a table.
type Op uint8

// The operations of a change.
const (
	Insert Op = iota + 1
	Update
	Delete
	Truncate
)

// String returns the operation in lower case, as metrics label it.
func (o Op) String() string {
	switch o {
	case Insert:
		return "insert"
	case Update:
		return "update"
	case Delete:
		return "delete"
	case Truncate:
		return "truncate"
	}
	return "unknown"
}

// state tells what a Value holds.
type state uint8

const (
	isNull state = iota
	isText
	isMissing
)

// Value is one column of a row image: NULL, the text that the type's output
// function printed under the pinned settings, or missing. The zero Value is NULL.
type Value struct {
	text  string
	state state
}

// Null is the SQL NULL.
var Null = Value{}

// Missing stands for a value that the image does not carry: an unchanged TOAST
// value, or a column outside the replica identity. It is not NULL.
var Missing = Value{state: isMissing}

// Text returns the value that Postgres prints as s.
func Text(s string) Value { return Value{text: s, state: isText} }

// IsNull reports whether the value is the SQL NULL.
func (v Value) IsNull() bool { return v.state == isNull }

// IsMissing reports whether the image does not carry the value.
func (v Value) IsMissing() bool { return v.state == isMissing }

// Text returns the printed form; it is empty for NULL and for a missing value.
func (v Value) Text() string { return v.text }

// Pointer returns the printed form, or nil for NULL. It panics for a missing
// value: shipping one as NULL would be a wrong answer.
func (v Value) Pointer() *string {
	switch v.state {
	case isNull:
		return nil
	case isText:
		return &v.text
	case isMissing:
	}
	panic("ingest: a missing value has no text")
}

// Row is an image of a row: a value for each column of its table, in the order
// of [Table].Columns.
type Row []Value

// Column is one live column of a table as the stream describes it.
type Column struct {
	Name     string
	TypeOID  uint32
	Identity bool // belongs to the replica identity (all do under FULL)
}

// Table describes the relation in which rows stand, a plain table or a leaf
// partition, at one version of the catalog. A changed definition is a new Table,
// so a pointer may serve as the key of what was derived from it.
type Table struct {
	OID       uint32
	Schema    string
	Name      string
	Full      bool     // replica identity FULL, judged for this very relation
	Partition bool     // a leaf of a partitioned table
	Ancestors []uint32 // tables through which these rows are read as well: partitioned and inheritance parents
	Columns   []Column // live columns, in the relation's own order
}

// Reads reports whether a body that names the table oid reads this table's rows:
// it is the table itself or one of its ancestors.
func (t *Table) Reads(oid uint32) bool {
	if t.OID == oid {
		return true
	}
	for _, a := range t.Ancestors {
		if a == oid {
			return true
		}
	}
	return false
}

// Change is one row change, or the truncation of a table.
type Change struct {
	Table *Table
	Op    Op
	// Old is the image before an update or delete. Columns that the replica
	// identity does not carry are missing. An update that left a default identity
	// alone has its identity columns filled from the new image. Nil for an insert.
	Old Row
	// New is the image after an insert or update. A value that the new image lacks
	// is taken from the old one where that carries it. Nil for a delete.
	New Row
}

// Transaction is one committed upstream transaction, whole (INV-2).
type Transaction struct {
	XID        uint32    // top-level transaction id, the low 32 bits
	FinalLSN   LSN       // position of the commit record
	EndLSN     LSN       // end of the commit record
	CommitTime time.Time // when it committed, by the server's clock
	Changes    Changes
}

// Changes holds the changes of one transaction, in memory or on disk.
type Changes interface {
	// All yields the changes in their order. A change and its rows are valid after
	// the iteration went on. An error ends the iteration.
	All() iter.Seq2[*Change, error]
	// Len is the number of changes.
	Len() int
	// Bytes is the memory held, 0 for changes on disk.
	Bytes() int64
	// Close releases what is held on disk. All may not be called afterwards.
	Close() error
}

// List is a Changes in memory.
type List []*Change

// All implements [Changes].
func (l List) All() iter.Seq2[*Change, error] {
	return func(yield func(*Change, error) bool) {
		for _, c := range l {
			if !yield(c, nil) {
				return
			}
		}
	}
}

// Len implements [Changes].
func (l List) Len() int { return len(l) }

// Bytes implements [Changes].
func (l List) Bytes() int64 {
	var n int64
	for _, c := range l {
		n += c.Bytes()
	}
	return n
}

// Close implements [Changes].
func (List) Close() error { return nil }

// Bytes estimates the memory that the change holds.
func (c *Change) Bytes() int64 {
	return 96 + c.Old.Bytes() + c.New.Bytes()
}

// Bytes estimates the memory that the row holds.
func (r Row) Bytes() int64 {
	n := int64(24 * len(r))
	for i := range r {
		n += int64(len(r[i].text))
	}
	return n
}
