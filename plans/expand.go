package plans

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// expandDeclared puts expressions over Postgres' own aggregates in the place of
// the aggregates that are declared to be that.
func (g *grouping) expandDeclared(ctx context.Context) (string, error) {
	calls := g.findCalls()
	nodes, err := g.analyzeCalls(ctx, calls)
	if err != nil {
		return "", err
	}
	var edits []edit
	for i, c := range calls {
		n := nodes[i]
		if n == nil || n.tag != "AGGREF" {
			continue
		}
		r := g.a.declared[n.oid("aggfnoid")]
		if r == nil {
			continue
		}
		args, why := g.arguments(c, n)
		if why != "" {
			return why, nil
		}
		g.laws = append(g.laws, g.law(r, c, args))
		if r.state == nil {
			edits = append(edits, edit{c.span, r.expand(g.argumentTexts(c, args, r), g.sel.filterOf(c))})
		}
	}
	if len(edits) == 0 {
		return "", nil
	}
	d, err := g.a.try(ctx, splice(g.sql, edits...))
	if err != nil {
		return "", err
	}
	g.sql, g.scope = d.text, newScope(g.a, d.tree, nil)
	if !g.split() {
		return "its text cannot be taken apart", nil
	}
	return "", nil
}

// argumentTexts are the arguments of a call as they stand, with the casts that
// canonical text leaves out.
func (g *grouping) argumentTexts(c call, args []*node, r *declaredRule) []string {
	at := slices.IndexFunc(g.sel.toks, func(t token) bool { return t.start >= c.args.start })
	end := slices.IndexFunc(g.sel.toks, func(t token) bool { return t.start >= c.args.end })
	parts := g.sel.commas(at, end)
	out := make([]string, len(args))
	for i, n := range args {
		out[i] = g.sel.span(parts[i][0], parts[i][1]).of(g.sql)
		if isImplicit(n) {
			out[i] = "(" + out[i] + ")::" + r.args[i]
		}
	}
	return out
}

// isImplicit reports a cast that canonical text leaves out.
func isImplicit(n *node) bool {
	const implicit = 2 // COERCE_IMPLICIT_CAST
	for _, f := range []string{"funcformat", "relabelformat", "coerceformat", "convertformat"} {
		if n.text(f) != "" {
			return n.num(f) == implicit
		}
	}
	return false
}

// resolveExpansion lets Postgres read the expression.
func (a *analysis) resolveExpansion(ctx context.Context, r *declaredRule, row *aggregateRow, expr string) error {
	r.params = row.parameters()
	cols := make([]string, len(row.Args))
	for i, t := range row.Args {
		cols[i] = "NULL::" + t + " AS " + quoteAlways(r.params[i])
	}
	d, err := a.try(ctx, "SELECT ("+expr+")::"+r.result+" AS result FROM (SELECT "+join(cols)+") images")
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return a.algebraRefusal(r, "decompose: Postgres does not take the expression: %s; the arguments are named %s", pg.Message, orWord(join(r.params), "nothing"))
	}
	if err != nil {
		return err
	}
	s := newScope(a, d.tree, nil)
	sel, ok := splitSelect(d.text)
	if !ok || len(sel.targets) != 1 || len(s.outputs()) != 1 || s.q.is("hasSubLinks") || s.q.is("hasWindowFuncs") || !s.q.is("hasAggs") {
		return a.algebraRefusal(r, "decompose: give one expression over aggregates of %s, without subqueries", orWord(join(r.params), "*"))
	}
	var refs treeRefs
	refs.collect(d.tree)
	if err := a.loadOperators(ctx, refs.operators); err != nil {
		return err
	}
	for _, o := range refs.operators {
		if op := a.operators[o]; op != nil {
			refs.functions = append(refs.functions, op.Function)
		}
	}
	if err := a.loadFunctions(ctx, refs.functions); err != nil {
		return err
	}
	r.expr, r.calls = sel, map[string]bool{}
	walk(s.q.fields["targetList"], func(n *node) bool {
		if f := a.functions[n.oid("aggfnoid")]; n.tag == "AGGREF" && f != nil {
			r.calls[f.Name] = true
		}
		return true
	})
	return nil
}

// expand writes the expression over given arguments. A filter of the call goes
// to each aggregate in it.
func (r *declaredRule) expand(args []string, filter string) string {
	within := r.expr.targets[0].expr
	var edits []edit
	if filter != "" {
		for _, c := range r.expr.calls(within, r.calls) {
			edits = append(edits, r.expr.filtered(c, filter)...)
		}
	}
	for i, t := range r.expr.toks {
		k := slices.Index(r.params, unquoteIdent(t.text))
		if k < 0 || !within.holds(t) || !r.expr.isColumn(i) {
			continue
		}
		at := span{t.start, t.end}
		if i >= 2 && r.expr.toks[i-1].text == "." {
			at.start = r.expr.toks[i-2].start
		}
		edits = append(edits, edit{at, "(" + args[k] + ")"})
	}
	for i := range edits {
		edits[i].start -= within.start
		edits[i].end -= within.start
	}
	return "(" + splice(within.of(r.expr.sql), edits...) + ")"
}

// filtered adds a condition to the filter of a call.
func (s *selectText) filtered(c call, filter string) []edit {
	in := s.within(c.suffix)
	if len(in) < 5 { // FILTER ( WHERE ... )
		return []edit{{span{c.end, c.end}, " FILTER (WHERE " + filter + ")"}}
	}
	first, last := in[2].end, in[len(in)-1].start
	return []edit{{span{first, first}, " ("}, {span{last, last}, ") AND (" + filter + ")"}}
}

// isColumn reports whether a name is a column, and no function, type or alias.
func (s *selectText) isColumn(i int) bool {
	if i+1 < len(s.toks) && (s.toks[i+1].text == "(" || s.toks[i+1].text == ".") {
		return false
	}
	if i == 0 {
		return true
	}
	before := s.toks[i-1].text
	return before != "::" && !s.toks[i-1].is("AS") && (before != "." || i >= 2 && unquoteIdent(s.toks[i-2].text) == "images")
}

// filterOf is the condition of a call's filter, "" for none.
func (s *selectText) filterOf(c call) string {
	in := s.within(c.suffix)
	if len(in) < 5 { // FILTER ( WHERE ... )
		return ""
	}
	return span{in[3].start, in[len(in)-2].end}.of(s.sql)
}
