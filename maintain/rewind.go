package maintain

import (
	"context"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
)

// regain makes a new session for rounds and what this process believes agree. They
// may not: rounds commit asynchronously, so a server that crashed has lost some of
// them, rows and progress together; and where the connection broke at a COMMIT, only
// the progress row says what became of it. No other session can change that row
// meanwhile, since the old one has let go of the leader's lock.
func (e *Engine) regain(ctx context.Context) error {
	if e.stream == nil {
		return nil // before Run; Begin reads the progress
	}
	progress, recorded, err := e.host.ReadProgress(ctx, e.main)
	if err != nil {
		return err
	}
	if progress.Snapshot.String() == e.recorded.String() {
		return nil
	}
	return e.rewind(ctx, progress, recorded)
}

// rewind begins anew at the recorded progress, as a new process would: each view at
// its recorded as-of, and everything that is not in it received again.
func (e *Engine) rewind(ctx context.Context, progress backing.Progress, recorded bool) error {
	e.log.Warn("the recorded progress is another than the last round's; receiving again from there", "lsn", progress.LSN, "was", e.newest.lsn)
	rows, err := e.host.Views(ctx, e.main)
	if err != nil {
		return err
	}
	if err := e.batch.Close(); err != nil {
		return &fatalError{err}
	}
	e.stream.Rewind()
	e.audit.stop(ctx)
	e.newest, e.confirm, e.drain, e.requests = asOf{}, confirmation{}, drain{}, nil
	e.recorded = progress.Snapshot
	if !e.gapped.IsZero() && progress.Snapshot.String() == e.gapped.String() {
		recorded = false // the stream does not go on from there
	}
	if recorded {
		e.newest = asOf{snapshot: progress.Snapshot, lsn: progress.LSN, at: progress.At}
	}
	for _, v := range e.views {
		if err := e.readopt(ctx, v, rows, recorded); err != nil {
			return err
		}
	}
	return nil
}

// readopt takes the view's row of the catalog over. What made a view stand still
// still holds.
func (e *Engine) readopt(ctx context.Context, v *view, rows []backing.View, recorded bool) error {
	was, why := v.state, v.err
	v.work.reset()
	v.follows, v.asOf, v.member.AsOf = false, asOf{}, ingest.Snapshot{}
	if err := e.adopt(ctx, v, rows, recorded); err != nil {
		return err
	}
	if was == Paused || was == Stale {
		v.work.demand(reasonResume)
		v.err = why
		e.setState(v, was)
	}
	if v.fence != 0 {
		v.work.demand(reasonFence)
	}
	return nil
}
