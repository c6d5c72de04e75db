package plans

import "slices"

// columnRef is a column of a place.
type columnRef struct{ place, attr int }

// cond is a strict condition on two places, written over their own names.
type cond struct {
	text   string
	places []int
	cols   []columnRef
	// equal: it compares two bare columns by an equality that is identity.
	equal bool
	// equality: it compares two bare columns, so that one finds the other by an
	// index.
	equality bool
	// absent, where set, are the conditions under which an x IN (subquery) is
	// unknown instead: NULL among the subquery's values; NULL as x.
	absent *unknown
}

type unknown struct {
	value, x string // "" where it cannot be NULL
	outside  int    // the place of x
}

// conds are the usable conjuncts of a condition. Solid says that each of them
// holds for every output row.
func (j *joinTree) conds(s *scope, quals *node, solid bool) []cond {
	var out []cond
	for _, n := range conjuncts(quals) {
		w := &writer{j: j}
		text, ok := w.write(s, n)
		if !ok {
			continue
		}
		c, ok := w.cond(text, j.strictIn(s, n))
		if !ok {
			continue
		}
		c.equality = len(c.cols) == 2 && j.compares(s, n)
		c.equal = j.identity(s, n) && len(c.cols) == 2
		out = append(out, c)
		j.met = append(j.met, c)
		if solid && c.equal {
			j.solid = append(j.solid, c)
		}
	}
	return out
}

// compares recognises the equality of two bare columns.
func (j *joinTree) compares(s *scope, n *node) bool {
	l, r, ok := s.equality(n)
	if !ok {
		return false
	}
	_, left := j.column(s, l)
	_, right := j.column(s, r)
	return left && right
}

// identity recognises the equality of two columns whose equal values are the
// same.
func (j *joinTree) identity(s *scope, n *node) bool {
	l, r, ok := s.equality(n)
	return ok && l.tag == "VAR" && r.tag == "VAR" && exprType(l) == exprType(r) && j.a.exactExpr(l) && j.a.exactExpr(r)
}

// anyConds reads the comparison of x IN (subquery) as a condition on both.
// Unless the result must be true, NULL on either side matters too.
func (j *joinTree) anyConds(s, sub *scope, test *node, certain bool) []cond {
	var out []cond
	parts := conjuncts(test)
	for _, n := range parts {
		w := &writer{j: j, params: sub}
		text, ok := w.write(s, n)
		if !ok {
			continue
		}
		c, ok := w.cond(text, j.strictAll(n))
		if !ok {
			continue
		}
		if !certain {
			if c.absent = j.unknowns(s, sub, n); c.absent == nil || len(parts) > 1 {
				continue
			}
		}
		c.equality = len(c.cols) == 2
		out = append(out, c)
		j.met = append(j.met, c)
	}
	return out
}

// unknowns says when the comparison is unknown; nil where that cannot be told
// from single rows.
func (j *joinTree) unknowns(s, sub *scope, n *node) *unknown {
	args := n.nodes("args")
	if len(args) != 2 || !sub.isPlain() {
		return nil
	}
	x, y := args[0], args[1]
	if param(x) != nil {
		x, y = y, x
	}
	at, ok := j.column(s, x)
	value := sub.param(param(y))
	if !ok || value == nil {
		return nil
	}
	u := &unknown{outside: at.place}
	if !s.solid(x) {
		if j.places[at.place].nullable {
			return nil
		}
		w := &writer{j: j}
		text, _ := w.write(s, x)
		u.x = text + " IS NULL"
	}
	if !sub.solid(value) {
		if c, ok := j.column(sub, value); !ok || j.places[c.place].scope != sub || sub.facts().nullable[j.places[c.place].rt] {
			return nil
		}
		w := &writer{j: j}
		text, _ := w.write(sub, value)
		u.value = text + " IS NULL"
	}
	return u
}

// param looks for the value of a subquery below changes of label.
func param(n *node) *node {
	for n != nil && n.tag == "RELABELTYPE" {
		n = n.child("arg")
	}
	if n == nil || n.tag != "PARAM" {
		return nil
	}
	return n
}

// param is the output expression that a value of the subquery is.
func (s *scope) param(n *node) *node {
	outs := s.outputs()
	if i := n.num("paramid"); n != nil && i >= 1 && i <= len(outs) {
		return outs[i-1].child("expr")
	}
	return nil
}

// column follows a Var down to a column of a place, through subqueries whose
// column is that of the rows below: filters, and the columns of a grouping.
func (j *joinTree) column(s *scope, e *node) (columnRef, bool) {
	for e != nil && e.tag == "RELABELTYPE" {
		e = e.child("arg")
	}
	if e == nil || e.tag != "VAR" {
		return columnRef{}, false
	}
	c, rest := s.resolve(e)
	if rest != nil || c.s == nil {
		return columnRef{}, false
	}
	rte := c.s.rte(c.rt)
	switch kind(rte) {
	case rteRelation:
		for _, i := range j.below[entryRef{c.s, c.rt}] {
			return columnRef{i, c.attr}, c.attr > 0
		}
	case rteSubquery, rteCTE:
		sub := c.s.sub(rte)
		if sub == nil || c.attr < 1 || c.attr > len(sub.outputs()) {
			return columnRef{}, false
		}
		if p, ok := j.derivedAt(c.s, c.rt); ok {
			return columnRef{p.id, c.attr}, true
		}
		t := sub.outputs()[c.attr-1]
		if !sub.transparent(t) {
			return columnRef{}, false
		}
		return j.column(sub, sub.plainExpr(t.child("expr")))
	}
	return columnRef{}, false
}

// plainExpr looks through a Var of the group entry.
func (s *scope) plainExpr(e *node) *node {
	if inner, ok := s.ungrouped(e); ok {
		return inner
	}
	return e
}

// transparent reports an output column whose value is the same in all the rows
// that its row is made of.
func (s *scope) transparent(t *node) bool {
	q := s.q
	switch {
	case s.isPlain():
		return true
	case q.has("setOperations"), q.has("groupingSets"), q.is("hasWindowFuncs"), q.has("limitCount"), q.has("limitOffset"):
		return false
	case q.is("hasDistinctOn"):
		return slices.ContainsFunc(q.nodes("distinctClause"), func(c *node) bool { return s.sortGroup(c) == t })
	}
	return true // a bare column of a grouping is grouped by, or fixed by what is
}

// strictIn returns the places without whose rows the condition is not true.
func (j *joinTree) strictIn(s *scope, n *node) map[int]bool {
	out := map[int]bool{}
	switch n.tag {
	case "OPEXPR", "FUNCEXPR":
		if j.strictExpr(n) {
			j.named(s, n, out)
		}
	case "BOOLEXPR":
		args := n.nodes("args")
		switch n.text("boolop") {
		case "not":
			if len(args) == 1 && j.strictExpr(args[0]) {
				j.named(s, n, out)
			}
		case "and":
			for _, a := range args {
				for i := range j.strictIn(s, a) {
					out[i] = true
				}
			}
		case "or":
			return j.strictInEach(s, args)
		}
	}
	return out
}

func (j *joinTree) strictInEach(s *scope, args []*node) map[int]bool {
	out := map[int]bool{}
	for k, a := range args {
		in := j.strictIn(s, a)
		if k == 0 {
			out = in
			continue
		}
		for i := range out {
			if !in[i] {
				delete(out, i)
			}
		}
	}
	return out
}

// strictAll is for a comparison of which one side is a subquery's value: nil
// where it is strict, an empty set where it is not.
func (j *joinTree) strictAll(n *node) map[int]bool {
	if j.strictExpr(n) {
		return nil
	}
	return map[int]bool{}
}

// strictExpr reports an expression that is NULL if any of its columns is.
func (j *joinTree) strictExpr(n *node) bool {
	strict := func(f *function) bool {
		return f != nil && f.Strict && !slices.ContainsFunc(n.nodes("args"), func(a *node) bool { return !j.strictExpr(a) })
	}
	switch n.tag {
	case "VAR", "CONST", "PARAM":
		return true
	case "RELABELTYPE", "COERCEVIAIO":
		return j.strictExpr(n.child("arg"))
	case "OPEXPR":
		return strict(j.a.functions[n.oid("opfuncid")])
	case "FUNCEXPR":
		return strict(j.a.functions[n.oid("funcid")])
	}
	return false
}
