package exact

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/minimal"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
	"github.com/mvsync/mvsync/plans"
)

var (
	rounds = flag.Int64("exact.rounds", 2000, "rounds of TestExactRounds")
	seed   = flag.Uint64("exact.seed", 0, "seed of the workload; 0: a random one")
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// roundLimit is the time that a round may take on a slow machine with the race
// detector on; the test gives up after this much for each.
const roundLimit = time.Second

// TestExactRounds: one view of each way to maintain a view is exact in every one of
// very many rounds, under four writers, half of which commit asynchronously, that do
// everything a workload knows: rollbacks, savepoints, transactions over several
// tables, key changes, group moves, NULLs, TRUNCATE, two-phase commit, values that
// TOAST and stay unchanged.
func TestExactRounds(t *testing.T) {
	t.Parallel()
	if *seed == 0 {
		*seed = rand.Uint64N(1 << 32)
	}
	db := fixtures(t)
	r := minimal.Record(t, db, workload.Schema)
	d := daemon.Keep(t, db, r.Watch(daemon.Options{Views: views}))
	w := daemon.Write(t, db, workload.Options{
		Seed: *seed, AsyncHalf: true, Truncate: true, TwoPhase: true, Weights: seldomTruncate(), Pause: 10 * time.Millisecond, Journal: 15,
	})
	err := d.Reach(*rounds, time.Duration(*rounds)*roundLimit)
	w.Stop()
	c := w.Counters()
	t.Logf("%d rounds, seed %d: %s", d.Rounds(), *seed, c)
	if err != nil {
		for _, e := range w.Journal() {
			t.Log(e)
		}
		d.Quit()
		r.Log(2 * time.Minute)
		t.Fatal(err)
	}
	require.NoError(t, d.Live())
	requireWork(t, d, c)
}

// views are one of each way to maintain a view.
var views = []plans.Declaration{
	daemon.View("filtered", `select pk, p, q from item where bucket > 5`),
	daemon.View("texts", `select id, body, d from txt where j is not null`), // default identity: unchanged TOAST is missing
	daemon.View("grouped", `select bucket, count(*) as n, sum(p) as s, min(q), max(q), avg(p) from item group by bucket`),
	daemon.View("nulls", `select bucket, count(*), count(p) as c, sum(p) as s from nul group by bucket`),
	daemon.View("regions", `select region, count(*), sum(v) from part group by region`),
	daemon.View("having", `select bucket, string_agg(p::text, ',' order by p, pk) from item group by bucket having count(*) > 1`),
	daemon.View("facts", `select d.label, count(*), sum(f.amt) from fact f join dim d on d.id = f.dim_id group by d.label`),
	daemon.View("labels", `select f.id, f.amt, d.label from fact f join dim d on d.id = f.dim_id`),
	daemon.View("series", `select i.pk, g.n from item i cross join lateral generate_series(1, i.p) g(n)`),
}

// fixtures makes a database with some rows, and the identities that the views need.
func fixtures(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	conn := db.Conn(t)
	identities := map[string]workload.Identity{}
	for _, table := range []string{"item", "nul", "part", "dim", "fact"} {
		identities[table] = workload.IdentityFull
	}
	require.NoError(t, workload.Create(t.Context(), conn, identities))
	require.NoError(t, workload.Seed(t.Context(), conn, workload.Fixtures(), rand.New(rand.NewPCG(*seed, 0))))
	return db
}

// seldomTruncate makes TRUNCATE rarer than it is by default: a round that has locked
// the table is begun anew for each that waits.
func seldomTruncate() workload.Weights {
	weights := workload.DefaultWeights()
	for kind := range weights {
		if kind != workload.Truncate {
			weights[kind] *= 20
		}
	}
	return weights
}

// requireWork checks that what was exact was not exact by rebuilding alone, and that
// nothing was left out of the workload. A short run need not meet everything.
func requireWork(t *testing.T, d *daemon.Daemon, c workload.Counters) {
	t.Helper()
	for _, v := range views {
		require.Positive(t, d.Tally.Arms(v.Name.String()), "%s was never maintained by its arm", v.Name)
	}
	if *rounds < 500 {
		return
	}
	for kind, n := range map[string]int64{
		"rolled back": c.RolledBack, "prepared": c.Prepared, "undone savepoints": c.Undone, "several tables": c.MultiTable,
		"key changes": c.Kinds[workload.UpdateKey], "group moves": c.Kinds[workload.UpdateGroup], "truncate": c.Kinds[workload.Truncate],
		"around wide values": c.Kinds[workload.UpdateAroundWide],
	} {
		require.Positive(t, n, kind)
	}
}
