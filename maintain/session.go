package maintain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/backing"
)

// connect opens the sessions that are not open: side always, main once this process
// leads.
func (e *Engine) connect(ctx context.Context) error {
	if e.side == nil || e.side.IsClosed() {
		conn, err := e.dial(ctx, "side")
		if err != nil {
			return err
		}
		e.side = conn
	}
	if !e.leads || (e.main != nil && !e.main.IsClosed()) {
		return nil
	}
	if err := e.connectMain(ctx); err != nil {
		return err
	}
	err := e.openSession(ctx)
	if err == nil {
		err = e.regain(ctx)
	}
	if err != nil {
		return errors.Join(err, e.main.Close(ctx)) // nothing may be done on it before
	}
	return nil
}

// dial opens a session whose commits wait for no synchronous standby: one that is away
// would hold up what we write to the catalog between rounds.
//
// Its statements are planned once for any values, as Postgres would choose by itself
// for most of them after five times: planning a small round's statements anew takes ten
// times as long as running them. Inputs are then taken for ten rows, which is what
// keeps plans to look-ups by key; see [backing.Session.Grown] for their age.
func (e *Engine) dial(ctx context.Context, purpose string) (*pgx.Conn, error) {
	conn, err := e.o.Connect(ctx, purpose)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "SET synchronous_commit = local; SET plan_cache_mode = force_generic_plan"); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// connectMain opens the session of the rounds and takes the leader's lock on it.
func (e *Engine) connectMain(ctx context.Context) error {
	conn, err := e.dial(ctx, "round")
	if err != nil {
		return err
	}
	if err := e.host.Lead(ctx, conn); err != nil {
		return errors.Join(err, conn.Close(ctx))
	}
	e.main, e.leads = conn, true
	return nil
}

func (e *Engine) openSession(ctx context.Context) error {
	session, err := e.host.Open(ctx, e.main)
	if err != nil {
		return err
	}
	e.session = session
	var deadlock time.Duration
	err = e.main.QueryRow(ctx, "SELECT setting::bigint * 1000000 FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout'").Scan(&deadlock)
	if err != nil {
		return fmt.Errorf("read deadlock_timeout: %w", err)
	}
	// Below deadlock_timeout, so that no user's transaction is ever the victim of a
	// deadlock with ours.
	e.lockTimeout = max(min(300*time.Millisecond, deadlock*3/10), time.Millisecond)
	return nil
}

// drop closes the sessions; the next round opens new ones. What is pending stays.
func (e *Engine) drop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	for _, c := range []*pgx.Conn{e.main, e.side} {
		if c != nil {
			_ = c.Close(ctx) // it is of no use any more
		}
	}
	e.main, e.side, e.session = nil, nil, nil
}

// Close gives up the leader's lock and closes the sessions.
func (e *Engine) Close(ctx context.Context) {
	e.audit.stop(ctx)
	e.drop(ctx)
	e.leads = false
	if err := e.batch.Close(); err != nil {
		e.log.Debug("let go of pending transactions", "err", err)
	}
}

// takeRequests takes up what users asked for since the last look.
func (e *Engine) takeRequests(ctx context.Context) error {
	all, err := e.host.Requests(ctx, e.side)
	if err != nil || len(all) == 0 {
		return err
	}
	for _, r := range all {
		if slices.ContainsFunc(e.requests, func(x backing.Request) bool { return x.ID == r.ID }) {
			continue
		}
		if err := e.takeRequest(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) takeRequest(ctx context.Context, r backing.Request) error {
	i := slices.IndexFunc(e.views, func(v *view) bool { return v.layout.ID == r.View })
	if i < 0 {
		return e.host.FinishRequest(ctx, e.side, r.ID, 0, "the view is not maintained: it is no longer declared, or refused")
	}
	v := e.views[i]
	switch r.Action {
	case backing.Pause:
		v.err = nil
		v.work.demand(reasonResume)
		e.setState(v, Paused)
		if err := e.failRequests(ctx, v, "the view was paused"); err != nil {
			return err
		}
		return e.host.FinishRequest(ctx, e.side, r.ID, 0, "")
	case backing.Resume:
		if v.state == Paused {
			if err := e.planAgain(ctx, v); err != nil {
				return err
			}
		}
		return e.host.FinishRequest(ctx, e.side, r.ID, 0, "")
	case backing.Verify:
		e.audit.ask(v, r.ID)
		return nil
	case backing.Refresh:
		return e.takeRefresh(ctx, v, r)
	}
	return e.host.FinishRequest(ctx, e.side, r.ID, 0, fmt.Sprintf("unknown action %q", r.Action))
}

// planAgain makes a stale or paused view move again: definitions may have changed.
func (e *Engine) planAgain(ctx context.Context, v *view) error {
	was := v.state
	if was == Paused {
		e.setState(v, Filling)
	}
	err := e.replanAll(ctx, []*view{v}, e.known, false)
	if err != nil {
		e.setState(v, was) // what it reads now may not be published: the request is taken up again
	}
	return err
}

// takeRefresh reconciles the view in the next round. The request is finished in that
// round's transaction.
func (e *Engine) takeRefresh(ctx context.Context, v *view, r backing.Request) error {
	if v.state == Stale || v.state == Paused {
		if err := e.planAgain(ctx, v); err != nil {
			return err
		}
		if v.state == Stale {
			return e.host.FinishRequest(ctx, e.side, r.ID, 0, v.err.Error())
		}
	}
	if p := v.waitsFor(); p != nil && p.shown() != Filling {
		return e.host.FinishRequest(ctx, e.side, r.ID, 0, "waits for "+p.name+", which is "+string(p.shown()))
	}
	if v.state == Failed {
		e.setState(v, Filling)
	}
	v.work.demand(reasonRefresh)
	v.next, v.retry, v.failures = time.Time{}, time.Time{}, 0
	e.requests = append(e.requests, r)
	return nil
}

// finishRequests records, in the round's transaction, the refreshes that it did.
func (r *round) finishRequests(ctx context.Context) error {
	for _, q := range r.e.requests {
		i := slices.IndexFunc(r.movers, func(v *view) bool { return v.layout.ID == q.View })
		if i < 0 || r.rebuilt[r.movers[i]] == "" {
			continue
		}
		res := r.results[r.movers[i]]
		if err := r.e.host.FinishRequest(ctx, r.tx, q.ID, res.Changed(), ""); err != nil {
			return err
		}
		r.finished = append(r.finished, q.ID)
	}
	return nil
}

// failRequests tells those who asked to refresh a view why it is not done.
func (e *Engine) failRequests(ctx context.Context, v *view, why string) error {
	var kept []backing.Request
	for _, q := range e.requests {
		if q.View != v.layout.ID {
			kept = append(kept, q)
			continue
		}
		if err := e.host.FinishRequest(ctx, e.side, q.ID, 0, why); err != nil {
			return err
		}
	}
	e.requests = kept
	return nil
}

// failStuck answers the refreshes of views that will not move.
func (e *Engine) failStuck(ctx context.Context) error {
	for _, v := range e.views {
		if !slices.ContainsFunc(e.requests, func(q backing.Request) bool { return q.View == v.layout.ID }) {
			continue
		}
		why := ""
		if p := v.waitsFor(); p != nil && p.shown() != Filling {
			why = "waits for " + p.name + ", which is " + string(p.shown())
		}
		if v.state == Stale {
			why = v.err.Error()
		}
		if why == "" {
			continue
		}
		if err := e.failRequests(ctx, v, why); err != nil {
			return err
		}
	}
	return nil
}
