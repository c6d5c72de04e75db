package zoo

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/oracle"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
	"github.com/mvsync/mvsync/plans"
)

// wrong are bodies that a careless maintenance might mistake for those of the shapes.
// They differ from them in rare rows only.
var wrong = map[string]string{
	"p2":  `select pk, p, q from item where bucket >= 5`,
	"p5":  `select pk, case when bucket >= 5 then p else q end as pick from item where p % 2 = 0`,
	"p6":  `select pk, coalesce(p, -1) as p0, p <> q as differs from nul where bucket is null or bucket > 5`,
	"p10": `select src, dst from edge`,
	"a1":  `select bucket, count(*) as n, sum(p) as s from item where bucket <> 3 group by bucket`,
	"a3":  `select bucket, count(*) as n, sum(p) as s, min(q), max(q + 0 * p) filter (where q < 10) from item group by bucket`,
	"a10": `select bucket, count(*), count(p) as c, coalesce(sum(p), 0) as s, avg(p) as a from nul group by bucket`,
	"a12": `select bucket, bool_and(p > 3), bool_or(q > 3), bit_or(p), bit_or(q) as bit_and from item group by bucket`,
	"r1":  `select bucket, sum(p) from item group by bucket having count(*) > 0`,
	"r4":  `select bucket, string_agg(p::text, ',' order by p desc, pk) from item group by bucket`,
	"r7":  `select pk, p, dense_rank() over (partition by bucket order by p, pk) as rank from item where q < 10`,
	"j3":  `select l.id, d.label from loose l join dim d on d.id = l.dim_id`,
	"j7d": `select d.* from dim d where not exists (select from loose l where l.dim_id = d.id and l.amt > 0)`,
	"f2":  `select pk, p from item order by p desc, pk desc limit 3`,
	"v1a": `select bucket, n + (n = 4)::int as n from a1`,
}

// TestWrongBodiesFail: the harness that passes the shapes fails each of them when it is
// told another body.
func TestWrongBodiesFail(t *testing.T) {
	t.Parallel()
	db := fixtures(t, map[string]workload.Identity{"*": workload.IdentityFull})
	bodies := map[plans.Name]string{}
	for name, body := range wrong {
		bodies[plans.Name{Schema: "public", Name: name}] = body
	}
	list := slices.DeleteFunc(slices.Clone(shapes), func(s shape) bool { return wrong[s.name] == "" })
	d := daemon.Start(t, db, daemon.Options{Views: views(list, false), Bodies: bodies, Log: discard{}})
	t.Cleanup(d.Quit)
	w := write(t, db, workload.Options{Pause: 5 * time.Millisecond})
	pgtest.Eventually(t, 2*time.Minute, func() error {
		if missed := missed(d); len(missed) > 0 {
			return errors.New("no mismatch yet of " + missed[0])
		}
		return nil
	})
	w.Stop()
}

// missed lists the views with a wrong body that the oracle has not found yet.
func missed(d *daemon.Daemon) []string {
	found := map[string]bool{}
	for _, err := range d.Mismatches() {
		if m, ok := errors.AsType[*oracle.Mismatch](err); ok {
			for _, diff := range m.Diffs {
				found[diff.Table] = true
			}
		}
	}
	var out []string
	for name := range wrong {
		if !found[plans.Name{Schema: "public", Name: name}.String()] {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// TestWrongTwinFails: a twin of another body does not agree with the shape.
func TestWrongTwinFails(t *testing.T) {
	t.Parallel()
	db := fixtures(t, map[string]workload.Identity{"*": workload.IdentityFull})
	shape := daemon.View("a1", shapes[slices.IndexFunc(shapes, func(s shape) bool { return s.name == "a1" })].body)
	twin := daemon.View(twinOf("a1"), `select bucket, count(*) as n, sum(p) as s from item where bucket <> 7 group by bucket`)
	twin.Force = floor
	d := daemon.Keep(t, db, daemon.Options{Views: []plans.Declaration{shape, twin}})
	db.Exec(t, "INSERT INTO item SELECT g, 1, 1, 7 FROM generate_series(1000, 1003) g")
	d.Settle(db)
	require.Positive(t, d.Rounds())
	c := &oracle.Checker{Views: []oracle.View{{Table: "public.a1_twin", Body: "SELECT * FROM a1"}}}
	require.ErrorContains(t, c.CheckNow(t.Context(), db.Conn(t)), "a1_twin differs")
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
