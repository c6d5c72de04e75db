package samples

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

const (
	projection = plans.InverseProjection
	delta      = plans.DeltaAggregate
	residual   = plans.ResidualRecompute
	prefix     = plans.PrefixDelete
	join       = plans.JoinResidual
	floor      = plans.FullRebuild
)

var (
	rounds = flag.Int64("samples.rounds", 60, "rounds of TestExact, of each database")
	seed   = flag.Uint64("samples.seed", 0, "seed of the workloads; 0: a random one")
)

//go:embed testdata/*.sql
var schemas embed.FS

func TestMain(m *testing.M) { pgtest.Main(m) }

// roundLimit is the time that a round may take on a slow machine with the race
// detector on.
const roundLimit = 5 * time.Second

// sample is a database with its views, producers before consumers.
type sample struct {
	name   string
	tables []string
	views  []view
}

// view is a view as the applications of such a database would want it kept.
type view struct {
	name string
	body string
	want plans.Strategy
	// refused is the code where the view cannot be kept.
	refused plans.Code
	// why says why a view is on the floor or refused.
	why string
}

var samples = []sample{music, trade, rentals}

// database makes the sample's tables, with rows in them, each with REPLICA IDENTITY
// FULL.
func (s *sample) database(t *testing.T) *pgtest.DB {
	t.Helper()
	schema, err := schemas.ReadFile("testdata/" + s.name + ".sql")
	require.NoError(t, err)
	db := pgtest.New(t)
	db.Exec(t, string(schema))
	for _, r := range db.Query(t, "SELECT oid::regclass FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace") {
		db.Exec(t, "ALTER TABLE "+r[0]+" REPLICA IDENTITY FULL")
	}
	return db
}

// declarations are those of the views that can be kept.
func (s *sample) declarations() []plans.Declaration {
	var out []plans.Declaration
	for _, v := range s.views {
		if v.refused == "" {
			out = append(out, daemon.View(v.name, v.body))
		}
	}
	return out
}

// TestStrategies: each view gets the strategy of the list, or is refused as it says.
func TestStrategies(t *testing.T) {
	t.Parallel()
	for _, s := range samples {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			conn := s.database(t).Conn(t)
			producers := map[plans.Name]*plans.Plan{}
			for _, v := range s.views {
				if p := v.compile(t, conn, producers); p != nil {
					producers[p.Name] = p
				}
			}
		})
	}
}

// compile plans the view and compares what becomes of it with what is wanted.
func (v *view) compile(t *testing.T, conn *pgx.Conn, producers map[plans.Name]*plans.Plan) *plans.Plan {
	t.Helper()
	require.Equal(t, v.refused != "" || v.want == floor, v.why != "", "%s: a floor and a refusal have a reason, nothing else has", v.name)
	p, err := plans.Compile(t.Context(), conn, daemon.View(v.name, v.body), plans.Options{Producers: producers})
	if r, ok := errors.AsType[*plans.Refusal](err); ok {
		if r.Code != v.refused {
			t.Errorf("%s is refused: %v", v.name, r)
		}
		return nil
	}
	require.NoError(t, err, v.name)
	if v.refused != "" {
		t.Errorf("%s is not refused but planned as %s", v.name, p.Strategy)
	} else if p.Strategy != v.want {
		t.Errorf("%s is planned as %s, want %s: %s", v.name, p.Strategy, v.want, p.Declined[v.want])
	}
	return p
}

// TestExact: every view equals its body in each round while writers change all the
// tables, and is kept so by its strategy.
func TestExact(t *testing.T) {
	t.Parallel()
	for _, s := range samples {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			db := s.database(t)
			d := daemon.Start(t, db, daemon.Options{Views: s.declarations(), Level: slog.LevelWarn})
			pgtest.Eventually(t, 2*time.Minute, func() error { return live(d) })
			counters := s.run(t, db, d)
			for _, table := range s.tables {
				require.Positive(t, counters.Tables[table], "changes of %s", table)
			}
			for _, v := range s.views {
				if name := "public." + v.name; v.refused == "" && v.want != floor && d.Tally.Arms(name) <= 0 {
					t.Errorf("%s was never kept by its strategy: %d times in all, rebuilt %v", v.name, d.Tally.Maintained(name), d.Tally.Reasons(name))
				}
			}
		})
	}
}

// run keeps writers busy for the rounds asked for, each of them checked.
func (s *sample) run(t *testing.T, db *pgtest.DB, d *daemon.Daemon) workload.Counters {
	t.Helper()
	w, stop := s.write(t, db)
	err := d.Reach(d.Rounds()+*rounds, time.Duration(*rounds)*roundLimit)
	stop()
	if err == nil {
		d.Settle(db)
		err = live(d)
	}
	t.Logf("%d rounds, seed %d: %s", d.Rounds(), seedOf(), w.Counters())
	if err != nil || len(d.Mismatches()) > 0 {
		for _, e := range w.Journal() {
			t.Log(e)
		}
		t.Fatalf("seed %d: %v (the journal above holds the last transactions of each writer)", seedOf(), err)
	}
	return w.Counters()
}

// write starts writers over all tables; what it returns ends them, and may be called
// again.
func (s *sample) write(t *testing.T, db *pgtest.DB) (*workload.Workload, func()) {
	t.Helper()
	spec, err := workload.Reflect(t.Context(), db.Pool, s.tables...)
	require.NoError(t, err)
	config, err := pgxpool.ParseConfig(db.URL)
	require.NoError(t, err)
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	w, err := workload.New(pool, workload.Options{Spec: spec, Seed: seedOf(), AsyncHalf: true, TwoPhase: true, Journal: 15})
	require.NoError(t, err)
	done := make(chan error, 1)
	ctx := context.WithoutCancel(t.Context()) // ended by stop, also after a failure
	go func() { done <- w.Run(ctx) }()
	stop := func() {
		w.Stop()
		if err, ok := <-done; ok {
			close(done)
			pool.Close()
			if err != nil {
				t.Errorf("the workload failed: %v", err)
			}
		}
	}
	t.Cleanup(stop)
	return w, stop
}

// live says which views are not live, and why.
func live(d *daemon.Daemon) error {
	for _, v := range d.Engine.Status().Views {
		if v.State != maintain.Live {
			return fmt.Errorf("%s is %s: %w", v.Name, v.State, v.Err)
		}
	}
	return nil
}

// seedOf is the seed of this process's workloads.
func seedOf() uint64 {
	if *seed == 0 {
		*seed = rand.Uint64N(1 << 32)
	}
	return *seed
}
