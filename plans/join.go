package plans

import (
	"context"
	"slices"
)

// occurrence is one place of a table in FROM.
type occurrence struct {
	scope *scope
	rt    int
	rel   *relation
	src   int      // index into Plan.Sources
	key   []string // columns of the table that identify its rows
	// refs spell those columns at the body's own query level.
	refs []string
	// stored are the columns of the stored row that hold them.
	stored []Column
	first  int // index of its first key column in mvsync_keys
}

// edge is an equality between columns of two occurrences.
type edge struct {
	x, y         *occurrence
	xcol, ycol   string
	xnull, ynull bool // the column may be NULL
	op           string
}

// outerJoin is a join node whose preserved rows may lose or gain a match.
type outerJoin struct {
	kept, other []*occurrence
	on          []edge // of the node's own condition
	below       []edge // of the conditions in other
	nulls       bool   // x NOT IN (...): a NULL on either side matters as well
}

// joins is a body that joins tables, taken apart.
type joins struct {
	a     *analysis
	p     *Plan
	sql   string
	sel   *selectText
	top   []*occurrence
	outer []outerJoin
	need  []needs
	// hidden are the hidden columns as they stand in a target list.
	hidden []string
}

// planJoin is the arm of join-residual.
func planJoin(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	s := a.top
	switch {
	case s.q.has("setOperations"):
		return "it is a set operation", nil, nil
	case s.q.has("groupClause") || s.q.has("groupingSets") || s.q.is("hasAggs"):
		return "it groups rows", nil, nil
	case s.q.has("distinctClause"):
		return "DISTINCT merges rows", nil, nil
	case s.q.is("hasWindowFuncs"):
		return "a window function looks at other rows", nil, nil
	}
	j := &joins{a: a, p: p}
	if why := j.read(); why != "" {
		return why, nil, nil
	}
	j.findStored()
	if why, err := j.build(ctx); why != "" || err != nil {
		return why, nil, err
	}
	return "", j.need, nil
}

// read takes FROM and the subqueries of the body's own level apart.
func (j *joins) read() string {
	a, s := j.a, j.a.top
	j.sql, j.need = withoutOrder(a.flat), make([]needs, len(j.p.Sources))
	switch {
	case s.q.has("limitCount") || s.q.has("limitOffset"):
		return "LIMIT looks at other rows"
	case s.q.is("hasTargetSRFs"):
		return "a set-returning function fans rows out"
	}
	sel, ok := splitSelect(j.sql)
	if !ok || len(sel.targets) != len(j.p.Columns) {
		return "its text cannot be taken apart"
	}
	j.sel = sel
	for _, item := range s.q.child("jointree").nodes("fromlist") {
		if _, _, why := j.from(s, item, &j.top); why != "" {
			return why
		}
	}
	if why := j.keys(); why != "" {
		return why
	}
	return j.subqueries()
}

// from reads a FROM item: its occurrences and the equalities of its conditions.
func (j *joins) from(s *scope, item *node, all *[]*occurrence) ([]*occurrence, []edge, string) {
	if item.tag == "RANGETBLREF" {
		o, why := j.occurrence(s, item.num("rtindex"))
		if why != "" {
			return nil, nil, why
		}
		*all = append(*all, o)
		return []*occurrence{o}, nil, ""
	}
	if item.tag != "JOINEXPR" {
		return nil, nil, "it reads what is no table"
	}
	if rte := s.rte(item.num("rtindex")); rte != nil && rte.has("alias") {
		return nil, nil, "a join has a name of its own, which hides its tables"
	}
	l, le, why := j.from(s, item.child("larg"), all)
	if why != "" {
		return nil, nil, why
	}
	r, re, why := j.from(s, item.child("rarg"), all)
	if why != "" {
		return nil, nil, why
	}
	if usesTag(item.fields["quals"], "SUBLINK") {
		return nil, nil, "the condition of a join holds a subquery"
	}
	on := j.equalities(s, item.child("quals"), slices.Concat(l, r), slices.Concat(l, r))
	switch item.num("jointype") {
	case joinInner:
	case joinLeft:
		j.outer = append(j.outer, outerJoin{kept: l, other: r, on: on, below: re})
	case joinRight:
		j.outer = append(j.outer, outerJoin{kept: r, other: l, on: on, below: le})
	default:
		j.outer = append(j.outer, outerJoin{kept: l, other: r, on: on, below: re}, outerJoin{kept: r, other: l, on: on, below: le})
	}
	return slices.Concat(l, r), slices.Concat(le, re, on), ""
}

// occurrence reads a table in FROM, also through a subquery that only filters
// and projects it.
func (j *joins) occurrence(s *scope, rt int) (*occurrence, string) {
	rte := s.rte(rt)
	var rel *relation
	switch kind(rte) {
	case rteRelation:
		rel = j.a.relations[rte.oid("relid")]
	case rteSubquery:
		sub := s.sub(rte)
		if sub == nil {
			return nil, "a subquery in FROM is not plain"
		}
		var why string
		if rel, why = sub.simple(); why != "" {
			return nil, "in a subquery in FROM " + why
		}
	case rteFunction:
		return nil, "a function in FROM fans rows out"
	}
	if rel == nil {
		return nil, "it reads what is no table"
	}
	src := slices.IndexFunc(j.p.Sources, func(c Source) bool { return c.OID == rel.OID })
	return &occurrence{scope: s, rt: rt, rel: rel, src: src}, ""
}

// keys finds what identifies the rows of each table at the body's own level.
func (j *joins) keys() string {
	for _, o := range j.top {
		if o.rel.Parent && j.p.Sources[o.src].Inherits {
			return "rows of the inheritance parent " + o.rel.name().String() + " have no key"
		}
		if !o.findKey() {
			return "rows of " + o.rel.name().String() + " have no key without NULL that the body can reach"
		}
	}
	return ""
}

// findKey takes the first unique set of columns that cannot be NULL, preferring
// one that every identity carries.
func (o *occurrence) findKey() bool {
	var candidates [][]string
	for _, u := range o.rel.uniques {
		var names []string
		for _, num := range u.Columns {
			if at := o.rel.attr(int(num)); at != nil && at.NotNull {
				names = append(names, at.Name)
			}
		}
		if len(names) == len(u.Columns) {
			candidates = append(candidates, names)
		}
	}
	if p := o.rel.producer; p != nil {
		candidates = nil
		var names []string
		for _, c := range p.keyed() {
			if c.NotNull {
				names = append(names, c.Name)
			}
		}
		if len(names) == len(p.Key) && len(names) > 0 {
			candidates = append(candidates, names)
		}
	}
	carried := func(names []string) bool {
		return !slices.ContainsFunc(o.rel.leaves, func(l leaf) bool { return l.Identity != "f" && !subset(names, l.Columns) })
	}
	slices.SortStableFunc(candidates, func(x, y []string) int { return btoi(carried(y)) - btoi(carried(x)) })
	for _, names := range candidates {
		if refs, ok := o.spell(names); ok {
			o.key, o.refs = names, refs
			return true
		}
	}
	return false
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// spell writes columns of the table as the body's own level sees them.
func (o *occurrence) spell(names []string) ([]string, bool) {
	rte := o.scope.rte(o.rt)
	alias := quoteAlways(rte.child("eref").text("aliasname"))
	cols := rte.child("eref").items("colnames")
	var out []string
	for _, name := range names {
		found := false
		for i := range cols {
			if o.base(i+1) == name {
				shown, ok := cols[i].(atom)
				if !ok {
					return nil, false
				}
				out = append(out, alias+"."+quoteAlways(string(shown)))
				found = true
				break
			}
		}
		if !found {
			return nil, false
		}
	}
	return out, true
}

// base returns the table's column behind a column of the entry, "" for none.
func (o *occurrence) base(num int) string {
	c, rel := column{o.scope, o.rt, num}.base()
	if rel != o.rel {
		return ""
	}
	at := rel.attr(c.attr)
	if at == nil {
		return ""
	}
	return at.Name
}

// equalities finds the equalities between columns of two lists of occurrences.
func (j *joins) equalities(s *scope, quals *node, xs, ys []*occurrence) []edge {
	var out []edge
	for _, c := range conjuncts(quals) {
		l, r, ok := s.equality(c)
		if !ok {
			continue
		}
		if e, ok := j.edge(s, l, r, xs, ys); ok {
			out = append(out, e)
		} else if e, ok := j.edge(s, r, l, xs, ys); ok {
			out = append(out, e)
		}
	}
	return out
}

func (j *joins) edge(s *scope, l, r *node, xs, ys []*occurrence) (edge, bool) {
	x, xcol := place(s, l, xs)
	y, ycol := place(s, r, ys)
	if x == nil || y == nil || x == y {
		return edge{}, false
	}
	e := edge{x: x, y: y, xcol: xcol, ycol: ycol, xnull: true, ynull: true, op: "="}
	for i := range x.rel.attrs {
		if x.rel.attrs[i].Name == xcol {
			e.xnull = !x.rel.attrs[i].NotNull
			if op := j.a.equal(x.rel.attrs[i].TypeOID); op != "" {
				e.op = op
			}
		}
	}
	for i := range y.rel.attrs {
		if y.rel.attrs[i].Name == ycol {
			e.ynull = !y.rel.attrs[i].NotNull
		}
	}
	return e, true
}

// place finds the occurrence and the table's column that an expression is.
func place(s *scope, e *node, among []*occurrence) (*occurrence, string) {
	c, rest := s.bare(e)
	if rest != nil {
		return nil, ""
	}
	for _, o := range among {
		if o.scope == c.s && o.rt == c.rt {
			if name := o.base(c.attr); name != "" {
				return o, name
			}
		}
	}
	return nil, ""
}

// Kinds of subqueries in expressions, as Postgres numbers them.
const anySublink = 2

// subqueries treats EXISTS, IN and scalar subqueries as nullable sides whose
// condition is the correlation.
func (j *joins) subqueries() string {
	s := j.a.top
	if !s.q.is("hasSubLinks") {
		return ""
	}
	// What WHERE asks for alone is false for NULL as it is for no match.
	var plain []*node
	for _, c := range conjuncts(s.q.child("jointree").child("quals")) {
		if c.tag == "SUBLINK" {
			plain = append(plain, c)
		}
	}
	why := ""
	for _, part := range []string{"targetList", "jointree"} {
		walk(s.q.fields[part], func(n *node) bool {
			if why != "" || n.tag != "SUBLINK" {
				return why == ""
			}
			why = j.subquery(n, !slices.Contains(plain, n))
			return false
		})
	}
	return why
}

// subquery adds one subquery of an expression. The rows that it decides about
// are those of the tables that its correlation names.
func (j *joins) subquery(link *node, nulls bool) string {
	q := link.child("subselect")
	if q == nil || q.has("setOperations") || q.has("cteList") {
		return "a subquery is more than tables and conditions"
	}
	if usesTag(list{items: []any{q.fields["targetList"], q.fields["jointree"], q.fields["havingQual"]}}, "SUBLINK") {
		return "a subquery holds another one"
	}
	s := newScope(j.a, q, j.a.top)
	var inner []*occurrence
	var below []edge
	for _, item := range q.child("jointree").nodes("fromlist") {
		// Outer joins inside do not matter: what they hold is reached through its
		// conditions all the same.
		before := len(j.outer)
		_, es, why := j.from(s, item, &inner)
		j.outer = j.outer[:before]
		if why != "" {
			return why
		}
		below = append(below, es...)
	}
	below = append(below, j.equalities(s, q.child("jointree").child("quals"), inner, inner)...)
	on := j.equalities(s, q.child("jointree").child("quals"), inner, j.top)
	o := outerJoin{kept: j.top, other: inner, below: below, on: on}
	if link.num("subLinkType") == anySublink && len(on) == 0 {
		o.on, o.nulls = j.anyEdges(s, link, inner), nulls
	}
	j.outer = append(j.outer, o)
	return ""
}

// anyEdges reads x IN (SELECT y ...) as a correlation by x = y.
func (j *joins) anyEdges(s *scope, link *node, inner []*occurrence) []edge {
	var out []edge
	for _, c := range conjuncts(link.child("testexpr")) {
		l, r, ok := j.a.top.equality(c)
		if !ok || r.tag != "PARAM" {
			continue
		}
		outs := s.outputs()
		i := r.num("paramid") - 1
		if i < 0 || i >= len(outs) {
			continue
		}
		y, ycol := place(s, outs[i].child("expr"), inner)
		x, xcol := place(j.a.top, l, j.top)
		if x == nil || y == nil {
			continue
		}
		e := edge{x: y, y: x, xcol: ycol, ycol: xcol, op: "=", xnull: true, ynull: true}
		for k := range y.rel.attrs {
			if y.rel.attrs[k].Name == ycol {
				e.xnull = !y.rel.attrs[k].NotNull
			}
		}
		for k := range x.rel.attrs {
			if x.rel.attrs[k].Name == xcol {
				e.ynull = !x.rel.attrs[k].NotNull
			}
		}
		out = append(out, e)
	}
	return out
}

// findStored finds the stored columns that hold each table's key, and hides those
// that are not projected.
func (j *joins) findStored() {
	s := j.a.top
	next := 0
	for _, o := range j.top {
		o.first = next
		next += len(o.key)
		for k, name := range o.key {
			at := slices.IndexFunc(o.rel.attrs, func(a attribute) bool { return a.Name == name })
			found := false
			for i, t := range s.outputs() {
				if got, col := place(s, t.child("expr"), []*occurrence{o}); got == o && col == name && !j.a.weakens(t.child("expr")) {
					o.stored = append(o.stored, j.p.Columns[i])
					found = true
					break
				}
			}
			if !found {
				o.stored = append(o.stored, j.hide(o.rel.attrs[at], o.refs[k]))
			}
		}
	}
}

// hide keeps a key column beside the table.
func (j *joins) hide(at attribute, ref string) Column {
	c := j.a.keyColumn(at)
	c.Name, c.NotNull = prefixed("mvsync_k", len(j.p.Hidden)), false
	for slices.ContainsFunc(j.p.visible(), func(o Column) bool { return o.Name == c.Name }) {
		c.Name += "_"
	}
	j.p.Hidden = append(j.p.Hidden, c)
	j.hidden = append(j.hidden, ref+" AS "+quoteAlways(c.Name))
	return c
}

// keyColumn describes a key's column of a table.
func (a *analysis) keyColumn(at attribute) Column {
	c := Column{
		Name: at.Name, Type: at.Type, TypeOID: at.TypeOID, Modifier: at.Modifier, NotNull: true,
		Collation: a.collationName(at.Collation, at.TypeOID), Equal: a.equal(at.TypeOID),
	}
	if t := a.types[at.TypeOID]; t != nil {
		c.HasArray = t.HasArray
	}
	return c
}

// keyColumns are the columns of the occurrence's key, under their names in
// mvsync_keys.
func (o *occurrence) keyColumns(a *analysis) []Column {
	out := make([]Column, len(o.key))
	for k, name := range o.key {
		at := slices.IndexFunc(o.rel.attrs, func(x attribute) bool { return x.Name == name })
		out[k] = a.keyColumn(o.rel.attrs[at])
		out[k].Name = prefixed("k", o.first+k)
	}
	return out
}
