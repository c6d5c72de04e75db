package oracle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
)

// shapes are bodies of many sorts over the fixtures, each with a twin that is wrong in one small way.
var shapes = []struct {
	name, body, wrong string
	key               string // columns of the backing table's unique index, if any
	opts              Options
}{
	{name: "projection", body: "select pk, p, q from item where bucket > 5", wrong: "select pk, p, q from item where bucket >= 5", key: "pk"},
	{name: "three-valued", body: "select pk, p from nul where bucket <> 5", wrong: "select pk, p from nul where bucket is distinct from 5", key: "pk"},
	{name: "groups", body: "select bucket, count(*) as n, sum(p) as s from nul group by bucket", wrong: "select bucket, count(p) as n, sum(p) as s from nul group by bucket", key: "bucket"},
	{name: "numeric", body: "select id, d from txt", wrong: "select id, trim_scale(d) as d from txt", key: "id"},
	{name: "wide", body: "select id, body from txt", wrong: "select id, replace(body, 'a', 'A') as body from txt", key: "id"},
	{
		name: "float sums", body: "select id % 7 as g, sum(f) as sf, sum(d) as sd from txt group by 1",
		wrong: "select id % 7 as g, -sum(f) as sf, sum(d) as sd from txt group by 1", key: "g", opts: Options{Float: []string{"sf"}},
	},
	{
		name: "nocase groups", body: "select label collate nocase as label, count(*) as n from dim group by 1",
		wrong: "select label collate nocase as label, count(*) filter (where label <> 'q') as n from dim group by 1", key: "label",
		opts: Options{Representative: []string{"label"}},
	},
	{
		name: "jsonb groups", body: "select j->'k' as k, count(*) as n from txt group by 1", wrong: "select j->'k' as k, count(j) as n from txt group by 1",
		key: "k", opts: Options{Representative: []string{"k"}},
	},
	{name: "join", body: "select f.id, d.label from fact f join dim d on d.id = f.dim_id", wrong: "select f.id, lower(d.label) as label from fact f join dim d on d.id = f.dim_id", key: "id"},
	{
		name: "outer join", body: "select l.id, d.label from loose l left join dim d on d.id = l.dim_id",
		wrong: "select l.id, d.label from loose l join dim d on d.id = l.dim_id", key: "id",
	},
	{name: "bag", body: "select region, v from part", wrong: "select distinct region, v from part"},
	{name: "one row", body: "select count(*) as n, avg(f) as a from txt", wrong: "select count(*) - 1 as n, avg(f) as a from txt", opts: Options{Float: []string{"a"}}},
}

// shaped returns a database with fixtures and changing rows, and a Checker of the shapes.
func shaped(t *testing.T) (*pgtest.DB, *Checker) {
	t.Helper()
	db := pgtest.New(t)
	require.NoError(t, workload.Create(t.Context(), db.Pool, nil))
	require.NoError(t, workload.Seed(t.Context(), db.Pool, workload.Fixtures(), rand.New(rand.NewPCG(8, 8))))
	checker := &Checker{}
	for i, shape := range shapes {
		checker.Views = append(checker.Views, View{Table: fmt.Sprintf("v%d", i), Body: shape.body, Options: shape.opts})
	}
	return db, checker
}

// materialize makes the views' tables from bodies evaluated in tx.
func materialize(ctx context.Context, tx pgx.Tx) error {
	var script strings.Builder
	for i, shape := range shapes {
		fmt.Fprintf(&script, "CREATE TABLE v%d AS %s;\n", i, shape.body)
		if shape.key != "" {
			fmt.Fprintf(&script, "CREATE UNIQUE INDEX ON v%d (%s);\n", i, shape.key)
		}
	}
	_, err := tx.Exec(ctx, script.String(), pgx.QueryExecModeSimpleProtocol)
	return err
}

// whileWriting runs a workload beside the function.
func whileWriting(t *testing.T, db *pgtest.DB, do func()) {
	t.Helper()
	config, err := pgxpool.ParseConfig(db.URL)
	require.NoError(t, err)
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	w, err := workload.New(pool, workload.Options{Writers: 3, Seed: 17, AsyncHalf: true})
	require.NoError(t, err)
	var group errgroup.Group
	group.Go(func() error { return w.Run(t.Context()) })
	defer func() {
		w.Stop()
		require.NoError(t, group.Wait())
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, w.Await(ctx, func(c workload.Counters) bool { return c.Committed > 100 }))
	do()
}

// round opens a transaction as a round does and makes the views in it.
func round(t *testing.T, db *pgtest.DB) pgx.Tx {
	t.Helper()
	tx, err := db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	require.NoError(t, materialize(t.Context(), tx))
	return tx
}

// TestRoundsAreExact: what was made at a snapshot equals its body at that snapshot, whatever is committed meanwhile, and
// no longer equals it afterwards.
func TestRoundsAreExact(t *testing.T) {
	t.Parallel()
	db, checker := shaped(t)
	whileWriting(t, db, func() {
		for range 3 {
			tx := round(t, db)
			for range 3 {
				require.NoError(t, checker.Check(t.Context(), tx))
			}
			require.NoError(t, tx.Rollback(t.Context()))
		}
		tx := round(t, db)
		require.NoError(t, tx.Commit(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for ctx.Err() == nil {
			mismatch, ok := errors.AsType[*Mismatch](checker.CheckNow(t.Context(), db.Pool))
			if ok && len(mismatch.Diffs) > len(shapes)/2 {
				return
			}
		}
		t.Error("the views should differ from their bodies once writers have gone on")
	})
	views, rows := checker.Checks()
	require.GreaterOrEqual(t, views, int64(9*len(shapes)))
	require.Greater(t, rows, views*3, "small tables prove little")
}

// TestWrongBodiesAreFound: each negative twin differs from the view made from the right body.
func TestWrongBodiesAreFound(t *testing.T) {
	t.Parallel()
	db, _ := shaped(t)
	db.Exec(t, `INSERT INTO nul VALUES (100, 1, 1, NULL), (101, NULL, 1, 3), (102, 2, 2, 5); INSERT INTO item VALUES (100, 1, 1, 5);
		INSERT INTO txt (body, d, f, at) VALUES ('a', 1.00, 1, now()), ('b', 1.0, 1, now());
		INSERT INTO dim VALUES (100, 'Bob', 1), (101, 'q', 1); INSERT INTO fact VALUES (100, 100, 1);
		INSERT INTO loose VALUES (100, NULL, 1); INSERT INTO part VALUES (100, 'north', 1), (101, 'north', 1)`)
	tx := round(t, db)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	for i, shape := range shapes {
		diff, err := Compare(t.Context(), tx, shape.body, fmt.Sprintf("v%d", i), shape.opts)
		require.NoError(t, err, shape.name)
		require.True(t, diff.Empty(), "%s: %s", shape.name, diff)
		diff, err = Compare(t.Context(), tx, shape.wrong, fmt.Sprintf("v%d", i), shape.opts)
		require.NoError(t, err, shape.name)
		require.False(t, diff.Empty(), "%s: the wrong body was not found out", shape.name)
	}
}

// TestOneWrongValueIsFound: any single row deleted, duplicated or changed in any view is found.
func TestOneWrongValueIsFound(t *testing.T) {
	t.Parallel()
	db, checker := shaped(t)
	tx := round(t, db)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, checker.CheckNow(t.Context(), db.Pool))
	for i, view := range checker.Views {
		for name, damage := range map[string]string{
			"the last row gone":  "DELETE FROM $view WHERE ctid = (SELECT max(ctid) FROM $view)",
			"the first row gone": "DELETE FROM $view WHERE ctid = (SELECT min(ctid) FROM $view)",
			"half of it gone":    "DELETE FROM $view WHERE (ctid::text::point)[1]::int % 2 = 1",
			"all of it gone":     "DELETE FROM $view",
			"a row twice":        "DROP INDEX IF EXISTS $view_$key_idx; INSERT INTO $view SELECT * FROM $view LIMIT 1",
			"rows of NULLs":      "DROP INDEX IF EXISTS $view_$key_idx; INSERT INTO $view DEFAULT VALUES; INSERT INTO $view DEFAULT VALUES",
		} {
			tx, err := db.Pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), strings.NewReplacer("$view", view.Table, "$key", shapes[i].key).Replace(damage), pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err, "%s: %s", shapes[i].name, name)
			options := view.Options
			if shapes[i].key != "" {
				options.Key = []string{shapes[i].key} // the damage may have dropped the index that says so
			} else if len(options.Float) > 0 {
				require.NoError(t, tx.Rollback(t.Context()))
				continue // one row without a key: several are an error, see TestWhatCannotBeCompared
			}
			diff, err := Compare(t.Context(), tx, view.Body, view.Table, options)
			require.NoError(t, err, "%s: %s", shapes[i].name, name)
			require.False(t, diff.Empty(), "%s: %s was not found out", shapes[i].name, name)
			require.NoError(t, tx.Rollback(t.Context()))
		}
	}
}

func TestCheckSnapshot(t *testing.T) {
	t.Parallel()
	db, checker := shaped(t)
	require.NoError(t, round(t, db).Commit(t.Context()))
	holder, err := db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer holder.Rollback(context.WithoutCancel(t.Context()))
	var snapshot string
	require.NoError(t, holder.QueryRow(t.Context(), "SELECT pg_export_snapshot()").Scan(&snapshot))

	db.Exec(t, "DELETE FROM item; DELETE FROM part; DELETE FROM txt")
	require.NoError(t, checker.CheckSnapshot(t.Context(), db.Pool, snapshot), "at the snapshot nothing was deleted")
	mismatch, ok := errors.AsType[*Mismatch](checker.CheckNow(t.Context(), db.Pool))
	require.True(t, ok)
	require.Contains(t, mismatch.Error(), "public.v0 differs from its body")

	// The tables as they are now, the bodies as they were: in two sessions.
	now, err := db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer now.Rollback(context.WithoutCancel(t.Context()))
	require.NoError(t, checker.CheckAcross(t.Context(), holder, now))
	require.Error(t, checker.CheckAcross(t.Context(), now, holder))

	err = checker.CheckSnapshot(t.Context(), db.Pool, "nonesuch")
	require.ErrorContains(t, err, "import snapshot nonesuch")
}

// TestCheckLeavesTheTransactionAlone: neither pinned settings nor a failing body outlive a check.
func TestCheckLeavesTheTransactionAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE src (at timestamptz); INSERT INTO src VALUES ('2024-02-29 23:30+00'); CREATE TABLE v AS SELECT '2024-02-29'::date AS day")
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	_, err = tx.Exec(t.Context(), "SET LOCAL search_path = ''; SET LOCAL TimeZone = 'Asia/Tokyo'", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)

	right := Checker{Views: []View{{Table: "v", Body: "SELECT at::date AS day FROM src"}}}
	require.NoError(t, right.Check(t.Context(), tx), "the day in UTC, of a table found in public")
	elsewhere := Checker{Views: right.Views, TimeZone: "Asia/Tokyo"}
	require.ErrorContains(t, elsewhere.Check(t.Context(), tx), `missing   ("2024-03-01")`)
	failing := Checker{Views: []View{{Table: "v", Body: "SELECT at::date / 0 AS day FROM src"}}}
	require.Error(t, failing.Check(t.Context(), tx))
	nowhere := Checker{Views: right.Views, SearchPath: "pg_catalog"}
	require.ErrorContains(t, nowhere.Check(t.Context(), tx), "no such table")

	var zone, path string
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT current_setting('TimeZone'), current_setting('search_path')").Scan(&zone, &path))
	require.Equal(t, "Asia/Tokyo", zone)
	require.Equal(t, `""`, path)
}
