package plans

import (
	"slices"
)

// determines reports whether expressions fix the input row: what FROM and WHERE
// give, before grouping.
func (s *scope) determines(exprs []*node) bool {
	return s.facts().fixesRow(s.attrs(exprs))
}

// attrs are the attributes that are known where the expressions are: those that
// they are themselves, or show through a cast. Others are left out.
func (s *scope) attrs(exprs []*node) []attr {
	var out []attr
	for _, e := range exprs {
		if a, ok := s.attrOf(s.uncast(e)); ok {
			out = append(out, a)
		}
	}
	return out
}

// identifies reports whether target entries tell every two output rows apart.
func (s *scope) identifies(given []*node) bool {
	if s.q.has("setOperations") {
		return s.identifiesUnion(given)
	}
	if s.oneRow() {
		return true
	}
	exprs := make([]*node, len(given))
	for i, t := range given {
		exprs[i] = t.child("expr")
	}
	if s.q.is("hasTargetSRFs") && !s.q.has("distinctClause") {
		return s.identifiesFan(exprs)
	}
	if distinct := s.q.nodes("distinctClause"); len(distinct) > 0 && s.coversClauses(given, exprs, distinct) {
		return true
	}
	if s.q.is("hasTargetSRFs") {
		return false
	}
	switch {
	case s.q.has("groupingSets"):
		return s.coversGroupingSets(given, exprs)
	case s.q.has("groupClause"):
		return s.coversClauses(given, exprs, s.q.nodes("groupClause"))
	}
	return s.determines(exprs)
}

// oneRow reports an aggregate without GROUP BY: one row, or none by HAVING.
func (s *scope) oneRow() bool {
	return s.q.is("hasAggs") && !s.q.has("groupClause") && !s.q.has("groupingSets") && !s.q.is("hasTargetSRFs")
}

// coversClauses reports whether the entries fix all that a GROUP BY or DISTINCT
// tells apart.
func (s *scope) coversClauses(given, exprs []*node, clauses []*node) bool {
	known := s.facts().closure(s.attrs(exprs))
	for _, c := range clauses {
		t := s.sortGroup(c)
		if t == nil {
			return false
		}
		if slices.Contains(given, t) || slices.ContainsFunc(exprs, func(e *node) bool { return s.sameExpr(e, t.child("expr")) }) {
			continue
		}
		if a, ok := s.attrOf(t.child("expr")); ok && known[a] {
			continue
		}
		if t.child("expr").tag != "CONST" {
			return false
		}
	}
	return true
}

// coversGroupingSets wants every grouped column, and a GROUPING over all of
// them.
func (s *scope) coversGroupingSets(given, exprs []*node) bool {
	if !s.q.is("groupDistinct") && s.duplicateSets() {
		return false
	}
	wanted := map[int]bool{}
	for _, c := range s.q.nodes("groupClause") {
		t := s.sortGroup(c)
		if t == nil || !slices.Contains(given, t) && !slices.ContainsFunc(exprs, func(e *node) bool {
			return s.sameExpr(e, t.child("expr"))
		}) {
			return false
		}
		wanted[c.num("tleSortGroupRef")] = true
	}
	for _, e := range exprs {
		if e.tag == "GROUPINGFUNC" {
			for _, ref := range e.ints("refs") {
				delete(wanted, ref)
			}
		}
	}
	return len(wanted) == 0
}

// duplicateSets reports grouping sets that may yield a set twice. One ROLLUP, one
// CUBE or one list of simple sets is told apart.
func (s *scope) duplicateSets() bool {
	sets := s.q.nodes("groupingSets")
	if len(sets) != 1 {
		return true
	}
	if kind := sets[0].num("kind"); kind != groupingSetList {
		return false
	}
	seen := map[string]bool{}
	for _, inner := range sets[0].nodes("content") {
		if k := inner.num("kind"); k != groupingSetEmpty && k != groupingSetSimple {
			return true
		}
		refs := inner.ints("content")
		slices.Sort(refs)
		key := ""
		for _, r := range refs {
			key += itoa(r) + ","
		}
		if seen[key] {
			return true
		}
		seen[key] = true
	}
	return false
}

// Kinds of grouping sets as Postgres numbers them; ROLLUP and CUBE stand
// between.
const (
	groupingSetEmpty  = 0
	groupingSetSimple = 1
	groupingSetList   = 4
)

// sameExpr reports whether two expressions of the scope are the same but for
// their place in the text.
func (s *scope) sameExpr(x, y *node) bool {
	xa, xok := s.attrOf(x)
	ya, yok := s.attrOf(y)
	if xok || yok {
		return xok && yok && xa == ya
	}
	if e, ok := s.ungrouped(x); ok {
		x = e
	}
	if e, ok := s.ungrouped(y); ok {
		y = e
	}
	return equalTrees(x, y)
}

// ungrouped looks through a Var of the group entry, since 18, to its expression.
func (s *scope) ungrouped(e *node) (*node, bool) {
	if e.tag != "VAR" {
		return nil, false
	}
	_, rest := s.resolve(e)
	return rest, rest != nil && rest != e
}

// equalTrees compares trees without locations.
func equalTrees(x, y any) bool {
	switch x := x.(type) {
	case *node:
		y, ok := y.(*node)
		if !ok || x.tag != y.tag || len(x.fields) != len(y.fields) {
			return false
		}
		for f, v := range x.fields {
			if f != "location" && !equalTrees(v, y.fields[f]) {
				return false
			}
		}
		return true
	case list:
		y, ok := y.(list)
		return ok && x.kind == y.kind && slices.EqualFunc(x.items, y.items, equalTrees)
	}
	return x == y
}

// outputKeys are unique sets of output columns, by 1-based number: the best
// one, which is enough for a proof.
func (s *scope) outputKeys() [][]int {
	if key, ok := s.key(); ok {
		out := make([]int, len(key))
		for i, k := range key {
			out[i] = k + 1
		}
		return [][]int{out}
	}
	return nil
}

// maxKeySearch bounds the sets of columns that are tried one by one.
const maxKeySearch = 40

// key returns the shortest key without a nullable column, else the shortest, as
// 0-based numbers of output columns. Small sets are tried in column order;
// larger ones are found by leaving out columns, last first.
func (s *scope) key() ([]int, bool) {
	if s.keyDone {
		return s.keyCols, s.keyOK
	}
	s.keyDone = true
	outs := s.outputs()
	all := make([]int, len(outs))
	for i := range outs {
		all[i] = i
	}
	solid := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return !s.notNull(outs[i].child("expr"), i) })
	for _, pool := range [][]int{solid, all} {
		if key, ok := s.searchKey(outs, pool); ok {
			s.keyCols, s.keyOK = key, true
			return key, true
		}
	}
	return nil, false
}

func (s *scope) searchKey(outs []*node, pool []int) ([]int, bool) {
	isKey := func(cols []int) bool { return s.identifies(pick(outs, cols)) }
	if isKey(nil) {
		return []int{}, true
	}
	if !isKey(pool) {
		return nil, false
	}
	if len(pool) <= maxKeySearch {
		for size := 1; size <= 3; size++ {
			if key, ok := combination(pool, size, isKey); ok {
				return key, true
			}
		}
	}
	key := slices.Clone(pool)
	for i := len(key) - 1; i >= 0; i-- {
		if rest := slices.Delete(slices.Clone(key), i, i+1); isKey(rest) {
			key = rest
		}
	}
	return key, true
}

func pick(outs []*node, cols []int) []*node {
	picked := make([]*node, len(cols))
	for i, c := range cols {
		picked[i] = outs[c]
	}
	return picked
}

// combination finds the first set of the given size that satisfies the test.
func combination(pool []int, size int, test func([]int) bool) ([]int, bool) {
	var try func(from int, chosen []int) ([]int, bool)
	try = func(from int, chosen []int) ([]int, bool) {
		if len(chosen) == size {
			return slices.Clone(chosen), test(chosen)
		}
		for i := from; i < len(pool); i++ {
			if got, ok := try(i+1, append(chosen, pool[i])); ok {
				return got, true
			}
		}
		return nil, false
	}
	return try(0, make([]int, 0, size))
}

// legs are the queries of a set operation, and whether all are UNION ALL.
type legs struct {
	scopes []*scope
	all    bool // UNION ALL throughout
	set    bool // the outermost operation removes duplicates
	left   bool // EXCEPT or INTERSECT: rows are the left leg's
}

// Set operations as Postgres numbers them.
const (
	setUnion = iota + 1
	setIntersect
	setExcept
)

func (s *scope) legs() legs {
	op := s.q.child("setOperations")
	out := legs{all: true, set: !op.is("all"), left: setOp(op) != setUnion}
	var visit func(n *node)
	visit = func(n *node) {
		if n == nil {
			return
		}
		if n.tag == "RANGETBLREF" {
			out.scopes = append(out.scopes, s.sub(s.rte(n.num("rtindex"))))
			return
		}
		out.all = out.all && n.is("all") && setOp(n) == setUnion
		visit(n.child("larg"))
		visit(n.child("rarg"))
	}
	visit(op)
	return out
}

// setOp returns the operation; the enum starts at 0 with "none".
func setOp(n *node) int { return n.num("op") }

// identifiesUnion: all columns where duplicates are removed; a constant that
// differs from leg to leg, and a key of each leg, where they are not.
func (s *scope) identifiesUnion(given []*node) bool {
	l := s.legs()
	outs := s.outputs()
	if l.set {
		return !slices.ContainsFunc(outs, func(t *node) bool { return !slices.Contains(given, t) && !s.sameInLegs(l, t) })
	}
	if slices.Contains(l.scopes, nil) {
		return false
	}
	var cols []int
	for i, t := range outs {
		if slices.Contains(given, t) {
			cols = append(cols, i)
		}
	}
	if l.left {
		return l.scopes[0].identifies(pick(l.scopes[0].outputs(), cols))
	}
	if !l.all || !slices.ContainsFunc(cols, func(i int) bool { return discriminates(l.scopes, i) }) {
		return false
	}
	return !slices.ContainsFunc(l.scopes, func(leg *scope) bool { return !leg.identifies(pick(leg.outputs(), cols)) })
}

// sameInLegs: a column that is one constant in all legs tells nothing apart.
func (s *scope) sameInLegs(l legs, t *node) bool {
	i := t.num("resno") - 1
	for _, leg := range l.scopes {
		if leg == nil || !equalTrees(leg.outputs()[i].child("expr"), l.scopes[0].outputs()[i].child("expr")) ||
			leg.outputs()[i].child("expr").tag != "CONST" {
			return false
		}
	}
	return true
}

// discriminates reports whether an output column is another constant in each
// leg.
func discriminates(scopes []*scope, i int) bool {
	seen := map[string]bool{}
	for _, leg := range scopes {
		e := leg.outputs()[i].child("expr")
		for e != nil && (e.tag == "RELABELTYPE" || e.tag == "COLLATEEXPR") {
			e = e.child("arg")
		}
		if e == nil || e.tag != "CONST" || e.is("constisnull") || seen[e.text("constvalue")] {
			return false
		}
		seen[e.text("constvalue")] = true
	}
	return true
}
