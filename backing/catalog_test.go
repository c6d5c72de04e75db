package backing

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgerrcode"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
)

func newHost(opts Options) *Host { return New(slog.New(slog.DiscardHandler), opts) }

// TestMigrateConcurrently makes one catalog from several sessions at once, and again.
func TestMigrateConcurrently(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	h := newHost(Options{})
	require.ErrorContains(t, h.Ready(t.Context(), db.Pool), "schema mvsync has no catalog of mvsync; start the daemon")
	var g errgroup.Group
	for range 8 {
		conn := db.Conn(t)
		g.Go(func() error { return h.Migrate(t.Context(), conn) })
	}
	require.NoError(t, g.Wait())
	require.NoError(t, h.Migrate(t.Context(), db.Pool))
	require.NoError(t, h.Ready(t.Context(), db.Pool))
	require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM mvsync.schema_version"))
}

// TestMigrateRefuses refuses a newer catalog, and a schema that is somebody else's.
func TestMigrateRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	h := newHost(Options{})
	require.NoError(t, h.Migrate(t.Context(), db.Pool))
	db.Exec(t, "UPDATE mvsync.schema_version SET version = 1000")
	require.ErrorIs(t, h.Migrate(t.Context(), db.Pool), ErrNewer)
	require.ErrorIs(t, h.Ready(t.Context(), db.Pool), ErrNewer)

	db.Exec(t, "CREATE SCHEMA mine; CREATE FUNCTION mine.f() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
	err := newHost(Options{Catalog: "mine"}).Migrate(t.Context(), db.Pool)
	require.ErrorIs(t, err, ErrNotOurs)
	require.ErrorContains(t, err, "schema mine holds other objects; choose another name (backing.catalog)")
	db.Exec(t, "CREATE SCHEMA empty")
	require.NoError(t, newHost(Options{Catalog: "empty"}).Migrate(t.Context(), db.Pool))
	require.Error(t, newHost(Options{Catalog: string(make([]byte, 64))}).Migrate(t.Context(), db.Pool))
}

// TestRemove takes the catalog away, once no table is guarded by it.
func TestRemove(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := keyed("v")
	l.Hidden = []Column{{Name: "n", Type: "bigint"}}
	f.create(l)
	require.ErrorContains(t, f.host.Remove(t.Context(), f.db.Pool), "v still guarded by it; detach or drop them first")
	require.NoError(t, f.host.Detach(t.Context(), f.db.Pool, l))
	require.NoError(t, f.host.Remove(t.Context(), f.db.Pool))
	require.NoError(t, f.host.Remove(t.Context(), f.db.Pool))
	f.db.Exec(t, "INSERT INTO v VALUES (1, 'x')")
}

// TestProgress writes and reads the row of a slot; its updates stay on one page.
func TestProgress(t *testing.T) {
	// Not in parallel: a transaction of another test holds back the pruning of pages.
	f := newFixture(t, Options{})
	_, found, err := f.host.ReadProgress(t.Context(), f.db.Pool)
	require.NoError(t, err)
	require.False(t, found)
	p := Progress{Snapshot: ingest.Snapshot{Xmin: 5, Xmax: 1<<40 + 9, Xip: []uint64{7, 1<<39 + 5}}, LSN: 0x1_0000_0002, SystemIdentifier: "7123", Timeline: 3}
	for range 500 {
		require.NoError(t, f.host.WriteProgress(t.Context(), f.db.Pool, p))
		p.LSN++
	}
	p.LSN--
	got, found, err := f.host.ReadProgress(t.Context(), f.db.Pool)
	require.NoError(t, err)
	require.True(t, found)
	require.WithinDuration(t, time.Now(), got.At, time.Minute)
	got.At = time.Time{}
	require.Empty(t, cmp.Diff(p, got))
	require.Equal(t, "1", f.db.Value(t, "SELECT count(*) FROM mvsync.progress"))
	require.Equal(t, "1", f.db.Value(t, "SELECT pg_relation_size('mvsync.progress') / 8192"), "HOT updates")

	other := newHost(Options{Slot: "other"})
	_, found, err = other.ReadProgress(t.Context(), f.db.Pool)
	require.NoError(t, err)
	require.False(t, found)
	require.NoError(t, f.host.ForgetProgress(t.Context(), f.db.Pool))
	require.Equal(t, "0", f.db.Value(t, "SELECT count(*) FROM mvsync.progress"))
}

// TestViews writes views and reads them back, in Go and as the contract shows them.
func TestViews(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	ctx, q := t.Context(), f.db.Pool
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	v := View{
		Name: Name{"public", "Select"}, State: Failed, Error: "why", Strategy: "full-rebuild", Key: []string{"a", "B"}, Query: "q", Body: "b", Hash: "h", Fingerprint: "f",
		AsOf: &AsOf{Snapshot: ingest.Snapshot{Xmin: 3, Xmax: 9, Xip: []uint64{3}}, LSN: 16, Time: at}, Confirm: 8,
	}
	require.NoError(t, f.host.AddView(ctx, q, &v))
	read := func() View {
		views, err := f.host.Views(ctx, q)
		require.NoError(t, err)
		require.Len(t, views, 1)
		if views[0].AsOf != nil {
			views[0].AsOf.Time = views[0].AsOf.Time.UTC()
		}
		return views[0]
	}
	v.Label, v.Slot = `public."Select"`, "mvsync"
	require.Empty(t, cmp.Diff(v, read()))
	require.Equal(t, []string{`public."Select"|failed|3:9:3|0/10|why`}, f.rows("SELECT name, state, as_of, as_of_lsn, error FROM mvsync.views"))

	require.NoError(t, f.host.SetState(ctx, q, v.ID, Live, ""))
	require.NoError(t, f.host.SetAsOf(ctx, q, v.ID, nil, 0))
	v.State, v.Error, v.AsOf, v.Confirm = Live, "", nil, 0
	require.Empty(t, cmp.Diff(v, read()))
	require.Equal(t, []string{`live|NULL|NULL`}, f.rows("SELECT state, as_of, error FROM mvsync.views"))
	require.NoError(t, f.host.WriteProgress(ctx, q, Progress{Snapshot: ingest.Snapshot{Xmin: 4, Xmax: 10}, LSN: 32}))
	require.Equal(t, []string{`4:10:|0/20`}, f.rows("SELECT as_of, as_of_lsn FROM mvsync.views"), "it follows the progress row")

	require.ErrorIs(t, f.host.SetState(ctx, q, 77, Live, ""), ErrNoView)
	require.Error(t, f.host.AddView(ctx, q, &View{Name: v.Name, State: Live}), "a second view of the name")
	require.NoError(t, f.host.ForgetView(ctx, q, v.ID))
	require.Empty(t, f.rows("SELECT * FROM mvsync.views"))
}

// TestCollisions counts all and keeps the newest.
func TestCollisions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := f.create(keyed("v"))
	made := slices.Repeat([]Collision{{Key: `{"k": "Bob"}`, Weakened: []string{"k"}, Old: `{"k": 1}`, At: time.Now()}}, 50)
	require.NoError(t, f.host.AddCollisions(t.Context(), f.db.Pool, l.ID, 70, made))
	require.Equal(t, "70", f.db.Value(t, "SELECT collisions FROM mvsync.views"))
	require.Equal(t, "50", f.db.Value(t, `SELECT count(*) FROM mvsync.collisions WHERE view = 'public.v' AND key = '{"k": "Bob"}' AND new_row IS NULL`))
	f.db.Exec(t, `INSERT INTO mvsync.collision (view_id, key, weakened_columns, at) SELECT view_id, '1', '{}', now() FROM mvsync.collision, generate_series(1, 400)`)
	require.NoError(t, f.host.AddCollisions(t.Context(), f.db.Pool, l.ID, 1, made[:1]))
	require.Equal(t, "10000|1", f.rows(`SELECT count(*), count(*) FILTER (WHERE key = '{"k": "Bob"}') FROM mvsync.collisions`)[0])
}

// TestRequests queues requests by SQL and takes them up once their transaction has committed.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	ctx := t.Context()
	l := f.create(keyed("v"))
	f.create(&Layout{Name: Name{"public", "Quoted"}})
	daemon := f.session.Conn()
	require.NoError(t, exec(ctx, daemon, "LISTEN "+f.host.Channel()))
	user := f.connect()
	tx, err := user.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, exec(ctx, tx, `SELECT mvsync.refresh('V'), mvsync.pause('public."Quoted"'), mvsync.resume('PUBLIC.v')`))
	got, err := f.host.Requests(ctx, daemon)
	require.NoError(t, err)
	require.Empty(t, got)
	require.NoError(t, tx.Commit(ctx))
	_, err = daemon.WaitForNotification(ctx)
	require.NoError(t, err)
	got, err = f.host.Requests(ctx, daemon)
	require.NoError(t, err)
	var actions []Action
	for _, r := range got {
		actions = append(actions, r.Action)
	}
	require.Equal(t, []Action{Refresh, Pause, Resume}, actions)
	require.Equal(t, l.ID, got[0].View)

	require.NoError(t, f.host.FinishRequest(ctx, daemon, got[0].ID, 5, ""))
	require.NoError(t, f.host.FinishRequest(ctx, daemon, got[1].ID, 0, "why"))
	left, err := f.host.Requests(ctx, daemon)
	require.NoError(t, err)
	require.Len(t, left, 1)
	done, err := f.host.Request(ctx, daemon, got[0].ID)
	require.NoError(t, err)
	require.True(t, done.Done)
	require.EqualValues(t, 5, done.Rows)
	failed, err := f.host.Request(ctx, daemon, got[1].ID)
	require.NoError(t, err)
	require.Equal(t, "why", failed.Error)

	for _, bad := range []string{"nothing", "a.b.c", "mvsync.v", "quoted"} {
		_, err = f.host.Ask(ctx, user, bad, Refresh)
		requireCode(t, pgerrcode.UndefinedObject, err)
	}
	id, err := f.host.Ask(ctx, user, `"Quoted"`, Refresh)
	require.NoError(t, err)
	verify, err := f.host.Ask(ctx, user, "v", Verify)
	require.NoError(t, err)
	require.NoError(t, f.host.FinishVerify(ctx, daemon, verify, 3, "a row"))
	found, err := f.host.Request(ctx, daemon, verify)
	require.NoError(t, err)
	require.Equal(t, Request{ID: verify, View: l.ID, Action: Verify, At: found.At, Done: true, Rows: 3, Detail: "a row"}, found)
	f.db.Exec(t, "UPDATE mvsync.request SET done_at = now() - interval '2 days' WHERE id <> $1", id)
	require.NoError(t, f.host.FinishRequest(ctx, daemon, id, 0, ""))
	_, err = f.host.Request(ctx, daemon, got[0].ID)
	require.ErrorIs(t, err, ErrNoView)
}

// TestLeader lets one session lead a catalog, and names it to others.
func TestLeader(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	h, other := newHost(Options{}), newHost(Options{Catalog: "other"})
	ctx := t.Context()
	a, b := db.Conn(t), db.Conn(t)
	require.NoError(t, h.Lead(ctx, a))
	err := h.Lead(ctx, b)
	require.ErrorIs(t, err, ErrLeader)
	pid, lookErr := h.Leader(ctx, b)
	require.NoError(t, lookErr)
	require.EqualValues(t, a.PgConn().PID(), pid)
	require.ErrorContains(t, err, fmt.Sprintf("(backend %d)", pid))
	require.NoError(t, other.Lead(ctx, b), "another catalog")
	require.NoError(t, h.Resign(ctx, a))
	require.NoError(t, h.Lead(ctx, b))
	require.NoError(t, b.Close(context.WithoutCancel(ctx)))
	require.Eventually(t, func() bool { return h.Lead(ctx, a) == nil }, 10*time.Second, 5*time.Millisecond, "it ends with the session")
}
