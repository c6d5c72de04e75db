package maintain

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/plans"
)

// TestComparison compares a table with a body that is another table.
func TestComparison(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
	key := plans.Column{Name: "k", Type: "integer", NotNull: true}
	text := plans.Column{Name: "Some Text", Type: "text"}
	float := plans.Column{Name: "f", Type: "double precision", Dependent: plans.Float}
	number := plans.Column{Name: "n", Type: "numeric", Dependent: plans.Representative}
	weak := plans.Column{Name: "w", Type: "text", Collation: "nocase", Dependent: plans.Representative}
	for _, tc := range []struct {
		name         string
		columns      []plans.Column
		key          []int
		body, stored string // VALUES
		rows         int64
		differing    int64
		sample       []string
	}{
		{name: "equal in another order", columns: []plans.Column{key, text}, body: "(1,'a'),(2,'b'),(3,NULL)", stored: "(3,NULL),(1,'a'),(2,'b')", rows: 3},
		{name: "both empty", columns: []plans.Column{key, text}},
		{name: "a row missing", columns: []plans.Column{key, text}, body: "(1,'a'),(2,'b')", stored: "(1,'a')", rows: 2, differing: 1, sample: []string{"+ (2, b)"}},
		{name: "a row too many", columns: []plans.Column{key, text}, body: "(1,'a')", stored: "(1,'a'),(2,'b')", rows: 1, differing: 1, sample: []string{"- (2, b)"}},
		{name: "a value differs", columns: []plans.Column{key, text}, body: "(1,'a'),(2,'b')", stored: "(1,'a'),(2,'B')", rows: 2, differing: 1, sample: []string{"- (2, B)", "+ (2, b)"}},
		{name: "one missing and another too many", columns: []plans.Column{key, text}, body: "(1,'a')", stored: "(2,'a')", rows: 1, differing: 2, sample: []string{"- (2, a)", "+ (1, a)"}},
		{name: "all of it missing", columns: []plans.Column{key, text}, body: "(1,'a'),(2,'a'),(3,'a')", rows: 3, differing: 3},
		{name: "NULL is not the empty string", columns: []plans.Column{key, text}, body: "(1,NULL)", stored: "(1,'')", rows: 1, differing: 1, sample: []string{"- (1, )", "+ (1, NULL)"}},
		{name: "NULL is not its name", columns: []plans.Column{key, text}, body: "(1,'N')", stored: "(1,NULL)", rows: 1, differing: 1},
		{name: "trailing space", columns: []plans.Column{key, text}, body: "(1,'a ')", stored: "(1,'a')", rows: 1, differing: 1},
		{name: "a duplicate is a row of its own", columns: []plans.Column{key, text}, body: "(1,'a')", stored: "(1,'a'),(1,'a')", rows: 1, differing: 1},
		{name: "a duplicate in the body", columns: []plans.Column{key, text}, body: "(1,'a'),(1,'a'),(1,'a')", stored: "(1,'a')", rows: 3, differing: 2},
		{name: "values that run together", columns: []plans.Column{text, {Name: "b", Type: "text"}}, body: "('a','bc')", stored: "('ab','c')", rows: 1, differing: 2},
		{name: "one row without a key", columns: []plans.Column{{Name: "n", Type: "bigint"}}, key: []int{}, body: "(1)", stored: "(2)", rows: 1, differing: 1, sample: []string{"- (2)", "+ (1)"}},

		{name: "floats of another order", columns: []plans.Column{key, float}, body: "(1,0.1::float8+0.2+0.3),(2,1)", stored: "(1,0.3::float8+0.2+0.1),(2,1)", rows: 2},
		{name: "floats that differ", columns: []plans.Column{key, float}, body: "(1,1),(2,1)", stored: "(1,1.00000001),(2,1)", rows: 2, differing: 1},
		{name: "zeros of two signs", columns: []plans.Column{key, float}, body: "(1,0)", stored: "(1,'-0'::float8)", rows: 1},
		{name: "NaN is exact", columns: []plans.Column{key, float}, body: "(1,'NaN'::float8)", stored: "(1,'Infinity'::float8)", rows: 1, differing: 1},
		{name: "NaN against NULL", columns: []plans.Column{key, float}, body: "(1,'NaN'::float8)", stored: "(1,NULL)", rows: 1, differing: 1},
		{name: "a right float does not excuse the text", columns: []plans.Column{key, float, text}, body: "(1,0.1::float8+0.2+0.3,'a')", stored: "(1,0.3::float8+0.2+0.1,'b')", rows: 1, differing: 1},
		{name: "right floats of other keys", columns: []plans.Column{key, float}, body: "(1,1),(2,1.000000000000001)", stored: "(1,1.000000000000001),(2,1)", rows: 2},
		{name: "representatives", columns: []plans.Column{key, number}, body: "(1,1.0),(2,2)", stored: "(1,1.00),(2,2.000)", rows: 2},
		{name: "a representative that is none", columns: []plans.Column{key, number}, body: "(1,1.0)", stored: "(1,1.1)", rows: 1, differing: 1},
		{name: "weak keys", columns: []plans.Column{weak, text}, body: "('Bob','a'),('Eve','a')", stored: "('eve','a'),('bob','a')", rows: 2},
		{name: "weak keys with another value", columns: []plans.Column{weak, text}, body: "('Bob','a')", stored: "('bob','b')", rows: 1, differing: 2},
		{name: "each row is forgiven once", columns: []plans.Column{key, number}, body: "(1,1.0)", stored: "(1,1.00),(1,1.000)", rows: 1, differing: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			name := plans.Name{Schema: "public", Name: "Tab " + strings.ReplaceAll(tc.name, " ", "_")}
			key := tc.key
			if key == nil {
				key = []int{0}
			}
			c := comparison{
				plan: &plans.Plan{Name: name, Columns: tc.columns, Key: key}, body: db.Conn(t), table: db.Conn(t),
				bodySQL: selectValues(tc.columns, tc.body),
			}
			db.Exec(t, "CREATE TABLE "+name.String()+" AS "+selectValues(tc.columns, tc.stored))
			got, err := c.run(t.Context())
			require.NoError(t, err)
			require.Equal(t, name.String(), got.View)
			require.Empty(t, got.Skipped)
			require.Equal(t, tc.rows, got.Rows)
			require.Equal(t, tc.differing, got.Differing)
			require.Equal(t, tc.differing > 0, len(got.Sample) > 0)
			if tc.sample != nil {
				require.Equal(t, tc.sample, got.Sample)
			}
		})
	}
}

// selectValues gives rows, which may be none, as the columns.
func selectValues(columns []plans.Column, values string) string {
	names, casts, nulls := []string{}, []string{}, []string{}
	for _, c := range columns {
		name := `"` + c.Name + `"`
		cast := name + "::" + c.Type
		if c.Collation != "" {
			cast += " COLLATE " + c.Collation
		}
		names, casts, nulls = append(names, name), append(casts, cast+" AS "+name), append(nulls, "NULL::"+c.Type)
	}
	where := ""
	if values == "" {
		values, where = "("+strings.Join(nulls, ", ")+")", " WHERE false"
	}
	return "SELECT " + strings.Join(casts, ", ") + " FROM (VALUES " + values + ") AS v(" + strings.Join(names, ", ") + ")" + where
}

func TestComparisonFails(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE v (k int); INSERT INTO v VALUES (1)")
	plan := &plans.Plan{Name: plans.Name{Schema: "public", Name: "v"}, Columns: []plans.Column{{Name: "k", Type: "integer"}}, Key: []int{0}}
	c := comparison{plan: plan, body: db.Conn(t), table: db.Conn(t), bodySQL: "SELECT 1 / (g - 2) FROM generate_series(1, 2) g"}
	_, err := c.run(t.Context())
	require.ErrorContains(t, err, "evaluate the body of public.v")
	c.bodySQL, c.plan = "SELECT 1", &plans.Plan{Name: plans.Name{Schema: "public", Name: "gone"}, Columns: plan.Columns, Key: plan.Key}
	_, err = c.run(t.Context())
	require.ErrorContains(t, err, "read public.gone")
}

func TestComparisonSample(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE v (k int)")
	plan := &plans.Plan{Name: plans.Name{Schema: "public", Name: "v"}, Columns: []plans.Column{{Name: "k", Type: "integer"}}, Key: []int{0}}
	c := comparison{plan: plan, body: db.Conn(t), table: db.Conn(t), bodySQL: "SELECT g FROM generate_series(1, 150000) g"}
	got, err := c.run(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(150_000), got.Differing, "counted where they are not kept, too")
	require.Len(t, got.Sample, verifySample)
}

func TestNear(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b   string
		within float64
		want   bool
	}{
		{"1", "1.0000000001", 1e-9, true},
		{"1", "1.00000001", 1e-9, false},
		{"1", "1.00000001", 1e-5, true},
		{"1e300", "1.0000000001e300", 1e-9, true},
		{"-1", "1", 1e-9, false},
		{"0", "-0", 1e-9, true},
		{"0", "1e-300", 1e-9, false},
		{"NaN", "NaN", 1e-9, false}, // equal texts do not come here
		{"Infinity", "-Infinity", 1e-9, false},
		{"Infinity", "1e308", 1e-9, false},
		{"x", "1", 1e-9, false},
	} {
		require.Equal(t, tc.want, near(tc.a, tc.b, tc.within), "%s %s", tc.a, tc.b)
	}
}
