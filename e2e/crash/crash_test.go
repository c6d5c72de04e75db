package crash

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/oracle"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
	"github.com/mvsync/mvsync/internal/pgserver"
)

var (
	daemonKills = flag.Int("crash.daemon-kills", 50, "how often the daemon is killed")
	serverKills = flag.Int("crash.server-kills", 5, "how often the server is killed")
	seed        = flag.Uint64("crash.seed", 1, "of the workload and of the moments")
)

// fixture makes the tables, fills them, and starts writers that run until the returned function is called.
func fixture(t *testing.T, db *pgtest.DB, reconnect bool) (w *workload.Workload, stop func()) {
	t.Helper()
	require.NoError(t, workload.Create(t.Context(), db.Pool, map[string]workload.Identity{"*": workload.IdentityFull}))
	require.NoError(t, workload.Seed(t.Context(), db.Pool, workload.Fixtures(), rand.New(rand.NewPCG(*seed, 1))))
	config, err := pgxpool.ParseConfig(db.URL)
	require.NoError(t, err)
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	w, err = workload.New(pool, workload.Options{
		Seed: *seed, AsyncHalf: true, Reconnect: reconnect,
		// A daemon that is killed at once confirms nothing, so that each one receives all again: not too much.
		Pause:  80 * time.Millisecond,
		Tables: []string{"item", "nul", "dim", "fact", "loose", "txt"},
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	var once bool
	stop = func() {
		if once {
			return
		}
		once = true
		w.Stop()
		require.NoError(t, <-ended)
	}
	t.Cleanup(stop)
	return w, stop
}

// finish brings a last child to the end of the workload, and compares from outside.
func finish(t *testing.T, db *pgtest.DB, p *process) {
	t.Helper()
	// It may be there already: nobody writes any more.
	require.Equal(t, "t", db.Value(t, "SELECT mvsync.wait('120s')"))
	checker := &oracle.Checker{}
	for _, v := range views() {
		checker.Views = append(checker.Views, oracle.View{Table: v.Name.String(), Body: v.Query})
	}
	// The slow view follows within its interval.
	pgtest.Eventually(t, 10*time.Second, func() error { return checker.CheckNow(t.Context(), db.Pool) })
	p.terminate(t)
	p.judge(t, true)
	compared, rows := checker.Checks()
	require.Positive(t, rows, "%d views were compared", compared)
}

// sleep waits for a random moment, or for the child to end.
func (p *process) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.done:
	}
}

// TestDaemonKilled kills the daemon at random moments: mostly within its rounds, now and then while it starts.
func TestDaemonKilled(t *testing.T) {
	db := pgtest.New(t)
	w, stop := fixture(t, db, false)
	random := rand.New(rand.NewPCG(*seed, 2))
	rounds, start := 0, time.Second
	filled := false
	for kill := range *daemonKills {
		p := spawn(t, db)
		if kill%5 == 4 {
			p.sleep(time.Duration(random.Int64N(int64(start))))
		} else {
			began := time.Now()
			p.await(t, 1)
			start = time.Since(began)
			p.sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
		}
		p.kill()
		p.judge(t, filled)
		rounds += p.count()
		filled = filled || rounds > 0
	}
	p := spawn(t, db)
	p.await(t, 1)
	stop()
	finish(t, db, p)
	t.Logf("%d kills, %d rounds, %s", *daemonKills, rounds+p.count(), w.Counters())
}

// TestServerKilled kills all processes of the server, and with every second kill the daemon, too: commits that were not
// flushed are lost, those of rounds among them.
func TestServerKilled(t *testing.T) {
	server := pgtest.NewServer(t, pgserver.Options{Fsync: true})
	db := pgtest.NewOn(t, server)
	w, stop := fixture(t, db, true)
	random := rand.New(rand.NewPCG(*seed, 3))
	p := spawn(t, db)
	for kill := range *serverKills {
		p.await(t, p.count()+5)
		p.sleep(time.Duration(random.Int64N(int64(500 * time.Millisecond))))
		require.NoError(t, server.Kill())
		if kill%2 == 1 {
			p.kill()
			p.judge(t, kill > 1)
		}
		require.NoError(t, server.Restart(t.Context()))
		if kill%2 == 1 {
			p = spawn(t, db)
		}
	}
	p.await(t, p.count()+5)
	stop()
	finish(t, db, p)
	t.Logf("%d kills, %s", *serverKills, w.Counters())
}
