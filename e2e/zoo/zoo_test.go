package zoo

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/minimal"
	"github.com/mvsync/mvsync/e2e/oracle"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

var (
	rounds = flag.Int64("zoo.rounds", 300, "rounds of TestZoo")
	seed   = flag.Uint64("zoo.seed", 0, "seed of the workloads; 0: a random one")
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// roundLimit is the time that a round may take on a slow machine with the race
// detector on; a test gives up after this much for each.
const roundLimit = 5 * time.Second

// writerPause is how long each writer rests between transactions: rounds over few
// changes tell more views apart than few rounds over many.
const writerPause = 40 * time.Millisecond

// TestStrategies: each shape gets the strategy of the list.
func TestStrategies(t *testing.T) {
	t.Parallel()
	db := fixtures(t, map[string]workload.Identity{"*": workload.IdentityFull})
	requireStrategies(t, db, shapes)
}

// requireStrategies plans the shapes as the database has their tables.
func requireStrategies(t *testing.T, db *pgtest.DB, list []shape) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.FailNow()
		}
	}()
	conn := db.Conn(t)
	producers := map[plans.Name]*plans.Plan{}
	for _, s := range list {
		d := daemon.View(s.name, s.body)
		p, err := plans.Compile(t.Context(), conn, d, plans.Options{Producers: producers})
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		if p.Strategy != s.want {
			t.Errorf("%s is planned as %s, want %s: %s", s.name, p.Strategy, s.want, p.Declined[s.want])
		}
		producers[d.Name] = p
	}
}

// TestZoo: every shape and every twin is exact in each round, under four writers that
// do all that transactions may do, half of them without waiting for the log.
func TestZoo(t *testing.T) {
	t.Parallel()
	db := fixtures(t, map[string]workload.Identity{"*": workload.IdentityFull})
	r := minimal.Record(t, db, workload.Schema+extra)
	d := daemon.Keep(t, db, r.Watch(daemon.Options{Views: views(shapes, true)}))
	run(t, db, d, *rounds, workload.Options{Pause: writerPause}, r)
	requireArms(t, d, shapes)
	require.NoError(t, agreement().CheckNow(t.Context(), db.Conn(t)))
}

// degradeRounds is how many rounds the shapes get with the degrade on: what it chooses
// are the reconciles and arms that TestZoo compares.
const degradeRounds = 40

// TestZooDegraded: the shapes are exact, too, where a batch that touches much of a
// small table has the body evaluated as a whole.
func TestZooDegraded(t *testing.T) {
	t.Parallel()
	db := fixtures(t, map[string]workload.Identity{"*": workload.IdentityFull})
	r := minimal.Record(t, db, workload.Schema+extra)
	d := daemon.Keep(t, db, r.Watch(daemon.Options{
		Views: views(shapes, false), Engine: func(o *maintain.Options) { o.Degrade = true },
	}))
	run(t, db, d, degradeRounds, workload.Options{Pause: writerPause}, r)
	require.NotEmpty(t, d.Tally.Rebuilt("degrade"), "nothing was degraded")
}

// agreement compares each twin with its shape, once all have come to rest. In the rounds
// each is compared with the body: a view may sit one out that the other takes part in.
func agreement() *oracle.Checker {
	c := &oracle.Checker{}
	for _, s := range shapes {
		if s.arm() && !s.coarsened() {
			c.Views = append(c.Views, oracle.View{Table: "public." + twinOf(s.name), Body: "SELECT * FROM " + s.name, Options: s.comparison()})
		}
	}
	return c
}

// fixtures makes a database with every table that the shapes read, with some rows.
func fixtures(t *testing.T, identities map[string]workload.Identity) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	conn := db.Conn(t)
	ctx := t.Context()
	require.NoError(t, workload.Create(ctx, conn, identities))
	db.Exec(t, extra)
	for _, table := range []string{"parent", "child"} {
		if identity := cmp.Or(identities[table], identities["*"]); identity != "" {
			db.Exec(t, fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY %s", table, identity))
		}
	}
	require.NoError(t, workload.Seed(ctx, conn, tables(t, db), rand.New(rand.NewPCG(seedOf(), 0))))
	db.Exec(t, "DELETE FROM acct") // views with a coarsened key cannot begin with rows that collide
	return db
}

// tables describes the shared fixtures and those of the zoo alone.
func tables(t *testing.T, db *pgtest.DB) workload.Spec {
	t.Helper()
	own, err := workload.Reflect(t.Context(), db.Pool, "parent", "child")
	require.NoError(t, err)
	spec := workload.Fixtures()
	spec.Tables = append(spec.Tables, own.Tables...)
	return spec
}

// seedOf is the seed of this process's workloads.
func seedOf() uint64 {
	if *seed == 0 {
		*seed = rand.Uint64N(1 << 32)
	}
	return *seed
}

// shrinkFor is how long a failure is made smaller.
const shrinkFor = 2 * time.Minute

// run keeps writers busy until the daemon has made so many rounds, each of them
// checked, then lets it come to rest. On a failure it prints what is needed to see
// it again: the seed, the writers' last transactions, and what the recorder makes of
// the round that was wrong.
func run(t *testing.T, db *pgtest.DB, d *daemon.Daemon, n int64, o workload.Options, r *minimal.Recorder) {
	t.Helper()
	w := write(t, db, o)
	err := d.Reach(d.Rounds()+n, time.Duration(n)*roundLimit)
	w.Stop()
	if err == nil {
		d.Settle(db)
		err = d.Live()
	}
	t.Logf("%d rounds, seed %d: %s", d.Rounds(), seedOf(), w.Counters())
	if err == nil && len(d.Mismatches()) == 0 {
		return
	}
	for _, e := range w.Journal() {
		t.Log(e)
	}
	d.Quit()
	r.Log(shrinkFor)
	t.Fatalf("seed %d: %v (above are the last transactions of each writer, and a minimal reproduction)", seedOf(), err)
}

// write starts four writers that do all that transactions may do, half of them without waiting for the log.
func write(t *testing.T, db *pgtest.DB, o workload.Options) *daemon.Writers {
	t.Helper()
	if len(o.Spec.Tables) == 0 {
		o.Spec = tables(t, db)
	}
	o.Seed, o.AsyncHalf, o.Truncate, o.TwoPhase, o.Journal = seedOf(), true, true, true, 15
	if o.Weights == nil {
		o.Weights = seldomTruncate()
	}
	return daemon.Write(t, db, o)
}

// seldomTruncate makes TRUNCATE rarer than it is by default: a round over all shapes is
// long, and is begun anew for each that waits.
func seldomTruncate() workload.Weights {
	weights := workload.DefaultWeights()
	for kind := range weights {
		if kind != workload.Truncate {
			weights[kind] *= 20
		}
	}
	return weights
}

// requireArms checks that what was exact was not exact by rebuilding alone.
func requireArms(t *testing.T, d *daemon.Daemon, list []shape) {
	t.Helper()
	for _, s := range list {
		if !s.arm() {
			continue
		}
		name := d.View(s.name).Name
		if d.Tally.Arms(name) <= 0 {
			t.Errorf("%s was never maintained by its arm: %d times maintained, rebuilt %v", s.name, d.Tally.Maintained(name), d.Tally.Reasons(name))
		}
	}
}
