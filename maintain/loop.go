package maintain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mvsync/mvsync/ingest"
)

const (
	pollEvery    = 50 * time.Millisecond // waiters and requests are looked for
	compareEvery = time.Second           // the catalog is compared while no round runs
	carryFirst   = time.Millisecond      // first pause before carry-overs are looked at again
	// heartbeat is how much log may pass before an idle daemon runs an empty round,
	// so that the slot does not hold it back. By volume, not by time: an idle server
	// must stay idle.
	heartbeat ingest.LSN = 4 << 20
	// trickle is the volume for which a daemon that was idle for a while runs one, too,
	// so that the tail of somebody's bulk load is not held back until the next. An empty
	// round writes far less.
	trickle      ingest.LSN = 64 << 10
	trickleAfter            = 10 * time.Second
	// behind is how far the stream may be from the server's position before the
	// daemon drains it without a transaction open.
	behind ingest.LSN = 4 << 20
	// drainEvery is how long received transactions gather before they are folded meanwhile.
	drainEvery = 10 * time.Millisecond
)

// drain is the state of catching up: the position to reach before a round is opened.
type drain struct {
	target ingest.LSN // 0: not catching up
	passes int        // how often the target was reached and still far from the end
}

// looked is what a cheap statement outside of any round says. The snapshot is not
// held: what is visible in it is visible in every later one.
type looked struct {
	snapshot ingest.Snapshot
	walEnd   ingest.LSN
}

// look asks for the present snapshot and insert position.
func (e *Engine) look(ctx context.Context) (looked, error) {
	if err := e.connect(ctx); err != nil {
		return looked{}, err
	}
	var snapshot, lsn string
	err := e.side.QueryRow(ctx, "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text").
		Scan(&snapshot, &lsn)
	if err != nil {
		return looked{}, fmt.Errorf("ask for the present snapshot: %w", err)
	}
	var l looked
	if l.snapshot, err = ingest.ParseSnapshot(snapshot); err != nil {
		return looked{}, err
	}
	if err := l.walEnd.Scan(lsn); err != nil {
		return looked{}, err
	}
	e.walEnd = l.walEnd
	return l, nil
}

// wait returns once a round is to be opened, or with an error.
func (e *Engine) wait(ctx context.Context) error {
	for {
		fresh := e.absorb()
		now := time.Now()
		if e.lookDue(fresh, now) {
			if err := e.advance(ctx, now); err != nil {
				if err := e.survive(ctx, err); err != nil {
					return err
				}
				continue
			}
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if e.roundDue(time.Now()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-e.stream.Ready():
		case <-time.After(e.pause()):
		}
	}
}

// lookDue reports whether a snapshot is to be taken. While the stream is far behind each of them lets so much be folded
// that a few are enough.
func (e *Engine) lookDue(fresh bool, now time.Time) bool {
	since := now.Sub(e.looked)
	if e.drain.target != 0 {
		return since >= drainEvery
	}
	return fresh || (e.batch.Len() > 0 && since >= e.carry) || since >= pollEvery
}

// absorb takes over what the stream has received.
func (e *Engine) absorb() (fresh bool) {
	for _, tx := range e.stream.Take() {
		e.batch.Add(tx)
		fresh = true
	}
	if fresh {
		e.carry = carryFirst
	}
	return fresh
}

// advance takes a snapshot, folds what it contains, and looks for other work.
func (e *Engine) advance(ctx context.Context, now time.Time) error {
	l, err := e.look(ctx)
	if err != nil {
		return err
	}
	e.looked = now
	// What is newer than the snapshot that the next round imports must not be folded
	// before that round.
	if e.audit.imported == "" {
		if _, err := e.batch.Fold(l.snapshot); err != nil {
			return &fatalError{err}
		}
	}
	if e.batch.Len() > 0 {
		e.carry = min(max(e.carry, carryFirst)*2, pollEvery) // carry-overs alone open no round
	}
	e.catchUp()
	if e.confirm.position != 0 && e.confirm.after == 0 {
		e.confirm.after = e.walEnd // taken after the commit, so not below it
	}
	e.confirmDurable()
	if now.Sub(e.polled) < pollEvery {
		return nil
	}
	e.polled = now
	return e.poll(ctx, now)
}

// catchUp decides whether the stream is far behind. While it is, no round is
// opened: its snapshot would be held while megabytes arrive. A round that merges them
// while they arrive is opened earlier.
func (e *Engine) catchUp() {
	position := e.stream.Position()
	switch {
	case e.opensEarly(position, time.Now()):
		e.drain = drain{}
	case e.drain.target == 0 && e.walEnd > position+behind:
		e.drain = drain{target: e.walEnd}
		e.log.Debug("catching up", "lsn", position, "target", e.walEnd)
	case e.drain.target != 0 && position >= e.drain.target:
		// Where writers are faster than we are the rest never gets small; the barrier
		// takes it then.
		if e.drain.passes++; e.walEnd > position+behind && e.drain.passes < 3 {
			e.drain.target = e.walEnd
		} else {
			e.drain = drain{}
		}
	}
}

// near lets the stream come near enough for a round to be opened, as [Engine.wait] does, without looking for other work.
func (e *Engine) near(ctx context.Context) error {
	for {
		fresh, now := e.absorb(), time.Now()
		if e.lookDue(fresh, now) {
			e.polled = now // no poll
			if err := e.advance(ctx, now); err != nil {
				return err
			}
		}
		if e.drain.target == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-e.stream.Ready():
		case <-time.After(e.pause()):
		}
	}
}

// pause is how long to wait where nothing is received.
func (e *Engine) pause() time.Duration {
	d := pollEvery
	if e.batch.Len() > 0 {
		d = min(d, max(e.carry, carryFirst))
	}
	if until := e.o.Interval - time.Since(e.lastRound); until > 0 && e.anyDue(time.Now()) {
		d = min(d, until)
	}
	return max(d, 100*time.Microsecond)
}

func (e *Engine) anyDue(now time.Time) bool {
	return slices.ContainsFunc(e.views, func(v *view) bool { return v.moves(now) && v.due() })
}

// roundDue reports whether a round is to be opened now.
func (e *Engine) roundDue(now time.Time) bool {
	if now.Sub(e.lastRound) < e.o.Interval {
		return false
	}
	if e.audit.imported != "" || e.waiters {
		return true
	}
	if e.drain.target != 0 {
		return false
	}
	if e.anyDue(now) {
		return true
	}
	position := e.stream.Position()
	return position > e.reached+heartbeat || (position > e.reached+trickle && now.Sub(e.lastRound) >= trickleAfter)
}

// poll looks for waiters, requests and changes of the catalog.
func (e *Engine) poll(ctx context.Context, now time.Time) error {
	if e.rewatchDue {
		if err := e.watchProducers(ctx); err != nil {
			return err
		}
	}
	waiting, err := e.host.Waiters(ctx, e.side)
	if err != nil {
		return err
	}
	e.waiters = waiting > 0
	if err := e.takeRequests(ctx); err != nil {
		return err
	}
	if err := e.failStuck(ctx); err != nil {
		return err
	}
	if err := e.saveStates(ctx); err != nil {
		return err
	}
	if now.Sub(e.compared) >= compareEvery {
		if err := e.compare(ctx, now); err != nil {
			return err
		}
	}
	if err := e.audit.step(ctx, e, now); err != nil {
		return err
	}
	e.publish()
	return nil
}

// confirmDurable confirms the last round's position once the stream has passed the
// round's commit: the walsender sends only what is flushed (INV-4).
func (e *Engine) confirmDurable() {
	c := &e.confirm
	if c.position != 0 && c.after != 0 && e.stream.Position() >= c.after {
		e.stream.Confirm(c.position)
		*c = confirmation{}
	}
}

// stopped ends the daemon: it confirms what is durable and closes.
func (e *Engine) stopped(ctx context.Context, err error) error {
	ended := ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if e.confirm.position != 0 && e.stream.Position() != 0 {
		if l, lookErr := e.look(ctx); lookErr == nil {
			e.confirm.after = l.walEnd
			if barrierErr := e.stream.Barrier(ctx, l.walEnd); barrierErr == nil {
				e.confirmDurable()
			}
		}
	}
	if err == nil || ended {
		return nil
	}
	return err
}
