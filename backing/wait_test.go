package backing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/mvsync/mvsync/ingest"
)

// reach writes a progress row that includes all that commits within the next transactions: the transaction that records
// a snapshot is never in it, so that after a real round a wait needs another one.
func (f *fixture) reach() {
	f.t.Helper()
	require.NoError(f.t, f.host.WriteProgress(f.t.Context(), f.db.Pool, Progress{LSN: 1, Snapshot: ingest.Snapshot{Xmin: 1 << 31, Xmax: 1 << 31}}))
}

// record writes a progress row with the database's present snapshot, as a round does.
func (f *fixture) record(ctx context.Context, q Querier) error {
	var text string
	if err := q.QueryRow(ctx, "SELECT pg_current_snapshot()::text").Scan(&text); err != nil {
		return err
	}
	s, err := ingest.ParseSnapshot(text)
	if err != nil {
		return err
	}
	return f.host.WriteProgress(ctx, q, Progress{Snapshot: s, LSN: 1})
}

// TestCovers compares the SQL rule with the one in Go over random snapshots.
func TestCovers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	draw := func() ingest.Snapshot {
		s := ingest.Snapshot{Xmin: 3 + rand.Uint64N(5)}
		s.Xmax = s.Xmin
		for range rand.IntN(5) {
			if rand.IntN(2) == 0 {
				s.Xip = append(s.Xip, s.Xmax)
			}
			s.Xmax++
		}
		if len(s.Xip) > 0 {
			s.Xmin = s.Xip[0]
		} else {
			s.Xmin = s.Xmax
		}
		return s
	}
	conn := f.session.Conn()
	both := map[bool]int{}
	for range 2000 {
		s, p := draw(), draw()
		var got bool
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT mvsync.covers($1::text::pg_snapshot, $2::text::pg_snapshot)", s.String(), p.String()).Scan(&got))
		require.Equal(t, s.Covers(p), got, "%s covers %s", s, p)
		both[got]++
	}
	require.Greater(t, both[true], 100)
	require.Greater(t, both[false], 100)
}

// TestWaitErrors calls wait where it cannot work.
func TestWaitErrors(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	ctx := t.Context()
	for _, state := range []State{Live, Filling, Paused, Stale, Failed, Refused} {
		v := View{Name: Name{"public", "v_" + string(state)}, State: state}
		require.NoError(t, f.host.AddView(ctx, f.db.Pool, &v))
	}
	f.db.Exec(t, "CREATE TABLE src (k integer)")
	for _, tc := range []struct{ name, begin, sql, code, message string }{
		{"repeatable read", "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT mvsync.wait()", pgerrcode.InvalidTransactionState, "cannot work in a repeatable read transaction"},
		{"serializable", "BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT mvsync.wait()", pgerrcode.InvalidTransactionState, "cannot work in a serializable transaction"},
		{"own writes", "BEGIN; INSERT INTO src VALUES (1)", "SELECT mvsync.wait()", pgerrcode.InvalidTransactionState, "after uncommitted writes"},
		{"own writes in a rolled back savepoint", "BEGIN; SAVEPOINT a; INSERT INTO src VALUES (1); ROLLBACK TO a", "SELECT mvsync.wait()", pgerrcode.InvalidTransactionState, "after uncommitted writes"},
		{"unknown", "BEGIN", "SELECT mvsync.wait(views => '{v_live,nothing}')", pgerrcode.UndefinedObject, "no view named nothing"},
		{"paused", "BEGIN", "SELECT mvsync.wait(views => '{v_live,public.v_paused}')", pgerrcode.ObjectNotInPrerequisiteState, "public.v_paused is paused"},
		{"stale", "BEGIN", "SELECT mvsync.wait(views => '{v_stale}')", pgerrcode.ObjectNotInPrerequisiteState, "public.v_stale is stale"},
		{"failed", "BEGIN", "SELECT mvsync.wait(views => '{v_failed}')", pgerrcode.ObjectNotInPrerequisiteState, "public.v_failed is failed"},
		{"refused", "BEGIN", "SELECT mvsync.wait(views => '{v_refused}')", pgerrcode.ObjectNotInPrerequisiteState, "public.v_refused is refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := f.db.Conn(t)
			_, err := conn.Exec(ctx, tc.begin, pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
			message, hint := requireCode(t, tc.code, exec(ctx, conn, tc.sql))
			require.Contains(t, message, tc.message)
			require.NotEmpty(t, hint)
		})
	}
	require.Equal(t, "f", f.db.Value(t, "SELECT mvsync.wait('10ms')"), "no progress row yet")
	f.reach()
	require.Equal(t, "t", f.db.Value(t, "SELECT mvsync.wait('0ms')"), "views that do not move are not waited for")
	require.Equal(t, "t", f.db.Value(t, "SELECT mvsync.wait('0ms', '{v_live}')"))
	require.Equal(t, "f", f.db.Value(t, "SELECT mvsync.wait('10ms', '{v_filling}')"), "a named one that fills is")
	require.Equal(t, "t", f.db.Value(t, "SELECT mvsync.wait('0ms', '{}')"))
	require.Equal(t, "t", f.db.Value(t, "SELECT mvsync.wait(NULL)"))
}

// TestWaitOwnAsOf waits for a view that does not follow the progress row.
func TestWaitOwnAsOf(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	ctx := t.Context()
	slow, fast := f.create(keyed("slow")), f.create(keyed("fast"))
	f.db.Exec(t, "CREATE TABLE src (k integer); INSERT INTO src VALUES (1)")
	old := &AsOf{Snapshot: ingest.Snapshot{Xmin: 5, Xmax: 5}, LSN: 1, Time: time.Now()}
	require.NoError(t, f.host.SetAsOf(ctx, f.db.Pool, slow.ID, old, 1))
	f.reach()
	require.Equal(t, "f", f.db.Value(t, "SELECT mvsync.wait('5ms')"))
	require.Equal(t, "f", f.db.Value(t, "SELECT mvsync.wait('5ms', '{slow,fast}')"))
	require.Equal(t, "t", f.db.Value(t, "SELECT mvsync.wait('0ms', '{fast}')"))
	require.NoError(t, f.host.SetAsOf(ctx, f.db.Pool, slow.ID, nil, 0))
	f.reach()
	require.Equal(t, "t", f.db.Value(t, "SELECT mvsync.wait('0ms')"))
	require.NoError(t, f.host.ForgetView(ctx, f.db.Pool, fast.ID))
}

// TestWaitAnnounces lets the daemon see who waits, until the wait ends: met, timed out, cancelled, or failed, though the
// transaction around it goes on.
func TestWaitAnnounces(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	ctx := t.Context()
	l := f.create(keyed("v"))
	waiters := func() int {
		n, err := f.host.Waiters(ctx, f.db.Pool)
		require.NoError(t, err)
		return n
	}
	appear := func() {
		require.Eventually(t, func() bool { return waiters() == 1 }, 10*time.Second, time.Millisecond)
	}
	conn := f.connect()
	require.NoError(t, exec(ctx, conn, "BEGIN"))
	type answer struct {
		met bool
		err error
	}
	start := func(sql string) chan answer {
		out := make(chan answer, 1)
		go func() {
			var a answer
			a.err = conn.QueryRow(ctx, sql).Scan(&a.met)
			out <- a
		}()
		return out
	}

	out := start("SELECT mvsync.wait('1 minute')")
	appear()
	f.reach()
	require.Equal(t, answer{met: true}, <-out)
	require.Zero(t, waiters())

	f.db.Exec(t, "DELETE FROM mvsync.progress")
	out = start("SELECT mvsync.wait('100ms')")
	appear()
	require.Equal(t, answer{}, <-out)
	require.Zero(t, waiters())

	require.NoError(t, exec(ctx, conn, "SAVEPOINT a"))
	out = start("SELECT mvsync.wait('1 minute')")
	appear()
	f.db.Exec(t, "SELECT pg_cancel_backend($1)", conn.PgConn().PID())
	requireCode(t, pgerrcode.QueryCanceled, (<-out).err)
	require.NoError(t, exec(ctx, conn, "ROLLBACK TO a"))
	require.Zero(t, waiters())

	out = start("SELECT mvsync.wait('1 minute', '{v}')")
	appear()
	require.NoError(t, f.host.SetState(ctx, f.db.Pool, l.ID, Failed, "x"))
	requireCode(t, pgerrcode.ObjectNotInPrerequisiteState, (<-out).err)
	require.NoError(t, exec(ctx, conn, "ROLLBACK TO a"))
	require.Zero(t, waiters())
	require.NoError(t, exec(ctx, conn, "COMMIT"))
}

// TestWaitIsNeverEarly lets writers commit and wait beside a hand-made daemon: once wait says true, a snapshot recorded
// by the daemon contains the writer's transaction.
func TestWaitIsNeverEarly(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.create(keyed("v"))
	f.db.Exec(t, "CREATE TABLE src (k bigint)")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var daemon, writers errgroup.Group
	conn := f.connect()
	daemon.Go(func() error {
		for ctx.Err() == nil {
			if err := f.record(context.WithoutCancel(ctx), conn); err != nil {
				return err
			}
		}
		return nil
	})
	for range 4 {
		conn := f.connect()
		writers.Go(func() error {
			for range 50 {
				if err := writeAndWait(t.Context(), conn); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, writers.Wait())
	stop()
	require.NoError(t, daemon.Wait())
}

// writeAndWait commits, waits, and looks for its own transaction in the recorded snapshot.
func writeAndWait(ctx context.Context, conn *pgx.Conn) error {
	var xid string
	if err := conn.QueryRow(ctx, "INSERT INTO src VALUES (1) RETURNING pg_current_xact_id()::text").Scan(&xid); err != nil {
		return err
	}
	var met, seen bool
	if err := conn.QueryRow(ctx, "SELECT mvsync.wait('1 minute')").Scan(&met); err != nil {
		return err
	}
	err := conn.QueryRow(ctx, "SELECT pg_visible_in_snapshot($1::text::xid8, snapshot) FROM mvsync.progress", xid).Scan(&seen)
	if err == nil && (!met || !seen) {
		err = fmt.Errorf("met %v, but transaction %s seen: %v", met, xid, seen)
	}
	return err
}
