package maintain

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// Status is what the daemon knows of itself, for pages, metrics and the demo. It
// holds no row values (INV-12).
type Status struct {
	Views   []ViewStatus // producers first
	Refused []Refused
	// Ready says that every view that can be live is: the first fill is done.
	Ready bool
	// Lag is the age of the oldest transaction that is pending, by the server's
	// commit time; 0 where nothing is.
	Lag                 time.Duration
	PendingTransactions int
	PendingBytes        int64
	WALEnd              ingest.LSN // the server's insert position when last asked
	Newest              ingest.Snapshot
	NewestAt            time.Time
	LastRound           time.Time
}

// ViewStatus is one view's part of [Status].
type ViewStatus struct {
	Name     string // quoted, with schema
	State    State
	Strategy plans.Strategy
	AsOf     ingest.Snapshot
	AsOfTime time.Time // when the as-of snapshot was taken
	// Age is how far the view is behind now; 0 while nothing is pending.
	Age time.Duration
	// Problem says why the view is not live or sits out, without row values: a
	// SQLSTATE with its name, a table, or another view.
	Problem string
	Err     error // the whole error; may hold row values, so for mvsync.views only
	Rows    int64 // estimate by what was written since the daemon filled it; -1: unknown
	Retry   time.Time
}

// Status returns the latest status.
func (e *Engine) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

// publish takes the status for [Engine.Status].
func (e *Engine) publish() {
	now := time.Now()
	s := Status{
		Refused: e.Refused(), Ready: len(e.views) > 0, PendingTransactions: e.batch.Len(), PendingBytes: e.batch.Bytes(),
		WALEnd: e.walEnd, Newest: e.newest.snapshot, NewestAt: e.newest.at, LastRound: e.lastRound,
	}
	if tx, ok := e.batch.Oldest(); ok {
		s.Lag = max(now.Sub(tx.CommitTime), 0)
	}
	unseen := s.Lag // of transactions that any view may read
	for _, v := range e.views {
		vs := ViewStatus{
			Name: v.name, State: v.shown(), Strategy: v.plan.Strategy, AsOf: v.asOf.snapshot, AsOfTime: v.asOf.at,
			Problem: v.problem(), Err: v.err, Retry: v.retry,
		}
		if v.shown() == Filling {
			s.Ready = false
		}
		// While nothing is pending a view's as-of counts as now.
		if v.behind() || unseen > 0 {
			vs.Age = max(now.Sub(v.asOf.at), unseen)
			if v.asOf.at.IsZero() {
				vs.Age = 0
			}
		}
		if v.state == Live && v.work.pending() {
			s.Lag = max(s.Lag, vs.Age)
		}
		s.Views = append(s.Views, vs)
	}
	e.mu.Lock()
	e.status = s
	e.mu.Unlock()
}

// problem says why the view is not live or sat out, without row values (INV-12).
func (v *view) problem() string {
	if p := v.waitsFor(); p != nil {
		return "waits for " + p.name
	}
	var refusal *plans.Refusal
	switch {
	case v.err == nil:
		return v.lock
	case errors.As(v.err, &refusal):
		return refusal.Error()
	case code(v.err) != "":
		return "SQLSTATE " + code(v.err) + "; the error stands in mvsync.views"
	}
	return "the error stands in mvsync.views"
}

// compare looks whether the catalog changed while no round runs.
func (e *Engine) compare(ctx context.Context, now time.Time) error {
	e.compared = now
	found, err := e.watch.read(ctx, e.side)
	if err != nil {
		return err
	}
	diff := e.known.changed(found)
	if slices.ContainsFunc(diff, func(o object) bool { return !o.storage() }) {
		return &catalogChanged{objects: diff}
	}
	for _, o := range diff {
		e.rewritten(o, found[o])
	}
	return e.lookAtStale(ctx)
}
