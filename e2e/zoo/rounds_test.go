package zoo

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/workload"
	"github.com/mvsync/mvsync/plans"
)

var exactRounds = flag.Int64("zoo.exact-rounds", 2000, "rounds of TestExactRounds")

// TestExactRounds: one view of each way to maintain a view is exact in every one of
// very many rounds, under four writers, half of which commit asynchronously, that do
// everything a workload knows: rollbacks, savepoints, transactions over several
// tables, key changes, group moves, NULLs, TRUNCATE, two-phase commit, values that
// TOAST and stay unchanged.
func TestExactRounds(t *testing.T) {
	t.Parallel()
	db := fixtures(t, map[string]workload.Identity{
		"item": workload.IdentityFull, "nul": workload.IdentityFull, "part": workload.IdentityFull, "dim": workload.IdentityFull, "fact": workload.IdentityFull,
	})
	d := keep(t, db, daemon.Options{Views: []plans.Declaration{
		daemon.View("filtered", `select pk, p, q from item where bucket > 5`),
		daemon.View("texts", `select id, body, d from txt where j is not null`), // default identity: unchanged TOAST is missing
		daemon.View("grouped", `select bucket, count(*) as n, sum(p) as s, min(q), max(q), avg(p) from item group by bucket`),
		daemon.View("nulls", `select bucket, count(*), count(p) as c, sum(p) as s from nul group by bucket`),
		daemon.View("regions", `select region, count(*), sum(v) from part group by region`),
		daemon.View("having", `select bucket, string_agg(p::text, ',' order by p, pk) from item group by bucket having count(*) > 1`),
		daemon.View("facts", `select d.label, count(*), sum(f.amt) from fact f join dim d on d.id = f.dim_id group by d.label`),
	}})
	w := write(t, db, workload.Options{Pause: 10 * time.Millisecond})
	err := d.Reach(*exactRounds, time.Duration(*exactRounds)*roundLimit/10)
	w.stop(t)
	c := w.Counters()
	t.Logf("%d rounds, seed %d: %s", d.Rounds(), seedOf(), c)
	if err != nil {
		for _, e := range w.Journal() {
			t.Log(e)
		}
		t.Fatal(err)
	}
	require.NoError(t, live(d))
	for _, view := range []string{"filtered", "texts", "grouped", "nulls", "regions", "having"} {
		require.Positive(t, d.Tally.Arms(d.View(view).Name), view)
	}
	for kind, n := range map[string]int64{
		"rolled back": c.RolledBack, "prepared": c.Prepared, "undone savepoints": c.Undone, "several tables": c.MultiTable,
		"key changes": c.Kinds[workload.UpdateKey], "group moves": c.Kinds[workload.UpdateGroup], "truncate": c.Kinds[workload.Truncate],
		"around wide values": c.Kinds[workload.UpdateAroundWide],
	} {
		require.Positive(t, n, kind)
	}
}
