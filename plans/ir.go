package plans

import (
	"slices"
	"strings"
)

// Range table entries' kinds, as Postgres numbers them.
const (
	rteRelation = iota
	rteSubquery
	rteJoin
	rteFunction
	rteTableFunc
	rteValues
	rteCTE
	rteNamedTuples
	rteResult
	rteGroup // since 18
)

// scope is a query level of a rule tree.
type scope struct {
	a      *analysis
	q      *node
	parent *scope
	rtable []*node
	subs   map[*node]*scope

	known   *facts // what facts found
	keyDone bool
	keyCols []int
	keyOK   bool
}

func newScope(a *analysis, q *node, parent *scope) *scope {
	return &scope{a: a, q: q, parent: parent, rtable: q.nodes("rtable"), subs: map[*node]*scope{}}
}

// rte returns the range table entry of a 1-based index.
func (s *scope) rte(i int) *node {
	if i < 1 || i > len(s.rtable) {
		return nil
	}
	return s.rtable[i-1]
}

// kind is rte's rtekind, -1 for none.
func kind(rte *node) int {
	if rte == nil || rte.text("rtekind") == "" {
		return -1
	}
	return rte.num("rtekind")
}

// sub returns the scope of the query that an entry stands for: a subquery in
// FROM, or a common table expression that is not recursive.
func (s *scope) sub(rte *node) *scope {
	if sc, ok := s.subs[rte]; ok {
		return sc
	}
	var sc *scope
	switch kind(rte) {
	case rteSubquery:
		if q := rte.child("subquery"); q != nil {
			sc = newScope(s.a, q, s)
		}
	case rteCTE:
		sc = s.cte(rte)
	}
	s.subs[rte] = sc
	return sc
}

func (s *scope) cte(rte *node) *scope {
	at := s
	for range rte.num("ctelevelsup") {
		if at = at.parent; at == nil {
			return nil
		}
	}
	for _, c := range at.q.nodes("cteList") {
		if c.text("ctename") == rte.text("ctename") && !c.is("cterecursive") && c.child("ctequery") != nil {
			return newScope(s.a, c.child("ctequery"), at)
		}
	}
	return nil
}

// outputs are the target entries that are no junk.
func (s *scope) outputs() []*node {
	return slices.DeleteFunc(s.q.nodes("targetList"), func(t *node) bool { return t.is("resjunk") })
}

// sortGroup returns the target entry that a SortGroupClause refers to.
func (s *scope) sortGroup(clause *node) *node {
	ref := clause.num("tleSortGroupRef")
	for _, t := range s.q.nodes("targetList") {
		if t.num("ressortgroupref") == ref && ref != 0 {
			return t
		}
	}
	return nil
}

// column is a column of a range table entry of some scope.
type column struct {
	s        *scope
	rt, attr int
}

// resolve follows a Var to the entry that it comes from, through joins and the
// group entry. What is no plain column there (COALESCE of a full join's USING)
// comes back as an expression.
func (s *scope) resolve(v *node) (column, *node) {
	at := s
	for range v.num("varlevelsup") {
		if at.parent == nil {
			return column{}, v
		}
		at = at.parent
	}
	c := column{at, v.num("varno"), v.num("varattno")}
	rte := at.rte(c.rt)
	var aliases []any
	switch kind(rte) {
	case rteJoin:
		aliases = rte.items("joinaliasvars")
	case rteGroup:
		aliases = rte.items("groupexprs")
	default:
		return c, nil
	}
	if c.attr < 1 || c.attr > len(aliases) {
		return c, v
	}
	expr, ok := aliases[c.attr-1].(*node)
	if !ok {
		return c, v
	}
	return at.bare(expr)
}

// bare resolves an expression that is a column, looking through changes of
// label that keep equality. Otherwise it returns the expression.
func (s *scope) bare(e *node) (column, *node) {
	switch e.tag {
	case "VAR":
		return s.resolve(e)
	case "RELABELTYPE":
		if inner := e.child("arg"); inner != nil && s.a.sameEquality(exprType(inner), e.oid("resulttype")) {
			return s.bare(inner)
		}
	case "COERCETODOMAIN":
		if inner := e.child("arg"); inner != nil {
			return s.bare(inner)
		}
	case "COLLATEEXPR", "COLLATE":
		// Under a deterministic collation equal is the same, whatever the column's
		// own; another one weakens a key.
		l := s.a.collations[e.oid("collOid")]
		if inner := e.child("arg"); inner != nil && l != nil && (l.Deterministic || s.a.coarse) {
			return s.bare(inner)
		}
	}
	return column{}, e
}

// sameEquality reports whether binary-coercible types compare alike.
func (a *analysis) sameEquality(from, to uint32) bool {
	x, y := a.baseType(from), a.baseType(to)
	if x == nil || y == nil {
		return false
	}
	texts := func(t *typeInfo) bool { return t.Schema == "pg_catalog" && (t.Name == "text" || t.Name == "varchar") }
	return x == y || texts(x) && texts(y)
}

// base follows a column down through simple subqueries to the table it is read
// from.
func (c column) base() (column, *relation) {
	for {
		rte := c.s.rte(c.rt)
		switch kind(rte) {
		case rteRelation:
			return c, c.s.a.relations[rte.oid("relid")]
		case rteSubquery, rteCTE:
		default:
			return c, nil
		}
		sub := c.s.sub(rte)
		if sub == nil || sub.q.has("setOperations") {
			return c, nil
		}
		outs := sub.outputs()
		if c.attr < 1 || c.attr > len(outs) {
			return c, nil
		}
		inner, e := sub.bare(outs[c.attr-1].child("expr"))
		if e != nil {
			return c, nil
		}
		c = inner
	}
}

// typeFields are the fields that hold an expression's type, by node.
var typeFields = []string{
	"vartype", "consttype", "funcresulttype", "opresulttype", "aggtype", "wintype", "resulttype", "casetype",
	"coalescetype", "minmaxtype", "row_typeid", "array_typeid", "refrestype", "typeId", "paramtype", "type",
}

// exprType returns the type of an expression, 0 where it is not known.
func exprType(e *node) uint32 {
	if e == nil {
		return 0
	}
	switch e.tag {
	case "BOOLEXPR", "NULLTEST", "BOOLEANTEST", "SCALARARRAYOPEXPR", "ROWCOMPAREEXPR":
		return boolOID
	case "COLLATEEXPR", "COLLATE":
		return exprType(e.child("arg"))
	case "GROUPINGFUNC":
		return int4OID
	}
	for _, f := range typeFields {
		if t := e.oid(f); t != 0 {
			return t
		}
	}
	return 0
}

// Oids of builtin types, fixed for ever.
const (
	boolOID    = 16
	int8OID    = 20
	int2OID    = 21
	int4OID    = 23
	textOID    = 25
	numericOID = 1700
)

// treeRefs gathers what a tree names.
type treeRefs struct {
	relations, order            []uint32
	functions, operators, types []uint32
	ioTypes, collations         []uint32
}

func (r *treeRefs) collect(v any) {
	walk(v, func(n *node) bool {
		if n.tag == "RANGETBLENTRY" && kind(n) == rteRelation && n.is("inFromCl") {
			r.relations = append(r.relations, n.oid("relid"))
		}
		for _, f := range []string{"funcid", "opfuncid", "aggfnoid", "winfnoid"} {
			if o := n.oid(f); o != 0 {
				r.functions = append(r.functions, o)
			}
		}
		for _, f := range []string{"opno", "eqop", "sortop"} {
			if o := n.oid(f); o != 0 {
				r.operators = append(r.operators, o)
			}
		}
		for _, o := range n.ints("opnos") {
			r.operators = append(r.operators, uint32(o))
		}
		for _, f := range []string{"inputcollid", "varcollid", "collOid", "resultcollid", "funccollid"} {
			if o := n.oid(f); o != 0 {
				r.collations = append(r.collations, o)
			}
		}
		if t := exprType(n); t != 0 && n.tag != "RANGETBLENTRY" {
			r.types = append(r.types, t)
		}
		if n.tag == "COERCEVIAIO" {
			io := []uint32{exprType(n.child("arg")), n.oid("resulttype")}
			r.types = append(r.types, io...)
			r.ioTypes = append(r.ioTypes, io...)
		}
		return true
	})
	if q, ok := v.(*node); ok {
		r.inOrder(q)
	}
}

// inOrder lists the relations of a query in the order of its range tables.
func (r *treeRefs) inOrder(q *node) {
	for _, rte := range q.nodes("rtable") {
		switch kind(rte) {
		case rteRelation:
			if rte.is("inFromCl") {
				r.order = append(r.order, rte.oid("relid"))
			}
		case rteSubquery:
			if sub := rte.child("subquery"); sub != nil {
				r.inOrder(sub)
			}
		}
	}
	for _, c := range q.nodes("cteList") {
		if sub := c.child("ctequery"); sub != nil {
			r.inOrder(sub)
		}
	}
	for _, part := range []string{"targetList", "jointree", "havingQual", "limitCount", "limitOffset"} {
		walk(q.fields[part], func(n *node) bool {
			if n.tag == "QUERY" {
				r.inOrder(n)
				return false
			}
			return true
		})
	}
}

// usesTag reports whether the value holds a node of one of the tags.
func usesTag(v any, tags ...string) bool {
	found := false
	walk(v, func(n *node) bool {
		found = found || slices.Contains(tags, n.tag)
		return !found
	})
	return found
}

// readNames lists the tables named in a declared query, common table
// expressions left out.
func readNames(sql string) ([]Name, error) {
	refs, err := tableRefs(sql)
	if err != nil {
		return nil, err
	}
	ctes, err := cteNames(sql)
	if err != nil {
		return nil, err
	}
	var out []Name
	for _, r := range refs {
		if r.name.Schema != "" || !slices.Contains(ctes, strings.ToLower(r.name.Name)) {
			out = append(out, r.name)
		}
	}
	return out, nil
}
