package maintain

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// published is a publisher that records what it is asked for.
type published struct {
	tables []uint32
	added  bool
}

func (p *published) Ensure(_ context.Context, tables []uint32) (bool, error) {
	p.tables = tables
	return p.added, nil
}

// sideEngine has compiled views and a side session, and leads nothing.
func sideEngine(t *testing.T, db *pgtest.DB, p Publisher, views ...plans.Declaration) *Engine {
	t.Helper()
	config, err := pgx.ParseConfig(db.URL)
	require.NoError(t, err)
	config.RuntimeParams["search_path"] = ""
	e := New(Options{
		Views: views, Publication: "pub", Memory: 1 << 20, Publish: p,
		Planner: plans.Options{SearchPath: []string{"public"}},
		Connect: func(ctx context.Context, _ string) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, config.Copy()) },
	})
	t.Cleanup(func() { e.Close(context.WithoutCancel(t.Context())) })
	n, err := e.Prepare(t.Context())
	require.NoError(t, err)
	require.Equal(t, len(views), n, "%v", e.Refused())
	require.NoError(t, e.rewatch(t.Context()))
	for _, v := range e.views {
		v.state = Live
	}
	return e
}

func declare(name, query string) plans.Declaration {
	return plans.Declaration{Name: plans.Name{Schema: "public", Name: name}, Query: query}
}

const twoTables = `CREATE TABLE one (id int PRIMARY KEY, v int); CREATE TABLE two (id int PRIMARY KEY, v int);
	ALTER TABLE one REPLICA IDENTITY FULL; ALTER TABLE two REPLICA IDENTITY FULL; CREATE PUBLICATION pub FOR TABLE one, two`

// TestRecompileLosesNothing changes one table after a difference in another was found
// and before the views are planned again: it must not be taken as known.
func TestRecompileLosesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, twoTables)
	p := &published{}
	e := sideEngine(t, db, p, declare("va", "SELECT id, v FROM one"), declare("vb", "SELECT id, v FROM two"))
	require.NoError(t, e.compare(t.Context(), time.Now()))

	db.Exec(t, "ALTER TABLE one ADD COLUMN w int")
	err := e.compare(t.Context(), time.Now())
	var changed *catalogChanged
	require.ErrorAs(t, err, &changed)
	db.Exec(t, "ALTER TABLE two ADD COLUMN w int")
	require.NoError(t, e.tryRecompile(t.Context(), changed.objects))
	for _, v := range e.views {
		require.Equal(t, reasonSchema, v.work.reconcile, v.name)
		require.Equal(t, Live, v.state)
		require.Zero(t, v.fence)
	}
	require.NoError(t, e.compare(t.Context(), time.Now()), "all of it is known now")
	require.Len(t, p.tables, 2)

	// What is altered in the publication is reconciled behind a fence, paused views too.
	e.setState(e.views[1], Paused)
	db.Exec(t, "ALTER PUBLICATION pub SET (publish = 'insert')")
	require.ErrorAs(t, e.compare(t.Context(), time.Now()), &changed)
	require.NoError(t, e.tryRecompile(t.Context(), changed.objects))
	for _, v := range e.views {
		require.NotZero(t, v.fence, v.name)
	}
}

// TestRecompileStale: a view whose body broke stands still and says why; once that is
// mended it is planned again and reconciled.
func TestRecompileStale(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, twoTables)
	e := sideEngine(t, db, &published{}, declare("va", "SELECT id, v FROM one"), declare("vb", "SELECT id, v FROM two"),
		declare("vc", "SELECT id, v FROM va"))
	recompile := func() {
		t.Helper()
		var changed *catalogChanged
		require.ErrorAs(t, e.compare(t.Context(), time.Now()), &changed)
		require.NoError(t, e.tryRecompile(t.Context(), changed.objects))
		require.NoError(t, e.compare(t.Context(), time.Now()))
	}
	shown := func() map[string]State {
		out := map[string]State{}
		for _, v := range e.views {
			out[v.decl.Name.Name] = v.shown()
		}
		return out
	}
	for _, tc := range []struct{ name, broken, mended string }{
		{"a column dropped", "ALTER TABLE one DROP COLUMN v", "ALTER TABLE one ADD COLUMN v int"},
		{"a type changed", "ALTER TABLE one ALTER v TYPE text", "ALTER TABLE one ALTER v TYPE int USING v::int"},
		{"unlogged", "ALTER PUBLICATION pub DROP TABLE one; ALTER TABLE one SET UNLOGGED", "ALTER TABLE one SET LOGGED; ALTER PUBLICATION pub ADD TABLE one"},
	} {
		db.Exec(t, tc.broken)
		recompile()
		require.Equal(t, map[string]State{"va": Stale, "vb": Live, "vc": Stale}, shown(), tc.name)
		require.NotEmpty(t, e.views[0].problem(), tc.name)
		require.False(t, e.views[0].moves(time.Now().Add(time.Hour)))
		db.Exec(t, tc.mended)
		recompile()
		require.Equal(t, Failed, e.views[0].state, tc.name)
		require.True(t, e.views[0].moves(time.Now()), "it is reconciled in the next round")
		require.NotEmpty(t, e.views[0].work.reconcile)
		for _, v := range e.views {
			v.work.reset()
			v.err = nil
			e.setState(v, Live)
		}
	}
}

// TestFoldsNoFurtherThanImported: while the next round is to be of an older snapshot,
// nothing newer is folded.
func TestFoldsNoFurtherThanImported(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, twoTables)
	e := sideEngine(t, db, &published{}, declare("va", "SELECT id, v FROM one"))
	e.stream = &fakeStream{}
	e.batch.Join(e.views[0].member)
	var xid uint64
	var oid uint32
	require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::bigint, 'one'::regclass::oid").Scan(&xid, &oid))
	table := &ingest.Table{OID: oid, Schema: "public", Name: "one", Full: true, Columns: []ingest.Column{{Name: "id"}, {Name: "v"}}}
	e.batch.Add(&ingest.Transaction{XID: uint32(xid), Changes: ingest.List{change(table, nil, row(1, 1))}})

	e.audit.imported = "some snapshot"
	now := time.Now()
	e.polled = now
	require.NoError(t, e.advance(t.Context(), now))
	require.Equal(t, 1, e.batch.Len())
	require.False(t, e.views[0].work.pending())
	e.audit.imported = ""
	require.NoError(t, e.advance(t.Context(), now))
	require.Zero(t, e.batch.Len())
	require.True(t, e.views[0].work.pending())
}

// TestRefusedConsumerIsNoConsumer: a view that clashes with a table of somebody's is
// not fed by the view that it reads.
func TestRefusedConsumerIsNoConsumer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, twoTables+"; CREATE TABLE vc (id int)")
	config, err := pgx.ParseConfig(db.URL)
	require.NoError(t, err)
	e := New(Options{
		Views:   []plans.Declaration{declare("va", "SELECT id, v FROM one"), declare("vc", "SELECT id, v FROM va"), declare("vd", "SELECT id, v FROM vc")},
		Planner: plans.Options{SearchPath: []string{"public"}},
		Connect: func(ctx context.Context, _ string) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, config.Copy()) },
	})
	defer e.Close(t.Context())
	n, err := e.Prepare(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Len(t, e.Refused(), 2)
	require.Empty(t, e.views[0].consumers)
}

// TestSurvive: what a round failed with decides what is done about it.
func TestSurvive(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, twoTables)
	e := sideEngine(t, db, &published{}, declare("va", "SELECT id, v FROM one"))
	e.main, e.leads = db.Conn(t), true
	v := e.views[0]
	require.NoError(t, e.survive(t.Context(), &errReads{v}))
	require.True(t, v.reads)
	require.NotNil(t, e.main)
	require.NoError(t, e.survive(t.Context(), ErrBarrier))
	require.Equal(t, 1, e.pauses[retryBarrier])
	fatal := &fatalError{errors.New("the disk is gone")}
	require.ErrorIs(t, e.survive(t.Context(), fatal), fatal)

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("somebody stopped it"))
	require.ErrorIs(t, e.survive(ctx, context.Cause(ctx)), context.Cause(ctx))
	require.ErrorIs(t, e.survive(ctx, fmt.Errorf("ask for the time: %w", ctx.Err())), context.Cause(ctx))
	require.NoError(t, e.stopped(ctx, context.Cause(ctx)), "being asked to stop is no error")
	require.ErrorContains(t, e.stopped(t.Context(), errors.New("something else")), "something else")

	require.NoError(t, e.survive(t.Context(), errors.New("of unknown origin")))
	require.Nil(t, e.main, "a session in doubt is not used again")
	require.Equal(t, 1, e.pauses[retryOther])
}
