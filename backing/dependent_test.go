package backing

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestDependentColumns merges one row over another whose columns are not fixed: a stored value that is right stays, though
// the row is written for another column's sake.
func TestDependentColumns(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	float := func(typ string) Column { return Column{Type: typ, Dependent: Float} }
	any1 := func(typ string) Column { return Column{Type: typ, Dependent: Representative} }
	for _, tc := range []struct {
		name          string
		column        Column
		stored, fresh string
		stays         bool
	}{
		{"float within the tolerance", float("double precision"), "0.1", "0.10000000000000002", true},
		{"float just within", float("double precision"), "1", "1.0000000009", true},
		{"float just outside", float("double precision"), "1", "1.0000000011", false},
		{"float of the other sign", float("double precision"), "1e-300", "-1e-300", false},
		{"float zeros", float("double precision"), "0", "-0", true},
		{"float zero and tiny", float("double precision"), "0", "1e-300", false},
		{"float extremes", float("double precision"), "1e+308", "-1e+308", false},
		{"float extremes of one sign", float("double precision"), "1.7e+308", "1e-308", false},
		{"float denormals", float("double precision"), "5e-324", "1e-323", false},
		{"float NaN", float("double precision"), "NaN", "NaN", true},
		{"float NaN and number", float("double precision"), "NaN", "1", false},
		{"float infinities", float("double precision"), "Infinity", "-Infinity", false},
		{"float infinity and large", float("double precision"), "Infinity", "1.7e+308", false},
		{"float NULLs", float("double precision"), "NULL", "NULL", true},
		{"float NULL and number", float("double precision"), "NULL", "0", false},
		{"float number and NULL", float("double precision"), "0", "NULL", false},
		{"real", float("real"), "0.1", "0.1", true},
		{"real near", float("real"), "0.1", "0.10000001", true},
		{"real apart", float("real"), "0.1", "0.10001", false},
		{"array of floats is exact", float("double precision[]"), "{0.1}", "{0.10000000000000002}", false},
		{"numeric", any1("numeric"), "1.0", "1.00", true},
		{"numeric apart", any1("numeric"), "1.0", "1.01", false},
		{"representative NULLs", any1("numeric"), "NULL", "NULL", true},
		{"representative NULL and value", any1("numeric"), "NULL", "0", false},
		{"representative value and NULL", any1("numeric"), "0", "NULL", false},
		{"composite of NULLs is not NULL", any1("public.point2"), "(,)", "NULL", false},
		{"NULL is not a composite of NULLs", any1("public.point2"), "NULL", "(,)", false},
		{"composites", any1("public.point2"), "(,)", "(,)", true},
		{"jsonb", any1("jsonb"), `{"a": 1}`, `{"a": 1.0}`, true},
		{"json has no equality", any1("json"), `{"a":1}`, `{"a": 1}`, false},
		{"citext", any1("public.citext"), "Bob", "bob", true},
		{"domain", any1("public.amount"), "1.00", "1.00", true},
		{"nocase", Column{Type: "text", Collation: `"public"."nocase"`, Dependent: Representative}, "Bob", "BOB", true},
		{"interval", any1("interval"), "1 day", "24:00:00", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := *f
			f.t = t
			tc.column.Name = "v"
			l := &Layout{Name: Name{"public", "view of " + tc.name}, Key: []int{0}, Columns: []Column{
				{Name: "k", Type: "integer", NotNull: true}, tc.column, {Name: "other", Type: "integer"},
			}}
			f.create(l)
			in := func(v, other string) Input {
				return input("mvsync_new_0", []InputColumn{{"k", "integer"}, {"v", tc.column.Type}, {"other", "integer"}}, []string{"1", v, other})
			}
			m := Merge{New: "SELECT * FROM mvsync_new_0", Effects: true}
			f.merge(l, m, in(tc.stored, "1"))
			r := f.merge(l, m, in(tc.fresh, "1"))
			want := tc.fresh
			if tc.stays {
				require.Zero(t, r.Changed(), "a right value is left alone")
				want = tc.stored
			} else {
				require.EqualValues(t, 1, r.Updated)
			}
			require.Equal(t, []string{"1|" + want + "|1"}, f.rows("SELECT * FROM "+l.Name.SQL()))
			f.merge(l, m, in(tc.stored, "1"))
			r = f.merge(l, m, in(tc.fresh, "2"))
			require.EqualValues(t, 1, r.Updated)
			require.Equal(t, []string{"1|" + want + "|2"}, f.rows("SELECT * FROM "+l.Name.SQL()))
			require.Equal(t, []string{"1|" + tc.stored + "|1 -> 1|" + want + "|2"}, lines(r.Effects))
		})
	}
}

// TestConditions compares a table with other rows by the exported conditions.
func TestConditions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := f.create(&Layout{Name: Name{"public", "v"}, Key: []int{0}, Columns: []Column{
		{Name: "The key", Type: "public.citext"}, {Name: "f", Type: "double precision", Dependent: Float}, {Name: "n", Type: "numeric"},
	}})
	f.merge(l, Merge{New: "VALUES ('a', 0.1, 1.0), ('b', 0.1, 1.0), (NULL, 5, NULL), ('gone', 1, 1)"})
	key, same, err := f.session.Conditions(t.Context(), f.session.Conn(), l, "s", "n")
	require.NoError(t, err)
	rows, err := f.session.Conn().Query(t.Context(), `SELECT COALESCE(s."The key", n."The key", 'NULL')::text || ' ' ||
		CASE WHEN s IS NULL THEN 'missing' WHEN n."The key" IS NULL AND n.f IS NULL THEN 'surplus' WHEN `+same+` THEN 'same' ELSE 'differs' END
		FROM public.v s FULL JOIN (VALUES ('a'::public.citext, 0.10000000000000002::float8, 1.0), ('b', 0.1, 1.00), (NULL, 5, NULL), ('new', 1, 1))
		n ("The key", f, n) ON `+key+` ORDER BY 1`)
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"NULL same", "a same", "b differs", "gone surplus", "new missing"}, got)
	one := &Layout{Name: Name{"public", "w"}, Columns: []Column{{Name: "a", Type: "json"}}}
	key, same, err = f.session.Conditions(t.Context(), f.session.Conn(), one, "s", "n")
	require.NoError(t, err)
	require.Equal(t, "true", key)
	require.NotEmpty(t, same)
}
