package noop

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// schema: lot.unread and kind.unread are read by no view. Each group has ten lots.
const schema = `
CREATE TABLE kind (id int PRIMARY KEY, label text NOT NULL, unread int NOT NULL DEFAULT 0);
CREATE TABLE lot (id int PRIMARY KEY, grp int NOT NULL, val int NOT NULL, words text NOT NULL, unread int NOT NULL DEFAULT 0);
INSERT INTO kind SELECT i, 'kind ' || i FROM generate_series(0, 9) i;
INSERT INTO lot SELECT i, i % 10, i, 'a b c' FROM generate_series(1, 100) i;`

// views has one of each strategy.
var views = []struct {
	name, body string
	strategy   plans.Strategy
}{
	{"projected", "SELECT id, val + 1 AS next, grp FROM lot WHERE val < 1000", plans.InverseProjection},
	{"added", "SELECT grp, count(*) AS n, sum(val) AS total FROM lot GROUP BY grp", plans.DeltaAggregate},
	{"averaged", "SELECT grp, avg(val) AS mean, max(val) AS top FROM lot GROUP BY grp", plans.DeltaAggregate}, // with a companion
	{"listed", "SELECT grp, string_agg(val::text, ',' ORDER BY val, id) AS list FROM lot GROUP BY grp", plans.ResidualRecompute},
	{"ranked", "SELECT id, rank() OVER (PARTITION BY grp ORDER BY val DESC, id) AS place FROM lot", plans.ResidualRecompute},
	{"fanned", "SELECT l.id, w.n, w.word FROM lot l CROSS JOIN LATERAL string_to_table(l.words, ' ') WITH ORDINALITY w(word, n) WHERE l.val < 1000", plans.PrefixDelete},
	{"joined", "SELECT l.id, l.val, k.label FROM lot l JOIN kind k ON k.id = l.grp", plans.JoinResidual},
	{"rebuilt", "SELECT id, val FROM lot ORDER BY val DESC, id LIMIT 20", plans.FullRebuild},
}

// identities are what the tables' old images hold. Where that is the key alone,
// mvsync does not see that an update changed nothing: it must find that the row is
// the same.
var identities = []string{"FULL", "DEFAULT"}

// probe is a change after which everything is as it was.
type probe struct {
	name string
	// batch are transactions that one round takes together.
	batch []string
}

var probes = []probe{
	{"column that no view reads", []string{"UPDATE lot SET unread = unread + 1"}},
	{"column that no view reads, of the other table", []string{"UPDATE kind SET unread = unread + 1"}},
	{"same value", []string{"UPDATE lot SET val = val, grp = grp, words = words"}},
	{"same value, of the other table", []string{"UPDATE kind SET label = label"}},
	{"there and back in a transaction", []string{"UPDATE lot SET val = val + 7; UPDATE lot SET val = val - 7"}},
	{"there and back in a batch", []string{"UPDATE lot SET val = val + 7 WHERE id < 20", "UPDATE lot SET val = val - 7 WHERE id < 20"}},
	{"label there and back in a batch", []string{"UPDATE kind SET label = label || '!'", "UPDATE kind SET label = rtrim(label, '!')"}},
	{"group there and back", []string{"UPDATE lot SET grp = (grp + 1) % 10", "UPDATE lot SET grp = (grp + 9) % 10"}},
	{"key there and back", []string{"UPDATE lot SET id = -id WHERE id = 5", "UPDATE lot SET id = -id WHERE id = -5"}},
	{"in and out of the filter", []string{"UPDATE lot SET val = val + 5000 WHERE id < 9", "UPDATE lot SET val = val - 5000 WHERE id < 9"}},
	{"new and gone", []string{"INSERT INTO lot VALUES (500, 3, 500, 'x')", "DELETE FROM lot WHERE id = 500"}},
	{"gone and new", []string{"CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM lot WHERE id = 6; DELETE FROM lot WHERE id = 6; INSERT INTO lot SELECT * FROM kept"}},
	{"rolled back", []string{"SAVEPOINT s; UPDATE lot SET val = 0; DELETE FROM kind; ROLLBACK TO s; UPDATE lot SET unread = 0 WHERE id = 1"}},
	{"what the filter hides", []string{"INSERT INTO lot VALUES (501, 3, 0, ''); DELETE FROM lot WHERE id = 501"}},
}

// TestNothingWritten: after each probe every row stands where it stood, written by
// the transaction that wrote it, and no consumer has run.
func TestNothingWritten(t *testing.T) {
	t.Parallel()
	for _, identity := range identities {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			k := start(t, identity)
			for _, p := range probes {
				k.nothing(t, p)
			}
			for _, v := range k.kept {
				reasons := k.d.Tally.Reasons(v)
				delete(reasons, "create")
				delete(reasons, "strategy") // a floor view's own way
				require.Empty(t, reasons, v)
			}
		})
	}
}

// keeper is a daemon over the schema with a consumer of each view.
type keeper struct {
	db   *pgtest.DB
	d    *daemon.Daemon
	gate *gate
	kept []string // names of the views
}

// start keeps the views whose strategy the identity allows.
func start(t *testing.T, identity string) *keeper {
	t.Helper()
	db := pgtest.New(t)
	db.Exec(t, schema)
	for _, table := range []string{"lot", "kind"} {
		db.Exec(t, "ALTER TABLE "+table+" REPLICA IDENTITY "+identity)
	}
	k := &keeper{db: db, gate: newGate()}
	t.Cleanup(k.gate.open)
	var list []plans.Declaration
	for _, v := range views {
		if identity != "FULL" && needsOld(v.strategy) {
			continue
		}
		list = append(list, daemon.View(v.name, v.body), daemon.View(v.name+"_consumer", "SELECT * FROM "+v.name))
		k.kept = append(k.kept, "public."+v.name)
	}
	k.d = daemon.Start(t, db, daemon.Options{Views: list, Level: slog.LevelWarn, Engine: k.gate.install})
	pgtest.Eventually(t, time.Minute, func() error { return live(k.d) })
	for _, v := range views {
		if slices.Contains(k.kept, "public."+v.name) {
			require.Equal(t, v.strategy, k.d.View(v.name).Strategy, v.name)
		}
	}
	return k
}

// needsOld: the strategy reads columns of old images beside the key.
func needsOld(s plans.Strategy) bool {
	return s == plans.DeltaAggregate || s == plans.ResidualRecompute
}

func (k *keeper) nothing(t *testing.T, p probe) {
	t.Helper()
	before, written, ran := k.rows(t), k.d.Tally.Written(), k.consumers()
	k.batch(t, p.batch)
	require.Empty(t, changed(before, k.rows(t)), p.name)
	require.Equal(t, written, k.d.Tally.Written(), "%s: rows written", p.name)
	require.Equal(t, ran, k.consumers(), "%s: consumers run", p.name)
}

// batch commits the transactions while a round is held up, so that the next one takes
// them together, and waits for that.
func (k *keeper) batch(t *testing.T, transactions []string) {
	t.Helper()
	k.gate.close()
	k.db.Exec(t, "UPDATE lot SET unread = -1 WHERE id = 1") // opens the round that is held up
	k.gate.await(t)
	for _, sql := range transactions {
		k.db.Exec(t, "BEGIN; "+sql+"; COMMIT")
	}
	k.gate.open()
	require.Equal(t, "t", k.db.Value(t, "SELECT mvsync.wait('60s')"))
}

// consumers counts the runs of every consumer.
func (k *keeper) consumers() map[string]int {
	out := map[string]int{}
	for _, v := range k.kept {
		out[v] = k.d.Tally.Maintained(v + "_consumer")
	}
	return out
}

// rows gives every stored row of the views, their consumers and companions: where it
// stands and which transaction wrote it.
func (k *keeper) rows(t *testing.T) map[string]string {
	t.Helper()
	var parts []string
	for _, r := range k.db.Query(t, `SELECT c.oid::regclass::text FROM pg_class c WHERE c.relkind = 'r' AND (c.relnamespace = 'public'::regnamespace
		AND c.relname NOT IN ('lot', 'kind') OR c.relnamespace = 'mvsync'::regnamespace AND c.relname LIKE 'state\_%')`) {
		parts = append(parts, fmt.Sprintf("SELECT '%s ' || ctid || ' ' || xmin || ' ' || cmax, t::text FROM %s t", strings.ReplaceAll(r[0], "'", "''"), r[0]))
	}
	out := map[string]string{}
	for _, r := range k.db.Query(t, strings.Join(parts, " UNION ALL ")) {
		out[r[0]] = r[1]
	}
	return out
}

// changed lists what is in one of the two alone.
func changed(before, after map[string]string) []string {
	var out []string
	for at, row := range before {
		if after[at] != row {
			out = append(out, "- "+at+": "+row)
		}
	}
	for at, row := range after {
		if before[at] != row {
			out = append(out, "+ "+at+": "+row)
		}
	}
	slices.Sort(out)
	return out
}

func live(d *daemon.Daemon) error {
	for _, v := range d.Engine.Status().Views {
		if v.State != maintain.Live {
			return fmt.Errorf("%s is %s: %w", v.Name, v.State, v.Err)
		}
	}
	return nil
}

// TestRealChanges: a change writes the rows that differ; the other rows of the slices
// that it touches stand where they stood.
func TestRealChanges(t *testing.T) {
	t.Parallel()
	k := start(t, "FULL")
	for _, tc := range []struct {
		name  string
		batch []string
		want  map[string]int // rows written, by view; its consumer writes as many
	}{
		{
			"a value", []string{"UPDATE lot SET val = val + 1 WHERE id = 93"}, // above 92 in no group of its own: the order stays
			map[string]int{"projected": 1, "added": 1, "averaged": 1, "listed": 1, "joined": 1, "rebuilt": 1},
		},
		{
			"a value that is no extreme",
			[]string{"UPDATE lot SET val = 0 WHERE id = 7"},
			map[string]int{"projected": 1, "added": 1, "averaged": 1, "listed": 1, "joined": 1},
		},
		{
			"two values that level out",
			[]string{"UPDATE lot SET val = val + 1 WHERE id = 14; UPDATE lot SET val = val - 1 WHERE id = 24"},
			map[string]int{"projected": 2, "listed": 1, "joined": 2},
		},
		{
			"one word of three",
			[]string{"UPDATE lot SET words = 'a B c' WHERE id = 3"},
			map[string]int{"fanned": 1},
		},
		{
			"a label",
			[]string{"UPDATE kind SET label = 'other' WHERE id = 2"},
			map[string]int{"joined": 10},
		},
		{
			"two places exchanged",
			[]string{"UPDATE lot SET val = CASE id WHEN 35 THEN 45 ELSE 35 END WHERE id IN (35, 45)"},
			map[string]int{"projected": 2, "ranked": 2, "joined": 2, "listed": 0},
		},
		{
			"another group, in a second transaction",
			[]string{"UPDATE lot SET val = 1000 WHERE id = 1", "UPDATE lot SET val = 1, grp = 2 WHERE id = 1"},
			map[string]int{"projected": 1, "added": 2, "averaged": 2, "listed": 2, "joined": 1, "ranked": 1},
		},
		{
			"a new row",
			[]string{"INSERT INTO lot VALUES (600, 4, 1, 'x')"},
			map[string]int{"projected": 1, "added": 1, "averaged": 1, "listed": 1, "ranked": 1, "fanned": 1, "joined": 1},
		},
		{
			"a row less",
			[]string{"DELETE FROM lot WHERE id = 600"},
			map[string]int{"projected": 1, "added": 1, "averaged": 1, "listed": 1, "ranked": 1, "fanned": 1, "joined": 1},
		},
	} {
		before, stood := k.written(), k.rows(t)
		k.batch(t, tc.batch)
		got := map[string]int{}
		for name, n := range k.written() {
			if n -= before[name]; n > 0 {
				got[name] = n
			}
		}
		want := map[string]int{}
		for name, n := range tc.want {
			if n > 0 {
				want["public."+name], want["public."+name+"_consumer"] = n, n
			}
		}
		require.Equal(t, want, got, tc.name)
		moved := map[string]bool{}
		for _, c := range changed(stood, k.rows(t)) {
			moved[strings.Fields(c)[1]] = true
		}
		for table := range moved {
			if !strings.HasPrefix(table, "mvsync.") {
				require.Contains(t, slices.Collect(maps.Keys(want)), "public."+table, tc.name)
			}
		}
	}
}

// written counts the rows written, by view.
func (k *keeper) written() map[string]int {
	out := map[string]int{}
	for _, v := range k.kept {
		for _, name := range []string{v, v + "_consumer"} {
			out[name] = k.d.Tally.WrittenTo(name)
		}
	}
	return out
}

// gate holds rounds up before their COMMIT.
type gate struct {
	held   chan struct{} // a round is held up
	passes chan chan struct{}
}

func newGate() *gate {
	g := &gate{held: make(chan struct{}, 1), passes: make(chan chan struct{}, 1)}
	pass := make(chan struct{})
	close(pass)
	g.passes <- pass
	return g
}

func (g *gate) install(o *maintain.Options) {
	check := o.Check
	o.Check = func(ctx context.Context, conn *pgx.Conn, views []maintain.Checked) error {
		pass := <-g.passes
		g.passes <- pass
		select {
		case <-pass:
		default:
			select {
			case g.held <- struct{}{}:
			default:
			}
			<-pass
		}
		return check(ctx, conn, views)
	}
}

// close makes the next round wait until open.
func (g *gate) close() {
	<-g.passes
	g.passes <- make(chan struct{})
}

// open lets rounds pass; it may be called again.
func (g *gate) open() {
	pass := <-g.passes
	select {
	case <-pass:
	default:
		close(pass)
	}
	select {
	case <-g.held:
	default:
	}
	g.passes <- pass
}

// await returns once a round is held up.
func (g *gate) await(t *testing.T) {
	t.Helper()
	select {
	case <-g.held:
	case <-time.After(time.Minute):
		t.Fatal("no round has come to its COMMIT")
	}
}
