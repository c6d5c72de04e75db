package maintain

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
)

// Merging ahead. A round whose position is far ahead of the stream would first wait for
// the stream, and then write, one after the other. Instead such a round takes over what
// it already knows while the rest arrives: what has been folded is visible in S, so it
// belongs to this round, and all of it commits together or not at all. Each part is
// taken out of the view's images (they go on where it ends) and merged by the round's
// connection, one statement at a time and the parts in their order. At the end the view
// equals its body at S as if there had been one part.
//
// What it costs: a row that goes there and back again in different parts is written
// twice, although nothing changed in the end (INV-5 holds for each part, not for their
// sum). That is why only rounds that have to catch up do so.
const (
	// A part is worth a statement from so many rows or bytes on. Larger ones would leave
	// more to be done when the stream has arrived, smaller ones cost more each.
	partRows  = 64 << 10
	partBytes = 8 << 20
	// aheadEvery is how long received transactions gather before they are folded.
	aheadEvery = 10 * time.Millisecond
	// aheadOpen is how near the stream must be for a round to be opened early: its
	// snapshot is held meanwhile, which keeps VACUUM from removing dead rows, for the
	// seconds that this much log takes, not for the hours that a long stop may.
	aheadOpen ingest.LSN = 256 << 20
)

// errStopping ends a round that still waits for the stream when the daemon is to end.
var errStopping = errors.New("the daemon ends")

// ahead is the merging of parts while a round waits for the stream.
type ahead struct {
	r     *round
	views []*view
	last  int        // index of the view whose part was merged last
	busy  *view      // whose part is being merged
	done  chan error // of that
}

// goesAhead reports whether parts of the view may be merged before all of the batch is
// known: its statements need nothing but the images, and nobody is told what they did.
func (v *view) goesAhead() bool {
	return v.state == Live && v.plan.Projection != nil && v.work.writes == nil && v.work.reconcile == "" &&
		len(v.consumers) == 0 && len(v.producers) == 0 && v.fence == 0 && !v.plan.Sources[0].Producer
}

// opensEarly reports whether a round is to be opened although the stream is behind: some
// view goes ahead, and no source is locked meanwhile. Where the stream did not reach a
// round's position in time, the next one waits until it is near.
func (e *Engine) opensEarly(position ingest.LSN, now time.Time) bool {
	if e.audit.imported != "" || e.walEnd > position+aheadOpen || e.pauses[retryBarrier] > 0 {
		return false
	}
	some := false
	for _, v := range e.views {
		if !v.moves(now) {
			continue
		}
		if v.mustRead(now) {
			return false
		}
		some = some || v.goesAhead()
	}
	return some
}

// barrierAhead is [round.barrier] where the stream has far to go. It returns once the
// connection is the round's alone again.
func (r *round) barrierAhead(ctx context.Context, views []*view) error {
	a := &ahead{r: r, views: views, done: make(chan error, 1)}
	err := a.run(ctx)
	if a.busy != nil {
		// The part's failure is the cause where both failed.
		if failed := a.take(<-a.done); failed != nil {
			err = failed
		}
	}
	return err
}

func (a *ahead) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	passed := make(chan error, 1)
	var barriers sync.WaitGroup
	wait := func() {
		barriers.Go(func() { passed <- a.r.e.stream.Barrier(ctx, a.r.lsn) })
	}
	defer func() {
		cancel()
		barriers.Wait()
	}()
	wait()
	tick := time.NewTicker(aheadEvery)
	defer tick.Stop()
	at := a.r.e.stream.Position()
	for {
		select {
		case err := <-passed:
			again := errors.Is(err, ErrBacklog) || (errors.Is(err, ErrBarrier) && a.r.e.stream.Position() > at)
			if err == nil || !again {
				return errors.Join(err, a.fold())
			}
			if err := a.fold(); err != nil {
				return err
			}
			at = a.r.e.stream.Position()
			wait()
		case err := <-a.done:
			if err := a.take(err); err != nil {
				return err
			}
		case <-tick.C:
			if err := a.fold(); err != nil {
				return err
			}
		case <-a.r.quit:
			return errStopping
		}
		a.next(ctx)
	}
}

// fold takes over what has arrived.
func (a *ahead) fold() error {
	a.r.e.absorb()
	if _, err := a.r.e.batch.Fold(a.r.snapshot); err != nil {
		return &fatalError{err}
	}
	return nil
}

// next begins to merge a part where one is large enough.
func (a *ahead) next(ctx context.Context) {
	if a.busy != nil {
		return
	}
	for i := range a.views {
		n := (a.last + 1 + i) % len(a.views)
		v := a.views[n]
		if !v.goesAhead() {
			continue // it is to be reconciled now, which mends whatever was merged
		}
		if im := v.work.images[0]; im.Lacks() || (im.Len() < a.r.e.o.PartRows && im.Bytes() < partBytes) {
			continue // what an image lacks is looked up at S, where the row may have moved on
		}
		a.last, a.busy = n, v
		part := v.work.detach()
		go func() { a.done <- a.merge(context.WithoutCancel(ctx), v, part) }()
		return
	}
}

// merge runs beside [ahead.run]: it may use the round's connection, which nobody else
// does meanwhile, and what only it writes.
func (a *ahead) merge(ctx context.Context, v *view, part *ingest.Images) error {
	res, err := a.r.projectImages(ctx, v, part)
	if err == nil {
		a.r.merged[v] = a.r.merged[v].Plus(res)
		if a.r.e.o.Ahead != nil {
			a.r.e.o.Ahead(v.name, part)
		}
	}
	return err
}

// take ends the merging of a part.
func (a *ahead) take(err error) error {
	v := a.busy
	a.busy = nil
	if errors.Is(err, errImage) || errors.Is(err, backing.ErrAstray) {
		v.work.demand(reasonImage) // nothing has failed; the rest of this round compares with the body
		return nil
	}
	if err != nil {
		return &viewError{v: v, err: err}
	}
	return nil
}

// goers lists the movers that go ahead in this round.
func (r *round) goers() []*view {
	if r.e.audit.imported != "" || r.lsn <= r.e.stream.Position()+behind {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.movers), func(v *view) bool { return !v.goesAhead() })
}
