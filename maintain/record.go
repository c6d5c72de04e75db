package maintain

import (
	"context"
	"slices"
	"time"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
)

// create makes the view's table in the round's transaction.
func (r *round) create(ctx context.Context, v *view) error {
	// A companion may be left of a table that somebody dropped.
	if err := r.e.host.Drop(ctx, r.tx, v.layout); err != nil {
		return err
	}
	if err := r.session.Create(ctx, r.tx, v.layout); err != nil {
		return err
	}
	oid, _, err := r.e.host.Find(ctx, r.tx, v.layout.Name)
	if err != nil {
		return err
	}
	r.created[v] = oid
	return nil
}

// conclude records the round, and meanwhile compares the catalog once more: the last read
// of anybody's table is done. Replaced functions, attached partitions and new children are
// kept out by no lock of ours, and expansion of a parent uses the newest catalog, not S.
func (r *round) conclude(ctx context.Context) (ingest.LSN, error) {
	same := make(chan error, 1)
	go func() { same <- r.stillSameCatalog(ctx) }()
	position, err := r.record(ctx)
	if changed := <-same; changed != nil {
		err = changed
	}
	return position, err
}

// record writes the views' rows of the catalog and the progress row in the round's
// transaction, and returns the position that may be confirmed after it: nothing that
// a live view has not taken over lies before it.
func (r *round) record(ctx context.Context) (ingest.LSN, error) {
	e := r.e
	// L itself would lose transactions that are in the log and not yet visible: they
	// must be sent again after a restart.
	own := r.lsn
	if tx, ok := e.batch.Oldest(); ok {
		own = min(own, tx.FinalLSN)
	}
	r.position = own
	all := own
	for _, v := range e.views {
		if r.moving[v] {
			if err := r.recordMover(ctx, v); err != nil {
				return 0, err
			}
			continue
		}
		if v.state != Live {
			// The row must not say that the view follows this progress.
			if v.unsaved {
				row := e.row(v)
				if err := e.host.SaveView(ctx, r.tx, &row); err != nil {
					return 0, err
				}
			}
			continue
		}
		all = min(all, v.asOf.lsn)
		if v.follows {
			// The progress row goes on without it.
			at := &backing.AsOf{Snapshot: v.asOf.snapshot, LSN: v.asOf.lsn, Time: v.asOf.at}
			if err := e.host.SetAsOf(ctx, r.tx, v.layout.ID, at, v.asOf.lsn); err != nil {
				return 0, err
			}
			r.left = append(r.left, v)
		}
	}
	if err := r.finishRequests(ctx); err != nil {
		return 0, err
	}
	return all, e.host.WriteProgress(ctx, r.tx, backing.Progress{
		Snapshot: r.snapshot, LSN: all, SystemIdentifier: e.server.id, Timeline: e.server.timeline,
	})
}

// recordMover makes a view that moved follow the progress row, where it did not.
func (r *round) recordMover(ctx context.Context, v *view) error {
	// A reconcile may be what a changed definition asked for: its fingerprint counts now.
	if reason := r.rebuilt[v]; v.state == Live && v.follows && !v.unsaved && (reason == "" || reason == reasonStrategy) {
		return nil
	}
	row := r.e.row(v)
	row.State, row.AsOf, row.Confirm, row.Error, row.Fingerprint = backing.Live, nil, 0, "", r.e.fingerprintOf(v)
	if v.fence >= r.snapshot.Xmin {
		row.Fingerprint = "" // a new process must not go on from here either
	}
	return r.e.host.SaveView(ctx, r.tx, &row)
}

// committed takes over what the round has made durable together with its progress.
func (r *round) committed(ctx context.Context, position ingest.LSN) {
	e, now := r.e, time.Now()
	for _, v := range r.left {
		v.follows = false
	}
	for _, v := range r.movers {
		r.settle(v, now)
	}
	for _, d := range r.later {
		d.fold()
	}
	e.requests = slices.DeleteFunc(e.requests, func(q backing.Request) bool { return slices.Contains(r.finished, q.ID) })
	e.confirm = confirmation{position: position}
	e.newest = asOf{snapshot: r.snapshot, lsn: position, at: now}
	e.recorded = r.snapshot
	e.reached, e.lastRound = r.lsn, now
	e.carry = carryFirst
	e.waiters = false // whoever still waits is found by the next look
	e.audit.roundCommitted(ctx, r)
	e.observe.RoundCommitted(time.Since(r.started))
	e.publish() // last: who sees the status finds everything else counted
}

// lockAhead is for how long the sources of a view that read them are locked in further
// rounds, whether or not a change is known when the round is opened.
const lockAhead = 250 * time.Millisecond

// settle makes a view's as-of the round's snapshot.
func (r *round) settle(v *view, now time.Time) {
	e := r.e
	v.asOf = asOf{snapshot: r.snapshot, lsn: r.position, at: now}
	v.member.AsOf = r.snapshot
	reason, rebuilt := r.rebuilt[v]
	if rebuilt {
		e.observe.Rebuilt(v.name, reason)
		v.indexed = true
		if oid := r.created[v]; oid != 0 {
			v.exists = true
			v.setTable(oid)
			e.rewatchDue = e.rewatchDue || len(v.consumers) > 0
		}
	}
	if res, ok := r.results[v]; ok {
		e.observe.RowsWritten(v.name, "insert", int(res.Inserted))
		e.observe.RowsWritten(v.name, "update", int(res.Updated))
		e.observe.RowsWritten(v.name, "delete", int(res.Deleted))
		e.observe.RowsSuppressed(v.name, int(res.Unchanged))
	}
	if n := r.collisions[v]; n > 0 {
		e.observe.Collisions(v.name, n)
	}
	if v.due() && v.mayRead() {
		v.readsUntil = now.Add(lockAhead)
	}
	v.work.reset()
	v.follows, v.reads, v.sits, v.lock = true, false, 0, ""
	v.next = after(now, v.every)
	if v.state != Live {
		e.setState(v, Live)
	}
	v.unsaved, v.err, v.failures = false, nil, 0
	if v.fence != 0 {
		if r.snapshot.Xmin > v.fence {
			v.fence = 0
		} else {
			v.work.demand(reasonFence)
			v.next = now.Add(max(200*time.Millisecond, 10*v.took)) // a transaction may run for hours
		}
	}
}
