package plans

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// derived is a query in FROM whose rows are no rows of tables: a grouping, DISTINCT,
// a query with windows, a set operation. In a join it stands as a table would, whose
// rows are known by what its slices have in common. The slices that a batch touched
// come from the images of the tables below it.
type derived struct {
	text   string // the query, showing attrs
	attrs  []attribute
	slice  []int        // numbers of the columns that tell slices apart
	drifts map[int]bool // columns whose values depend on the order of evaluation
	extra  string       // columns that the query does not show by itself
	core   string       // the slices of its input rows; "" where they are not at hand
	keys   string       // the touched slices, k0, k1, ...
	inputs []int        // sources whose images keys reads
	need   []needs
	floor  map[int]bool // sources any change of which may touch every slice
	index  *lookup      // by which a slice's rows are found; nil: not known
}

// wants notes groupings whose rows must be addressed by themselves: no other table's
// rows do.
func (j *joinTree) wants(queries ...entryRef) {
	for _, e := range queries {
		if _, tried := j.derived[e]; !tried && e.s != nil && !slices.Contains(j.wanted, e) {
			j.wanted = append(j.wanted, e)
		}
	}
}

// derive plans the queries that are wanted, and reports whether there is one more.
func (j *joinTree) derive(ctx context.Context) (more bool, err error) {
	for _, e := range j.wanted {
		j.derived[e] = nil
		at, ok := j.texts[e]
		if !ok || len(j.p.Coarsened) > 0 {
			continue
		}
		d, err := j.a.derive(ctx, j.p, at.of(j.sql))
		if err != nil {
			return false, err
		}
		if d != nil && (d.extra == "" || j.shows(d, e)) {
			j.derived[e], more = d, true
		}
	}
	return more, nil
}

// shows reports whether columns can be added to the query.
func (j *joinTree) shows(d *derived, e entryRef) bool {
	_, ok := j.lists[e]
	return ok && len(d.slice) > 0
}

// derive takes a query apart that stands alone; nil where its rows do not split into
// slices.
func (a *analysis) derive(ctx context.Context, p *Plan, text string) (*derived, error) {
	got, err := a.try(ctx, text)
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return nil, nil // no body by itself: two columns of one name, or columns from outside
	}
	if err != nil {
		return nil, err
	}
	s := newScope(a, got.tree, nil)
	shadow := &Plan{Name: p.Name, Sources: p.Sources, Columns: a.describeColumns(got.columns, s)}
	d := &derived{text: withoutOrder(got.text), attrs: slices.Clone(got.columns), floor: map[int]bool{}, drifts: map[int]bool{}}
	for i := range d.attrs {
		d.attrs[i].Num, d.attrs[i].NotNull = int16(i+1), shadow.Columns[i].NotNull
		shadow.Columns[i].Dependent = s.dependence(i)
		d.drifts[i+1] = shadow.Columns[i].Dependent == Float
	}
	var why string
	if s.q.has("setOperations") {
		why, err = a.deriveRows(ctx, shadow, s, d)
	} else {
		why, err = a.deriveSlices(ctx, shadow, s, d)
	}
	if why == "" && err == nil {
		why, err = a.confirm(ctx, d.keys, keyColumns(d.sliceColumns(shadow)), p.inputs()...)
	}
	if why != "" || err != nil {
		return nil, err
	}
	return d, nil
}

// sliceColumns are the columns that tell slices apart.
func (d *derived) sliceColumns(shadow *Plan) []Column {
	all := shadow.visible()
	out := make([]Column, len(d.slice))
	for i, n := range d.slice {
		out[i] = all[n-1]
	}
	return out
}

// deriveRows is derive for set operations: the slices are rows by the key, or by all
// that can be compared.
func (a *analysis) deriveRows(ctx context.Context, shadow *Plan, s *scope, d *derived) (string, error) {
	key, ok := s.key()
	if !ok {
		for i, c := range shadow.Columns {
			if c.Equal != "" {
				key = append(key, i)
			}
		}
	}
	if len(key) == 0 {
		return "it has one row", nil
	}
	shadow.Key = key
	if why := drifting(shadow.keyed()); why != "" {
		return why, nil
	}
	op := newSetOperation(a, shadow, s, d.text)
	if why := op.read(); why != "" {
		return why, nil
	}
	keys, why, err := op.keysSQL(ctx, shadow.keyed())
	if why != "" || err != nil {
		return why, err
	}
	for _, k := range key {
		d.slice = append(d.slice, k+1)
	}
	d.keys, d.need, d.floor = keys, op.need, op.floor
	d.inputs = op.sources()
	return "", nil
}

// deriveSlices is derive for groupings and windows.
func (a *analysis) deriveSlices(ctx context.Context, shadow *Plan, s *scope, d *derived) (string, error) {
	if why := s.slicesJoin(); why != "" {
		return why, nil
	}
	sl := &slicing{a: a, p: shadow, scope: s, sql: d.text}
	sel, ok := splitSelect(sl.sql)
	if !ok || len(sel.targets) != len(shadow.Columns) {
		return "its text cannot be taken apart", nil
	}
	sl.sel = sel
	if why, err := sl.find(ctx); why != "" || err != nil {
		return why, err
	}
	if why := drifting(sl.columns); why != "" {
		return why, nil
	}
	d.core = sl.keysText(true)
	hidden := 0
	for i, o := range sl.outputs {
		if o < 0 {
			c := sl.columns[i]
			o = len(shadow.Columns) + hidden
			hidden++
			d.extra += ", " + sl.exprs[i] + " AS " + quoteAlways(c.Name)
			d.attrs = append(d.attrs, attribute{
				Num: int16(o + 1), Name: c.Name, TypeOID: c.TypeOID, Modifier: c.Modifier, Type: c.Type, NotNull: c.NotNull,
			})
			if c.Collation != "" {
				return "a column that it does not show has a collation", nil
			}
		}
		d.slice = append(d.slice, o+1)
	}
	d.text = splice(sl.sql, edit{span{sel.list.end, sel.list.end}, d.extra})
	if r, why := s.sliceFrom(); why == "" && alone(s.q, r) {
		return sl.deriveImages(ctx, d, r)
	}
	return sl.deriveJoin(ctx, d)
}

// drifting declines slices by values that come out otherwise when they are computed
// again: the old ones would not be found.
func drifting(columns []Column) string {
	for _, c := range columns {
		if c.Dependent == Float {
			return "its slices are told apart by " + c.Name + ", which depends on the order of evaluation"
		}
	}
	return ""
}

// alone reports a table that stands once in a tree, and of which images carry all
// that is read.
func alone(tree *node, r *relation) bool {
	read := readsIn(tree, r.OID)
	return read.places == 1 && !read.columns[tableoid]
}

// deriveImages finds the slices of one table's images.
func (s *slicing) deriveImages(ctx context.Context, d *derived, r *relation) (string, error) {
	s.from = slices.IndexFunc(s.p.Sources, func(c Source) bool { return c.OID == r.OID })
	s.src = &s.p.Sources[s.from]
	where, err := s.readKeys(ctx)
	if err != nil {
		return "", err
	}
	if why := s.generated(); why != "" {
		return why, nil
	}
	d.keys, err = s.imageKeys(s.keysText(where))
	d.inputs, d.need = []int{s.from}, make([]needs, len(s.p.Sources))
	d.need[s.from] = s.read
	if exprs, ok := s.indexable(); ok {
		d.index = &lookup{r, exprs}
	}
	return "", err
}

// deriveJoin finds the slices of joined rows.
func (s *slicing) deriveJoin(ctx context.Context, d *derived) (string, error) {
	core, err := s.a.try(ctx, d.core)
	if err != nil {
		return "", err
	}
	j, why, err := s.a.newJoinTree(ctx, s.p, core.text, newScope(s.a, core.tree, nil), core.tree)
	if why == "" && err == nil {
		why = j.someSlices()
	}
	if why == "" && err == nil {
		why = j.readable()
	}
	if why != "" || err != nil {
		return why, err
	}
	d.need, d.floor = j.groupNeeds(core.tree), j.floor
	d.keys = j.groupKeys(len(s.exprs))
	d.inputs = j.sources()
	return j.widened(), nil
}

// sources are the indexes of all sources that stand in the tree.
func (j *joinTree) sources() []int {
	found := map[int]bool{}
	for _, p := range j.places {
		if p.derived == nil {
			found[p.src] = true
			continue
		}
		for _, i := range p.derived.inputs {
			found[i] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// site makes the place of a derived query.
func (j *joinTree) site(s *scope, rt int, r reading, d *derived) region {
	rel := &relation{attrs: slices.Clone(d.attrs)}
	for i, name := range s.rte(rt).child("eref").items("colnames") {
		if text, ok := name.(atom); ok && i < len(rel.attrs) {
			rel.attrs[i].Name = string(text)
		}
	}
	p := &site{id: len(j.places), scope: s, rt: rt, rel: rel, src: -1, derived: d, nullable: r.nullable}
	for _, n := range d.slice {
		p.key = append(p.key, rel.attrs[n-1])
	}
	j.places = append(j.places, p)
	for i := range d.floor {
		j.floor[i] = true
	}
	return region{held: []int{p.id}}
}

// derivedAt is the place of a derived query in FROM.
func (j *joinTree) derivedAt(s *scope, rt int) (*site, bool) {
	for _, i := range j.below[entryRef{s, rt}] {
		if p := j.places[i]; p.derived != nil && p.scope == s && p.rt == rt {
			return p, true
		}
	}
	return nil, false
}

// sliced reports a condition that reads no other columns of a derived query than
// those that tell its slices apart. It holds for every table.
func (p *site) sliced(c cond) bool {
	return p.derived == nil || !slices.ContainsFunc(c.cols, func(col columnRef) bool {
		return col.place == p.id && !slices.Contains(p.derived.slice, col.attr)
	})
}

// drifts reports a condition on a column of a derived query that depends on the order of
// evaluation.
func (j *joinTree) drifts(c cond) bool {
	return slices.ContainsFunc(c.cols, func(col columnRef) bool {
		d := j.places[col.place].derived
		return d != nil && d.drifts[col.attr]
	})
}

// sliceNames are the names of the columns that tell slices apart.
func (p *site) sliceNames() []string {
	out := make([]string, len(p.key))
	for i, at := range p.key {
		out[i] = quoteAlways(at.Name)
	}
	return out
}

// changedSlices stand for the images of a derived query, old and new: the touched
// slices.
func (p *site) changedSlices() string {
	return "(" + p.derived.keys + ") " + p.name() + "(" + join(p.sliceNames()) + ")"
}

// derivedTable is the query itself under the place's name, or the slices that it can
// have at most, if the conditions read no more.
func (p *site) derivedTable(conds []cond) string {
	d := p.derived
	whole := d.core == "" || slices.ContainsFunc(conds, func(c cond) bool { return c.absent != nil || !p.sliced(c) })
	if !whole {
		return "(" + d.core + ") " + p.name() + "(" + join(p.sliceNames()) + ")"
	}
	names := make([]string, len(p.rel.attrs))
	for i, at := range p.rel.attrs {
		names[i] = quoteAlways(at.Name)
	}
	return "(" + d.text + ") " + p.name() + "(" + join(names) + ")"
}
