package ingest

import (
	"fmt"
	"slices"
)

// Folder is what one view remembers of the changes that it has not taken over
// yet: group deltas, or a set of keys, or last images by key, never the raw rows.
type Folder interface {
	// Reads reports whether the view reads rows of the table.
	Reads(t *Table) bool
	// Fold takes one change of a transaction that is visible in a snapshot already
	// taken. It must not fail: what cannot be folded makes the view one that is
	// reconciled in the next round. It retains what it needs by copying.
	Fold(c *Change)
	// Bytes estimates the memory held.
	Bytes() int64
	// Forget drops all details; the view is reconciled in its next round instead.
	Forget()
}

// Member is a view's place in a [Batch].
type Member struct {
	Folder Folder
	// AsOf is the snapshot that the view's stored rows equal. A transaction that
	// is visible in it has taken effect in the view already and is skipped.
	AsOf Snapshot
}

// pending is a transaction not known to be visible yet.
type pending struct {
	tx    *Transaction
	xid   uint64 // full id, 0 until a snapshot was near
	bytes int64
}

// Batch holds upstream transactions until a snapshot is known that contains them,
// and folds them into the views' pending work then (see the package comment). It
// keeps folded work within a byte budget by making the largest folder forget.
// Not safe for concurrent use.
type Batch struct {
	budget   int64
	pending  []pending // in commit order
	bytes    int64     // memory of pending
	members  []*Member
	dispatch map[*Table][]*Member
	forgot   func(*Member)
}

// NewBatch returns a batch whose folders together hold at most budget bytes.
// forgot, which may be nil, is told of each member that had to forget.
func NewBatch(budget int64, forgot func(*Member)) *Batch {
	return &Batch{budget: budget, dispatch: map[*Table][]*Member{}, forgot: forgot}
}

// Join makes the member receive what is folded from now on.
func (b *Batch) Join(m *Member) {
	b.members = append(b.members, m)
	clear(b.dispatch)
}

// Leave makes the member receive nothing any more.
func (b *Batch) Leave(m *Member) {
	b.members = slices.DeleteFunc(b.members, func(x *Member) bool { return x == m })
	clear(b.dispatch)
}

// Clear lets every member leave.
func (b *Batch) Clear() {
	b.members = nil
	clear(b.dispatch)
}

// Add appends a transaction and takes it over. Transactions come in commit order.
func (b *Batch) Add(tx *Transaction) {
	n := tx.Changes.Bytes()
	b.pending = append(b.pending, pending{tx: tx, bytes: n})
	b.bytes += n
}

// Len is the number of transactions that are held whole.
func (b *Batch) Len() int { return len(b.pending) }

// Bytes is the memory held, folded and whole.
func (b *Batch) Bytes() int64 {
	n := b.bytes
	for _, m := range b.members {
		n += m.Folder.Bytes()
	}
	return n
}

// PendingBytes is the memory of the transactions held whole.
func (b *Batch) PendingBytes() int64 { return b.bytes }

// Oldest returns the commit position and time of the oldest transaction held
// whole; ok is false where there is none. Positions from there on must not be
// confirmed to the slot: the transaction would never be sent again (INV-4).
func (b *Batch) Oldest() (tx *Transaction, ok bool) {
	if len(b.pending) == 0 {
		return nil, false
	}
	return b.pending[0].tx, true
}

// AnyVisible reports whether a transaction held whole is visible in s.
func (b *Batch) AnyVisible(s Snapshot) bool {
	for i := range b.pending {
		if s.Contains(b.pending[i].widen(s)) {
			return true
		}
	}
	return false
}

func (p *pending) widen(s Snapshot) uint64 {
	if p.xid == 0 {
		p.xid = s.Widen(p.tx.XID)
	}
	return p.xid
}

// Fold folds every transaction that is visible in s, a snapshot already taken,
// into the members whose as-of does not contain it, and lets go of it. The others
// stay whole. It returns the number of transactions folded. An error means that
// changes on disk could not be read; the batch is then unusable.
func (b *Batch) Fold(s Snapshot) (int, error) {
	kept := b.pending[:0]
	n := 0
	for i := range b.pending {
		p := b.pending[i]
		if !s.Contains(p.widen(s)) {
			kept = append(kept, p)
			continue
		}
		if err := b.foldOne(&p); err != nil {
			b.pending = append(kept, b.pending[i:]...) // what Close has to release
			return n, err
		}
		b.bytes -= p.bytes
		n++
		if n%64 == 0 {
			b.limit()
		}
	}
	clear(b.pending[len(kept):])
	b.pending = kept
	b.limit()
	return n, nil
}

func (b *Batch) foldOne(p *pending) error {
	skips := false
	for _, m := range b.members {
		if m.AsOf.Contains(p.xid) {
			skips = true
			break
		}
	}
	n := 0
	for c, err := range p.tx.Changes.All() {
		if err != nil {
			return fmt.Errorf("read the changes of transaction %d: %w", p.tx.XID, err)
		}
		if n++; n%1024 == 0 { // one transaction alone may be larger than the budget
			b.limit()
		}
		for _, m := range b.readers(c.Table) {
			if skips && m.AsOf.Contains(p.xid) {
				continue
			}
			m.Folder.Fold(c)
		}
	}
	if err := p.tx.Changes.Close(); err != nil {
		return fmt.Errorf("release the changes of transaction %d: %w", p.tx.XID, err)
	}
	return nil
}

// readers caches the members that read a table by the table's description, which
// is a new one after each change of its definition.
func (b *Batch) readers(t *Table) []*Member {
	if ms, ok := b.dispatch[t]; ok {
		return ms
	}
	if len(b.dispatch) > 10_000 { // descriptions of tables long redefined
		clear(b.dispatch)
	}
	var ms []*Member
	for _, m := range b.members {
		if m.Folder.Reads(t) {
			ms = append(ms, m)
		}
	}
	b.dispatch[t] = ms
	return ms
}

// limit makes the largest folders forget until the rest fit the budget (INV-8).
func (b *Batch) limit() {
	for {
		var total, most int64
		var largest *Member
		for _, m := range b.members {
			n := m.Folder.Bytes()
			total += n
			if n > most {
				most, largest = n, m
			}
		}
		if total <= b.budget || largest == nil {
			return
		}
		largest.Folder.Forget()
		if b.forgot != nil {
			b.forgot(largest)
		}
		if largest.Folder.Bytes() >= most {
			return // a folder that cannot forget must not hang us
		}
	}
}

// Close lets go of everything held.
func (b *Batch) Close() error {
	var first error
	for i := range b.pending {
		if err := b.pending[i].tx.Changes.Close(); err != nil && first == nil {
			first = err
		}
	}
	b.pending, b.bytes = nil, 0
	return first
}
