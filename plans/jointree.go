package plans

import (
	"context"
	"slices"
)

// site is one place of a table in a join: a table that is joined to itself has
// two.
type site struct {
	id    int
	scope *scope
	rt    int
	rel   *relation
	src   int // index into Plan.Sources
	// apart: in a subquery of an expression, or below a grouping in FROM. Its
	// rows decide about output rows, which do not hold them.
	apart bool
	// nullable: on the nullable side of an outer join, at any level.
	nullable bool
	text     *leafText // where it stands; nil where it is apart
	derived  *derived  // in place of rel's table: rel has its columns alone, and src is -1

	key    []attribute // columns by which its rows are known
	shown  []string    // the key at the outermost level
	stored []Column    // the columns of the stored row that hold the key
}

// name is the alias of the place in statements of our own.
func (p *site) name() string { return prefixed("t", p.id) }

// entryRef is an entry of a range table.
type entryRef struct {
	s  *scope
	rt int
}

// joinTree is a query of joins, filters and per-row expressions taken apart: which
// tables stand where, and how a change of one reaches rows of others.
//
// A changed output row holds a changed row of some table; or it is the preserved
// row of an outer join, or a row that a subquery decides about, whose fate a
// changed row decides. The first are found by the keys of changed rows. The
// others are found by walks: from changed rows along the conditions that must
// hold wherever the change matters. A condition serves if it is strict, which
// makes it fail where a table is absent.
//
// A walk reads the tables on its way in the new state alone. If one of them
// changed as well, its own walk starts nearer to the target, along the rest of
// the same path, with its old rows. And if the target's row changed, its key is
// touched already.
type joinTree struct {
	a      *analysis
	p      *Plan
	sql    string
	scope  *scope
	places []*site
	below  map[entryRef][]int // the places below an entry
	walks  []*trail
	floor  map[int]bool       // sources whose changes may touch every row
	solid  []cond             // equalities that hold for every output row
	never  map[columnRef]bool // columns that are NULL in no row that output rows hold
	met    []cond             // all conditions, for advice
	root   *levelText
	edits  []edit   // that make keys of inner levels visible
	guards []string // of the old state, for the outermost WHERE
	why    string   // what cannot be taken apart

	pushes  []push
	grouped map[entryRef]*leafText // where groupings stand
	derived map[entryRef]*derived  // nil where the query's slices cannot be found
	wanted  []entryRef             // queries of which only their own slices tell what changed
	texts   map[entryRef]span      // queries in FROM that are not plain
	lists   map[entryRef]int       // the ends of their target lists
}

// region is a part of a join.
type region struct {
	held  []int      // places whose rows stand in the region's rows
	apart []int      // places that decide about them
	conds []cond     // that hold where a place of the region matters
	query []entryRef // groupings
	open  []bundle   // groupings whose rows are not yet addressed by any place's
	walks []*trail
}

// bundle is a grouping in FROM: a change below it reaches output rows through a
// condition on its group columns.
type bundle struct {
	places []int
	conds  []cond
	entry  entryRef // none where it is no query
}

func (r *region) add(o region) {
	r.held = append(r.held, o.held...)
	r.apart = append(r.apart, o.apart...)
	r.conds = append(r.conds, o.conds...)
	r.query = append(r.query, o.query...)
	r.open = append(r.open, o.open...)
	r.walks = append(r.walks, o.walks...)
}

func (r *region) all() []int { return slices.Concat(r.held, r.apart) }

// reading is where in the tree a part is read.
type reading struct {
	nullable bool // below the nullable side of an outer join
	within   bool // the same, of this query level
	apart    bool
}

func (r reading) under() reading {
	r.nullable, r.within = true, true
	return r
}

// newJoinTree reads a plain query that is the whole body, or what it groups. Why
// says what it cannot take apart. Where a query in FROM must be addressed by its own
// slices, the tree is read again with them.
func (a *analysis) newJoinTree(ctx context.Context, p *Plan, sql string, s *scope, whole *node) (j *joinTree, why string, err error) {
	known := map[entryRef]*derived{}
	for {
		j = a.readTree(p, sql, s, whole, known)
		if len(j.wanted) == 0 || len(j.texts) == 0 {
			return j, j.why, nil
		}
		if more, err := j.derive(ctx); err != nil || !more {
			return j, j.why, err
		}
	}
}

func (a *analysis) readTree(p *Plan, sql string, s *scope, whole *node, known map[entryRef]*derived) *joinTree {
	j := &joinTree{
		a: a, p: p, sql: sql, scope: s, below: map[entryRef][]int{}, floor: map[int]bool{},
		never: map[columnRef]bool{}, derived: known, texts: map[entryRef]span{}, lists: map[entryRef]int{}, grouped: map[entryRef]*leafText{},
	}
	r := j.query(s, reading{})
	j.walks = r.walks
	for _, o := range r.open {
		j.wants(o.entry)
		j.degrade(o.places)
	}
	if j.why == "" {
		j.why = j.covers(whole)
	}
	if j.why == "" {
		j.why = j.follows()
	}
	if j.why == "" {
		j.why = j.findKeys()
	}
	if j.why == "" {
		j.why = j.readText()
	}
	return j
}

// isPlain reports a query whose rows are combinations of rows of its tables.
func (s *scope) isPlain() bool {
	q := s.q
	return !q.has("setOperations") && !q.has("groupClause") && !q.has("groupingSets") && !q.is("hasAggs") && !q.has("havingQual") &&
		!q.has("distinctClause") && !q.is("hasWindowFuncs") && !q.has("limitCount") && !q.has("limitOffset") && !q.has("rowMarks")
}

// query reads a query level.
func (j *joinTree) query(s *scope, r reading) region {
	r.within = false
	var out region
	if op := s.q.child("setOperations"); op != nil {
		walk2(op, func(n *node) {
			if n.tag == "RANGETBLREF" {
				out.add(j.entry(s, n.num("rtindex"), r))
			}
		})
	}
	tree := s.q.child("jointree")
	for _, item := range tree.nodes("fromlist") {
		out.add(j.item(s, item, r))
	}
	where := j.conds(s, tree.child("quals"), !r.nullable && !r.apart)
	if !r.apart {
		j.shown(where, out.held)
		j.findPushes(s, tree.child("quals"), out.all())
	}
	links := j.links(s, tree.child("quals"), true)
	for _, part := range []string{"targetList", "havingQual", "limitCount", "limitOffset", "windowClause"} {
		links = append(links, j.links(s, s.q.fields[part], false)...)
	}
	if !r.apart {
		j.filter(out.walks, s, tree.child("quals"))
		for _, l := range links {
			ws, lost := j.reach(out.held, l.all(), l.conds)
			out.walks = append(out.walks, ws...)
			j.lose(lost, out.query)
		}
		ws, open := j.close(out.open, out.held, where)
		out.walks, out.open = append(out.walks, ws...), open
	}
	out.conds = append(out.conds, where...)
	for _, l := range links {
		out.apart = append(out.apart, l.all()...)
		out.conds = append(out.conds, l.conds...)
	}
	return out
}

// walk2 visits the tree of a set operation in order.
func walk2(n *node, visit func(*node)) {
	if n == nil {
		return
	}
	visit(n)
	walk2(n.child("larg"), visit)
	walk2(n.child("rarg"), visit)
}

// close finds walks from groupings to the rows of other tables that hold theirs, and
// returns the groupings for which there are none.
func (j *joinTree) close(opens []bundle, targets []int, conds []cond) (walks []*trail, open []bundle) {
	for _, o := range opens {
		ws, lost := j.reach(targets, o.places, slices.Concat(o.conds, conds))
		if len(lost) > 0 {
			open = append(open, o)
			continue
		}
		walks = append(walks, ws...)
	}
	return walks, open
}

// item reads an item of FROM.
func (j *joinTree) item(s *scope, item *node, r reading) region {
	switch item.tag {
	case "RANGETBLREF":
		return j.entry(s, item.num("rtindex"), r)
	case "JOINEXPR":
	default:
		j.why = "its FROM cannot be taken apart"
		return region{}
	}
	lr, rr := r, r
	kind := item.num("jointype")
	if kind == joinLeft || kind == joinFull {
		rr = r.under()
	}
	if kind == joinRight || kind == joinFull {
		lr = r.under()
	}
	left, right := j.item(s, item.child("larg"), lr), j.item(s, item.child("rarg"), rr)
	quals := item.child("quals")
	on := j.conds(s, quals, kind == joinInner && !r.nullable && !r.apart)
	if kind != joinInner || r.within {
		// Conditions on tables outside hold for one side alone.
		inside := slices.Concat(left.all(), right.all())
		on = slices.DeleteFunc(on, func(c cond) bool { return !contained(c.places, inside) })
	}
	links := j.links(s, quals, true)
	var out region
	if !r.apart {
		if kind == joinInner || kind == joinLeft {
			j.shown(on, right.held)
			j.findPushes(s, quals, right.all())
		}
		if kind == joinInner || kind == joinRight {
			j.shown(on, left.held)
			j.findPushes(s, quals, left.all())
		}
		j.filter(slices.Concat(left.walks, right.walks), s, quals)
		out.walks = j.join(kind, &left, &right, on, links)
	}
	out.add(left)
	out.add(right)
	out.conds = append(out.conds, on...)
	for _, l := range links {
		out.apart = append(out.apart, l.all()...)
		out.conds = append(out.conds, l.conds...)
	}
	return out
}

// join finds the walks of a join node, and which groupings below are addressed
// by them.
func (j *joinTree) join(kind int, left, right *region, on []cond, links []region) []*trail {
	var walks []*trail
	var deciding []int
	all := on
	for _, l := range links {
		deciding = append(deciding, l.all()...)
		all = slices.Concat(all, l.conds)
	}
	outer := func(kept, other *region) {
		ws, lost := j.reach(kept.held, slices.Concat(other.all(), deciding), slices.Concat(other.conds, all))
		for _, w := range ws {
			w.side = other.held
		}
		walks = append(walks, ws...)
		j.lose(lost, slices.Concat(kept.query, other.query))
	}
	switch kind {
	case joinInner:
		for _, l := range links {
			ws, lost := j.reach(slices.Concat(left.held, right.held), l.all(), l.conds)
			walks = append(walks, ws...)
			j.lose(lost, slices.Concat(left.query, right.query))
		}
		var fromLeft, fromRight []*trail
		fromLeft, left.open = j.close(left.open, right.held, on)
		fromRight, right.open = j.close(right.open, left.held, on)
		walks = slices.Concat(walks, fromLeft, fromRight)
	case joinLeft:
		outer(left, right)
		right.open = nil
	case joinRight:
		outer(right, left)
		left.open = nil
	default:
		outer(left, right)
		outer(right, left)
	}
	return walks
}

// shown notes that places' rows stand in output rows only where the conditions hold, so
// that columns that they equate are not NULL.
func (j *joinTree) shown(conds []cond, places []int) {
	for _, c := range conds {
		for _, col := range c.cols {
			if c.equality && c.absent == nil && slices.Contains(places, col.place) {
				j.never[col] = true
			}
		}
	}
}

func contained(part, whole []int) bool {
	return !slices.ContainsFunc(part, func(i int) bool { return !slices.Contains(whole, i) })
}

// entry reads an entry of the range table.
func (j *joinTree) entry(s *scope, rt int, r reading) region {
	rte := s.rte(rt)
	first := len(j.places)
	defer func() {
		for i := first; i < len(j.places); i++ {
			j.below[entryRef{s, rt}] = append(j.below[entryRef{s, rt}], i)
		}
	}()
	switch kind(rte) {
	case rteRelation:
		return j.table(s, rt, r)
	case rteSubquery, rteCTE:
		sub := s.sub(rte)
		if sub == nil {
			j.why = "it is recursive"
			return region{}
		}
		if sub.isPlain() || r.apart {
			return j.query(sub, r)
		}
		if d := j.derived[entryRef{s, rt}]; d != nil {
			return j.site(s, rt, r, d)
		}
		out := grouping0(j.query(sub, reading{nullable: r.nullable, apart: true}))
		out.open[0].entry, out.query = entryRef{s, rt}, []entryRef{{s, rt}}
		return out
	}
	var out region
	for _, part := range []string{"functions", "tablefunc", "values_lists"} {
		for _, l := range j.links(s, rte.fields[part], false) {
			out.add(grouping0(l))
		}
	}
	return out
}

// grouping0 is a region whose rows hold no rows of tables.
func grouping0(r region) region {
	return region{apart: r.all(), conds: r.conds, open: []bundle{{places: r.all(), conds: r.conds}}}
}

func (j *joinTree) table(s *scope, rt int, r reading) region {
	rel := j.a.relations[s.rte(rt).oid("relid")]
	if rel == nil {
		j.why = "it reads what is no table"
		return region{}
	}
	src := slices.IndexFunc(j.p.Sources, func(c Source) bool { return c.Table() == rel.name() })
	if src < 0 {
		j.why = "it reads what is no source"
		return region{}
	}
	p := &site{id: len(j.places), scope: s, rt: rt, rel: rel, src: src, apart: r.apart, nullable: r.nullable}
	j.places = append(j.places, p)
	return region{held: []int{p.id}}
}

// links reads the subqueries of an expression. Filter says that the expression is
// a condition, whose conjuncts must be true and not merely known.
func (j *joinTree) links(s *scope, v any, filter bool) []region {
	var out []region
	certain := map[*node]bool{}
	if n, ok := v.(*node); ok && filter {
		for _, c := range conjuncts(n) {
			certain[c] = true
		}
	}
	walk(v, func(n *node) bool {
		if n.tag != "SUBLINK" {
			return n.tag != "QUERY"
		}
		out = append(out, j.link(s, n, certain[n]))
		return false
	})
	return out
}

// Kinds of subqueries in expressions, as Postgres numbers them.
const anySublink = 2

// link reads one subquery of an expression.
func (j *joinTree) link(s *scope, n *node, certain bool) region {
	q := n.child("subselect")
	if q == nil {
		j.why = "a subquery cannot be taken apart"
		return region{}
	}
	sub := newScope(j.a, q, s)
	out := j.query(sub, reading{apart: true})
	for _, l := range j.links(s, n.fields["testexpr"], false) {
		out.add(l)
	}
	if n.num("subLinkType") == anySublink {
		out.conds = append(out.conds, j.anyConds(s, sub, n.child("testexpr"), certain)...)
	}
	return out
}
