package ingest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The model is a table as a server has it: rows that writers change at random, and
// the stream of those changes as a server sends it. What Images makes of the stream
// must lead from the table before to the table after, exactly.

// mode is how the model's table is declared.
type mode struct {
	name     string
	full     bool // replica identity FULL, else the key
	deferred bool // rows may share a key until the transaction ends
	bag      bool // no key, rows may be the same
	children bool // keys are unique within each of two tables only
}

var modes = []mode{
	{name: "default identity"},
	{name: "full", full: true},
	{name: "full, deferrable key", full: true, deferred: true},
	{name: "bag", full: true, bag: true},
	{name: "inheritance children, default identity", children: true},
	{name: "inheritance children, full", full: true, children: true},
}

// modelRow is a live row; values are by name, so that tables may order columns.
type modelRow struct {
	rel    int
	values map[string]Value
	sent   bool // a message of this batch carried the value of big
}

func (r *modelRow) clone() *modelRow {
	c := *r
	c.values = map[string]Value{}
	for k, v := range r.values {
		c.values[k] = v
	}
	return &c
}

type model struct {
	t      *rapid.T
	mode   mode
	tables []*Table
	spec   ImageSpec
	rows   []*modelRow
	images *Images
	failed bool // Add said no
	// detached are sets taken out between transactions, which are put together again at the end.
	detached []*Images
}

// compose makes one set of those that were detached and the rest.
func (m *model) compose() {
	for _, later := range append(m.detached, m.images)[min(1, len(m.detached)):] {
		if len(m.detached) > 0 && !m.detached[0].Then(later) {
			m.t.Fatal("detached sets do not fit together")
		}
	}
	if len(m.detached) > 0 {
		m.images, m.detached = m.detached[0], nil
	}
}

func newModel(t *rapid.T, m mode) *model {
	table := func(oid uint32, names ...string) *Table {
		out := &Table{OID: oid, Name: fmt.Sprint("t", oid), Full: m.full}
		for _, n := range names {
			out.Columns = append(out.Columns, Column{Name: n, Identity: m.full || n == "id"})
		}
		return out
	}
	md := &model{t: t, mode: m, tables: []*Table{table(70_001, "id", "big", "n", "extra"), table(70_002, "extra", "n", "id", "big")}}
	md.spec.PerRelation = m.children
	if m.bag {
		md.spec.Columns = []string{"id", "big", "n", "extra"}
	} else {
		md.spec.Columns = rapid.SampledFrom([][]string{{"id", "big", "n"}, {"n", "big", "id"}, {"big", "id"}, {"id", "n"}, {"id"}}).Draw(t, "kept")
		md.spec.Key = []int{slices.Index(md.spec.Columns, "id")}
	}
	md.images = NewImages(md.spec)
	return md
}

// small draws a value of few, so that changes come back to where they were.
func (m *model) small(column string) Value {
	switch column {
	case "big": // T... stands for one that is stored out of line
		return rapid.SampledFrom([]Value{Null, Text(""), Text("short"), Text("Tmore"), Text("Tlong" + strings.Repeat("x", 200)), Text("Tother" + strings.Repeat("y", 20_000))}).Draw(m.t, column)
	case "id":
		return Text(strconv.Itoa(rapid.IntRange(1, 6).Draw(m.t, column)))
	}
	return rapid.SampledFrom([]Value{Null, Text("0"), Text("1")}).Draw(m.t, column)
}

func (m *model) free(rel int, id Value) bool {
	if m.mode.bag || m.mode.deferred {
		return true
	}
	return !slices.ContainsFunc(m.rows, func(r *modelRow) bool {
		return r.values["id"] == id && (r.rel == rel || !m.mode.children)
	})
}

func (m *model) add(c *Change) {
	if m.failed {
		return
	}
	if !m.images.Add(c) {
		m.failed = true
		if !m.mode.deferred {
			m.t.Fatalf("not added: %s of %v to %v", c.Op, c.Old, c.New)
		}
	}
	if n := m.images.Bytes(); n < 0 || (n == 0) != (m.images.Len() == 0) {
		m.t.Fatalf("%d bytes are held for %d rows", n, m.images.Len())
	}
}

// image is a row as the stream sends it in a message of its table.
func (m *model) image(r *modelRow, missing func(column string) bool) Row {
	var out Row
	for _, c := range m.tables[r.rel].Columns {
		v := r.values[c.Name]
		if missing(c.Name) {
			v = Missing
		}
		out = append(out, v)
	}
	return out
}

func (m *model) old(r *modelRow) Row {
	return m.image(r, func(column string) bool { return !m.mode.full && column != "id" })
}

func (m *model) insert() {
	r := &modelRow{values: map[string]Value{}, sent: true, rel: rapid.IntRange(0, 1).Draw(m.t, "table")}
	for _, column := range []string{"id", "big", "n", "extra"} {
		r.values[column] = m.small(column)
	}
	if !m.free(r.rel, r.values["id"]) {
		return
	}
	m.rows = append(m.rows, r)
	m.add(&Change{Table: m.tables[r.rel], Op: Insert, New: m.image(r, func(string) bool { return false })})
}

func (m *model) delete(i int) {
	r := m.rows[i]
	m.rows = slices.Delete(m.rows, i, i+1)
	m.add(&Change{Table: m.tables[r.rel], Op: Delete, Old: m.old(r)})
}

// update sets values of a row. An out-of-line value left alone is not sent, unless
// the old image of FULL has it.
func (m *model) update(i int, set map[string]Value) {
	before := m.rows[i]
	if id, ok := set["id"]; ok && id != before.values["id"] && !m.free(before.rel, id) {
		return
	}
	r := before.clone()
	for k, v := range set {
		r.values[k] = v
	}
	toast := !m.mode.full && r.values["big"] == before.values["big"] && strings.HasPrefix(r.values["big"].Text(), "T")
	r.sent = before.sent || !toast
	m.rows[i] = r
	m.add(&Change{Table: m.tables[r.rel], Op: Update, Old: m.old(before), New: m.image(r, func(column string) bool { return toast && column == "big" })})
}

func (m *model) randomUpdate(i int) {
	set := map[string]Value{}
	for _, column := range []string{"id", "big", "n", "extra"} {
		if rapid.Bool().Draw(m.t, "set "+column) {
			set[column] = m.small(column)
		}
	}
	m.update(i, set)
}

// swap exchanges the keys of two rows: through a free key, or at once where the
// constraint is deferred.
func (m *model) swap(i, j int) {
	a, b := m.rows[i].values["id"], m.rows[j].values["id"]
	if m.rows[i].rel != m.rows[j].rel && m.mode.children {
		return
	}
	if !m.mode.deferred {
		m.update(i, map[string]Value{"id": Text("100")})
	}
	m.update(j, map[string]Value{"id": a})
	m.update(i, map[string]Value{"id": b})
}

// shift is UPDATE t SET id = id + 1 in the order of the heap.
func (m *model) shift() {
	for _, i := range rapid.Permutation(indexes(len(m.rows))).Draw(m.t, "heap order") {
		n, err := strconv.Atoi(m.rows[i].values["id"].Text())
		require.NoError(m.t, err)
		m.update(i, map[string]Value{"id": Text(strconv.Itoa(n + 1))})
	}
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// transaction runs a few statements, and removes what a deferred constraint would
// not let pass at its end.
func (m *model) transaction() {
	for range rapid.IntRange(1, 6).Draw(m.t, "statements") {
		what := rapid.SampledFrom([]string{"insert", "update", "update", "delete", "swap", "reinsert", "shift"}).Draw(m.t, "statement")
		if len(m.rows) == 0 {
			what = "insert"
		}
		pick := func() int { return rapid.IntRange(0, len(m.rows)-1).Draw(m.t, "row") }
		switch what {
		case "insert":
			m.insert()
		case "update":
			m.randomUpdate(pick())
		case "delete":
			m.delete(pick())
		case "swap":
			if i, j := pick(), pick(); i != j {
				m.swap(i, j)
			}
		case "reinsert":
			m.delete(pick())
			m.insert()
		case "shift":
			m.shift()
		}
	}
	seen := map[string]bool{}
	for i := 0; m.mode.deferred && i < len(m.rows); i++ {
		if id := m.rows[i].values["id"].Text(); seen[id] {
			m.delete(i)
			i--
		} else {
			seen[id] = true
		}
	}
}

// state is the table's rows as kept: by relation and key, or, of a bag, by content
// with a number.
func (m *model) state() map[string][]Row {
	out := map[string][]Row{}
	for _, r := range m.rows {
		row := m.kept(r)
		key := m.key(row, r.rel)
		out[key] = append(out[key], row)
	}
	return out
}

func (m *model) kept(r *modelRow) Row {
	var out Row
	for _, c := range m.spec.Columns {
		out = append(out, r.values[c])
	}
	return out
}

// key says which rows are one row.
func (m *model) key(row Row, rel int) string {
	switch {
	case m.mode.bag:
		return fmt.Sprintf("%q", row)
	case m.mode.children:
		return fmt.Sprint(rel, " ", row[m.spec.Key[0]].Text())
	}
	return row[m.spec.Key[0]].Text()
}

// rel is the index of the table of an image, where its key depends on it.
func (m *model) rel(img *Image) int {
	if !m.mode.children {
		require.Zero(m.t, img.Relation)
		return 0
	}
	return slices.IndexFunc(m.tables, func(t *Table) bool { return t.OID == img.Relation })
}

// fits reports whether an image may be of the row: what it carries is equal.
func fits(image, row Row) bool {
	for i, v := range image {
		if !v.IsMissing() && v != row[i] {
			return false
		}
	}
	return true
}

func (m *model) check(before map[string][]Row, unsent map[string]bool) {
	after := m.state()
	composed := len(m.detached) > 0
	m.compose()
	got := map[string][]Row{}
	for k, rows := range before {
		got[k] = slices.Clone(rows)
	}
	added := map[string][]Row{}
	m.images.Each(func(img *Image) {
		rel := m.rel(img)
		if img.Old == nil && img.New == nil {
			m.t.Fatal("an image of nothing")
		}
		if img.Old != nil && slices.Equal(img.Old, img.New) && !slices.ContainsFunc(img.Old, Value.IsMissing) {
			m.t.Fatalf("nothing changed in %v", img.Old)
		}
		if img.Old != nil {
			key := m.key(img.Old, rel)
			i := slices.IndexFunc(got[key], func(r Row) bool { return fits(img.Old, r) })
			if i < 0 {
				m.t.Fatalf("%v was not there", img.Old)
			}
			got[key] = slices.Delete(got[key], i, i+1)
		}
		if img.New != nil {
			key := m.key(img.New, rel)
			added[key] = append(added[key], img.New)
		}
	})
	for key, rows := range added {
		for _, row := range rows {
			i := slices.IndexFunc(after[key], func(r Row) bool { return fits(row, r) })
			if i < 0 {
				m.t.Fatalf("%v is not there", row)
			}
			if slices.ContainsFunc(row, Value.IsMissing) && !unsent[key] && !composed {
				m.t.Fatalf("%v lacks a value that was sent", row)
			}
			got[key] = append(got[key], after[key][i])
		}
	}
	require.Equal(m.t, canonical(after), canonical(got))
	if m.mode.full && canonical(before) == canonical(after) {
		require.Zero(m.t, m.images.Len())
		require.Zero(m.t, m.images.Bytes())
	}
}

// canonical is a state in a form that compares.
func canonical(state map[string][]Row) string {
	var lines []string
	for key, rows := range state {
		for _, r := range rows {
			lines = append(lines, fmt.Sprintf("%s: %q", key, r))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestImagesLeadFromTheOldTableToTheNew(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			leads(t, mode, false)
		})
	}
}

// What is taken out between transactions and put together again is as if it had never
// been taken out.
func TestDetachedImagesComposeToTheWhole(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			leads(t, mode, true)
		})
	}
}

func leads(t *testing.T, mode mode, detach bool) {
	t.Helper()
	netted := 0
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t, mode)
		for range 2 { // the second batch begins with rows and a set used before
			before := m.state()
			for _, r := range m.rows {
				r.sent = false
			}
			for range rapid.IntRange(1, 4).Draw(t, "transactions") {
				m.transaction()
				if detach && !m.failed && rapid.Bool().Draw(t, "detach") {
					m.detached = append(m.detached, m.images.Detach())
				}
			}
			if !m.failed {
				netted++
				unsent := map[string]bool{}
				for _, r := range m.rows {
					if !r.sent {
						unsent[m.key(m.kept(r), r.rel)] = true
					}
				}
				m.check(before, unsent)
			}
			m.failed, m.detached = false, nil
			m.images.Reset()
			require.Zero(t, m.images.Bytes())
			require.Zero(t, m.images.Len())
		}
	})
	require.Greater(t, netted, 50, "too few batches could be netted")
}
