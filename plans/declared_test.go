package plans

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// userAggregates are aggregates with an algebra, and some without.
const userAggregates = `
CREATE FUNCTION wsum_add(bigint, int) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT coalesce($1, 100) + coalesce($2, 1) * 3';
CREATE AGGREGATE wsum(int) (sfunc = wsum_add, stype = bigint, initcond = '100');
CREATE FUNCTION wsum_merge(bigint, bigint) RETURNS bigint IMMUTABLE STRICT LANGUAGE sql AS 'SELECT $1 + $2 - 100';
CREATE FUNCTION wsum_negate(bigint) RETURNS bigint IMMUTABLE STRICT LANGUAGE sql AS 'SELECT 200 - $1';
CREATE FUNCTION wsum_decode(bigint) RETURNS bigint IMMUTABLE STRICT LANGUAGE sql AS 'SELECT $1';

CREATE FUNCTION spread_add(bigint[], bigint, bigint) RETURNS bigint[] IMMUTABLE STRICT LANGUAGE sql AS 'SELECT ARRAY[$1[1] + $2 * $3, $1[2] + $3]';
CREATE FUNCTION spread_final(bigint[]) RETURNS text IMMUTABLE STRICT LANGUAGE sql AS $$SELECT $1[1]::text || '/' || $1[2]::text$$;
CREATE AGGREGATE spread(bigint, bigint) (sfunc = spread_add, stype = bigint[], finalfunc = spread_final, initcond = '{0,0}');
CREATE FUNCTION spread_merge(bigint[], bigint[]) RETURNS bigint[] IMMUTABLE STRICT LANGUAGE sql AS 'SELECT ARRAY[$1[1] + $2[1], $1[2] + $2[2]]';
CREATE FUNCTION spread_negate(bigint[]) RETURNS bigint[] IMMUTABLE STRICT LANGUAGE sql AS 'SELECT ARRAY[-$1[1], -$1[2]]';
CREATE FUNCTION spread_decode(text) RETURNS bigint[] IMMUTABLE STRICT LANGUAGE sql AS $$SELECT string_to_array($1, '/')::bigint[]$$;

CREATE AGGREGATE widest(text) (sfunc = text_larger, stype = text);
CREATE FUNCTION widest_merge(text, text) RETURNS text IMMUTABLE STRICT LANGUAGE sql AS 'SELECT greatest($1, $2)';
CREATE FUNCTION same(text) RETURNS text IMMUTABLE STRICT LANGUAGE sql AS 'SELECT $1';

CREATE FUNCTION part_add(bigint[], int) RETURNS bigint[] IMMUTABLE STRICT LANGUAGE sql AS 'SELECT ARRAY[$1[1] + $2, $1[2] + 1]';
CREATE FUNCTION part_final(bigint[]) RETURNS numeric IMMUTABLE STRICT LANGUAGE sql AS 'SELECT $1[1]::numeric / nullif($1[2], 0)';
CREATE AGGREGATE mean(int) (sfunc = part_add, stype = bigint[], finalfunc = part_final, initcond = '{0,0}');

CREATE FUNCTION clocked(bigint) RETURNS bigint STABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION narrow(bigint, bigint) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION elsewhere(bigint) RETURNS date IMMUTABLE LANGUAGE sql AS $$SELECT date '2024-01-01' + $1::int$$;
CREATE FUNCTION elsewhere_merge(date, date) RETURNS date IMMUTABLE LANGUAGE sql AS 'SELECT $1';`

// userAlgebra declares them.
func userAlgebra() Options {
	return Options{Aggregates: map[string]Declared{
		"public.wsum(int4)":             {Merge: "public.wsum_merge", Negate: "public.wsum_negate", Decode: "public.wsum_decode"},
		"public.spread(bigint, bigint)": {Merge: "public.spread_merge", Negate: "public.spread_negate", Decode: "public.spread_decode"},
		"public.widest(text)":           {Merge: "public.widest_merge", Decode: "public.same"},
		"public.mean(integer)":          {Decompose: "sum(x)::numeric / nullif(count(x), 0)"},
		"public.nothing(like this":      {Decompose: "count(*)"},
	}}
}

// TestDeclared: merging by declared functions gives what the aggregate gives.
func TestDeclared(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"state":         "SELECT g, count(*) AS n, wsum(i4) AS w FROM val GROUP BY g",
		"clamped":       "SELECT g, wsum(nn) AS w, wsum(nn) FILTER (WHERE b) AS f, wsum(i2) + 1 AS h FROM val GROUP BY g",
		"array state":   "SELECT g, spread(i2, nn) AS s, spread(i4, nn) || '!' AS h, max(i4) AS x, sum(m) AS y, bool_or(b) AS z FROM val GROUP BY g",
		"lattice":       "SELECT g, widest(t) AS w, widest(tc) || '!' AS v FROM val GROUP BY g",
		"decomposed":    "SELECT g, mean(nn) AS a, mean(i2) FILTER (WHERE b) AS c, round(mean(nn + 1), 3) AS r FROM val GROUP BY g",
		"all together":  "SELECT g, mo, wsum(i2) AS w, spread(i2, 2) AS s, widest(v) AS x, mean(i2) AS a, count(*) AS n FROM val WHERE nn > 1 GROUP BY g, mo",
		"one row":       "SELECT wsum(i2) AS w, spread(i2, nn) AS s, widest(t) AS x, mean(i2) AS a FROM val",
		"in a subquery": "SELECT h, wsum(k) AS w, mean(k) AS m FROM (SELECT g AS h, nn AS k FROM val WHERE nn < 3) s GROUP BY h",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := valueBench(t, userAlgebra(), userAggregates, body)
			b.exec("SET search_path = ''")
			b.fill()
			for round := range 20 {
				changes := make([]string, 1+b.rnd.IntN(4))
				for i := range changes {
					changes[i] = changeValues(b.rnd) + "; UPDATE val SET i4 = i4 / 1000"
				}
				if round == 10 {
					changes = []string{"DELETE FROM val"}
				}
				b.batch(changes...)
				if round%5 == 0 {
					r, err := b.p.CheckLaws(t.Context(), b.conn)
					require.NoError(t, err)
					require.Nil(t, r)
				}
			}
		})
	}
}

// TestDeclaredKeeps: with negate a retraction reads nothing, without it the group is
// run again, unless no value is left.
func TestDeclaredKeeps(t *testing.T) {
	t.Parallel()
	const start = "; INSERT INTO val (id, g, i4, t, nn) VALUES (1, 1, 4, 'a', 1), (2, 1, 5, 'b', 1), (3, 2, NULL, 'c', 1)"
	for _, tc := range []struct {
		name, body, change string
		again              int
	}{
		{"negate", "SELECT g, wsum(i4) AS w FROM val GROUP BY g", "DELETE FROM val WHERE id = 2", 0},
		{"no negate", "SELECT g, widest(t) AS w FROM val GROUP BY g", "DELETE FROM val WHERE id = 1", 1},
		{"no negate, insert", "SELECT g, widest(t) AS w FROM val GROUP BY g", "INSERT INTO val (id, g, t, nn) VALUES (7, 1, 'x', 1), (8, 3, 'x', 1)", 0},
		{"no negate, no value is left", "SELECT g, widest(t) AS w FROM val GROUP BY g", "UPDATE val SET t = NULL", 0},
		{"no negate, the group goes", "SELECT g, widest(t) AS w FROM val GROUP BY g", "DELETE FROM val WHERE g = 1", 0},
		{"decomposed", "SELECT g, mean(i4) AS w FROM val GROUP BY g", "DELETE FROM val WHERE id = 2", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := valueBench(t, userAlgebra(), userAggregates+start, tc.body)
			b.exec("SET search_path = ''")
			b.fill()
			b.rnd = rand.New(alwaysOdd{})
			require.Equal(t, tc.again, b.batch(tc.change))
		})
	}
}

// TestDeclaredRefused: declarations that cannot be an algebra refuse the views that
// use them, and no others.
func TestDeclaredRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, valueTable+";"+userAggregates)
	conn := db.Conn(t)
	good := userAlgebra().Aggregates["public.wsum(int4)"]
	with := func(change func(*Declared)) Declared {
		d := good
		change(&d)
		return d
	}
	for _, tc := range []struct {
		name   string
		d      Declared
		reason string
	}{
		{"no such function", with(func(d *Declared) { d.Merge = "public.missing" }), "merge: there is no function public.missing(bigint, bigint)"},
		{"no such overload", with(func(d *Declared) { d.Decode = "public.same" }), "decode: there is no function public.same(bigint)"},
		{"not immutable", with(func(d *Declared) { d.Negate = "public.clocked" }), "negate: public.clocked(bigint) must be an IMMUTABLE function"},
		{"wrong result", with(func(d *Declared) { d.Merge = "public.narrow" }), "merge: public.narrow(bigint, bigint) returns integer in place of bigint"},
		{"no way back", Declared{Merge: "public.elsewhere_merge", Decode: "public.elsewhere"}, "decode gives the state date, and nothing makes a result of it"},
		{"expression of nothing known", Declared{Decompose: "sum(y)"}, "the arguments are named x"},
		{"expression without aggregate", Declared{Decompose: "x + 1"}, "decompose: give one expression over aggregates of x"},
		{"constant expression", Declared{Decompose: "1"}, "decompose: give one expression over aggregates of x"},
		{"two expressions", Declared{Decompose: "sum(x)), (count(x)"}, "decompose: "},
		{"expression with a subquery", Declared{Decompose: "sum(x) + (SELECT 1)"}, "without subqueries"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := Options{Aggregates: map[string]Declared{"public.wsum(integer)": tc.d}}
			_, err := Compile(t.Context(), conn, Declaration{Name: Name{"public", "v"}, Query: "SELECT g, wsum(i4) FROM val GROUP BY g"}, o)
			r, ok := errors.AsType[*Refusal](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, Invalid, r.Code)
			require.Equal(t, "aggregates: public.wsum(integer)", r.Construct)
			require.Contains(t, r.Reason, tc.reason)
			require.Equal(t, 10, r.Position)
			_, err = Compile(t.Context(), conn, Declaration{Name: Name{"public", "v"}, Query: "SELECT g, sum(i4) FROM val GROUP BY g"}, o)
			require.NoError(t, err)
		})
	}
}

// TestDeclaredDepends: a view depends on every function behind its aggregate.
func TestDeclaredDepends(t *testing.T) {
	t.Parallel()
	b := valueBench(t, userAlgebra(), userAggregates, "SELECT g, spread(i4, nn) AS s FROM val GROUP BY g")
	for _, f := range []string{"spread_add", "spread_final", "spread_merge", "spread_negate", "spread_decode"} {
		require.Contains(t, b.p.Depends, Object{Function, uint32(b.ints("SELECT '" + f + "'::regproc::oid::int"))}, f)
	}
	require.Len(t, b.p.Laws, 1)
}

// TestLaws: a wrong algebra is found on the rows of the view's source, and no value
// of theirs is in the message.
func TestLaws(t *testing.T) {
	t.Parallel()
	const rows = "; INSERT INTO val (id, g, i4, t, nn) SELECT i, i % 5, i * 7919, 'secret' || i, 1 FROM generate_series(1, 300) i"
	for _, tc := range []struct {
		name, replace, signature string
		d                        Declared
		want                     string
	}{
		{
			name: "merge forgets the start", replace: "CREATE OR REPLACE FUNCTION wsum_merge(bigint, bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT $1 + $2'",
			want: "merge(decode(agg(x)), decode(agg(y))) = decode(agg(x and y)) does not hold: samples of ",
		},
		{
			name: "merge takes sides", replace: "CREATE OR REPLACE FUNCTION wsum_merge(bigint, bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT $1'",
			want: "does not hold",
		},
		{
			name: "negate does not", replace: "CREATE OR REPLACE FUNCTION wsum_negate(bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT -$1'",
			want: "merge(merge(a, b), negate(b)) = a does not hold: samples of ",
		},
		{
			name: "decode loses", replace: "CREATE OR REPLACE FUNCTION wsum_decode(bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT 100::bigint'",
			want: "agg(x) from decode(agg(x)) does not hold: samples of ",
		},
		{
			name: "a function fails", replace: "CREATE OR REPLACE FUNCTION wsum_decode(bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$SELECT ('secret' || $1)::bigint$$",
			want: "its algebra fails on rows of the view's source: SQLSTATE 22P02",
		},
		{
			name: "another expression", signature: "public.wsum(integer)", d: Declared{Decompose: "sum(x) * 3"},
			want: "the aggregate is its expression does not hold: samples of ",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := userAlgebra()
			if tc.signature != "" {
				o = Options{Aggregates: map[string]Declared{tc.signature: tc.d}}
			}
			b := valueBench(t, o, userAggregates+rows+";"+tc.replace, "SELECT g, wsum(i4) AS w FROM val WHERE nn = 1 GROUP BY g")
			r, err := b.p.CheckLaws(t.Context(), b.conn)
			require.NoError(t, err)
			require.NotNil(t, r)
			require.Equal(t, Invalid, r.Code)
			require.Contains(t, r.Reason, tc.want)
			require.NotContains(t, r.Error(), "secret")
		})
	}
}
