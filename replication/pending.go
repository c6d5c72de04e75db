package replication

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/ingest"
)

// receive takes over a complete transaction.
func (s *Stream) receive(l *link, tx *ingest.Transaction) error {
	counts := tally{}
	memory, spooled := tx.Changes.Bytes(), int64(0)
	switch changes := tx.Changes.(type) {
	case collected:
		counts = changes.counts
	case *spool:
		counts, spooled = changes.counts, changes.size
	}
	s.opts.Observer.TransactionReceived(1)
	for kind, n := range counts {
		s.opts.Observer.Changes(kind.table, kind.op, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		return errors.Join(errRewound, tx.Changes.Close())
	}
	s.pending = append(s.pending, tx)
	s.memory += memory + transactionOverhead
	s.spooled += spooled
	s.received = tx.FinalLSN
	s.health.LastMessage = time.Now()
	// The transaction is pending before the position says so: whoever passes a barrier finds it.
	s.raise(tx.EndLSN)
	if s.memory > s.opts.Budget-s.opts.Budget/4 || s.spooled > s.opts.SpoolBudget {
		s.fill()
	}
	s.signal()
	return nil
}

// errRewound ends a connection whose transactions are received again by another one.
var errRewound = errors.New("the stream was rewound")

// Rewind forgets what was received, taken or not, and receives everything again from the confirmed position on: where
// what was made of it is lost, as after a crash of the server. What [Stream.Take] returns afterwards is of that.
func (s *Stream) Rewind() {
	s.mu.Lock()
	pending, l := s.pending, s.link
	s.pending, s.memory, s.spooled, s.link = nil, 0, 0, nil
	s.received, s.position = 0, s.confirmed
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
	s.mu.Unlock()
	for _, tx := range pending {
		if err := tx.Changes.Close(); err != nil {
			s.log.Debug("let go of a transaction", "err", err)
		}
	}
	if l != nil {
		_ = l.conn.Close() // its reader ends, and another connection begins
	}
}

// transactionOverhead is about what a transaction takes beside its changes.
const transactionOverhead = 256

// fill stops reading until [Stream.Take]; barriers cannot be reached meanwhile. It needs s.mu.
func (s *Stream) fill() {
	if s.room != nil {
		return
	}
	s.room = make(chan struct{})
	for w := range s.waiters {
		w.fail(ErrBacklog)
	}
}

// awaitRoom waits while the budget is full.
func (s *Stream) awaitRoom(ctx context.Context) error {
	s.mu.Lock()
	room := s.room
	s.mu.Unlock()
	if room == nil {
		return nil
	}
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lookupTimeout bounds a question to the catalog, which the reader waits for.
const lookupTimeout = 10 * time.Second

// lineage asks the catalog about a relation that the stream describes.
func (s *Stream) lineage(ctx context.Context, oid uint32) (lineage, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var l lineage
	err := s.catalog.do(ctx, func(conn *pgx.Conn) error {
		var err error
		l, err = lookUpLineage(ctx, conn, oid)
		return err
	})
	return l, err
}
