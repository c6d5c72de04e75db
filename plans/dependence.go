package plans

import "slices"

// dependence says how the bytes of an output column depend on the order in
// which Postgres evaluates.
func (s *scope) dependence(output int) Dependence {
	outs := s.outputs()
	if s.q.has("setOperations") {
		return s.unionDependence(output)
	}
	t := outs[output]
	d := s.exprDependence(t.child("expr"))
	if d != Exact {
		return d
	}
	merged := s.q.nodes("distinctClause")
	if s.q.is("hasDistinctOn") {
		merged = nil // which row stays is settled by a total order
	}
	for _, c := range slices.Concat(s.q.nodes("groupClause"), merged) {
		if s.sortGroup(c) == t && !s.a.exactExpr(s.plain(t.child("expr"))) && !s.alone(t) {
			return Representative
		}
	}
	return Exact
}

// plain looks through a Var of the group entry.
func (s *scope) plain(e *node) *node {
	if inner, ok := s.ungrouped(e); ok {
		return inner
	}
	return e
}

// alone reports whether the other grouped columns fix the row, so that nothing
// is merged.
func (s *scope) alone(t *node) bool {
	var exprs []*node
	for _, c := range s.q.nodes("groupClause") {
		if g := s.sortGroup(c); g != nil && g != t {
			exprs = append(exprs, g.child("expr"))
		}
	}
	return len(exprs) > 0 && s.determines(exprs)
}

func (s *scope) unionDependence(output int) Dependence {
	l := s.legs()
	for _, leg := range l.scopes {
		if leg == nil {
			continue
		}
		if d := leg.dependence(output); d != Exact {
			return d
		}
	}
	if e := s.outputs()[output].child("expr"); l.set && !s.a.exactExpr(e) {
		return Representative
	}
	return Exact
}

// exprDependence looks for aggregates that depend on order, here and in the
// subqueries that the expression reads.
func (s *scope) exprDependence(e *node) Dependence {
	worst := Exact
	walk(e, func(n *node) bool {
		d := Exact
		switch n.tag {
		case "AGGREF", "WINDOWFUNC":
			d = s.callDependence(n)
		case "VAR":
			d = s.columnDependence(n)
		case "QUERY":
			sub := newScope(s.a, n, s)
			for i := range sub.outputs() {
				if d == Exact {
					d = sub.dependence(i)
				}
			}
			worst = worse(worst, d)
			return false
		}
		worst = worse(worst, d)
		return true
	})
	return worst
}

// worse orders dependences: float takes in representative.
func worse(x, y Dependence) Dependence {
	if x == Float || y == Float {
		return Float
	}
	return max(x, y)
}

// callDependence judges an aggregate or window function by its arguments.
func (s *scope) callDependence(n *node) Dependence {
	f := s.a.functions[n.oid("aggfnoid")+n.oid("winfnoid")]
	if f == nil || f.Schema != "pg_catalog" {
		return Exact
	}
	args := n.nodes("args")
	for i, t := range args {
		if t.tag == "TARGETENTRY" {
			args[i] = t.child("expr")
		}
	}
	if floatSensitive[f.Name] && slices.ContainsFunc(args, s.isFloat) {
		return Float
	}
	// Which of several equal values is shown is open where one is picked.
	picks := pickers[f.Name] || n.has("aggdistinct") && (f.Name == "sum" || f.Name == "avg" || orderSensitive[f.Name])
	open := func(e *node) bool {
		if f.Name == "percentile_cont" && s.isFloat(e) {
			return false // it computes with the value: -0 and 0 are the same to it
		}
		return !s.a.exactExpr(e)
	}
	if picks && slices.ContainsFunc(args, open) {
		return Representative
	}
	return Exact
}

// pickers are aggregates that show one of their values.
var pickers = wordSet(`min max mode percentile_disc percentile_cont`)

func (s *scope) isFloat(e *node) bool {
	t := s.a.baseType(exprType(e))
	return t != nil && t.Schema == "pg_catalog" && (t.Name == "float4" || t.Name == "float8")
}

// columnDependence follows a column into the subquery or producer that makes it.
func (s *scope) columnDependence(v *node) Dependence {
	c, rest := s.resolve(v)
	if rest != nil || c.attr <= 0 {
		return Exact
	}
	rte := c.s.rte(c.rt)
	switch kind(rte) {
	case rteSubquery, rteCTE:
		if sub := c.s.sub(rte); sub != nil && c.attr <= len(sub.outputs()) {
			return sub.dependence(c.attr - 1)
		}
	case rteRelation:
		r := s.a.relations[rte.oid("relid")]
		if r == nil || r.producer == nil {
			return Exact
		}
		if i := slices.IndexFunc(r.attrs, func(a attribute) bool { return int(a.Num) == c.attr }); i >= 0 {
			return r.producer.Columns[i].Dependent
		}
	}
	return Exact
}
