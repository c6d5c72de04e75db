package maintain

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Writers come first. A round that takes long, such as a fill, holds ACCESS SHARE locks
// that keep a TRUNCATE or an ALTER TABLE waiting, and behind that one every writer of
// the table queues. So a watcher looks whether somebody waits for us, and cancels our
// statement: the view sits out for a moment and begins anew.
const (
	yieldAfter = 250 * time.Millisecond // shorter rounds need no watcher
	yieldEvery = 100 * time.Millisecond
)

// errYielded is why a view sits out after the watcher has cancelled its statement.
var errYielded = errors.New("it gave way to a session that waits for one of its sources")

// blockedSQL asks whether a session waits for a table's lock that backend $1 holds.
const blockedSQL = `SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l
	WHERE NOT l.granted AND l.locktype = 'relation' AND $1::int = ANY (pg_catalog.pg_blocking_pids(l.pid)))`

// giveWay watches over a backend of ours until stop is called, which waits for the
// watcher's end. Losing the watcher's own session only loses the courtesy.
func (e *Engine) giveWay(ctx context.Context, pid uint32) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := e.watchOver(ctx, pid); err != nil && ctx.Err() == nil {
			e.log.Debug("cannot see who waits for a long round", "err", redact(err))
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (e *Engine) watchOver(ctx context.Context, pid uint32) (err error) {
	tick := time.NewTimer(yieldAfter)
	defer tick.Stop()
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			err = errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if conn == nil {
			if conn, err = e.o.Connect(ctx, "watch"); err != nil {
				return err
			}
		}
		var blocked bool
		if err := conn.QueryRow(ctx, blockedSQL, pid).Scan(&blocked); err != nil {
			return err
		}
		if blocked {
			e.log.Info("a long statement gives way to a session that waits for a table's lock")
			_, err := conn.Exec(ctx, "SELECT pg_catalog.pg_cancel_backend($1)", pid)
			return err
		}
		tick.Reset(yieldEvery)
	}
}
