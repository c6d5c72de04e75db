package maintain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mvsync/mvsync/backing"
)

// viewError is the failure of a statement that maintains one view.
type viewError struct {
	v   *view
	err error
}

func (e *viewError) Error() string { return fmt.Sprintf("maintain %s: %v", e.v.name, e.err) }
func (e *viewError) Unwrap() error { return e.err }

// fatalError is one with which the daemon cannot go on; a new start can.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// catalogChanged says that definitions changed without a trace in the stream.
type catalogChanged struct{ objects []object }

func (e *catalogChanged) Error() string {
	return fmt.Sprintf("%d definitions changed on which views depend", len(e.objects))
}

// The reasons for which a round is redone; they label mvsync_round_retries_total.
const (
	retryBarrier       = "barrier"
	retryConnection    = "connection"
	retryLock          = "lock"
	retrySchema        = "schema"
	retrySerialization = "serialization"
	retryView          = "view"
	retryOther         = "other"
)

// survive deals with the failure of a round, or of a statement between rounds. It
// returns an error only where the daemon cannot go on.
func (e *Engine) survive(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, ctx.Err())) {
		return context.Cause(ctx) // told to end while it asked something: no connection was lost
	}
	var reads *errReads
	var catalog *catalogChanged
	var failed *viewError
	var fatal *fatalError
	switch {
	case errors.As(err, &fatal):
		return err
	case errors.Is(err, backing.ErrLeader) && e.pauses[retryConnection] > 10:
		return err // another daemon took over while our connection was gone
	case errors.As(err, &reads):
		reads.v.reads = true // the next round locks its sources
		e.observe.RoundRetried(retryLock)
		return nil
	case errors.As(err, &catalog):
		e.observe.RoundRetried(retrySchema)
		return e.recompile(ctx, catalog.objects)
	case errors.Is(err, ErrBarrier):
		e.log.Info("the stream is busy; the round is put off", "err", err)
		return e.again(ctx, retryBarrier)
	case e.broken(err):
		e.log.Warn("a connection was lost; reconnecting", "err", redact(err))
		e.drop(ctx)
		return e.again(ctx, retryConnection)
	case errors.Is(err, errImport):
		e.audit.abandon(ctx, e, err)
		return nil
	case passing(err):
		return e.again(ctx, retrySerialization)
	case backing.StalePlan(err) && e.pauses[retrySchema] < 3:
		e.drop(ctx) // prepared statements that a DDL made invalid go with their session
		return e.again(ctx, retrySchema)
	case yielded(err) && !errors.As(err, &failed):
		return e.again(ctx, retryLock)
	case errors.As(err, &failed):
		e.setAside(failed)
		if err := e.failRequests(ctx, failed.v, failed.err.Error()); err != nil {
			e.log.Warn("could not answer a request", "view", failed.v.name, "err", redact(err))
		}
		return e.again(ctx, retryView)
	}
	e.log.Error("a round failed and is tried again", "err", redact(err))
	e.drop(ctx)
	return e.again(ctx, retryOther)
}

// again counts a retry and pauses, longer each time: 5 ms to 5 s, with jitter.
func (e *Engine) again(ctx context.Context, reason string) error {
	e.observe.RoundRetried(reason)
	n := e.pauses[reason]
	e.pauses[reason] = n + 1
	if reason == retryView {
		return nil // the round is redone without the view at once
	}
	d := min(5*time.Millisecond<<min(n, 12), 5*time.Second)
	d = d/2 + rand.N(d/2+1)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// setAside makes a view failed, or only sit out where it waits for somebody's row
// lock. The others go on without it (INV-7).
func (e *Engine) setAside(f *viewError) {
	v := f.v
	now := time.Now()
	if code(f.err) == pgerrcode.LockNotAvailable {
		v.sit(now, f.err) // somebody holds a row of it; its pending work stays
		return
	}
	if yielded(f.err) {
		v.sit(now, errYielded)
		return
	}
	if code(f.err) == pgerrcode.ProgramLimitExceeded && !v.layout.HashKey && len(v.plan.Key) > 0 {
		// No index holds a key of that length: the next round puts a hash in its place.
		v.hashKey, v.layout.HashKey = true, true
		v.work.demand(reasonRetry)
		e.log.Info("a key is too long for an index; its hash is indexed instead", "view", v.name)
		return
	}
	v.failures++
	v.err = f.err
	v.retry = now.Add(min(time.Second<<min(v.failures-1, 8), 5*time.Minute))
	v.work.demand(reasonRetry)
	e.setState(v, Failed)
	e.log.Error("a view failed and is set aside; the others go on", "view", v.name, "sqlstate", code(f.err),
		"attempt", v.failures, "retry_in", time.Until(v.retry).Round(time.Second))
}

// broken reports whether a session is of no use any more.
func (e *Engine) broken(err error) bool {
	if e.main == nil || e.main.IsClosed() || e.side == nil || e.side.IsClosed() {
		return true
	}
	c := code(err)
	return pgerrcode.IsConnectionException(c) || (pgerrcode.IsOperatorIntervention(c) && c != pgerrcode.QueryCanceled)
}

// passing reports whether the same round may succeed when it is opened anew.
func passing(err error) bool {
	switch code(err) {
	case pgerrcode.SerializationFailure, pgerrcode.DeadlockDetected:
		return true
	}
	return false
}

// yielded reports whether a statement was cancelled, by the watcher or by hand.
func yielded(err error) bool { return code(err) == pgerrcode.QueryCanceled }

// redact keeps row values out of logs: the texts of the server's errors may hold some.
func redact(err error) string {
	if c := code(err); c != "" {
		return "SQLSTATE " + c + " (" + pgerrcode.Name(c) + ")"
	}
	return err.Error()
}

// code returns the SQLSTATE of an error, or "".
func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
