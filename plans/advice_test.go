package plans

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// bigTables hold 100,000 rows each, in 20,000 groups: tables of groups are so large that reading one from end to end costs
// seven times a look-up, whatever a sample for statistics came upon.
const bigTables = `
CREATE TABLE big (pk int PRIMARY KEY, bucket int NOT NULL, p int NOT NULL, q int NOT NULL, words text);
CREATE TABLE side (id int PRIMARY KEY, big_pk int NOT NULL, label text NOT NULL, x int NOT NULL);
CREATE TABLE tiny (id int PRIMARY KEY, bucket int NOT NULL);
INSERT INTO big SELECT i, i % 20000, i % 7, i % 11, 'a b c' FROM generate_series(1, 100000) i;
INSERT INTO side SELECT i, (i * 7) % 100000, 'L' || i % 20000, (i * 3) % 100000 FROM generate_series(1, 100000) i;
INSERT INTO tiny SELECT i, i % 3 FROM generate_series(1, 20) i;
`

// analyze stands outside a transaction.
func bigFixture(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	db := pgtest.New(t)
	db.Exec(t, bigTables)
	for _, table := range []string{"big", "side", "tiny"} {
		db.Exec(t, "VACUUM ANALYZE "+table)
	}
	return db, db.Conn(t)
}

func estimated(t *testing.T, conn *pgx.Conn, body string) *Plan {
	t.Helper()
	p, err := Compile(t.Context(), conn, view(body), Options{Estimate: true})
	require.NoError(t, err, body)
	require.NotNil(t, p.Cost)
	return p
}

// statementsIn finds the statements in a piece of advice.
var statementsIn = regexp.MustCompile(`(CREATE INDEX|ALTER TABLE)[^;]*;`)

// TestAdvice: whoever follows a piece of advice pays less, and is not given it again.
func TestAdvice(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body string
		advice     string // what it must say
		scans      bool   // a table is scanned until the advice is followed
	}{
		{"slice", `SELECT bucket, string_agg(p::text, ',' ORDER BY pk) AS s FROM big GROUP BY bucket`, "CREATE INDEX ON public.big (bucket);", true},
		{"slice by an expression", `SELECT pk % 1000 AS m, string_agg(p::text, ',' ORDER BY pk) AS s FROM big GROUP BY 1`, "CREATE INDEX ON public.big ((pk % 1000));", true},
		{"window", `SELECT pk, rank() OVER (PARTITION BY bucket ORDER BY p, pk) AS r, bucket FROM big`, "CREATE INDEX ON public.big (bucket);", true},
		{"join", `SELECT b.pk, s.id, s.label FROM big b JOIN side s ON s.big_pk = b.pk`, "CREATE INDEX ON public.side (big_pk);", true},
		{"outer join", `SELECT s.id, b.p FROM side s LEFT JOIN big b ON b.pk = s.big_pk`, "CREATE INDEX ON public.side (big_pk);", true},
		{"exists", `SELECT b.pk, b.p FROM big b WHERE EXISTS (SELECT FROM side s WHERE s.big_pk = b.pk)`, "CREATE INDEX ON public.side (big_pk);", true},
		{"extreme", `SELECT bucket, count(*) AS n, max(q) AS q FROM big GROUP BY bucket`, "CREATE INDEX ON public.big (bucket);", false},
		{"filter", `SELECT bucket, string_agg(p::text, ',' ORDER BY pk) AS s FROM big WHERE q = 3 GROUP BY bucket`, "ALTER TABLE public.big REPLICA IDENTITY FULL;", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db, conn := bigFixture(t)
			db.Exec(t, "ALTER TABLE side REPLICA IDENTITY FULL")
			if tc.name == "extreme" {
				db.Exec(t, "ALTER TABLE big REPLICA IDENTITY FULL")
			} else {
				db.Exec(t, "CREATE UNIQUE INDEX big_identity ON big (pk, bucket); ALTER TABLE big REPLICA IDENTITY USING INDEX big_identity")
			}
			before := estimated(t, conn, tc.body)
			require.Contains(t, strings.Join(before.Advice, "\n"), tc.advice)
			if !skips(t, db) {
				require.Equal(t, tc.scans, len(before.Cost.Scans) > 0, before.Cost)
			}
			var followed []string
			for _, text := range before.Advice {
				for _, sql := range statementsIn.FindAllString(text, -1) {
					db.Exec(t, sql)
					followed = append(followed, sql)
				}
			}
			require.NotEmpty(t, followed)
			db.Exec(t, "ANALYZE big; ANALYZE side")
			after := estimated(t, conn, tc.body)
			for _, sql := range followed {
				require.NotContains(t, strings.Join(after.Advice, "\n"), sql)
			}
			require.Empty(t, after.Cost.Scans)
			require.Less(t, whole(after.Cost), whole(before.Cost)/2)
		})
	}
}

// skips reports whether Postgres may read big_identity, if at a price, where older ones scan the table: from 17 on it
// expects less of look-ups by arrays, and from 18 on it skips through an index by columns behind its first.
func skips(t *testing.T, db *pgtest.DB) bool {
	t.Helper()
	return db.Value(t, "SELECT current_setting('server_version_num')::int >= 170000") == "t"
}

// whole is a round with one changed row, and one group to be run again.
func whole(c *Cost) float64 { return c.Batch(1) + c.Retraction }

// TestAdviceOfFilters: with the filter's columns in old images, changes outside the
// filter touch nothing.
func TestAdviceOfFilters(t *testing.T) {
	t.Parallel()
	db, conn := bigFixture(t)
	db.Exec(t, "CREATE UNIQUE INDEX big_identity ON big (pk, bucket); ALTER TABLE big REPLICA IDENTITY USING INDEX big_identity; CREATE INDEX ON big (bucket); ANALYZE big")
	const body = `SELECT bucket, string_agg(p::text, ',' ORDER BY pk) AS s FROM big WHERE q = 3 GROUP BY bucket`
	before := estimated(t, conn, body)
	require.Len(t, before.Advice, 1)
	db.Exec(t, statementsIn.FindString(before.Advice[0]))
	after := estimated(t, conn, body)
	require.Empty(t, after.Advice)
	require.Less(t, after.Cost.Writes[0].Keys, before.Cost.Writes[0].Keys/2)
	require.Less(t, after.Cost.Writes[0].Row, before.Cost.Writes[0].Row/2)
}

// TestAdviceToProject: what the body projects needs no second table.
func TestAdviceToProject(t *testing.T) {
	t.Parallel()
	db, conn := bigFixture(t)
	db.Exec(t, "ALTER TABLE big REPLICA IDENTITY FULL; CREATE INDEX ON side (big_pk); CREATE INDEX ON big (bucket); ANALYZE")
	for _, body := range []string{
		`SELECT bucket, avg(p) AS a FROM big GROUP BY bucket`,
		`SELECT s.id, s.label, b.p FROM side s JOIN big b ON b.pk = s.big_pk`,
		`SELECT pk, rank() OVER (PARTITION BY bucket ORDER BY p, pk) AS r FROM big`,
	} {
		before := estimated(t, conn, body)
		require.NotEmpty(t, before.Hidden)
		_, columns, ok := strings.Cut(strings.Join(before.Advice, "\n"), "project as well: ")
		require.True(t, ok, before.Advice)
		after := estimated(t, conn, strings.Replace(body, " FROM ", ", "+columns+" FROM ", 1))
		require.Empty(t, after.Hidden)
		require.Empty(t, after.Advice)
		require.Equal(t, before.Strategy, after.Strategy)
		require.Less(t, after.Cost.Batch(1), before.Cost.Batch(1))
	}
}

// TestSmallTablesAreAdvisedConditionally: reading twenty rows is no fault.
func TestSmallTablesAreAdvisedConditionally(t *testing.T) {
	t.Parallel()
	_, conn := bigFixture(t)
	p, err := Compile(t.Context(), conn, view(`SELECT bucket, string_agg(id::text, ',' ORDER BY id) AS s FROM tiny GROUP BY bucket`), Options{ReplicaIdentity: Manage})
	require.NoError(t, err)
	require.Len(t, p.Advice, 1)
	require.Contains(t, p.Advice[0], "which is dear once it has grown: CREATE INDEX ON public.tiny (bucket);")
}

// TestIndexesThatCannotBe: Postgres refuses an index over what is not IMMUTABLE.
func TestIndexesThatCannotBe(t *testing.T) {
	t.Parallel()
	db, conn := bigFixture(t)
	db.Exec(t, "CREATE TABLE clock (id int PRIMARY KEY, at timestamptz NOT NULL, v text NOT NULL); ALTER TABLE clock REPLICA IDENTITY FULL")
	for expr, advised := range map[string]bool{"date_trunc('day', at)": false, "lower(v)": true} {
		p := estimated(t, conn, "SELECT "+expr+" AS k, string_agg(v, ',' ORDER BY id) AS s FROM clock GROUP BY 1")
		require.Equal(t, ResidualRecompute, p.Strategy)
		require.Equal(t, advised, len(p.Advice) > 0, p.Advice)
		for _, text := range p.Advice {
			db.Exec(t, statementsIn.FindString(text))
		}
	}
}

// TestLookUpsUseIndexes: with the indexes there, no statement of an arm reads a big
// table from end to end, under a plan made for its values and one made for any.
func TestLookUpsUseIndexes(t *testing.T) {
	t.Parallel()
	db, conn := bigFixture(t)
	db.Exec(t, "CREATE INDEX ON big (bucket); CREATE INDEX ON side (big_pk); CREATE INDEX ON side (label); CREATE INDEX ON side (x); ALTER TABLE big REPLICA IDENTITY FULL; ALTER TABLE side REPLICA IDENTITY FULL; ANALYZE")
	for i, body := range []string{
		`SELECT pk, p + q AS s FROM big WHERE p > 1`,
		`SELECT bucket, count(*) AS n, max(q) AS q FROM big GROUP BY bucket`,
		`SELECT bucket, string_agg(p::text, ',' ORDER BY pk) AS s FROM big GROUP BY bucket`,
		`SELECT bucket, sum(p) AS s FROM big GROUP BY bucket HAVING count(*) > 1`,
		`SELECT pk, rank() OVER (PARTITION BY bucket ORDER BY p, pk) AS r, bucket FROM big`,
		`SELECT DISTINCT ON (bucket) bucket, pk, p FROM big ORDER BY bucket, p DESC, pk`,
		`SELECT pk, p FROM big WHERE bucket > 5 UNION SELECT id, x FROM side`,
		`SELECT b.pk, w.ord, w.w FROM big b CROSS JOIN LATERAL string_to_table(b.words, ' ') WITH ORDINALITY w(w, ord)`,
		`SELECT b.pk, s.id, s.label FROM big b JOIN side s ON s.big_pk = b.pk`,
		`SELECT s.id, s.label, b.p FROM side s LEFT JOIN big b ON b.pk = s.big_pk`,
		`SELECT b.pk, b.p FROM big b WHERE EXISTS (SELECT FROM side s WHERE s.big_pk = b.pk AND s.x > 5)`,
		`SELECT b.pk, (SELECT count(*) FROM side s WHERE s.big_pk = b.pk) AS n FROM big b`,
		`SELECT s.id, a.p AS ap, b.p AS bp FROM side s JOIN big a ON a.pk = s.big_pk JOIN big b ON b.pk = s.x`,
		`SELECT s.label, count(*) AS n, sum(b.p) AS s FROM side s JOIN big b ON b.pk = s.big_pk GROUP BY s.label`,
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			p := estimated(t, conn, body)
			require.NotEqual(t, FullRebuild, p.Strategy, body)
			s := scanner{t: t, conn: conn, p: p, name: fmt.Sprintf("v%d", i)}
			s.store()
			s.check()
		})
	}
}

// scanner looks for scans in the plans of a view's statements.
type scanner struct {
	t    *testing.T
	conn *pgx.Conn
	p    *Plan
	name string // of the stored table
}

func (s *scanner) exec(sql string) {
	s.t.Helper()
	_, err := s.conn.Exec(context.Background(), sql)
	require.NoError(s.t, err, sql)
}

// store makes the stored rows, hidden columns in place, with the indexes that the
// plan asks for.
func (s *scanner) store() {
	s.exec("CREATE TABLE " + s.name + " AS " + s.p.Eval)
	var key []string
	for _, c := range s.p.keyed() {
		key = append(key, quoteAlways(c.Name))
	}
	s.exec("CREATE UNIQUE INDEX ON " + s.name + " (" + join(key) + ")")
	for _, cols := range slices.Concat(s.p.Indexes, s.p.HiddenIndexes) {
		s.exec("CREATE INDEX ON " + s.name + " (" + cols + ")")
	}
	s.exec("VACUUM ANALYZE " + s.name)
}

// unnested is an input as it is shipped: one array a column.
func unnested(name string, cols []Column, first int) string {
	var params, names []string
	for i, c := range cols {
		params = append(params, fmt.Sprintf("$%d::%s[]", first+i, c.Type))
		names = append(names, quoteAlways(c.Name))
	}
	return name + "(" + join(names) + ") AS MATERIALIZED (SELECT * FROM unnest(" + join(params) + "))"
}

func (s *scanner) check() {
	images := func() (in []string, n int) {
		for i := range s.p.Sources {
			for _, name := range []string{newImages(i), oldImages(i)} {
				cols := imagesInput(name, &s.p.Sources[i]).cols
				in = append(in, unnested(name, cols, n+1))
				n += len(cols)
			}
		}
		return in, n
	}
	keys := func(cols []Column) ([]string, int) { return []string{unnested("mvsync_keys", cols, 1)}, len(cols) }
	touched := func(cond string) string { return "SELECT * FROM " + s.name + " s WHERE " + cond }
	run := func(what, sql string, in []string, params int) {
		s.noScan(what, "WITH "+join(in)+" SELECT * FROM ("+sql+") q", params)
	}
	switch {
	case s.p.Projection != nil:
		in, n := images()
		run("new", s.p.Projection.New, in, n)
		in, n = keys(s.p.Projection.KeyColumns)
		run("touched", touched(s.p.Projection.Touched), in, n)
	case s.p.Aggregate != nil:
		in, n := images()
		run("delta", s.p.Aggregate.Delta, in, n)
		in, n = keys(s.p.Aggregate.KeyColumns)
		run("rerun", s.p.Aggregate.Rerun, in, n)
		run("touched", touched(s.p.Aggregate.RerunTouched), in, n)
	default:
		r := s.p.Residual
		var all []string
		total := 0
		for i, slice := range r.Slices {
			in, n := images()
			run("keys", slice.Keys, append(in, "mvsync_stored AS NOT MATERIALIZED (SELECT * FROM "+s.name+")"), n)
			all = append(all, unnested(touchedKeys(i), slice.KeyColumns, total+1))
			total += len(slice.KeyColumns)
		}
		run("new", r.New, all, total)
		run("touched", touched(r.Touched), all, total)
	}
}

// noScan plans a statement with one value a parameter, and with any.
func (s *scanner) noScan(what, sql string, params int) {
	s.t.Helper()
	args := make([]string, params)
	for i := range args {
		args[i] = "'{1,2,3}'"
	}
	call := "EXECUTE st"
	if params > 0 {
		call += "(" + join(args) + ")"
	}
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		s.exec("SET plan_cache_mode = " + mode)
		s.exec("PREPARE st AS " + sql)
		var text []byte
		err := s.conn.QueryRow(s.t.Context(), "EXPLAIN (VERBOSE, FORMAT JSON) "+call, pgx.QueryExecModeSimpleProtocol).Scan(&text)
		require.NoError(s.t, err, sql)
		s.exec("DEALLOCATE st")
		var plan []struct{ Plan planNode }
		require.NoError(s.t, json.Unmarshal(text, &plan))
		if table := plan[0].Plan.scanned(); table != "" {
			require.Failf(s.t, "a look-up reads all of a table", "%s of %s (%s): %s\n%s\n%s", what, s.p.Strategy, mode, table, s.p.Body, text)
		}
	}
	s.exec("RESET plan_cache_mode")
}

// scanned finds a big table that the plan reads from end to end.
func (n *planNode) scanned() string {
	found := ""
	n.scans(func(n *planNode) {
		if n.Relation != "tiny" {
			found = n.Relation
		}
	})
	return found
}
