package replication

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/ingest"
)

// receive takes over a complete transaction.
func (s *Stream) receive(tx *ingest.Transaction) {
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
