package plans

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// valueTable has a nullable column of every type that an aggregate is exact for.
const valueTable = `
CREATE COLLATION IF NOT EXISTS loud (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN cents AS int;
CREATE TABLE val (
  id int PRIMARY KEY, g int, i2 smallint, i4 int, i8 bigint, m numeric(12,3), wide numeric(30,10), cash money, iv interval,
  t text, tc text COLLATE "C", tl text COLLATE loud, c char(4), v varchar(9), d date, ts timestamp, tz timestamptz, tm time,
  u uuid, n numeric, f float8, r real, mo mood, arr int[], txts text[], ip inet, bt bit(4), b bool, ce cents, nn int NOT NULL);
ALTER TABLE val REPLICA IDENTITY FULL`

// valueColumns give a value of each column, from few, so that extremes repeat.
func valueColumns(r *rand.Rand) map[string]string {
	of := func(list ...string) string { return list[r.IntN(len(list))] }
	lit := func(typ string, list ...string) string { return "'" + of(list...) + "'::" + typ }
	out := map[string]string{
		"g":    of("1", "2", "3", "NULL"),
		"i2":   of("-32768", "32767", "0", "7"),
		"i4":   of("-2147483648", "2147483647", "0", "1", "6"),
		"i8":   of("-9223372036854775808", "9223372036854775807", "0", "12", "3037000500"),
		"m":    of("0", "1.5", "-2.125", "999999999.999", "'NaN'"),
		"wide": of("0.0000000001", "12345678901234567890.1234567890", "-3"),
		"cash": lit("money", "0", "1.25", "-3.10", "92233720368547"),
		"iv":   lit("interval", "1 day", "24 hours", "-1 mon 3 days", "00:00:00.5"),
		"t":    lit("text", "", "a", "B", "b", "é"), "tc": lit("text", "a", "B", "b"), "tl": lit("text", "bob", "Bob", "ann"),
		"c": lit("char(4)", "a", "b", "abcd"), "v": lit("text", "", "zz", "Z"),
		"d": lit("date", "2024-02-29", "infinity", "-infinity", "0044-03-15 BC"), "ts": lit("timestamp", "2024-01-01 10:00", "infinity", "1999-12-31"),
		"tz": lit("timestamptz", "2024-01-01 10:00+02", "2024-01-01 09:00+01", "-infinity"), "tm": lit("time", "10:00", "24:00", "00:00"),
		"u": lit("uuid", "00000000-0000-0000-0000-000000000001", "ffffffff-0000-0000-0000-000000000001"),
		"n": of("1.0", "1.00", "'NaN'", "'Infinity'", "-3"), "f": of("'-0'", "0", "'NaN'", "1e300", "'-Infinity'"), "r": of("0.1", "'NaN'", "3"),
		"mo": lit("mood", "sad", "ok", "happy"), "arr": lit("int[]", "{}", "{1,NULL}", "{1,2,3}"), "txts": lit("text[]", "{a,b}", "{}", `{"NULL",NULL}`),
		"ip": lit("inet", "10.0.0.1", "10.0.0.0/8", "::1"), "bt": lit("bit(4)", "0000", "1010", "1111"), "b": of("true", "false"),
		"ce": of("1", "5"),
	}
	for k := range out {
		if r.IntN(4) == 0 {
			out[k] = "NULL"
		}
	}
	out["nn"] = of("1", "2", "3")
	return out
}

// changeValues is a random change of val.
func changeValues(r *rand.Rand) string {
	var names, values, sets []string
	for _, name := range valueNames {
		v := valueColumns(r)[name]
		names, values = append(names, name), append(values, v)
		if r.IntN(4) == 0 {
			sets = append(sets, name+" = "+v)
		}
	}
	id := r.IntN(14)
	switch r.IntN(5) {
	case 0, 1:
		return fmt.Sprintf("INSERT INTO val (id, %s) VALUES (%d, %s) ON CONFLICT (id) DO UPDATE SET (%[1]s) = (%[3]s)",
			join(names), id, join(values))
	case 2:
		return fmt.Sprintf("DELETE FROM val WHERE id = %d", id)
	case 3:
		return fmt.Sprintf("DELETE FROM val WHERE g = %d", r.IntN(9))
	}
	if len(sets) == 0 {
		return "UPDATE val SET nn = nn"
	}
	return fmt.Sprintf("UPDATE val SET %s WHERE id %% 3 = %d", join(sets), id%3)
}

// valueNames are the columns of val after id.
var valueNames = strings.Fields("g i2 i4 i8 m wide cash iv t tc tl c v d ts tz tm u n f r mo arr txts ip bt b ce nn")

// each writes an aggregate over columns, under names of their own.
func each(call string, columns string) string {
	var out []string
	for i, c := range strings.Fields(columns) {
		out = append(out, fmt.Sprintf("%s AS %s_%d", strings.ReplaceAll(call, "#", c), strings.Fields(strings.ReplaceAll(call, "(", " "))[0], i))
	}
	return join(out)
}

const (
	exactColumns   = "i2 i4 i8 m wide ce nn"
	orderedColumns = "i2 i4 i8 m wide cash iv t tc tl c v d ts tz tm n f r mo arr txts ip nn"
)

// aggregateBodies are bodies over val, by what they show.
func aggregateBodies() map[string]string {
	spread := each("var_pop(#)", exactColumns) + ", " + each("var_samp(#)", exactColumns) + ", " + each("variance(#)", "i4 m") + ", " +
		each("stddev_pop(#)", exactColumns) + ", " + each("stddev_samp(#)", exactColumns) + ", " + each("stddev(#)", "i4 m")
	truths := each("bool_and(#)", "b") + ", bool_or(b) AS some, every(i4 > 0) AS every1, " +
		each("bit_and(#)", "i2 i4 i8 nn") + ", " + each("bit_or(#)", "i2 i4 i8 nn")
	return map[string]string{
		"sums":     "SELECT g, count(*) AS n, " + each("count(#)", "i4 t arr nn") + ", " + each("sum(#)", exactColumns+" cash iv") + ", " + each("avg(#)", exactColumns+" iv") + " FROM val GROUP BY g",
		"spread":   "SELECT g, " + spread + " FROM val GROUP BY g",
		"extremes": "SELECT g, " + each("min(#)", orderedColumns) + ", " + each("max(#)", orderedColumns) + " FROM val GROUP BY g",
		"truths":   "SELECT g, " + truths + " FROM val GROUP BY g",
		"one row":  "SELECT count(*) AS n, " + spread + ", " + truths + ", " + each("max(#)", "i4 t") + ", " + each("sum(#)", exactColumns+" cash iv") + " FROM val",
		"filters": "SELECT g, count(*) FILTER (WHERE i4 > 0) AS n, sum(i4) FILTER (WHERE b) AS s, avg(m) FILTER (WHERE NOT b) AS a, " +
			"min(t) FILTER (WHERE b IS NULL) AS t, bool_or(b) FILTER (WHERE i2 > 0) AS o, stddev(i8) FILTER (WHERE b) AS d FROM val GROUP BY g",
		"distinct":     "SELECT DISTINCT g, mo, b, d, arr FROM val",
		"many groups":  "SELECT g, t, mo, ip, count(*) AS n, sum(nn) AS s FROM val WHERE b IS NOT FALSE GROUP BY g, t, mo, ip",
		"expressions":  "SELECT g, sum(i4::bigint * 2) + count(*) AS x, round(avg(nn), 2) AS y, max(t || 'z') AS z, max(c)::text || '.' AS k, coalesce(sum(m), 0) AS m FROM val GROUP BY g",
		"no aggregate": "SELECT mo FROM val GROUP BY mo",
	}
}

// valueBench is a database with val, and its plan of a body.
func valueBench(t *testing.T, o Options, setup, body string) *bench {
	t.Helper()
	db := pgtest.New(t)
	db.Exec(t, valueTable)
	if setup != "" {
		db.Exec(t, setup)
	}
	b := &bench{t: t, conn: db.Conn(t), rnd: rand.New(rand.NewPCG(7, 11))}
	b.exec("SET TIME ZONE 'UTC'")
	var err error
	b.p, err = Compile(t.Context(), b.conn, Declaration{Name: Name{"public", "v"}, Query: body}, o)
	require.NoError(t, err)
	require.Equal(t, DeltaAggregate, b.p.Strategy, "%v", b.p.Declined)
	return b
}

// batch makes changes in one go, applies them, and compares. It returns how many
// groups had to be run again.
func (b *bench) batch(changes ...string) int {
	b.t.Helper()
	b.exec("SET search_path = public")
	b.snapshot(0, "before")
	for _, c := range changes {
		b.exec(c)
	}
	b.snapshot(0, "after")
	b.exec("SET search_path = ''")
	b.apply()
	b.compare(strings.Join(changes, "\n"))
	return b.ints("SELECT count(*)::int FROM pg_temp.flagged")
}

// TestAggregates: merging signed contributions gives what Postgres gives, for
// every aggregate over every type, with NULLs, emptied groups and no rows at all.
func TestAggregates(t *testing.T) {
	t.Parallel()
	for name, body := range aggregateBodies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := valueBench(t, Options{}, "", body)
			b.exec("SET search_path = ''")
			b.fill()
			for round := range 25 {
				changes := make([]string, 1+b.rnd.IntN(4))
				for i := range changes {
					changes[i] = changeValues(b.rnd)
				}
				if round%12 == 11 {
					changes = []string{"DELETE FROM val"}
				}
				b.batch(changes...)
			}
		})
	}
}

// TestDeviations: what is computed from partials prints as Postgres prints it, over
// thousands of groups of all sizes and magnitudes.
func TestDeviations(t *testing.T) {
	t.Parallel()
	const columns = "i4 i8 m wide"
	b := valueBench(t, Options{}, "", "SELECT g, "+each("var_pop(#)", columns)+", "+each("var_samp(#)", columns)+", "+
		each("stddev_pop(#)", columns)+", "+each("stddev_samp(#)", columns)+", "+each("avg(#)", columns)+" FROM val GROUP BY g")
	rows := func(from, to int) string {
		return fmt.Sprintf(`INSERT INTO val (id, g, i4, i8, m, wide, nn)
SELECT i, (random() * 4000)::int, (random() - 0.5) * power(10, (random() * 9)::int), (random() - 0.5) * power(10, (random() * 18)::int),
       CASE WHEN random() < 0.01 THEN 'NaN' ELSE ((random() - 0.5) * power(10, (random() * 8)::int))::numeric END,
       CASE WHEN random() < 0.9 THEN ((random() - 0.5) * power(10, (random() * 19)::int))::numeric END, 1
FROM generate_series(%d, %d) i`, from, to)
	}
	b.exec("SELECT setseed(0.25)")
	b.exec("SET search_path = public")
	b.exec(rows(1, 6000))
	b.exec("SET search_path = ''")
	b.fill()
	again := b.batch(rows(6001, 12000), "DELETE FROM val WHERE id % 3 = 0", "UPDATE val SET i4 = i4 + 1, m = NULL WHERE id % 7 = 0")
	require.Less(t, again, 400, "groups that were run again prove nothing")
	require.Greater(t, b.ints("SELECT count(*)::int FROM pg_temp.stored"), 3000)
}

// TestKeeps: retractions that cannot matter read nothing.
func TestKeeps(t *testing.T) {
	t.Parallel()
	const start = `INSERT INTO val (id, g, i4, t, b, m, iv, nn) VALUES
(1, 1, 4, 'a', true, 1, '1 day', 4), (2, 1, 3, 'b', false, 2, '1 hour', 3), (3, 1, 0, 'c', NULL, 3, NULL, 1), (4, 2, NULL, NULL, NULL, NULL, NULL, 7)`
	for _, tc := range []struct {
		name, body string
		change     []string
		again      int
	}{
		{"max, a lower value", "SELECT g, max(i4) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 2"}, 0},
		{"max, the highest", "SELECT g, max(i4) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 1"}, 1},
		{"max, raised", "SELECT g, max(i4) AS x FROM val GROUP BY g", []string{"UPDATE val SET i4 = 5 WHERE id = 1"}, 0},
		{"max, lowered", "SELECT g, max(i4) AS x FROM val GROUP BY g", []string{"UPDATE val SET i4 = 1 WHERE id = 1"}, 1},
		{"max, another column", "SELECT g, max(i4) AS x, sum(nn) AS s FROM val GROUP BY g", []string{"UPDATE val SET nn = nn + 1 WHERE id = 1"}, 0},
		{"max, NULL goes", "SELECT g, max(i4) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 4"}, 0},
		{"max, replaced by its equal", "SELECT g, max(t) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 3", "INSERT INTO val (id, g, t, nn) VALUES (9, 1, 'c', 1)"}, 0},
		{"max, a higher one takes over", "SELECT g, max(t) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 3", "INSERT INTO val (id, g, t, nn) VALUES (9, 1, 'd', 1)"}, 0},
		{"max, an equal of other bytes", "SELECT g, max(n) AS x FROM val GROUP BY g", []string{"UPDATE val SET n = 1.00 WHERE n = 1.0"}, 1},
		{"min, a higher value", "SELECT g, min(i4) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 1"}, 0},
		{"min, the lowest", "SELECT g, min(i4) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 3"}, 1},
		{"min, lowered", "SELECT g, min(i4) AS x FROM val GROUP BY g", []string{"UPDATE val SET i4 = -1 WHERE id = 3"}, 0},
		{"bool_and, true goes", "SELECT g, bool_and(b) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 1"}, 0},
		{"bool_and, false goes", "SELECT g, bool_and(b) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 2"}, 1},
		{"bool_and, false stays", "SELECT g, bool_and(b) AS x, sum(nn) AS s FROM val GROUP BY g", []string{"UPDATE val SET nn = 9 WHERE id = 2"}, 0},
		{"bool_and, no value is left", "SELECT g, bool_and(b) AS x FROM val GROUP BY g", []string{"UPDATE val SET b = NULL"}, 0},
		{"bool_or, false goes", "SELECT g, bool_or(b) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 2"}, 0},
		{"bool_or, true goes", "SELECT g, bool_or(b) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 1"}, 1},
		{"bool_or, true comes and goes", "SELECT g, bool_or(b) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 1", "UPDATE val SET b = true WHERE id = 3"}, 0},
		{"bit_or, 4 of 4 and 3", "SELECT g, bit_or(i4) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 1"}, 1},
		{"bit_or, 0 goes", "SELECT g, bit_or(i4) AS x FROM val GROUP BY g", []string{"DELETE FROM val WHERE id = 3"}, 0},
		{"bit_or, its bits stay", "SELECT g, bit_or(i4) AS x FROM val GROUP BY g", []string{"UPDATE val SET i4 = 7 WHERE id = 1"}, 0},
		{"bit_and, its bits stay", "SELECT g, bit_and(i4) AS x FROM val GROUP BY g", []string{"UPDATE val SET i4 = 1 WHERE id = 2"}, 0},
		{"bit_and, a bit comes back", "SELECT g, bit_and(i4) AS x FROM val GROUP BY g", []string{"UPDATE val SET i4 = 7 WHERE id = 3"}, 1},
		{"sum, the last value goes", "SELECT g, sum(i4) AS x, avg(m) AS a, stddev(m) AS d FROM val GROUP BY g", []string{"UPDATE val SET i4 = NULL, m = NULL"}, 0},
		{"sum, NaN comes", "SELECT g, sum(m) AS x FROM val GROUP BY g", []string{"UPDATE val SET m = 'NaN' WHERE id = 1"}, 1},
		{"a group goes with its extreme", "SELECT g, max(i4) AS x, bool_and(b) AS y FROM val GROUP BY g", []string{"DELETE FROM val WHERE g = 1"}, 0},
		{"all groups go", "SELECT g, max(i4) AS x, variance(i4) AS y FROM val GROUP BY g", []string{"DELETE FROM val"}, 0},
		{"a group is left", "SELECT g, max(i4) AS x, stddev(i4) AS y FROM val GROUP BY g", []string{"UPDATE val SET g = 2 WHERE g = 1"}, 0},
		{"the one row is emptied", "SELECT count(*) AS n, sum(i4) AS s, bool_and(b) AS y FROM val", []string{"DELETE FROM val"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := valueBench(t, Options{}, start+"; UPDATE val SET n = 1.0 WHERE id = 1", tc.body)
			b.exec("SET search_path = ''")
			b.fill()
			b.rnd = rand.New(alwaysOdd{}) // only the changes themselves
			require.Equal(t, tc.again, b.batch(tc.change...))
		})
	}
}

// alwaysOdd keeps a bench from adding rows that came and went.
type alwaysOdd struct{}

func (alwaysOdd) Uint64() uint64 { return ^uint64(0) }

// TestNaNStaysInside: once NaN is in a group, changes beside it are still exact, and
// it goes when its row goes.
func TestNaNStaysInside(t *testing.T) {
	t.Parallel()
	b := valueBench(t, Options{}, "INSERT INTO val (id, g, m, nn) VALUES (1, 1, 'NaN', 1), (2, 1, 2, 1), (3, 1, 5, 1)",
		"SELECT g, sum(m) AS s, avg(m) AS a, var_pop(m) AS v, var_samp(m) AS w, stddev_pop(m) AS d, stddev(m) AS e, max(m) AS x FROM val GROUP BY g")
	b.exec("SET search_path = ''")
	b.fill()
	b.rnd = rand.New(alwaysOdd{})
	require.Zero(t, b.batch("UPDATE val SET m = 3 WHERE id = 2"))
	require.Zero(t, b.batch("INSERT INTO val (id, g, m, nn) VALUES (4, 1, 8, 1)"))
	require.Equal(t, 1, b.batch("DELETE FROM val WHERE id = 1"))
	require.Zero(t, b.batch("DELETE FROM val WHERE id = 3"))
}

// TestNoAlgebra: what has no exact algebra is not merged.
func TestNoAlgebra(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, valueTable+`; CREATE AGGREGATE product(int) (sfunc = int4mul, stype = int)`)
	conn := db.Conn(t)
	for _, tc := range []struct{ list, reason string }{
		{"sum(f)", "depend on the order"},
		{"avg(r)", "depend on the order"},
		{"stddev(f)", "depend on the order"},
		{"sum(n)", "has no algebra that is exact"},
		{"variance(n)", "has no algebra that is exact"},
		{"sum(m * 2)", "has no algebra that is exact"},
		{"bit_and(bt)", "has no algebra that is exact"},
		{"count(DISTINCT i4)", "each value once"},
		{"string_agg(t, ',' ORDER BY t, id)", "all values in order"},
		{"percentile_disc(0.5) WITHIN GROUP (ORDER BY i4)", "all values in order"},
		{"product(i4)", "declare one under aggregates: public.product(integer)"},
	} {
		p, err := Compile(t.Context(), conn, Declaration{Name: Name{"public", "v"}, Query: "SELECT g, " + tc.list + " AS x FROM val GROUP BY g"}, Options{})
		require.NoError(t, err, tc.list)
		require.Equal(t, ResidualRecompute, p.Strategy, tc.list)
		require.Contains(t, p.Declined[DeltaAggregate], tc.reason, tc.list)
	}
}
