package scale

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/internal/pgserver"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

var sizes = flag.String("scale.sizes", "10000,100000", "rows of the tables of TestCostAgainstSize, smallest first")

const (
	// touched is how many rows each round changes, far from each other.
	touched = 50
	// largeEnough is a number of rows that Postgres does not read whole to find a few;
	// smaller tables it may.
	largeEnough = 100_000
	// measured is how many rounds are measured, after one that is not.
	measured = 5
)

// costs are bodies over big(id, grp, val, words), ten rows to each grp, and
// small(id, label), a row for each grp.
var costs = []struct {
	name, body string
	strategy   plans.Strategy
	// index is what the plan advises; without it rounds read the whole table.
	index string
	// change is the statement of a round, over the ids in s(id).
	change string
	// reads is how many rows a round may read for each that is touched; 0: all there
	// are, with any index.
	reads int64
}{
	{
		"projection", "SELECT id, val + 1 AS next FROM big WHERE val >= 0", plans.InverseProjection, "",
		"UPDATE big SET val = val + 1 FROM s WHERE big.id = s.id", 2,
	},
	{
		"sums", "SELECT grp, count(*) AS n, sum(val) AS total FROM big GROUP BY grp", plans.DeltaAggregate, "",
		"UPDATE big SET val = val + 1 FROM s WHERE big.id = s.id", 2,
	},
	{
		"averages, kept beside the table", "SELECT grp, avg(val) AS mean FROM big GROUP BY grp", plans.DeltaAggregate, "",
		"UPDATE big SET val = val + 1 FROM s WHERE big.id = s.id", 4,
	},
	{
		"extremes taken back", "SELECT grp, max(val) AS top FROM big GROUP BY grp", plans.DeltaAggregate, "big (grp)",
		"UPDATE big SET val = val - 1 FROM s WHERE big.id = s.id + 9", 16,
	},
	{
		"lists", "SELECT grp, string_agg(val::text, ',' ORDER BY val, id) AS list FROM big GROUP BY grp", plans.ResidualRecompute, "big (grp)",
		"UPDATE big SET val = val + 1 FROM s WHERE big.id = s.id", 30,
	},
	{
		"lists without an index", "SELECT grp, string_agg(val::text, ',' ORDER BY val, id) AS list FROM big GROUP BY grp", plans.ResidualRecompute, "",
		"UPDATE big SET val = val + 1 FROM s WHERE big.id = s.id", 0,
	},
	{
		"ranks", "SELECT id, rank() OVER (PARTITION BY grp ORDER BY val, id) AS place FROM big", plans.ResidualRecompute, "big (grp)",
		"UPDATE big SET val = val + 1 FROM s WHERE big.id = s.id", 60,
	},
	{
		"sums over a join", "SELECT s.id, s.label, sum(b.val) AS total FROM small s JOIN big b ON b.grp = s.id GROUP BY s.id", plans.ResidualRecompute, "big (grp)",
		"UPDATE big SET val = val + 1 FROM s WHERE big.id = s.id", 60,
	},
	{
		"words", "SELECT b.id, w.n, w.word FROM big b CROSS JOIN LATERAL string_to_table(b.words, ' ') WITH ORDINALITY w(word, n)", plans.PrefixDelete, "",
		"UPDATE big SET words = words || '!' FROM s WHERE big.id = s.id", 10,
	},
	{
		"join, its large side changes", "SELECT b.id, b.val, s.label FROM big b JOIN small s ON s.id = b.grp", plans.JoinResidual, "big (grp)",
		"UPDATE big SET val = val + 1 FROM s WHERE big.id = s.id", 12,
	},
	{
		"join, its small side changes", "SELECT b.id, b.val, s.label FROM big b JOIN small s ON s.id = b.grp", plans.JoinResidual, "big (grp)",
		"UPDATE small SET label = label || '!' FROM s WHERE small.id = s.id / 10", 60,
	},
	{
		"rows without a match", "SELECT s.id, s.label FROM small s WHERE NOT EXISTS (SELECT FROM big b WHERE b.grp = s.id AND b.val < 0)", plans.JoinResidual, "big (grp)",
		"UPDATE big SET val = -1 - val FROM s WHERE big.id = s.id", 60,
	},
	{
		"rebuild", "SELECT id, val FROM big ORDER BY val DESC, id LIMIT 100", plans.FullRebuild, "",
		"UPDATE big SET val = val + 1 FROM s WHERE big.id = s.id", 0,
	},
}

// TestCostAgainstSize: what a round reads for a touched row has nothing to do with the
// size of the tables, wherever there is an index. Where it has, the plan says what
// would help.
func TestCostAgainstSize(t *testing.T) {
	t.Parallel()
	// The tables of all sizes are in its memory: pages that come from elsewhere are another comparison.
	server := pgtest.NewServer(t, pgserver.Options{Settings: map[string]string{"shared_buffers": "2GB", "max_wal_size": "4GB"}})
	for _, c := range costs {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var before cost
			for _, size := range numbers(t, *sizes) {
				got, plan := measure(t, server, size, c.body, c.index, c.change)
				require.Equal(t, c.strategy, plan.Strategy)
				t.Logf("%-18s %9d rows: %8.1f rows, %8.1f pages read and %9s for each touched row", plan.Strategy, size,
					float64(got.read)/touched, float64(got.pages)/touched, (got.took / touched).Round(time.Microsecond))
				if c.reads > 0 {
					if size >= largeEnough {
						require.LessOrEqual(t, got.read, c.reads*touched, "a round reads more than what it touches: %s", got.tables)
						require.True(t, before.pages == 0 || got.pages <= 2*before.pages, "%d pages in place of %d", got.pages, before.pages)
						before = got
					}
					continue
				}
				require.GreaterOrEqual(t, got.read, int64(size), "a round reads less than the whole table: it is no case that grows")
				for _, a := range plan.Advice {
					t.Logf("advice: %s", a)
				}
				if c.strategy != plans.FullRebuild {
					require.Contains(t, strings.Join(plan.Advice, "\n"), "CREATE INDEX ON public.big (grp)")
				}
			}
		})
	}
}

// numbers reads the flag's list.
func numbers(t *testing.T, list string) []int {
	t.Helper()
	var out []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		out = append(out, n)
	}
	return out
}

// cost is what one round cost; of several the cheapest, which others disturbed least.
type cost struct {
	read   int64 // rows of all tables, indexes or not
	pages  int64 // of tables and indexes, each time that one is looked at
	tables string
	took   time.Duration
}

// measure keeps one view over tables of a size through some rounds.
func measure(t *testing.T, server *pgserver.Server, size int, body, index, change string) (cost, *plans.Plan) {
	t.Helper()
	db := pgtest.NewOn(t, server)
	fill(t, db, size, index)
	m := &meter{}
	d := daemon.Start(t, db, daemon.Options{
		Views: []plans.Declaration{daemon.View("v", body)}, Level: slog.LevelWarn, Unchecked: true, Engine: m.install,
	})
	pgtest.Eventually(t, time.Hour, func() error { return live(d) })
	d.Settle(db)
	db.Exec(t, "ANALYZE") // as autovacuum does some time after the fill
	best := cost{}
	for i := range measured + 1 {
		m.clear()
		db.Exec(t, fmt.Sprintf("WITH s AS (SELECT (n * %d + %d) %% %d AS id FROM generate_series(1, %d) n) %s",
			size/touched, 10*i, size, touched, change))
		d.Settle(db)
		if got := m.last(); i == 1 || i > 1 && got.took < best.took {
			best = got
		}
	}
	if plan := d.Engine.Plans()[0]; plan.Strategy != plans.FullRebuild {
		require.Equal(t, measured+1, d.Tally.Arms("public.v"), "not every round was the arm's: %v", d.Tally.Reasons("public.v"))
	}
	return best, d.Engine.Plans()[0]
}

func fill(t *testing.T, db *pgtest.DB, size int, index string) {
	t.Helper()
	db.Exec(t, `CREATE TABLE small (id int PRIMARY KEY, label text NOT NULL); ALTER TABLE small REPLICA IDENTITY FULL;
		CREATE TABLE big (id int PRIMARY KEY, grp int NOT NULL, val int NOT NULL, words text NOT NULL); ALTER TABLE big REPLICA IDENTITY FULL`)
	db.Exec(t, "INSERT INTO small SELECT i, 'label ' || i FROM generate_series(0, $1::int / 10 - 1) i", size)
	db.Exec(t, "INSERT INTO big SELECT i, i / 10, i % 10, 'one two three' FROM generate_series(0, $1::int - 1) i", size)
	if index != "" {
		db.Exec(t, "CREATE INDEX ON "+index)
	}
	db.Exec(t, "VACUUM ANALYZE small")
	db.Exec(t, "VACUUM ANALYZE big")
}

// meter is an observer that takes the time of a view's statements, and reads from the
// server what they read.
type meter struct {
	maintain.Observer

	mu  sync.Mutex
	now cost
}

func (m *meter) install(o *maintain.Options) {
	m.Observer, o.Observer = o.Observer, m
	o.Check = m.check
}

// readRows: what this session has read in this transaction, and in those whose counts
// it has not handed over yet; none, since each round ends by handing them over.
const readRows = `WITH t AS (SELECT oid FROM pg_class WHERE relkind = 'r' AND (relname IN ('big', 'small', 'v') OR relname LIKE 'state\_%')),
     r AS (SELECT oid FROM t UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid IN (SELECT oid FROM t))
SELECT (SELECT coalesce(sum(pg_stat_get_xact_blocks_fetched(oid)), 0)::bigint FROM r), coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint,
       coalesce(string_agg(format('%s: %s in %s scans, %s by index', relname, seq_tup_read, seq_scan, idx_tup_fetch), '; ' ORDER BY relname), ''),
       pg_stat_force_next_flush()::text
  FROM pg_stat_xact_user_tables WHERE (relname IN ('big', 'small', 'v') OR relname LIKE 'state\_%') AND seq_tup_read + coalesce(idx_tup_fetch, 0) > 0`

func (m *meter) check(ctx context.Context, conn *pgx.Conn, _ []maintain.Checked) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var pages, read int64
	var tables, flushed string
	err := conn.QueryRow(ctx, readRows).Scan(&pages, &read, &tables, &flushed)
	m.now.pages += pages
	m.now.read += read // a second round may follow at once, for who waits
	m.now.tables += tables
	return err
}

// Maintained implements [maintain.Observer].
func (m *meter) Maintained(view, strategy string, took time.Duration) {
	m.Observer.Maintained(view, strategy, took)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.took += took
}

func (m *meter) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = cost{}
}

func (m *meter) last() cost {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}
