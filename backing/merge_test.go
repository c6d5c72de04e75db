package backing

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// keyKind is a kind of key column. The values of one class are equal as keys.
type keyKind struct {
	name      string
	column    Column
	classes   [][]string
	hashKey   bool
	dependent bool // a stored spelling that is equal stays
}

var keyKinds = []keyKind{
	{name: "integer", column: Column{Type: "integer", NotNull: true}, classes: [][]string{{"1"}, {"2"}, {"-3"}, {"4"}}},
	{name: "nullable integer", column: Column{Type: "integer"}, classes: [][]string{{"1"}, {"2"}, {"NULL"}, {"4"}}},
	{name: "text", column: Column{Type: "text"}, classes: [][]string{{""}, {"NULL"}, {"a\tb\n\\N"}, {`\N`}, {`{"x",NULL}`}, {"É"}}},
	{name: "nocase", column: Column{Type: "text", Collation: `"public"."nocase"`}, classes: [][]string{{"Bob", "bob", "BOB"}, {"NULL"}, {"ann", "Ann"}}},
	{name: "nocase not null", column: Column{Type: "text", Collation: `"public"."nocase"`, NotNull: true}, classes: [][]string{{"Bob", "bob", "BOB"}, {"ann", "Ann"}}},
	{
		name: "nocase representative", column: Column{Type: "text", Collation: `"public"."nocase"`, Dependent: Representative}, dependent: true,
		classes: [][]string{{"Bob", "bob", "BOB"}, {"NULL"}, {"ann", "Ann"}},
	},
	{name: "citext", column: Column{Type: "public.citext"}, classes: [][]string{{"Bob", "bob"}, {"NULL"}, {"ann", "Ann"}}},
	{name: "citext not null", column: Column{Type: "public.citext", NotNull: true}, classes: [][]string{{"Bob", "bob"}, {"ann", "Ann"}}},
	{name: "numeric", column: Column{Type: "numeric"}, classes: [][]string{{"1.0", "1.00", "1"}, {"NULL"}, {"NaN"}, {"0", "0.000"}}},
	{name: "float", column: Column{Type: "double precision"}, classes: [][]string{{"0", "-0"}, {"NULL"}, {"NaN"}, {"Infinity"}, {"1e-300"}}},
	{name: "interval", column: Column{Type: "interval"}, classes: [][]string{{"24:00:00", "1 day"}, {"NULL"}, {"00:00:01"}}},
	{name: "domain", column: Column{Type: "public.amount"}, classes: [][]string{{"1.00"}, {"NULL"}, {"-2.50"}}},
	{name: "array", column: Column{Type: "integer[]"}, classes: [][]string{{"{}"}, {"NULL"}, {"{1,NULL}"}, {"{{1,2},{3,4}}"}, {"{NULL}"}}},
	{name: "domain over array", column: Column{Type: "public.ints"}, classes: [][]string{{"{}"}, {"NULL"}, {"{1,NULL}"}}},
	{name: "composite", column: Column{Type: "public.point2"}, classes: [][]string{{"(1,2)"}, {"NULL"}, {"(,)"}, {"(1,)"}}},
	{name: "enum", column: Column{Type: "public.mood"}, classes: [][]string{{"sad"}, {"NULL"}, {"happy"}}},
	{name: "range", column: Column{Type: "int4range"}, classes: [][]string{{"[1,3)"}, {"NULL"}, {"empty"}}},
	{name: "varchar", column: Column{Type: "character varying(5)"}, classes: [][]string{{"a"}, {"NULL"}, {"a "}}},
	{name: "char", column: Column{Type: "character(3)"}, classes: [][]string{{"a  "}, {"NULL"}, {"b  "}}},
	{name: "money", column: Column{Type: "money"}, classes: [][]string{{"$1.00"}, {"NULL"}, {"-$2.00"}}},
	{name: "bit", column: Column{Type: "bit varying(4)"}, classes: [][]string{{"01"}, {"NULL"}, {""}}},
	{name: "jsonb", column: Column{Type: "jsonb"}, classes: [][]string{{`{"a": 1}`, `{"a": 1.0}`}, {"NULL"}, {"null"}}},
	{name: "hashed text", column: Column{Type: "text"}, hashKey: true, classes: [][]string{{strings.Repeat("xyz", 4000)}, {"NULL"}, {""}}},
	{name: "hashed bytea", column: Column{Type: "bytea", NotNull: true}, hashKey: true, classes: [][]string{{`\x00ff`}, {`\x`}}},
	{name: "one row", classes: [][]string{{""}}},
}

// payload are the columns beside the key, whose bytes are exact, with values that are equal and not identical.
var payload = []struct {
	column Column
	values []string
}{
	{Column{Name: "weird \"name\"", Type: "numeric"}, []string{"1.0", "1.00", "NULL", "NaN"}},
	{Column{Name: "select", Type: "double precision"}, []string{"0", "-0", "NaN", "0.1", "NULL"}},
	{Column{Name: "body", Type: "text"}, []string{"", "a\\b\tc\nd\r", "NULL", strings.Repeat("long ", 3000)}},
	{Column{Name: "made", Type: "interval"}, []string{"1 day", "24:00:00", "NULL"}},
	{Column{Name: "pair", Type: "public.point2"}, []string{"(,)", "NULL", "(1,2)"}},
	{Column{Name: "boxes", Type: "box[]"}, []string{"{(2,2),(1,1);(4,4),(3,3)}", "NULL", "{}"}},
	{Column{Name: "net", Type: "public.amount"}, []string{"1.00", "NULL"}},
}

// kindLayout is the layout for a kind of key: two key columns, the second an integer, or no key.
func kindLayout(k keyKind, name string, hidden bool) *Layout {
	l := &Layout{Name: Name{"public", name}, HashKey: k.hashKey, Query: "SELECT 1"}
	if k.column.Type != "" {
		key := k.column
		key.Name = "the Key"
		l.Columns = []Column{key, {Name: "g", Type: "smallint", NotNull: true}}
		l.Key = []int{0, 1}
	}
	for _, p := range payload {
		l.Columns = append(l.Columns, p.column)
	}
	if hidden {
		l.Hidden = []Column{{Name: "mvsync_n", Type: "bigint", NotNull: true}, {Name: "mvsync_s", Type: "numeric"}}
	}
	return l
}

// drawn is a drawn row: the identity of its key, and its values, hidden ones included.
type drawn struct {
	id     string
	values []string
}

// drawRows draws rows with distinct keys.
func drawRows(t *rapid.T, k keyKind, l *Layout, label string) []drawn {
	most := 6
	if len(l.Key) == 0 {
		most = 1
	}
	n := rapid.IntRange(0, most).Draw(t, label)
	var out []drawn
	for range n {
		var d drawn
		if len(l.Key) > 0 {
			class := rapid.IntRange(0, len(k.classes)-1).Draw(t, "class")
			g := rapid.SampledFrom([]string{"0", "1"}).Draw(t, "g")
			d.id = fmt.Sprint(class, "/", g)
			d.values = []string{rapid.SampledFrom(k.classes[class]).Draw(t, "spelling"), g}
		}
		if slices.ContainsFunc(out, func(o drawn) bool { return o.id == d.id }) {
			continue
		}
		for _, p := range payload {
			d.values = append(d.values, rapid.SampledFrom(p.values).Draw(t, "value"))
		}
		for range l.Hidden {
			d.values = append(d.values, rapid.SampledFrom([]string{"1", "2"}).Draw(t, "hidden"))
		}
		out = append(out, d)
	}
	return out
}

func inputOf(l *Layout, rows []drawn) Input {
	in := Input{Name: "mvsync_new_0"}
	for i, c := range append(slices.Clone(l.Columns), l.Hidden...) {
		in.Columns = append(in.Columns, InputColumn{Name: numbered("x", i), Type: c.Type})
	}
	for _, r := range rows {
		in.Rows = append(in.Rows, values(r.values)...)
	}
	return in
}

// TestMergeProperty merges random rows into random rows: the table is then exactly the new rows, the effects are exactly
// the difference, a second merge writes nothing. Inputs go as arrays and by COPY, with and without a companion.
func TestMergeProperty(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	for i, k := range keyKinds {
		t.Run(k.name, func(t *testing.T) {
			f := *f
			f.t = t
			layouts := map[bool]*Layout{}
			for _, hidden := range []bool{false, true} {
				layouts[hidden] = f.create(kindLayout(k, fmt.Sprintf("v%d%v", i, hidden), hidden))
			}
			rapid.Check(t, func(rt *rapid.T) {
				f.host.arrayRows = rapid.SampledFrom([]int{1, 2000}).Draw(rt, "array rows")
				checkMerge(rt, &f, k, layouts[rapid.Bool().Draw(rt, "hidden")])
			})
		})
	}
}

func checkMerge(rt *rapid.T, f *fixture, k keyKind, l *Layout) {
	m := Merge{New: "SELECT * FROM mvsync_new_0", Effects: true}
	old, fresh := drawRows(rt, k, l, "old"), drawRows(rt, k, l, "new")
	f.merge(l, m, inputOf(l, nil))
	f.merge(l, Merge{New: m.New, Append: true}, inputOf(l, old))
	r := f.merge(l, m, inputOf(l, fresh))

	// What must be there, and what must have been reported.
	visible := len(l.Columns)
	var want, effects []string
	wantHidden := map[string]bool{}
	byID := map[string]drawn{}
	for _, o := range old {
		byID[o.id] = o
	}
	for _, n := range fresh {
		o, found := byID[n.id]
		delete(byID, n.id)
		if found && k.dependent {
			n.values = append([]string{o.values[0]}, n.values[1:]...)
		}
		want = append(want, strings.Join(n.values, "|"))
		switch {
		case !found:
			effects = append(effects, "- -> "+strings.Join(n.values[:visible], "|"))
		case !slices.Equal(o.values[:visible], n.values[:visible]):
			effects = append(effects, strings.Join(o.values[:visible], "|")+" -> "+strings.Join(n.values[:visible], "|"))
		}
		wantHidden[n.id] = true
	}
	for _, o := range byID {
		effects = append(effects, strings.Join(o.values[:visible], "|")+" -> -")
	}
	slices.Sort(want)
	slices.Sort(effects)
	require.Empty(rt, cmp.Diff(want, f.storedRows(l), cmpEmpty))
	require.Empty(rt, cmp.Diff(effects, lines(r.Effects), cmpEmpty))
	require.EqualValues(rt, len(effects), r.Changed())
	require.EqualValues(rt, len(old), r.Updated+r.Deleted+r.Unchanged)

	before := f.rows("SELECT ctid, xmin, xmax FROM " + l.Name.SQL())
	again := f.merge(l, m, inputOf(l, fresh))
	require.Zero(rt, again.Changed())
	require.Empty(rt, again.Effects)
	require.EqualValues(rt, len(fresh), again.Unchanged)
	require.Equal(rt, before, f.rows("SELECT ctid, xmin, xmax FROM "+l.Name.SQL()), "INV-5: a no-op writes and locks nothing")
}

// cmpEmpty takes nil and empty slices as equal.
var cmpEmpty = cmp.Transformer("empty", func(s []string) []string { return append([]string{}, s...) })

// storedRows returns the rows with their hidden columns.
func (f *fixture) storedRows(l *Layout) []string {
	st := f.session.statement(l, &Merge{})
	return f.rows("SELECT " + list(prefixed("s.", names(l.Columns)), prefixed("s.", names(l.Hidden))) + " FROM " + st.stored(f.host.catalog))
}
