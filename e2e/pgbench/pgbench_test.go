package pgbench

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/oracle"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

var (
	seconds = flag.Int("pgbench.seconds", 8, "how long pgbench runs, altogether")
	clients = flag.Int("pgbench.clients", 4, "sessions of pgbench")
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// views are over all tables of pgbench, by each kind of strategy.
func views() []plans.Declaration {
	return []plans.Declaration{
		daemon.View("branch_balance", "SELECT bid, count(*) AS n, sum(delta) AS balance FROM pgbench_history GROUP BY bid"),
		daemon.View("teller_balance", "SELECT bid, tid, count(*) AS n, sum(delta) AS balance, min(mtime) AS since FROM pgbench_history GROUP BY bid, tid"),
		daemon.View("branch_accounts", "SELECT bid, count(*) AS accounts, sum(abalance) AS balance, min(abalance) AS lowest, max(abalance) AS highest FROM pgbench_accounts GROUP BY bid"),
		daemon.View("rich_accounts", "SELECT aid, bid, abalance FROM pgbench_accounts WHERE abalance > 0"),
		daemon.View("branch_tellers", "SELECT b.bid, b.bbalance, count(t.tid) AS tellers, sum(t.tbalance) AS tbalance FROM pgbench_branches b LEFT JOIN pgbench_tellers t ON t.bid = b.bid GROUP BY b.bid, b.bbalance"),
		daemon.View("top_branches", "SELECT bid, bbalance FROM pgbench_branches ORDER BY bbalance DESC, bid LIMIT 3"),
	}
}

// bench is pgbench over one database.
type bench struct {
	t  *testing.T
	db *pgtest.DB
}

// command runs pgbench in the foreground.
func (b bench) command(args ...string) {
	b.t.Helper()
	cmd := b.db.Server.Command(b.t.Context(), "pgbench", append(args, b.db.Name)...)
	out, err := cmd.CombinedOutput()
	require.NoError(b.t, err, "pgbench: %s", out)
}

// initialise makes the tables with their rows, as a newcomer would: the history has no key of its own.
func (b bench) initialise() {
	b.t.Helper()
	b.command("-i", "-q", "-s", "2")
	b.key()
}

// key gives the history a key, and all tables old images.
func (b bench) key() {
	b.t.Helper()
	b.db.Exec(b.t, `ALTER TABLE pgbench_history ADD COLUMN hid bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;
		ALTER TABLE pgbench_history REPLICA IDENTITY FULL;
		ALTER TABLE pgbench_accounts REPLICA IDENTITY FULL;
		ALTER TABLE pgbench_branches REPLICA IDENTITY FULL;
		ALTER TABLE pgbench_tellers REPLICA IDENTITY FULL`)
}

// running is a pgbench that writes.
type running struct {
	cmd *exec.Cmd
	out *bytes.Buffer
}

func (b bench) start(d time.Duration) *running {
	b.t.Helper()
	r := &running{out: &bytes.Buffer{}}
	r.cmd = b.db.Server.Command(b.t.Context(), "pgbench", "-n", "-c", strconv.Itoa(*clients), "-T", strconv.Itoa(max(1, int(d/time.Second))), b.db.Name)
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	require.NoError(b.t, r.cmd.Start())
	return r
}

// during compares every view with its body by verify requests until pgbench ends, and returns how many were answered.
func (r *running) during(t *testing.T, db *pgtest.DB) (verified int) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- r.cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			require.NoError(t, err, r.out.String())
			return verified
		default:
			wait(t, db)
			verified += len(views())
		}
	}
}

func wait(t *testing.T, db *pgtest.DB) {
	t.Helper()
	require.Equal(t, "t", db.Value(t, "SELECT mvsync.wait()"))
}

// exact waits for the views and compares them from outside, while nobody writes.
func exact(t *testing.T, db *pgtest.DB) {
	t.Helper()
	wait(t, db)
	checker := &oracle.Checker{}
	for _, v := range views() {
		checker.Views = append(checker.Views, oracle.View{Table: v.Name.String(), Body: v.Query})
	}
	require.NoError(t, checker.CheckNow(t.Context(), db.Pool))
	_, rows := checker.Checks()
	require.Positive(t, rows)
}

func begin(t *testing.T) (bench, *daemon.Daemon) {
	t.Helper()
	b := bench{t: t, db: pgtest.New(t)}
	b.initialise()
	d := daemon.Start(t, b.db, daemon.Options{Views: views()})
	pgtest.Eventually(t, time.Minute, func() error {
		if !d.Engine.Status().Ready {
			return errors.New("the views are not filled")
		}
		return nil
	})
	return b, d
}

// TestExactWhilePgbenchRuns compares every view in every round, and once pgbench has ended; then pgbench starts again.
func TestExactWhilePgbenchRuns(t *testing.T) {
	b, d := begin(t)
	for range 2 {
		before := d.Rounds()
		r := b.start(time.Duration(*seconds) * time.Second / 2)
		waits := r.during(t, b.db)
		exact(t, b.db)
		require.Greater(t, d.Rounds(), before)
		t.Logf("%d rounds, %d answers to wait\n%s", d.Rounds()-before, waits/len(views()), r.out)
	}
	require.Empty(t, d.Mismatches())
	for _, v := range views()[:4] {
		require.Equal(t, map[string]int{"create": 1}, d.Tally.Reasons(v.Name.String()), v.Name)
		require.Positive(t, d.Tally.Arms(v.Name.String()), v.Name)
	}
	sums := b.db.Query(t, `SELECT (SELECT sum(balance) FROM branch_balance), (SELECT sum(balance) FROM teller_balance),
		(SELECT sum(balance) FROM branch_accounts), (SELECT sum(bbalance) FROM pgbench_branches)`)
	require.Equal(t, []string{sums[0][3], sums[0][3], sums[0][3], sums[0][3]}, sums[0], "TPC-B's own condition")
}

// TestTruncatedWhilePgbenchRuns truncates tables under pgbench.
func TestTruncatedWhilePgbenchRuns(t *testing.T) {
	b, d := begin(t)
	r := b.start(4 * time.Second)
	for range 3 {
		wait(t, b.db)
		b.db.Exec(t, "TRUNCATE pgbench_history")
	}
	r.during(t, b.db)
	exact(t, b.db)
	b.db.Exec(t, "TRUNCATE pgbench_accounts, pgbench_history, pgbench_tellers, pgbench_branches")
	wait(t, b.db)
	require.Equal(t, [][]string{{"0", "0", "0"}}, b.db.Query(t,
		"SELECT (SELECT count(*) FROM branch_balance), (SELECT count(*) FROM branch_accounts), (SELECT count(*) FROM top_branches)"))
	require.Empty(t, d.Mismatches())
	require.NotEmpty(t, d.Tally.Rebuilt("truncate"))
}

// TestInitialisedAgain runs pgbench -i once more, which drops the tables and makes new ones without the identities that
// the views need: to mvsync those are other tables. Views keep what they had, say what to do, and go on once it is done.
func TestInitialisedAgain(t *testing.T) {
	b, d := begin(t)
	b.start(time.Second).during(t, b.db)
	exact(t, b.db)
	const stored = "SELECT bid, n, balance FROM branch_balance ORDER BY bid"
	before := b.db.Query(t, stored)
	b.command("-i", "-q", "-s", "2")
	const stale = "SELECT name, error FROM mvsync.views WHERE state = 'stale'"
	pgtest.Eventually(t, 30*time.Second, func() error {
		// Tables that have their key again by the time they are looked at are taken over at once.
		if n := len(b.db.Query(t, stale)); n < 2 {
			return fmt.Errorf("%d views are stale, want those over the history at least", n)
		}
		return nil
	})
	require.Equal(t, before, b.db.Query(t, stored))
	says := regexp.MustCompile("ALTER TABLE .* REPLICA IDENTITY FULL|add a primary key")
	pgtest.Eventually(t, 30*time.Second, func() error {
		for _, row := range b.db.Query(t, stale) {
			if !says.MatchString(row[1]) { // pgbench adds primary keys last
				return fmt.Errorf("%s does not say what to do now: %s", row[0], row[1])
			}
		}
		return nil
	})
	b.key() // nothing else is needed
	pgtest.Eventually(t, 30*time.Second, func() error {
		if !live(d) {
			return fmt.Errorf("not live: %v", b.db.Query(t, "SELECT name, state, error FROM mvsync.views"))
		}
		return nil
	})
	exact(t, b.db)
	b.start(time.Second).during(t, b.db)
	exact(t, b.db)
	require.Empty(t, d.Mismatches())
}

func live(d *daemon.Daemon) bool {
	return !slices.ContainsFunc(d.Engine.Status().Views, func(v maintain.ViewStatus) bool { return v.State != maintain.Live })
}
