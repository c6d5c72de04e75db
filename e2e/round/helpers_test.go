package round

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/internal/pgserver"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// limit is how long something may take on a slow machine.
const limit = 60 * time.Second

// items is the source of most tests.
const items = `CREATE TABLE item (pk int PRIMARY KEY, p int NOT NULL, q int NOT NULL, bucket int NOT NULL);
ALTER TABLE item REPLICA IDENTITY FULL;
INSERT INTO item SELECT g, g % 7, g % 5, g % 3 FROM generate_series(1, 20) g;`

// One view of each family: filtered copies, grouped adds and subtracts, so that it
// shows what was counted twice, top is evaluated anew.
var (
	filtered = daemon.View("filtered", `SELECT pk, p, q FROM item WHERE bucket > 0`)
	grouped  = daemon.View("grouped", `SELECT bucket, count(*) AS n, sum(p) AS s FROM item GROUP BY bucket`)
	top      = daemon.View("top", `SELECT pk, p FROM item ORDER BY p DESC, pk LIMIT 3`)
)

// own makes a database on a server of the test's own: for tests that hold
// transactions open, which the slots of other tests would wait for, or change the
// server's settings.
func own(t *testing.T, settings map[string]string) *pgtest.DB {
	t.Helper()
	return pgtest.NewOn(t, pgtest.NewServer(t, pgserver.Options{Settings: settings}))
}

// keep starts a daemon with the views and waits until all are live.
func keep(t *testing.T, db *pgtest.DB, views ...plans.Declaration) *daemon.Daemon {
	t.Helper()
	return keepWith(t, db, daemon.Options{Views: views})
}

func keepWith(t *testing.T, db *pgtest.DB, o daemon.Options) *daemon.Daemon {
	t.Helper()
	o.Level = cmp.Or(o.Level, slog.LevelInfo)
	d := daemon.Start(t, db, o)
	for _, v := range o.Views {
		becomes(t, d, v.Name.Name, maintain.Live)
	}
	return d
}

// becomes waits until a view is in a state.
func becomes(t *testing.T, d *daemon.Daemon, view string, want maintain.State) maintain.ViewStatus {
	t.Helper()
	var v maintain.ViewStatus
	pgtest.Eventually(t, limit, func() error {
		if v = d.View(view); v.State != want {
			return fmt.Errorf("%s is %s, want %s: %w", view, v.State, want, v.Err)
		}
		return nil
	})
	return v
}

// soon waits for what the daemon says of a round a moment after it has committed.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	pgtest.Eventually(t, limit, func() error {
		if !is() {
			return errors.New("not yet: " + what)
		}
		return nil
	})
}

// mismatch waits until the oracle has found a round wrong, and ends the daemon.
func mismatch(t *testing.T, d *daemon.Daemon) {
	t.Helper()
	defer d.Quit()
	pgtest.Eventually(t, limit, func() error {
		if len(d.Mismatches()) == 0 {
			return fmt.Errorf("the harness has found nothing wrong in %d rounds", d.Rounds())
		}
		return nil
	})
}

// session opens a session with a setting.
func session(t *testing.T, db *pgtest.DB, set string) *pgx.Conn {
	t.Helper()
	conn := db.Conn(t)
	exec(t, conn, set)
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err, sql)
}

// holdCommits makes synchronous commits wait for a standby that does not exist: their
// records are in the log, they are not visible, and stay so until [letGo].
func holdCommits(t *testing.T, db *pgtest.DB) {
	t.Helper()
	reload(t, db, "ALTER SYSTEM SET synchronous_standby_names = 'gone'")
	probe := db.Conn(t)
	pid := probe.PgConn().PID()
	pgtest.Eventually(t, limit, func() error {
		done := make(chan error, 1)
		ctx := context.WithoutCancel(t.Context())
		go func() {
			_, err := probe.Exec(ctx, "SELECT pg_logical_emit_message(true, 'probe', '')")
			done <- err
		}()
		for {
			select {
			case err := <-done:
				return cmp.Or(err, errors.New("commits do not wait yet"))
			default:
			}
			if waiting(t, db, pid) {
				db.Exec(t, "SELECT pg_cancel_backend($1)", pid) // it is committed all the same
				return <-done
			}
		}
	})
}

// waiting reports whether a session's commit waits for a standby.
func waiting(t *testing.T, db *pgtest.DB, pid uint32) bool {
	t.Helper()
	return db.Value(t, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep')", pid) == "t"
}

// letGo makes held commits visible, also at the end of a test.
func letGo(t *testing.T, db *pgtest.DB) {
	t.Helper()
	reload(t, db, "ALTER SYSTEM RESET synchronous_standby_names")
}

func reload(t *testing.T, db *pgtest.DB, alter string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, sql := range []string{alter, "SELECT pg_reload_conf()"} {
		_, err := db.Pool.Exec(ctx, sql)
		require.NoError(t, err, sql)
	}
}

// held is a transaction that has committed and is not visible.
type held struct {
	done chan error
	xid  uint32
}

// hold commits sql, which then waits. [holdCommits] must have been called.
func hold(t *testing.T, db *pgtest.DB, sql string) *held {
	t.Helper()
	conn := session(t, db, "SET synchronous_commit = on; BEGIN")
	exec(t, conn, sql)
	h := &held{done: make(chan error, 1)}
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_current_xact_id()::xid").Scan(&h.xid))
	ctx := context.WithoutCancel(t.Context())
	go func() {
		_, err := conn.Exec(ctx, "COMMIT")
		h.done <- err
	}()
	pid := conn.PgConn().PID()
	pgtest.Eventually(t, limit, func() error {
		if !waiting(t, db, pid) {
			return errors.New("the commit does not wait yet")
		}
		return nil
	})
	return h
}

// await returns once the held transaction is visible.
func (h *held) await(t *testing.T) {
	t.Helper()
	select {
	case err := <-h.done:
		require.NoError(t, err)
	case <-time.After(limit):
		t.Fatal("the commit still waits")
	}
}

// pending waits until the daemon holds so many transactions that are not visible yet.
func pending(t *testing.T, d *daemon.Daemon, n int) {
	t.Helper()
	pgtest.Eventually(t, limit, func() error {
		if got := d.Engine.Status().PendingTransactions; got != n {
			return fmt.Errorf("%d transactions are pending, want %d", got, n)
		}
		return nil
	})
}
