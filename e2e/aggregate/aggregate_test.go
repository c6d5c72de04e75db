package aggregate

import (
	"context"
	_ "embed" // for schema.sql
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

var (
	rounds = flag.Int64("aggregate.rounds", 60, "rounds of TestShapes")
	seed   = flag.Uint64("aggregate.seed", 0, "seed of the workload; 0: a random one")
)

//go:embed schema.sql
var schema string

func TestMain(m *testing.M) { pgtest.Main(m) }

// views are bodies that the daemon keeps by adding contributions.
var views = []plans.Declaration{
	daemon.View("a1", "select bucket, count(*) as n, sum(p) as s from item group by bucket"),
	daemon.View("a2", "select bucket, count(*) as n, sum(p) as s from item where p > 3 group by bucket"),
	daemon.View("a3", "select bucket, count(*) as n, sum(p) as s, min(q), max(q) from item group by bucket"),
	daemon.View("a4", "select p, bucket, count(*), sum(q) from item group by p, bucket"),
	daemon.View("a5", "select bucket, avg(p) as a from item group by bucket"),
	daemon.View("a6", "select bucket, count(*) filter (where p > 5) as hi, sum(p * 2) as s2 from item group by bucket"),
	daemon.View("a7", "select bucket + 1 as b1, count(*) from item group by bucket + 1"),
	daemon.View("a8", "select date_trunc('hour', at) as h, count(*) from txt group by 1"),
	daemon.View("a9", "select count(*) as n, sum(p) as s, min(q), max(q), avg(p) from item"),
	daemon.View("a10", "select bucket, count(*), count(p) as c, sum(p) as s, avg(p) as a from nul group by bucket"),
	daemon.View("a11", "select dim_id, sum(amt) as s from loose group by dim_id"),
	daemon.View("a12", "select bucket, bool_and(p > 3), bool_or(q > 3), bit_or(p), bit_and(q) from item group by bucket"),
	daemon.View("a13", "select bucket, variance(p), stddev_pop(p) from item group by bucket"),
	daemon.View("a14", "select bucket, sum(d) from (select pk as bucket_pk, bucket, p as d from item where q > 2) x group by bucket"),
	daemon.View("a15a", "select p from item group by p"),
	daemon.View("a15b", "select distinct p, q from item"),
	daemon.View("a16", "select region, count(*), sum(v) from part group by region"),

	daemon.View("deviations", "select dim_id, var_pop(amt) as a, var_samp(amt) as b, stddev_pop(amt) as c, stddev(amt) as d, avg(amt) as e from loose group by dim_id"),
	daemon.View("nullable", "select bucket, every(p > 3), bool_or(q > 3), bit_or(p), bit_and(q), min(p), max(p), variance(q) as v from nul group by bucket"),
	daemon.View("filtered", "select bucket, sum(p) filter (where q > 5) as s, bool_or(p > 5) filter (where q is null) as o, max(q) filter (where p > 2) as m from nul group by bucket"),
	daemon.View("extremes", "select at, min(body collate \"C\") as a, max(body) as b, max(f) as c, min(d) as e, max(at - '2024-01-01') as i from txt group by at"),
	daemon.View("spelling", "select n, min(key) as a, max(key) as b from tag group by n"),
	daemon.View("intervals", "select id % 3 as g, sum(at - '2024-01-01'::timestamptz) as s, avg(at - '2024-01-01'::timestamptz) as a from txt group by 1"),
	daemon.View("one", "select stddev(p) as d, bool_and(q > 3) as b, max(p) as m, energy(p) as e, longest(p::text) as l from nul"),

	daemon.View("energies", "select bucket, count(*) as n, energy(p) as e, energy(q) filter (where p > 3) as f from nul group by bucket"),
	daemon.View("longest", "select n, longest(key::text collate \"C\") as l from tag group by n"),
	daemon.View("means", "select bucket, mean(p) as m, mean(q) filter (where p > 3) as f, round(mean(p), 2) as r from nul group by bucket"),
}

// algebra declares the aggregates of schema.sql.
func algebra(o *maintain.Options) {
	o.Planner.Aggregates = map[string]plans.Declared{
		"public.energy(integer)": {Merge: "public.energy_merge", Negate: "public.energy_negate", Decode: "public.energy_decode"},
		"public.longest(text)":   {Merge: "public.longer", Decode: "public.itself"},
		"public.mean(integer)":   {Decompose: "sum(x)::numeric / nullif(count(x), 0)"},
	}
}

// start runs a daemon over the shared fixtures, with all views live.
func start(t *testing.T, list []plans.Declaration, engine func(*maintain.Options)) (*pgtest.DB, *daemon.Daemon) {
	t.Helper()
	db := pgtest.New(t)
	conn := db.Conn(t)
	require.NoError(t, workload.Create(t.Context(), conn, map[string]workload.Identity{"*": workload.IdentityFull}))
	db.Exec(t, schema)
	require.NoError(t, workload.Seed(t.Context(), conn, workload.Fixtures(), rand.New(rand.NewPCG(*seed, 1))))
	d := daemon.Start(t, db, daemon.Options{Views: list, Level: slog.LevelWarn, Engine: func(o *maintain.Options) {
		algebra(o)
		if engine != nil {
			engine(o)
		}
	}})
	pgtest.Eventually(t, 2*time.Minute, func() error {
		status := d.Engine.Status().Views
		for _, v := range status {
			if v.State != maintain.Live {
				return errors.Join(fmt.Errorf("%s is %s", v.Name, v.State), v.Err)
			}
		}
		if len(status) < len(list) {
			return fmt.Errorf("%d of %d views", len(status), len(list))
		}
		return nil
	})
	return db, d
}

// TestShapes: every shape is kept by its arm, and exact in each round, under four
// writers.
func TestShapes(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64N(1 << 32)
	}
	t.Logf("seed %d", *seed)
	db, d := start(t, views, nil)
	for _, p := range d.Engine.Plans() {
		require.Equal(t, plans.DeltaAggregate, p.Strategy, "%s: %v", p.Name, p.Declined)
		r, err := p.CheckLaws(t.Context(), db.Conn(t))
		require.NoError(t, err)
		require.Nil(t, r)
	}
	config, err := pgxpool.ParseConfig(db.URL)
	require.NoError(t, err)
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	w, err := workload.New(pool, workload.Options{
		Tables: []string{"item", "nul", "loose", "tag", "txt", "part"}, Seed: *seed, AsyncHalf: true, Truncate: true, TwoPhase: true, Journal: 10,
	})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- w.Run(context.WithoutCancel(t.Context())) }()
	err = d.Reach(d.Rounds()+*rounds, time.Duration(*rounds)*5*time.Second)
	w.Stop()
	require.NoError(t, <-done)
	if err != nil {
		for _, e := range w.Journal() {
			t.Log(e)
		}
		t.Fatalf("seed %d: %v", *seed, err)
	}
	d.Settle(db)
	for _, v := range views {
		name := v.Name.String()
		require.Equal(t, maintain.Live, d.View(v.Name.Name).State, "%s: %v", name, d.View(v.Name.Name).Err)
		require.Positive(t, d.Tally.Arms(name), "%s was reconciled only: %v", name, d.Tally.Reasons(name))
	}
}

// residuals counts the groups that were run again.
type residuals struct {
	maintain.Observer
	keys atomic.Int64
}

func (r *residuals) ResidualKeys(_ string, n int) { r.keys.Add(int64(n)) }

// TestRetractions: what cannot matter is not looked up in the table, whether Go folds
// the batch or Postgres does.
func TestRetractions(t *testing.T) {
	list := []plans.Declaration{
		daemon.View("folded", "select bucket, count(*) as n, sum(p) as s, min(q), max(q), bit_or(p) as o, variance(p) as v from item group by bucket"),
		daemon.View("computed", "select bucket, max(p + 0) as m, bool_or(p > 5) as b, bit_and(q) as a, energy(p) as e, mean(q) as w from item group by bucket"),
	}
	seen := &residuals{}
	db, d := start(t, list, func(o *maintain.Options) { seen.Observer, o.Observer = o.Observer, seen })
	again := func(change string) int64 {
		t.Helper()
		before := seen.keys.Load()
		db.Exec(t, change)
		d.Settle(db)
		return seen.keys.Load() - before
	}
	again("DELETE FROM item")
	again("INSERT INTO item VALUES (1, 7, 7, 0), (2, 3, 15, 0), (3, 0, 31, 0), (4, 6, 7, 0), (5, 1, 1, 1)")
	require.Zero(t, again("DELETE FROM item WHERE pk = 3 AND q < 31"), "nothing changes")
	require.Zero(t, again("UPDATE item SET pk = pk + 100"), "no value changes")
	require.Zero(t, again("UPDATE item SET pk = pk - 100"), "and back")
	require.Zero(t, again("INSERT INTO item VALUES (9, 0, 15, 0); DELETE FROM item WHERE pk = 9"), "a value between the extremes comes and goes")
	require.Zero(t, again("UPDATE item SET p = 9, q = 33 WHERE pk = 5 AND bucket = 8"), "no row is touched")
	require.Zero(t, again("DELETE FROM item WHERE bucket = 1"), "a group goes with its extremes")
	require.Positive(t, again("DELETE FROM item WHERE pk = 3"), "the highest goes")
	require.Positive(t, again("DELETE FROM item WHERE pk = 1"), "the highest goes")
	require.Zero(t, again("DELETE FROM item"), "all groups go")
}
