package scale

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
	"github.com/mvsync/mvsync/replication"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	manyTables = 50
	fewTables  = 3
)

// bodies are the views over each table, %[1]s, and its neighbour, %[2]s.
var bodies = []struct{ name, body string }{
	{"projected", "SELECT id, val FROM %[1]s WHERE val > 0"},
	{"added", "SELECT grp, count(*) AS n, avg(val) AS mean FROM %[1]s GROUP BY grp"},
	{"listed", "SELECT grp, string_agg(val::text, ',' ORDER BY id) AS list FROM %[1]s GROUP BY grp"},
	{"joined", "SELECT a.id, a.val, b.val AS other FROM %[1]s a JOIN %[2]s b ON b.id = a.grp"},
}

// TestOthersAreLeftAlone: a round with a change in one of 50 tables sends no statement
// that concerns a view that does not read it, of 200, and as many statements as where
// there are no such views.
func TestOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	many := observed(t, manyTables)
	few := observed(t, fewTables)
	t.Logf("statements of a round with a change in one table: %d among %d views, %d among %d",
		len(many), manyTables*len(bodies), len(few), fewTables*len(bodies))
	// Table 1 is read by its own views, one of which joins table 2, and by one over table 0.
	concerned := regexp.MustCompile(`^(t00|t01|t02|\w+_01|joined_00)$`)
	of := regexp.MustCompile(`\b(t|projected_|added_|listed_|joined_)\d\d\b`)
	for _, sql := range many {
		for _, name := range of.FindAllString(sql, -1) {
			require.Regexp(t, concerned, name, sql)
		}
	}
	require.NotEmpty(t, many)
	require.Equal(t, shapes(few), shapes(many), "the number of views shows in what a round sends")
}

// shapes are the statements without what differs from database to database.
func shapes(list []string) []string {
	numbers := regexp.MustCompile(`\d+`)
	out := make([]string, len(list))
	for i, sql := range list {
		out[i] = numbers.ReplaceAllString(strings.Join(strings.Fields(sql), " "), "0")
		out[i] = out[i][:min(len(out[i]), 200)]
	}
	return out
}

// observed lists the statements of one round with a change in table 1 of n.
func observed(t *testing.T, n int) []string {
	t.Helper()
	db := pgtest.New(t)
	var views []plans.Declaration
	for i := range n {
		db.Exec(t, fmt.Sprintf(`CREATE TABLE t%02[1]d (id int PRIMARY KEY, grp int NOT NULL, val int NOT NULL);
			ALTER TABLE t%02[1]d REPLICA IDENTITY FULL; INSERT INTO t%02[1]d SELECT i, i %% 5, i FROM generate_series(0, 19) i`, i))
		table, next := fmt.Sprintf("t%02d", i), fmt.Sprintf("t%02d", (i+1)%n)
		for _, b := range bodies {
			views = append(views, daemon.View(fmt.Sprintf("%s_%02d", b.name, i), fmt.Sprintf(b.body+" -- %[2]s", table, next)))
		}
	}
	tr := &tracer{}
	d := daemon.Start(t, db, daemon.Options{Views: views, Level: slog.LevelWarn, Unchecked: true, Engine: func(o *maintain.Options) {
		o.Connect = func(ctx context.Context, _ string) (*pgx.Conn, error) {
			config, err := pgx.ParseConfig(db.URL)
			if err != nil {
				return nil, err
			}
			replication.Pin(&config.Config, replication.Session{})
			config.Tracer = &session{tracer: tr}
			return pgx.ConnectConfig(ctx, config)
		}
	}})
	pgtest.Eventually(t, 5*time.Minute, func() error { return live(d) })
	change := func() {
		db.Exec(t, "UPDATE t01 SET val = val + 1, grp = (grp + 1) % 5 WHERE id IN (3, 4)")
		d.Settle(db)
	}
	change() // prepares what is prepared once
	change()
	tr.clear()
	change()
	for _, name := range []string{"projected_01", "added_01", "listed_01", "joined_01", "joined_00"} {
		require.GreaterOrEqual(t, d.Tally.Arms("public."+name), 3, name)
	}
	return tr.round(t)
}

// tracer keeps the statements of the sessions.
type tracer struct {
	mu   sync.Mutex
	sent []sent
}

type sent struct {
	session *session
	sql     string
}

// session traces one of them.
type session struct{ *tracer }

func (s *session) add(sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, sent{s, sql})
}

// TraceQueryStart implements [pgx.QueryTracer].
func (s *session) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.add(data.SQL)
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (*session) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements [pgx.BatchTracer].
func (*session) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery implements [pgx.BatchTracer].
func (s *session) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	s.add(data.SQL)
}

// TraceBatchEnd implements [pgx.BatchTracer].
func (*session) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TracePrepareStart implements [pgx.PrepareTracer].
func (s *session) TracePrepareStart(ctx context.Context, _ *pgx.Conn, data pgx.TracePrepareStartData) context.Context {
	s.add("PREPARE " + data.SQL)
	return ctx
}

// TracePrepareEnd implements [pgx.PrepareTracer].
func (*session) TracePrepareEnd(context.Context, *pgx.Conn, pgx.TracePrepareEndData) {}

func (tr *tracer) clear() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.sent = nil
}

// round lists the statements of the session that wrote the views, up to its COMMIT.
// Others look after the catalog and after waiters, once in a while.
func (tr *tracer) round(t *testing.T) []string {
	t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var writer *session
	for _, s := range tr.sent {
		if strings.Contains(s.sql, "projected_01") {
			writer = s.session
		}
	}
	require.NotNil(t, writer, "no statement names the view that changed")
	var out []string
	for _, s := range tr.sent {
		if s.session == writer {
			out = append(out, s.sql)
		}
	}
	// Rounds before and after this one, which somebody waited for, are none of its own.
	wrote := slices.IndexFunc(out, func(sql string) bool { return strings.Contains(sql, "projected_01") })
	from := 0
	for i, sql := range out[:wrote] {
		if sql == "COMMIT" {
			from = i + 1
		}
	}
	to := wrote + slices.Index(out[wrote:], "COMMIT") + 1
	return out[from:to]
}

func live(d *daemon.Daemon) error {
	for _, v := range d.Engine.Status().Views {
		if v.State != maintain.Live {
			return fmt.Errorf("%s is %s: %w", v.Name, v.State, v.Err)
		}
	}
	return nil
}
