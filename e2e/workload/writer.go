package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// settle bounds what a writer does after its context has ended: to end a prepared transaction, and to give back its
// connection.
const settle = 10 * time.Second

// retry is the time between two attempts to connect to a server that is down.
const retry = 50 * time.Millisecond

// settings bound what a writer waits for.
const settings = `SET lock_timeout = %d;
SET statement_timeout = '60s';
SELECT set_config('deadlock_timeout', '%d', false) FROM pg_roles WHERE rolname = current_user AND rolsuper`

// writer executes transactions on a connection of its own.
type writer struct {
	w         *Workload
	index     int
	generator *generator
	conn      *pgxpool.Conn
}

// run executes transactions until the workload ends.
func (wr *writer) run(ctx context.Context) error {
	defer wr.release(ctx)
	for n := 0; wr.w.opts.Transactions == 0 || n < wr.w.opts.Transactions; n++ {
		if wr.ended() {
			return nil
		}
		if err := wr.connect(ctx); err != nil || wr.conn == nil {
			return err
		}
		if err := wr.one(ctx, wr.generator.next()); err != nil {
			return err
		}
		if err := wr.wait(ctx, wr.w.opts.Pause); err != nil {
			return err
		}
	}
	return nil
}

func (wr *writer) ended() bool {
	select {
	case <-wr.w.stopped:
		return true
	default:
		return false
	}
}

// wait returns after the time, or at once when the workload is stopped.
func (wr *writer) wait(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wr.w.stopped:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// connect sees to a connection that works. It leaves none when the workload is stopped meanwhile.
func (wr *writer) connect(ctx context.Context) error {
	for wr.conn == nil && !wr.ended() {
		err := wr.session(ctx)
		if err == nil {
			return nil
		}
		wr.release(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !wr.w.opts.Reconnect {
			return fmt.Errorf("connect writer %d: %w", wr.index, err)
		}
		if err := wr.wait(ctx, retry); err != nil {
			return err
		}
	}
	return nil
}

// session takes a connection, sets it up, and rolls back what a lost one may have left prepared.
func (wr *writer) session(ctx context.Context) error {
	conn, err := wr.w.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	wr.conn = conn
	if err := wr.exec(ctx, fmt.Sprintf(settings, wr.w.opts.LockTimeout.Milliseconds(), wr.w.opts.DeadlockTimeout.Milliseconds())); err != nil {
		return err
	}
	rows, err := conn.Query(ctx, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, $1)", wr.gidPrefix())
	if err != nil {
		return err
	}
	gids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, gid := range gids {
		if err := wr.exec(ctx, "ROLLBACK PREPARED "+quote(gid)); err != nil {
			return err
		}
	}
	return nil
}

// release gives the connection back as it was taken.
func (wr *writer) release(ctx context.Context) {
	if wr.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settle)
	defer cancel()
	if wr.conn.Conn().PgConn().TxStatus() != 'I' || wr.exec(ctx, "RESET ALL") != nil {
		_ = wr.conn.Conn().Close(ctx) // the pool replaces it
	}
	wr.conn.Release()
	wr.conn = nil
}

// gidPrefix begins the names of this writer's prepared transactions. Those are unique in a server, so databases and
// runs that share a seed must differ; the backend's process adds that.
func (wr *writer) gidPrefix() string { return fmt.Sprintf("workload_%d_%d_", wr.w.opts.Seed, wr.index) }

// one executes a transaction and records it. The error returned, if any, ends the workload.
func (wr *writer) one(ctx context.Context, t Transaction) error {
	x := execution{wr: wr, tally: newCounters(), errors: map[string]int64{}}
	err := x.run(ctx, t)
	done, entry := newCounters(), Entry{Transaction: t, Err: err}
	switch {
	case err == nil && (t.End == Commit || t.End == PrepareCommit):
		done, entry.Outcome = x.committed(t), "committed"
	case err == nil:
		done.RolledBack, entry.Outcome = 1, "rolled back"
	case wr.conn.Conn().IsClosed():
		done.Broken, entry.Outcome = 1, "broken"
	default:
		done.Failed, entry.Outcome = 1, "failed"
	}
	done.Errors = x.errors
	wr.w.record(done, entry)
	return wr.recover(ctx, err)
}

// recover makes the writer fit for another transaction after an error, or returns the error if it ends the workload.
func (wr *writer) recover(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if wr.conn.Conn().IsClosed() {
		return wr.lost(ctx, err)
	}
	if !wr.expected(err) {
		return err
	}
	if wr.conn.Conn().PgConn().TxStatus() == 'I' {
		return nil
	}
	if err := wr.exec(ctx, "ROLLBACK"); err != nil {
		return wr.lost(ctx, err)
	}
	return nil
}

// lost gives up a connection that broke; that ends the workload unless writers are to connect again.
func (wr *writer) lost(ctx context.Context, err error) error {
	closed := wr.conn.Conn().IsClosed()
	wr.release(ctx)
	if closed && wr.w.opts.Reconnect {
		return nil
	}
	return err
}

// expected says whether an error is part of the workload.
func (wr *writer) expected(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	if slices.Contains(wr.w.opts.Expected, e.Code) {
		return true
	}
	switch e.Code {
	case pgerrcode.LockNotAvailable, pgerrcode.QueryCanceled, pgerrcode.RaiseException, pgerrcode.InFailedSQLTransaction:
		return true
	}
	return pgerrcode.IsIntegrityConstraintViolation(e.Code) || pgerrcode.IsTransactionRollback(e.Code) || pgerrcode.IsDataException(e.Code)
}

// exec runs statements that are not counted.
func (wr *writer) exec(ctx context.Context, sql string) error {
	_, err := wr.conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// execution is one transaction while it runs.
type execution struct {
	wr *writer
	// tally counts what has been done and not undone; errors what went wrong, undone or not.
	tally  Counters
	errors map[string]int64
}

func (x *execution) run(ctx context.Context, t Transaction) error {
	if err := x.wr.exec(ctx, t.begin()); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := x.steps(ctx, t.Steps, 1); err != nil {
		return err
	}
	err := x.end(ctx, t)
	x.count(err)
	return err
}

// end ends the transaction as it was meant to.
func (x *execution) end(ctx context.Context, t Transaction) error {
	switch t.End {
	case Commit:
		return x.wr.exec(ctx, "COMMIT")
	case Rollback:
		return x.wr.exec(ctx, "ROLLBACK")
	case PrepareCommit, PrepareRollback:
		gid := quote(fmt.Sprintf("%s%d_%d", x.wr.gidPrefix(), t.Number, x.wr.conn.Conn().PgConn().PID()))
		if err := x.wr.exec(ctx, "PREPARE TRANSACTION "+gid); err != nil {
			return err
		}
		// Whatever ends the workload: a prepared transaction would hold its locks for ever.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settle)
		defer cancel()
		if t.End == PrepareRollback {
			return x.wr.exec(ctx, "ROLLBACK PREPARED "+gid)
		}
		return x.wr.exec(ctx, "COMMIT PREPARED "+gid)
	default:
		panic("workload: no such end of a transaction")
	}
}

func (x *execution) steps(ctx context.Context, steps []Step, depth int) error {
	for _, s := range steps {
		var err error
		switch {
		case s.SQL == "":
			err = x.within(ctx, depth, s.Undone, func() error { return x.steps(ctx, s.Block, depth+1) })
		case s.Guarded:
			err = x.within(ctx, depth, false, func() error { return x.statement(ctx, s) })
		default:
			err = x.statement(ctx, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// within runs something in a savepoint, which is rolled back if it fails with an expected error or is to be undone.
func (x *execution) within(ctx context.Context, depth int, undo bool, do func() error) error {
	savepoint := fmt.Sprintf("SAVEPOINT s%d", depth)
	if err := x.wr.exec(ctx, savepoint); err != nil {
		return fmt.Errorf("%s: %w", savepoint, err)
	}
	before := x.tally.clone()
	err := do()
	if err != nil && !x.wr.expected(err) {
		return err
	}
	if err == nil && !undo {
		return x.wr.exec(ctx, "RELEASE "+savepoint)
	}
	x.tally = before
	x.tally.Undone++
	return x.wr.exec(ctx, "ROLLBACK TO "+savepoint)
}

// statement executes one step, which may be several statements, of which the last one's rows count.
func (x *execution) statement(ctx context.Context, s Step) error {
	tag, err := x.wr.conn.Exec(ctx, s.SQL, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		x.count(err)
		return fmt.Errorf("%s of %s: %w: %s", s.Kind, s.Table, err, s.SQL)
	}
	rows := tag.RowsAffected()
	x.tally.Statements++
	x.tally.Rows += rows
	// TRUNCATE reports no rows.
	if rows > 0 || s.Kind == Truncate {
		x.tally.Kinds[s.Kind]++
		x.tally.Tables[s.Table] += rows
	}
	return nil
}

func (x *execution) count(err error) {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		x.errors[e.Code]++
	}
}

// committed returns what the transaction did, now that it is committed.
func (x *execution) committed(t Transaction) Counters {
	done := x.tally.clone()
	done.Committed = 1
	if t.End == PrepareCommit {
		done.Prepared = 1
	}
	maps.DeleteFunc(done.Tables, func(_ string, rows int64) bool { return rows == 0 })
	if len(done.Tables) > 1 {
		done.MultiTable = 1
	}
	return done
}
