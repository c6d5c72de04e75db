package oracle

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const nocase = `CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);`

// judgement is what a comparison should come to.
type judgement struct {
	name string
	// table is the DDL and contents of table v; body what v should equal.
	table, body               string
	opts                      Options
	missing, extra, different int64
	says                      string // part of the diff's text
}

// judge runs the cases in one database, each in a schema of its own.
func judge(t *testing.T, cases []judgement) {
	t.Helper()
	db := pgtest.New(t)
	db.Exec(t, nocase)
	for i, j := range cases {
		t.Run(j.name, func(t *testing.T) {
			t.Parallel()
			j.run(t, db, fmt.Sprintf("case_%d", i))
		})
	}
}

// run compares in one session and across two, which must come to the same.
func (j judgement) run(t *testing.T, db *pgtest.DB, schema string) {
	t.Helper()
	session := func() *pgx.Conn {
		conn := db.Conn(t)
		_, err := conn.Exec(t.Context(), "SET search_path = "+schema+", public")
		require.NoError(t, err)
		return conn
	}
	one, other := session(), session()
	_, err := one.Exec(t.Context(), "CREATE SCHEMA "+schema+"; "+j.table, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	for name, compare := range map[string]func() (Diff, error){
		"in one":     func() (Diff, error) { return Compare(t.Context(), one, j.body, "v", j.opts) },
		"across two": func() (Diff, error) { return CompareAcross(t.Context(), one, other, j.body, schema+".v", j.opts) },
	} {
		diff, err := compare()
		require.NoError(t, err, name)
		got := [3]int64{diff.MissingCount, diff.ExtraCount, diff.DifferentCount}
		require.Equal(t, [3]int64{j.missing, j.extra, j.different}, got, "%s: missing, extra, different: %s", name, diff)
		require.Equal(t, got == [3]int64{}, diff.Empty())
		require.Contains(t, diff.String(), j.says)
	}
}

// TestBytes: a single wrong byte, row or multiplicity is found, also where the types say equal.
func TestBytes(t *testing.T) {
	t.Parallel()
	judge(t, []judgement{
		{
			name: "equal", table: "CREATE TABLE v (k int PRIMARY KEY, a text); INSERT INTO v VALUES (1, 'x'), (2, NULL)",
			body: "SELECT * FROM (VALUES (2, NULL), (1, 'x')) AS t(k, a);", says: ".v equals its body (2 rows)",
		},
		{name: "both empty", table: "CREATE TABLE v (k int)", body: "SELECT 1 AS k WHERE false -- nothing"},
		{
			name: "a row missing", table: "CREATE TABLE v (k int PRIMARY KEY, a text); INSERT INTO v VALUES (1, 'x')",
			body: "SELECT * FROM (VALUES (1, 'x'), (2, 'y')) AS t(k, a)", missing: 1, says: `missing   ("2", "y")`,
		},
		{
			name: "a row too many", table: "CREATE TABLE v (k int PRIMARY KEY, a text); INSERT INTO v VALUES (1, 'x'), (2, 'y')",
			body: "SELECT 1 AS k, 'x' AS a", extra: 1, says: `extra     ("2", "y")`,
		},
		{
			name: "a row twice", table: "CREATE TABLE v (k int, a text); INSERT INTO v VALUES (1, 'x'), (1, 'x')",
			body: "SELECT 1 AS k, 'x' AS a", extra: 1,
		},
		{
			name: "a row once that should be there thrice", table: "CREATE TABLE v (k int, a text); INSERT INTO v VALUES (1, 'x')",
			body: "SELECT 1 AS k, 'x' AS a FROM generate_series(1, 3)", missing: 2,
		},
		{
			name: "other rows of equal number", table: "CREATE TABLE v (k int, a text); INSERT INTO v VALUES (1, 'x')",
			body: "SELECT 1 AS k, 'y' AS a", missing: 1, extra: 1,
		},
		{
			name: "the same with a key is one row that differs", table: "CREATE TABLE v (k int PRIMARY KEY, a text); INSERT INTO v VALUES (1, 'x')",
			body: "SELECT 1 AS k, 'y' AS a", different: 1, says: `different ("1", "x"): a should be "y"`,
		},
		{
			name: "NULL is not the empty text", table: "CREATE TABLE v (k int PRIMARY KEY, a text); INSERT INTO v VALUES (1, ''), (2, NULL)",
			body: "SELECT * FROM (VALUES (1, NULL), (2, '')) AS t(k, a)", different: 2, says: `("1", ""): a should be NULL`,
		},
		{
			name: "scale of a numeric", table: "CREATE TABLE v (k int PRIMARY KEY, a numeric); INSERT INTO v VALUES (1, 1.00)",
			body: "SELECT 1 AS k, 1.0 AS a", different: 1, says: `a should be "1.0"`,
		},
		{
			name: "sign of zero", table: "CREATE TABLE v (k int PRIMARY KEY, a float8); INSERT INTO v VALUES (1, '-0')",
			body: "SELECT 1 AS k, 0.0::float8 AS a", different: 1, says: `("1", "-0"): a should be "0"`,
		},
		{
			name: "a day of 24 hours", table: "CREATE TABLE v (k int PRIMARY KEY, a interval); INSERT INTO v VALUES (1, '24:00')",
			body: "SELECT 1 AS k, interval '1 day' AS a", different: 1, says: `a should be "1 day"`,
		},
		{
			name: "spelling of a nocase key", table: "CREATE TABLE v (k text COLLATE nocase PRIMARY KEY); INSERT INTO v VALUES ('Bob')",
			body: "SELECT 'bob' COLLATE nocase AS k", different: 1, says: `k should be "bob"`,
		},
		{
			name: "a number in a document", table: "CREATE TABLE v (k int PRIMARY KEY, a jsonb); INSERT INTO v VALUES (1, '{\"n\": 1.00}')",
			body: `SELECT 1 AS k, '{"n": 1.0}'::jsonb AS a`, different: 1,
		},
		{
			name: "blanks at the end", table: "CREATE TABLE v (k int PRIMARY KEY, a text); INSERT INTO v VALUES (1, 'x ')",
			body: "SELECT 1 AS k, 'x' AS a", different: 1, says: `"x "`,
		},
		{
			name: "within an array and a record",
			table: `CREATE TYPE pair AS (n numeric, t text); CREATE TABLE v (k int PRIMARY KEY, a numeric[], b pair);
				INSERT INTO v VALUES (1, '{1.0,NULL}', '(1.0,x)'), (2, '{1.0}', '(1.00,)'), (3, '{1.00}', '(1.0,)')`,
			body:      `SELECT * FROM (VALUES (1, '{1.0,NULL}'::numeric[], '(1.0,x)'::pair), (2, '{1.0}', '(1.0,)'), (3, '{1.0}', '(1.0,)')) t(k, a, b)`,
			different: 2,
		},
		{
			name: "types without equality", table: `CREATE TABLE v (k int PRIMARY KEY, a json, b point); INSERT INTO v VALUES (1, '{"x":1}', '(1,2)'), (2, '{}', '(0,0)')`,
			body: `SELECT * FROM (VALUES (1, '{"x": 1}'::json, '(1,2)'::point), (2, '{}', '(0,0)')) AS t(k, a, b)`, different: 1,
		},
		{
			name: "large values, stored apart or compressed", table: "CREATE TABLE v (k int PRIMARY KEY, a text, b text); ALTER TABLE v ALTER b SET STORAGE EXTERNAL; INSERT INTO v VALUES (1, repeat('x', 9000), repeat('y', 9000)), (2, repeat('x', 9000), repeat('y', 9000))",
			body: "SELECT * FROM (VALUES (1, repeat('x', 9000), repeat('y', 9000)), (2, repeat('x', 8999) || 'X', repeat('y', 9000))) AS t(k, a, b)", different: 1,
			says: "and 8800 more bytes",
		},
		{
			name: "NULL keys", table: "CREATE TABLE v (k int, a int); CREATE UNIQUE INDEX ON v (k) NULLS NOT DISTINCT; INSERT INTO v VALUES (NULL, 1), (1, 1)",
			body: "SELECT * FROM (VALUES (NULL, 2), (1, 1)) AS t(k, a)", different: 1, says: `(NULL, "1"): a should be "2"`,
		},
		{
			name: "domains, odd names, a dropped column",
			table: `CREATE DOMAIN small AS numeric(5,1); CREATE DOMAIN smaller AS small; CREATE TABLE src (a smaller, b small);
				INSERT INTO src VALUES (1, 2); CREATE TABLE v ("a ""b" numeric(5,1) PRIMARY KEY, gone int, "side" small, "both" int);
				ALTER TABLE v DROP gone; INSERT INTO v VALUES (1, 2, 3)`,
			body: `SELECT a AS "a ""b", b AS "side", 3 AS "both" FROM src`,
		},
	})
}

// TestPlanDependent: tolerance reaches as far as it was asked to, and no other column.
func TestPlanDependent(t *testing.T) {
	t.Parallel()
	floats := Options{Float: []string{"a"}}
	one := func(value string) string {
		return "CREATE TABLE v (k int PRIMARY KEY, a float8, b numeric); INSERT INTO v VALUES (1, " + value + ", 1.0)"
	}
	body := func(value string) string { return "SELECT 1 AS k, " + value + "::float8 AS a, 1.0 AS b" }
	judge(t, []judgement{
		{name: "the last digit", table: one("0.1::float8 + 0.2::float8"), body: body("0.3"), opts: floats},
		{name: "the last digit, exactly", table: one("0.1::float8 + 0.2::float8"), body: body("0.3"), different: 1},
		{name: "too far", table: one("1.00000001"), body: body("1"), opts: floats, different: 1},
		{name: "a tolerance of one's own", table: one("1.00000001"), body: body("1"), opts: Options{Float: []string{"a"}, FloatTolerance: 1e-6}},
		{name: "sign of zero", table: one("'-0'"), body: body("0"), opts: floats},
		{name: "near zero is not zero", table: one("1e-300"), body: body("0"), opts: floats, different: 1},
		{name: "opposite huge values", table: one("1.7e308"), body: body("'-1.7e308'"), opts: floats, different: 1},
		{name: "equal infinities", table: one("'Infinity'"), body: body("'Infinity'"), opts: floats},
		{name: "infinities of two signs", table: one("'Infinity'"), body: body("'-Infinity'"), opts: floats, different: 1},
		{name: "infinity and a number", table: one("'Infinity'"), body: body("1"), opts: floats, different: 1},
		{name: "equal NaN", table: one("'NaN'"), body: body("'NaN'"), opts: floats},
		{name: "NaN and a number", table: one("'NaN'"), body: body("1"), opts: floats, different: 1},
		{name: "NULL and a number", table: one("NULL"), body: body("0"), opts: floats, different: 1},
		{name: "NULL and NULL", table: one("NULL"), body: body("NULL"), opts: floats},
		{name: "another column's bytes", table: one("1"), body: "SELECT 1 AS k, 1::float8 AS a, 1.00 AS b", opts: floats, different: 1},
		{name: "another column's bytes and a near float", table: one("0.1::float8 + 0.2::float8"), body: "SELECT 1 AS k, 0.3::float8 AS a, 1.00 AS b", opts: floats, different: 1},
		{name: "real has fewer digits", table: "CREATE TABLE v (k int PRIMARY KEY, a real); INSERT INTO v VALUES (1, 1.000001)", body: "SELECT 1 AS k, 1::real AS a", opts: floats},
		{name: "real, too far", table: "CREATE TABLE v (k int PRIMARY KEY, a real); INSERT INTO v VALUES (1, 1.0001)", body: "SELECT 1 AS k, 1::real AS a", opts: floats, different: 1},
		{name: "missing", table: "CREATE TABLE v (k int PRIMARY KEY, a float8)", body: "SELECT 1 AS k, 1::float8 AS a", opts: floats, missing: 1},
		{name: "extra", table: one("1"), body: body("1") + " WHERE false", opts: floats, extra: 1},
		{name: "a body's row twice", table: one("1"), body: body("1") + " FROM generate_series(1, 2)", opts: floats, missing: 1},
		{
			name: "one row without a key", table: "CREATE TABLE v (a float8); INSERT INTO v VALUES (0.30000000000000004)",
			body: "SELECT 0.3::float8 AS a", opts: floats,
		},
		{
			name: "a NULL key", table: "CREATE TABLE v (k int, a float8); CREATE UNIQUE INDEX ON v (k); INSERT INTO v VALUES (NULL, 1), (2, 5)",
			body: "SELECT * FROM (VALUES (NULL, 1::float8), (2, 6)) AS t(k, a)", opts: floats, different: 1,
		},
		{
			name: "a representative", table: "CREATE TABLE v (k int PRIMARY KEY, a numeric); INSERT INTO v VALUES (1, 1.00)",
			body: "SELECT 1 AS k, 1.0 AS a", opts: Options{Representative: []string{"a"}},
		},
		{
			name: "no representative", table: "CREATE TABLE v (k int PRIMARY KEY, a numeric); INSERT INTO v VALUES (1, 1.01)",
			body: "SELECT 1 AS k, 1.0 AS a", opts: Options{Representative: []string{"a"}}, different: 1,
		},
		{
			name: "a representative that is NULL", table: "CREATE TABLE v (k int PRIMARY KEY, a numeric); INSERT INTO v VALUES (1, NULL), (2, NULL)",
			body: "SELECT * FROM (VALUES (1, NULL::numeric), (2, 0)) AS t(k, a)", opts: Options{Representative: []string{"a"}}, different: 1,
		},
		{
			name: "a key under its collation", table: "CREATE TABLE v (k text COLLATE nocase PRIMARY KEY, n int); INSERT INTO v VALUES ('Bob', 2), ('ann', 1)",
			body: "SELECT * FROM (VALUES ('bob' COLLATE nocase, 2), ('ANN', 3)) AS t(k, n)", opts: Options{Representative: []string{"k"}}, different: 1, says: `n should be "3"`,
		},
		{
			name: "a body of another collation", table: "CREATE TABLE v (k text COLLATE nocase PRIMARY KEY, n int); INSERT INTO v VALUES ('Bob', 2)",
			body: "SELECT 'bob' AS k, 2 AS n", opts: Options{Representative: []string{"k"}},
		},
		{
			name: "a document as key", table: `CREATE TABLE v (k jsonb PRIMARY KEY, n bigint); INSERT INTO v VALUES ('1.0', 2)`,
			body: `SELECT '1.00'::jsonb AS k, 2::bigint AS n`, opts: Options{Representative: []string{"k"}},
		},
		{
			name: "all columns", table: "CREATE TABLE v (a numeric PRIMARY KEY); INSERT INTO v VALUES (1.00), (2)",
			body: "SELECT 1.0 AS a UNION ALL SELECT 3", opts: Options{Representative: []string{"a"}}, missing: 1, extra: 1,
		},
		{
			name: "a key that the options name", table: "CREATE TABLE v (id int PRIMARY KEY, k int, a float8); INSERT INTO v VALUES (1, 7, 1)",
			body: "SELECT 2 AS id, 7 AS k, 1::float8 AS a", opts: Options{Key: []string{"k"}, Float: []string{"a"}}, different: 1, says: `id should be "2"`,
		},
	})
}

func TestCoarsenedKey(t *testing.T) {
	t.Parallel()
	const table = "CREATE TABLE v (k text COLLATE nocase PRIMARY KEY, a text);"
	const body = "SELECT k COLLATE nocase AS k, a FROM (VALUES ('Bob', 'x'), ('BOB', 'y'), ('ann', 'z')) AS t(k, a)"
	cases := []judgement{
		{name: "one member", table: table + "INSERT INTO v VALUES ('Bob', 'x'), ('ann', 'z')", body: body},
		{name: "the other", table: table + "INSERT INTO v VALUES ('BOB', 'y'), ('ann', 'z')", body: body},
		{name: "half of each", table: table + "INSERT INTO v VALUES ('BOB', 'x'), ('ann', 'z')", body: body, different: 1},
		{name: "a spelling of its own", table: table + "INSERT INTO v VALUES ('bob', 'x'), ('ann', 'z')", body: body, different: 1},
		{name: "no row for a class", table: table + "INSERT INTO v VALUES ('Bob', 'x')", body: body, missing: 1, says: `"ann"`},
		{name: "a row without a class", table: table + "INSERT INTO v VALUES ('Bob', 'x'), ('ann', 'z'), ('eve', 'z')", body: body, extra: 1},
		{name: "a stale payload", table: table + "INSERT INTO v VALUES ('Bob', 'x'), ('ann', 'Z')", body: body, different: 1},
		{
			name: "two members", table: "CREATE TABLE v (k text COLLATE nocase, a text); INSERT INTO v VALUES ('Bob', 'x'), ('BOB', 'y'), ('ann', 'z')",
			body: body, opts: Options{Key: []string{"k"}}, extra: 1,
		},
	}
	for i := range cases {
		cases[i].opts.Coarsened = true
	}
	judge(t, append(cases, judgement{
		name: "is not the default", table: table + "INSERT INTO v VALUES ('Bob', 'x'), ('ann', 'z')", body: body, missing: 1,
	}))
}

func TestWhatCannotBeCompared(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE v (k int PRIMARY KEY, a numeric(10,2)); CREATE TABLE bag (a float8); INSERT INTO bag VALUES (1), (2)")
	for _, tc := range []struct {
		name, body, table string
		opts              Options
		err               string
	}{
		{name: "no such table", body: "SELECT 1", table: "nonesuch", err: "compare nonesuch with its body: there is no such table"},
		{name: "a body that does not parse", body: "SELEC", table: "v", err: "describe the body"},
		{name: "fewer columns", body: "SELECT 1 AS k", table: "v", err: "the body has 1 columns, the table 2"},
		{name: "another name", body: "SELECT 1 AS k, 1::numeric(10,2) AS b", table: "v", err: `column 2 is "b" in the body and "a" in the table`},
		{name: "another type", body: "SELECT 1::bigint AS k, 1::numeric(10,2) AS a", table: "v", err: `column "k" is integer in the table`},
		{name: "a modifier that would round", body: "SELECT 1 AS k, 1.234 AS a", table: "v", err: `column "a" is numeric(10,2) in the table`},
		{name: "a body that fails", body: "SELECT 1 / (a::int - 1) AS k, 1::numeric(10,2) AS a FROM bag", table: "v", err: "division by zero"},
		{name: "an unknown key", body: "SELECT * FROM v", table: "v", opts: Options{Key: []string{"x"}}, err: `no column "x"`},
		{name: "an unknown float", body: "SELECT * FROM v", table: "v", opts: Options{Float: []string{"y"}}, err: `no column "y"`},
		{name: "rows that cannot be matched", body: "SELECT * FROM bag", table: "bag", opts: Options{Float: []string{"a"}}, err: "name the key's columns"},
		{name: "a coarsened key that is none", body: "SELECT * FROM bag", table: "bag", opts: Options{Coarsened: true}, err: "name the key's columns"},
		{
			name: "a coarsened key with tolerance", body: "SELECT * FROM v", table: "v",
			opts: Options{Coarsened: true, Float: []string{"a"}}, err: "no rule for both",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := Compare(t.Context(), db.Pool, tc.body, tc.table, tc.opts)
			require.ErrorContains(t, err, tc.err)
			_, err = CompareAcross(t.Context(), db.Pool, db.Pool, tc.body, tc.table, tc.opts)
			require.ErrorContains(t, err, tc.err)
		})
	}
}

func TestDiffIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE v (k int PRIMARY KEY, a int); INSERT INTO v SELECT i, i FROM generate_series(1, 1000) i")
	const body = "SELECT i AS k, i + (i > 500)::int AS a FROM generate_series(201, 1300) i"
	diff, err := Compare(t.Context(), db.Pool, body, "v", Options{Limit: 3})
	require.NoError(t, err)
	require.Equal(t, int64(300), diff.MissingCount)
	require.Equal(t, int64(200), diff.ExtraCount)
	require.Equal(t, int64(500), diff.DifferentCount)
	require.Equal(t, int64(1000), diff.Stored)
	require.Len(t, diff.Missing, 3)
	require.Len(t, diff.Extra, 3)
	require.Len(t, diff.Different, 3)
	require.Contains(t, diff.String(), "public.v differs from its body: 300 missing, 200 extra, 500 different (1000 rows stored; columns k, a)")
}

// TestOneStatementOneSnapshot: outside a transaction, too, both sides are read at one snapshot.
func TestOneStatementOneSnapshot(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE src (k int PRIMARY KEY, a int); CREATE TABLE v (k int PRIMARY KEY, a int); INSERT INTO src VALUES (1, 0); TABLE src")
	db.Exec(t, "INSERT INTO v TABLE src")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			_, err = db.Pool.Exec(context.WithoutCancel(ctx), "WITH a AS (UPDATE src SET a = a + 1) UPDATE v SET a = a + 1")
		}
		done <- err
	}()
	for range 100 {
		diff, err := Compare(t.Context(), db.Pool, "SELECT * FROM src", "v", Options{})
		require.NoError(t, err)
		require.True(t, diff.Empty(), diff)
	}
	cancel()
	require.NoError(t, <-done)
}

func TestNear(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want, got string
		near      bool
	}{
		{"1", "1.0000000001", true},
		{"1", "1.00000001", false},
		{"-1", "-1.0000000001", true},
		{"1", "-1", false},
		{"0", "-0", true},
		{"0", "1e-320", false},
		{"1e-320", "2e-320", false},
		{"5e-324", "5e-324", true},
		{"1.7976931348623157e308", "-1.7976931348623157e308", false},
		{"1.7976931348623157e308", "1.7976931348623155e308", true},
		{"NaN", "1", false},
		{"Infinity", "-Infinity", false},
		{"Infinity", "1.7976931348623157e308", false},
		{"one", "one", false},
		{"", "0", false},
	} {
		require.Equal(t, tc.near, near(&tc.want, &tc.got, defaultTolerance), "%s and %s", tc.want, tc.got)
		require.Equal(t, tc.near, near(&tc.got, &tc.want, defaultTolerance), "%s and %s", tc.got, tc.want)
	}
	require.False(t, near(nil, new("0"), 1))
	require.False(t, near(new("0"), nil, 1))
}
