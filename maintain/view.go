package maintain

import (
	"slices"
	"time"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// State is where a view stands. The words are those of mvsync.views and metrics.
type State string

// The states of a view. A view that is not live keeps its rows as they are.
const (
	Filling State = "filling" // no round has evaluated the body yet
	Live    State = "live"    // equals its body at its as-of, and moves
	Paused  State = "paused"  // stands still because somebody asked for it
	Stale   State = "stale"   // the catalog changed so that the body or a requirement broke
	Failed  State = "failed"  // its statement failed; retried by reconciliation
)

// view is a maintained view at run time.
type view struct {
	name      string // quoted, with schema: the label of logs and metrics
	decl      plans.Declaration
	plan      *plans.Plan
	layout    *backing.Layout
	hashKey   bool          // keys were too long for an index, so their hashes are indexed
	exists    bool          // the backing table exists
	indexed   bool          // its tables have the plan's indexes
	oid       uint32        // of the backing table
	described *ingest.Table // the backing table as its consumers' source
	state     State
	member    *ingest.Member
	work      *work
	estimate  estimate

	// producers are the declared views that this one reads.
	producers []*view
	consumers []*view

	asOf    asOf
	unsaved bool // the catalog does not show its state yet
	follows bool // its recorded as-of is the progress row's
	reads   bool // its last round needed tables that were not locked: lock them
	// readsUntil: it read tables a moment ago. What arrives while a round is open may
	// make it read them again, and the round would have to be redone with the locks.
	readsUntil time.Time
	// lock says what kept the view out of the last round, for status.
	lock string
	sits int // rounds in a row that it sat out
	// fence is a transaction id: until every transaction up to it has ended, changes
	// to a table that was just published may be missing from the stream, so the view
	// is reconciled in each round. 0: none.
	fence uint64

	took     time.Duration // of its last maintenance
	every    time.Duration // effective: the largest of its producers' and its own
	next     time.Time     // does not move before
	err      error         // why it is failed or stale
	retry    time.Time     // a failed view is reconciled again from then on
	failures int
}

// asOf is the moment whose body a view's rows equal.
type asOf struct {
	snapshot ingest.Snapshot
	lsn      ingest.LSN // everything before it may be confirmed as far as this view goes
	at       time.Time
}

// moves reports whether the view takes part in a round at the time: only where all
// its producers do.
func (v *view) moves(now time.Time) bool {
	for _, p := range v.producers {
		if !p.moves(now) {
			return false
		}
	}
	switch v.state {
	case Live, Filling:
		return !now.Before(v.next)
	case Failed:
		return !now.Before(v.retry)
	case Paused, Stale:
	}
	return false
}

// due reports whether the view has something to take over.
func (v *view) due() bool { return v.work.pending() || v.state != Live }

// behind reports whether something is pending for the view or for what it reads.
func (v *view) behind() bool { return v.due() || slices.ContainsFunc(v.producers, (*view).behind) }

// waitsFor returns the producer because of which the view cannot move.
func (v *view) waitsFor() *view {
	for _, p := range v.producers {
		if p.state != Live {
			return p
		}
	}
	return nil
}

// shown is the state that users see: a view that waits for its producer takes over
// the producer's.
func (v *view) shown() State {
	if p := v.waitsFor(); p != nil && v.state == Filling {
		return p.shown()
	}
	return v.state
}

// after returns when a view with an interval moves next. The times are the same for
// all views with that interval, whenever each of them last moved, so that those that
// once sat out, and what reads them, come together again.
func after(now time.Time, every time.Duration) time.Time {
	if every <= 0 {
		return time.Time{}
	}
	return now.Truncate(every).Add(every)
}

// effective sets every view's every to the largest of its producers' and its own.
// Views come producers first.
func effective(views []*view) {
	for _, v := range views {
		v.every = v.decl.Every
		for _, p := range v.producers {
			v.every = max(v.every, p.every)
		}
	}
}

// mustRead reports whether a round that begins now may read the view's base tables.
func (v *view) mustRead(now time.Time) bool {
	if v.reads || v.state != Live || now.Before(v.readsUntil) {
		return true
	}
	for _, p := range v.producers {
		if p.due() || p.mustRead(now) {
			return true
		}
	}
	return v.due() && v.mayRead()
}

// mayRead lists the sources that maintaining the view may read in a round with the
// pending work as it is. Delta strategies read none but to re-run groups.
func (v *view) mayRead() bool {
	switch {
	case v.work.reconcile != "" || v.state != Live:
		return true
	case v.work.writes != nil && v.plan.Projection != nil:
		return v.work.retracts
	case v.plan.Projection != nil:
		return false
	case v.plan.Aggregate != nil:
		return v.work.retracts
	}
	return true
}

// sit keeps the view out of rounds for a moment because of a lock.
func (v *view) sit(now time.Time, why error) {
	v.sits++
	v.lock = why.Error()
	v.next = now.Add(min(20*time.Millisecond<<min(v.sits, 8), 5*time.Second))
	v.retry = v.next
}

// setTable records the oid of the view's table, also for its consumers.
func (v *view) setTable(oid uint32) {
	v.oid, v.described = oid, nil
	for _, c := range v.consumers {
		for i := range c.plan.Sources {
			if s := &c.plan.Sources[i]; s.Producer && s.Table() == v.decl.Name {
				s.OID = oid
			}
		}
	}
}
