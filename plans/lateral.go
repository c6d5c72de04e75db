package plans

import (
	"context"
	"slices"
)

// fan is a body in which each row of one table gives rows of its own, by
// functions of that row alone.
type fan struct {
	a      *analysis
	p      *Plan
	row    *occurrence
	sel    *selectText
	slice  []Column // the stored columns that hold the table's key
	hidden string   // those that the body does not project, as they stand in a target list
}

// planPrefix is the arm of prefix-delete. The slice of a row of the table is what is
// stored under the row's key. Its new content is the body over the row's new
// image: the table is not read.
func planPrefix(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	f, why := a.fan(p)
	if why != "" {
		return why, nil, nil
	}
	f.findSlice()
	why, err := f.build(ctx)
	if why != "" || err != nil {
		return why, nil, err
	}
	return "", []needs{{columns: f.row.key}}, nil
}

// fan finds the table's one place in FROM, and checks that no output row depends
// on two of its rows.
func (a *analysis) fan(p *Plan) (*fan, string) {
	s := a.top
	switch {
	case s.q.has("setOperations"):
		return nil, "it is a set operation"
	case s.q.has("groupClause") || s.q.has("groupingSets") || s.q.is("hasAggs"):
		return nil, "it groups rows"
	case s.q.has("distinctClause"):
		return nil, "DISTINCT merges rows"
	case s.q.is("hasWindowFuncs"):
		return nil, "a window function looks at other rows"
	case s.q.has("limitCount") || s.q.has("limitOffset"):
		return nil, "LIMIT looks at other rows"
	case len(p.Coarsened) > 0:
		return nil, "its key is coarsened"
	}
	f := &fan{a: a, p: p}
	for _, item := range s.q.child("jointree").nodes("fromlist") {
		if why := f.from(item, false); why != "" {
			return nil, why
		}
	}
	if f.row == nil {
		return nil, "the table stands in a subquery that is not plain"
	}
	if why := a.onlyTable(f.row.rel); why != "" {
		return nil, why
	}
	if readsRelations(list{items: []any{s.q.fields["targetList"], s.q.fields["jointree"]}}) {
		return nil, "a subquery looks at other rows"
	}
	if !f.row.findKey() {
		return nil, "rows of " + f.row.rel.name().String() + " have no key without NULL that the body can reach"
	}
	sel, ok := splitSelect(withoutOrder(a.flat))
	if !ok || len(sel.targets) != len(p.Columns) {
		return nil, "its text cannot be taken apart"
	}
	f.sel = sel
	return f, ""
}

// from reads a FROM item. The table may not be where a join fills in NULL: that
// row would depend on all rows of the table.
func (f *fan) from(item *node, nullable bool) string {
	switch item.tag {
	case "RANGETBLREF":
		return f.entry(item.num("rtindex"), nullable)
	case "JOINEXPR":
	default:
		return "FROM cannot be taken apart"
	}
	if rte := f.a.top.rte(item.num("rtindex")); rte != nil && rte.has("alias") {
		return "a join has a name of its own, which hides its tables"
	}
	kind := item.num("jointype")
	if why := f.from(item.child("larg"), nullable || kind == joinRight || kind == joinFull); why != "" {
		return why
	}
	return f.from(item.child("rarg"), nullable || kind == joinLeft || kind == joinFull)
}

// entry reads a range table entry: the table itself, also below a filter, or what
// is computed from its rows.
func (f *fan) entry(rt int, nullable bool) string {
	s := f.a.top
	rte := s.rte(rt)
	var rel *relation
	switch kind(rte) {
	case rteRelation:
		rel = s.a.relations[rte.oid("relid")]
	case rteSubquery, rteCTE:
		if kind(rte) == rteSubquery && !readsRelations(rte.child("subquery")) {
			return ""
		}
		sub := s.sub(rte)
		if sub == nil {
			return "a subquery in FROM is not plain"
		}
		var why string
		if rel, why = sub.simple(); why != "" {
			return "in a subquery in FROM " + why
		}
	default:
		if readsRelations(rte) {
			return "a subquery looks at other rows"
		}
		return ""
	}
	switch {
	case rel == nil:
		return "it reads what is no table"
	case f.row != nil:
		return "it joins tables"
	case nullable:
		return "an outer join gives rows where the table has none"
	}
	f.row = &occurrence{scope: s, rt: rt, rel: rel}
	return ""
}

// readsRelations reports whether a query or expression reads a table or a common
// table expression.
func readsRelations(v any) bool {
	found := false
	walk(v, func(n *node) bool {
		found = found || n.tag == "RANGETBLENTRY" && (kind(n) == rteRelation || kind(n) == rteCTE)
		return !found
	})
	return found
}

// findSlice finds the stored columns that hold the table's key, and hides those
// that are not projected.
func (f *fan) findSlice() {
	for k, name := range f.row.key {
		at := slices.IndexFunc(f.row.rel.attrs, func(x attribute) bool { return x.Name == name })
		stored := slices.IndexFunc(f.a.top.outputs(), func(t *node) bool {
			o, col := place(f.a.top, t.child("expr"), []*occurrence{f.row})
			return o != nil && col == name && !f.a.weakens(t.child("expr"))
		})
		if stored >= 0 {
			f.slice = append(f.slice, f.p.Columns[stored])
			continue
		}
		c := f.a.keyColumn(f.row.rel.attrs[at])
		c.NotNull = true
		c.Name = prefixed("mvsync_k", len(f.p.Hidden))
		for slices.ContainsFunc(f.p.visible(), func(o Column) bool { return o.Name == c.Name }) {
			c.Name += "_"
		}
		f.p.Hidden = append(f.p.Hidden, c)
		f.hidden += ", " + f.row.refs[k] + " AS " + quoteAlways(c.Name)
		f.slice = append(f.slice, c)
	}
}

// build writes the statements.
func (f *fan) build(ctx context.Context) (string, error) {
	src := &f.p.Sources[0]
	var from []int
	for _, name := range f.row.key {
		i := src.Column(name)
		if i < 0 {
			return "the body does not read the key column " + name + " of the table", nil
		}
		if f.a.version < 180000 && src.Columns[i].Generated {
			return "the key column " + name + " is generated, and not in the stream before PostgreSQL 18", nil
		}
		from = append(from, i)
	}
	sql := f.sel.sql
	if f.hidden != "" {
		sql = splice(sql, edit{span{f.sel.list.end, f.sel.list.end}, f.hidden})
		f.p.Eval = sql
	}
	fresh, err := f.a.withImages(sql, src, newImages(0))
	if err != nil {
		return "", err
	}
	if why, err := f.a.confirm(ctx, fresh, f.p.visible(), imagesInput(newImages(0), src)); why != "" || err != nil {
		return why, err
	}
	f.p.Projection = &Projection{
		New: fresh, KeyFrom: from, KeyColumns: keyColumns(f.slice), Touched: keyMatch("s", f.slice, "mvsync_keys", "k"),
	}
	f.index()
	return "", nil
}

// index asks for the indexes by which slices are found: none where the slice begins
// the view's key.
func (f *fan) index() {
	var visible, hidden []string
	begins := len(f.slice) <= len(f.p.Key)
	for _, c := range f.slice {
		i := slices.IndexFunc(f.p.Columns, func(v Column) bool { return v.Name == c.Name })
		if i < 0 {
			hidden = append(hidden, quoteAlways(c.Name))
			continue
		}
		visible = append(visible, quoteAlways(c.Name))
		at := slices.Index(f.p.Key, i)
		begins = begins && at >= 0 && at < len(f.slice)
	}
	if len(hidden) > 0 {
		f.p.HiddenIndexes = addOnce(f.p.HiddenIndexes, join(hidden))
	}
	if len(visible) > 0 && !begins {
		f.p.Indexes = addOnce(f.p.Indexes, join(visible))
	}
}
