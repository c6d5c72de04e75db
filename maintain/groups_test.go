package maintain

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"testing"

	"github.com/cockroachdb/apd/v3"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// The columns of the folded table: two groups and an argument of each domain.
var foldColumns = []string{"g", "h", "i", "d", "b"}

const (
	colG = iota
	colH
	colInt
	colDec
	colBool
)

func foldTable() *ingest.Table {
	// Another order than the source's, with a column in front that no fold reads.
	t := &ingest.Table{OID: 1, Schema: "public", Name: "t", Full: true}
	for _, name := range []string{"unread", "b", "d", "i", "h", "g"} {
		t.Columns = append(t.Columns, ingest.Column{Name: name, Identity: true})
	}
	return t
}

// image puts values of foldColumns in the order of foldTable.
func image(unread string, v [5]ingest.Value) ingest.Row {
	return ingest.Row{ingest.Text(unread), v[colBool], v[colDec], v[colInt], v[colH], v[colG]}
}

// everyCell has a cell of each operation over each domain that it takes.
func everyCell() []plans.FoldCell {
	cells := []plans.FoldCell{
		{Op: plans.FoldCount, Argument: colInt, Integer: true},
		{Op: plans.FoldCount, Argument: colDec},
		{Op: plans.FoldSum, Argument: colInt, Integer: true},
		{Op: plans.FoldSum, Argument: colDec},
		{Op: plans.FoldSquares, Argument: colInt, Integer: true},
		{Op: plans.FoldSquares, Argument: colDec},
	}
	for _, old := range []bool{false, true} {
		for _, op := range []plans.FoldOp{plans.FoldMin, plans.FoldMax, plans.FoldBitAnd, plans.FoldBitOr} {
			cells = append(cells, plans.FoldCell{Op: op, Argument: colInt, Integer: true, Old: old})
		}
		for _, op := range []plans.FoldOp{plans.FoldAnd, plans.FoldOr} {
			cells = append(cells, plans.FoldCell{Op: op, Argument: colBool, Old: old})
		}
	}
	return cells
}

// contribution is one image of the model: nothing is folded, all is recomputed.
type contribution struct {
	sign  int64
	image [5]ingest.Value
	skip  func(plans.FoldCell) bool
}

// added reports whether a cell adds its arguments up.
func added(c plans.FoldCell) bool { return c.Op == plans.FoldSum || c.Op == plans.FoldSquares }

// model computes what a group's cells must say from its contributions alone.
type model struct {
	key  string
	list []contribution
}

func (m *model) cell(t require.TestingT, c plans.FoldCell) ingest.Value {
	ints, decs := new(big.Int), new(apd.Decimal)
	var extremes []int64
	var count int64
	for _, x := range m.list {
		v := x.image[c.Argument]
		if v.IsNull() || (x.skip != nil && x.skip(c)) {
			continue
		}
		count += x.sign
		switch {
		case added(c) && c.Integer:
			n, ok := new(big.Int).SetString(v.Text(), 10)
			require.True(t, ok)
			if c.Op == plans.FoldSquares {
				n.Mul(n, n)
			}
			ints.Add(ints, n.Mul(n, big.NewInt(x.sign)))
		case added(c):
			var d apd.Decimal
			_, _, err := d.SetString(v.Text())
			require.NoError(t, err)
			if c.Op == plans.FoldSquares {
				_, err = exact.Mul(&d, &d, &d)
				require.NoError(t, err)
			}
			if x.sign < 0 {
				d.Neg(&d)
			}
			_, err = exact.Add(decs, decs, &d)
			require.NoError(t, err)
		case c.Op != plans.FoldCount && c.Old == (x.sign < 0):
			n, err := strconv.ParseInt(map[string]string{"t": "1", "f": "0"}[v.Text()], 10, 64)
			if err != nil {
				n, err = strconv.ParseInt(v.Text(), 10, 64)
			}
			require.NoError(t, err)
			extremes = append(extremes, n)
		}
	}
	switch c.Op {
	case plans.FoldCount:
		return ingest.Text(strconv.FormatInt(count, 10))
	case plans.FoldSum, plans.FoldSquares:
		if c.Integer {
			return ingest.Text(ints.String())
		}
		return ingest.Text(decs.Text('f'))
	case plans.FoldMin, plans.FoldMax, plans.FoldAnd, plans.FoldOr, plans.FoldBitAnd, plans.FoldBitOr:
	}
	if len(extremes) == 0 {
		return ingest.Null
	}
	all, some := int64(-1), int64(0)
	for _, n := range extremes {
		all, some = all&n, some|n
	}
	switch c.Op {
	case plans.FoldMin:
		return ingest.Text(strconv.FormatInt(slices.Min(extremes), 10))
	case plans.FoldMax:
		return ingest.Text(strconv.FormatInt(slices.Max(extremes), 10))
	case plans.FoldBitAnd:
		return ingest.Text(strconv.FormatInt(all, 10))
	case plans.FoldBitOr:
		return ingest.Text(strconv.FormatInt(some, 10))
	case plans.FoldAnd:
		return ingest.Text(strconv.FormatBool(all != 0))
	case plans.FoldOr:
		return ingest.Text(strconv.FormatBool(some != 0))
	case plans.FoldCount, plans.FoldSum, plans.FoldSquares:
	}
	panic("unreachable")
}

// same reports whether two partials mean the same: decimals may differ in scale.
func same(t require.TestingT, c plans.FoldCell, got, want ingest.Value) bool {
	if !added(c) || c.Integer {
		return got == want
	}
	var a, b apd.Decimal
	_, _, err := a.SetString(got.Text())
	require.NoError(t, err, got.Text())
	_, _, err = b.SetString(want.Text())
	require.NoError(t, err)
	return a.Cmp(&b) == 0
}

// TestGroupsAgainstModel folds random changes and compares every partial with one
// computed from the list of all images.
func TestGroupsAgainstModel(t *testing.T) {
	t.Parallel()
	value := func(of *rapid.Generator[string]) *rapid.Generator[ingest.Value] {
		return rapid.Custom(func(t *rapid.T) ingest.Value {
			if rapid.IntRange(0, 4).Draw(t, "null") == 0 {
				return ingest.Null
			}
			return ingest.Text(of.Draw(t, "text"))
		})
	}
	group := value(rapid.SampledFrom([]string{"", "a", "b", "N"}))
	integer := value(rapid.OneOf(
		rapid.Map(rapid.Int64Range(-3, 3), func(n int64) string { return strconv.FormatInt(n, 10) }),
		rapid.SampledFrom([]string{strconv.Itoa(math.MaxInt64), strconv.Itoa(math.MinInt64), "9223372036854775806"}),
	))
	decimal := value(rapid.Map(rapid.IntRange(-500, 500), func(n int) string {
		return fmt.Sprintf("%s%d.%02d", map[bool]string{true: "-"}[n < 0], max(n, -n)/100, max(n, -n)%100)
	}))
	boolean := value(rapid.SampledFrom([]string{"t", "f"}))
	row := rapid.Custom(func(t *rapid.T) [5]ingest.Value {
		return [5]ingest.Value{group.Draw(t, "g"), group.Draw(t, "h"), integer.Draw(t, "i"), decimal.Draw(t, "d"), boolean.Draw(t, "b")}
	})

	rapid.Check(t, func(t *rapid.T) {
		cells := everyCell()
		groupBy := rapid.SampledFrom([][]int{nil, {colG}, {colH, colG}}).Draw(t, "group by")
		g := newGroups(&plans.Fold{Groups: groupBy, Cells: cells}, foldColumns)
		table := foldTable()
		models := map[string]*model{}
		add := func(c contribution) {
			key := ""
			for _, i := range groupBy {
				key += fmt.Sprintf("%q%v;", c.image[i].Text(), c.image[i].IsNull())
			}
			if models[key] == nil {
				models[key] = &model{key: key}
			}
			models[key].list = append(models[key].list, c)
		}
		for range rapid.IntRange(0, 30).Draw(t, "changes") {
			old, fresh := row.Draw(t, "old"), row.Draw(t, "new")
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0:
				require.True(t, g.add(&ingest.Change{Table: table, Op: ingest.Insert, New: image("x", fresh)}))
				add(contribution{sign: 1, image: fresh})
			case 1:
				require.True(t, g.add(&ingest.Change{Table: table, Op: ingest.Delete, Old: image("x", old)}))
				add(contribution{sign: -1, image: old})
			case 2, 3:
				if rapid.Bool().Draw(t, "within the group") {
					fresh[colG], fresh[colH] = old[colG], old[colH]
				}
				if rapid.Bool().Draw(t, "same argument") {
					fresh[colInt] = old[colInt]
				}
				require.True(t, g.add(&ingest.Change{Table: table, Op: ingest.Update, Old: image("x", old), New: image("y", fresh)}))
				var skip func(plans.FoldCell) bool
				if !slices.ContainsFunc(groupBy, func(i int) bool { return old[i] != fresh[i] }) {
					// Within a group an argument that stays is neither taken nor given.
					skip = func(c plans.FoldCell) bool { return old[c.Argument] == fresh[c.Argument] }
				}
				add(contribution{sign: -1, image: old, skip: skip})
				add(contribution{sign: 1, image: fresh, skip: skip})
			case 4: // an update of what no cell reads
				before := len(g.delta())
				require.True(t, g.add(&ingest.Change{Table: table, Op: ingest.Update, Old: image("x", old), New: image("y", old)}))
				require.Len(t, g.delta(), before)
			}
		}

		seen := map[string]bool{}
		for _, got := range g.delta() {
			key := ""
			for i := range groupBy {
				key += fmt.Sprintf("%q%v;", got[i].Text(), got[i].IsNull())
			}
			m := models[key]
			require.NotNil(t, m, "a group that no image is of: %s", key)
			require.False(t, seen[key], "a group twice: %s", key)
			seen[key] = true
			var n int64
			for _, c := range m.list {
				n += c.sign
			}
			require.Equal(t, strconv.FormatInt(n, 10), got[len(groupBy)].Text())
			for i, c := range cells {
				want := m.cell(t, c)
				require.True(t, same(t, c, got[len(groupBy)+1+i], want), "cell %+v of group %s: got %+v, want %+v", c, key, got[len(groupBy)+1+i], want)
			}
			require.Equal(t, ingest.Text("false"), got[len(got)-1])
		}
		// A group that is left out must have been left as it was, in every cell.
		for key, m := range models {
			if seen[key] {
				continue
			}
			var n int64
			for _, c := range m.list {
				n += c.sign
			}
			require.Zero(t, n)
			for _, c := range cells {
				want := m.cell(t, c)
				require.True(t, want.IsNull() || same(t, c, ingest.Text("0"), want), "cell %+v of group %s says %+v", c, key, want)
			}
		}
		require.Equal(t, len(g.rows) > 0, g.bytes > 0)
		g.reset()
		require.Zero(t, g.bytes)
		require.Empty(t, g.delta())
	})
}

// fold folds changes of one integer or decimal column without groups.
func fold(t *testing.T, cells []plans.FoldCell, changes ...ingest.Change) []ingest.Row {
	t.Helper()
	g := newGroups(&plans.Fold{Cells: cells}, []string{"v"})
	table := &ingest.Table{OID: 1, Columns: []ingest.Column{{Name: "v"}}}
	for _, c := range changes {
		c.Table = table
		c.Op = ingest.Update
		switch {
		case c.Old == nil:
			c.Op = ingest.Insert
		case c.New == nil:
			c.Op = ingest.Delete
		}
		require.True(t, g.add(&c))
	}
	return g.delta()
}

func texts(row ingest.Row) []string {
	out := make([]string, len(row))
	for i, v := range row {
		out[i] = v.Text()
		if v.IsNull() {
			out[i] = "NULL"
		}
	}
	return out
}

// TestGroupsText checks the exact text of partials, which types read back.
func TestGroupsText(t *testing.T) {
	t.Parallel()
	ins := func(s string) ingest.Change { return ingest.Change{New: ingest.Row{ingest.Text(s)}} }
	del := func(s string) ingest.Change { return ingest.Change{Old: ingest.Row{ingest.Text(s)}} }
	upd := func(a, b string) ingest.Change {
		return ingest.Change{Old: ingest.Row{ingest.Text(a)}, New: ingest.Row{ingest.Text(b)}}
	}
	null := ingest.Change{New: ingest.Row{ingest.Null}}
	sum := []plans.FoldCell{{Op: plans.FoldSum, Integer: true}}
	dec := []plans.FoldCell{{Op: plans.FoldSum}}
	lowest := []plans.FoldCell{{Op: plans.FoldMin, Integer: true}, {Op: plans.FoldMin, Integer: true, Old: true}}
	for _, tc := range []struct {
		name    string
		cells   []plans.FoldCell
		changes []ingest.Change
		want    []string // nil: nothing to take over
	}{
		{"above bigint", sum, []ingest.Change{ins("9223372036854775807"), ins("1")}, []string{"2", "9223372036854775808", "false"}},
		{"below bigint", sum, []ingest.Change{del("9223372036854775807"), del("2")}, []string{"-2", "-9223372036854775809", "false"}},
		{"the lowest bigint retracted", sum, []ingest.Change{del("-9223372036854775808")}, []string{"-1", "9223372036854775808", "false"}},
		{"above and back again", sum, []ingest.Change{ins("9223372036854775807"), ins("1"), del("1"), del("9223372036854775807")}, nil},
		{"sum of NULL is a row without a contribution", sum, []ingest.Change{null}, []string{"1", "0", "false"}},
		{"scale is kept", dec, []ingest.Change{ins("1.10"), ins("2.20")}, []string{"2", "3.30", "false"}},
		{"no exponent", dec, []ingest.Change{ins("100000000000000000000000.00"), ins("0.01")}, []string{"2", "100000000000000000000000.01", "false"}},
		{"small without an exponent", dec, []ingest.Change{ins("0.000000000001")}, []string{"1", "0.000000000001", "false"}},
		{"more digits than a float", dec, []ingest.Change{ins("123456789012345678901234567890.12"), del("0.01")}, []string{"0", "123456789012345678901234567890.11", "false"}},
		{"NaN", dec, []ingest.Change{ins("NaN")}, []string{"1", "0", "true"}},
		{"NaN there and back is for Postgres to judge", dec, []ingest.Change{ins("NaN"), del("NaN")}, []string{"0", "0", "true"}},
		{"infinity", dec, []ingest.Change{ins("-Infinity")}, []string{"1", "0", "true"}},
		{"decimals there and back", dec, []ingest.Change{ins("1.50"), ins("-1.50"), upd("0.10", "0.10"), del("1.5"), del("-1.5")}, nil},
		{"not an integer", sum, []ingest.Change{ins("1.5")}, []string{"1", "0", "true"}},
		{"extremes of new and old", lowest, []ingest.Change{ins("5"), ins("-2"), del("7")}, []string{"1", "-2", "7", "false"}},
		{"no old extreme", lowest, []ingest.Change{ins("5")}, []string{"1", "5", "NULL", "false"}},
		{"an update gives and takes", lowest, []ingest.Change{upd("3", "4")}, []string{"0", "4", "3", "false"}},
		{"an update that changes nothing", lowest, []ingest.Change{upd("3", "3")}, nil},
		{"rows there and back leave their extremes", lowest, []ingest.Change{ins("3"), del("3")}, []string{"0", "3", "3", "false"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := fold(t, tc.cells, tc.changes...)
			if tc.want == nil {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Equal(t, tc.want, texts(got[0]))
		})
	}
}

func TestGroupsDecline(t *testing.T) {
	t.Parallel()
	table := foldTable()
	full := [5]ingest.Value{ingest.Text("a"), ingest.Text("b"), ingest.Text("1"), ingest.Text("1.0"), ingest.Text("t")}
	fold := &plans.Fold{Groups: []int{colG}, Cells: []plans.FoldCell{{Op: plans.FoldSum, Argument: colInt, Integer: true}}}
	without := func(i int) [5]ingest.Value {
		v := full
		v[i] = ingest.Missing
		return v
	}
	lacking := foldTable()
	lacking.Columns = lacking.Columns[:5] // no g
	renamed := foldTable()
	renamed.Columns[1].Name = "other" // b, which the fold does not read
	for _, tc := range []struct {
		name   string
		change ingest.Change
		want   bool
	}{
		{"complete", ingest.Change{Table: table, Op: ingest.Insert, New: image("", full)}, true},
		{"group missing in the old image", ingest.Change{Table: table, Op: ingest.Delete, Old: image("", without(colG))}, false},
		{"argument missing in the old image", ingest.Change{Table: table, Op: ingest.Update, Old: image("", without(colInt)), New: image("", full)}, false},
		{"an unread column missing", ingest.Change{Table: table, Op: ingest.Update, Old: image("", without(colDec)), New: image("", full)}, true},
		{"truncate", ingest.Change{Table: table, Op: ingest.Truncate}, false},
		{"a table without the group", ingest.Change{Table: lacking, Op: ingest.Insert, New: image("", full)[:5]}, false},
		{"a table without an unread column", ingest.Change{Table: renamed, Op: ingest.Insert, New: image("", full)}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, newGroups(fold, foldColumns).add(&tc.change))
		})
	}
}

func TestGroupsKeysDiffer(t *testing.T) {
	t.Parallel()
	// Keys whose concatenation is the same are different groups, NULL and '' too.
	g := newGroups(&plans.Fold{Groups: []int{colG, colH}}, foldColumns)
	keys := [][2]ingest.Value{
		{ingest.Text("ab"), ingest.Text("c")},
		{ingest.Text("a"), ingest.Text("bc")},
		{ingest.Null, ingest.Text("abc")},
		{ingest.Text(""), ingest.Text("abc")},
		{ingest.Text("abc"), ingest.Null},
		{ingest.Text("abc"), ingest.Text("")},
		{ingest.Null, ingest.Null},
	}
	table := foldTable()
	for _, k := range keys {
		row := [5]ingest.Value{k[0], k[1], ingest.Null, ingest.Null, ingest.Null}
		require.True(t, g.add(&ingest.Change{Table: table, Op: ingest.Insert, New: image("", row)}))
	}
	got := g.delta()
	require.Len(t, got, len(keys))
	bytes := g.bytes
	for range 3 {
		row := [5]ingest.Value{keys[0][0], keys[0][1], ingest.Null, ingest.Null, ingest.Null}
		require.True(t, g.add(&ingest.Change{Table: table, Op: ingest.Insert, New: image("", row)}))
	}
	require.Equal(t, bytes, g.bytes, "a hot group costs no more memory")
	slices.SortFunc(got, func(a, b ingest.Row) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	got = slices.CompactFunc(got, func(a, b ingest.Row) bool { return a[0] == b[0] && a[1] == b[1] })
	require.Len(t, got, len(keys))
}
