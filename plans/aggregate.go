package plans

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// partial is one partial of the body's aggregates.
type partial struct {
	partialRule
	expr    string // the aggregate call over the source
	typ     Column // of its result; the name is that of its delta column
	arg     *node  // nil for *
	stored  string // the column of the stored row that holds it, "" for none
	visible bool
	bare    int  // index of the source column that the argument is, or -1
	counts  int  // index of the partial that counts its arguments
	special bool // NaN or infinity may hide in a sum
	exact   bool // values of typ that are equal are the same bytes
}

// grouping is a body that groups, taken apart.
type grouping struct {
	a        *analysis
	p        *Plan
	src      *Source
	scope    *scope
	sql      string // flat text in the form of GROUP BY, without ORDER BY
	sel      *selectText
	whole    *selectText // the same before declared aggregates were decomposed
	groups   []int       // output columns by which it groups
	partials []*partial
	results  []string // an expression over m for each output column
	calls    []aggregateCall
	laws     []Law
}

// aggregateCall is an aggregate of the target list.
type aggregateCall struct {
	call
	result string // over the merged row m
	shown  int    // the partial that the result is, -1 for none
}

// planAggregate is the arm of delta-aggregate.
func planAggregate(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	g, why, err := a.grouping(ctx, p)
	if why != "" || err != nil {
		return why, nil, err
	}
	if why := g.readGroups(); why != "" {
		return why, nil, nil
	}
	if why, err := g.readResults(ctx); why != "" || err != nil {
		return why, nil, err
	}
	g.hide()
	if why, err := g.build(ctx); why != "" || err != nil {
		return why, nil, err
	}
	return "", []needs{a.allColumns(g.src)}, nil
}

// allColumns are the columns that the body reads.
func (a *analysis) allColumns(src *Source) needs {
	read := a.readsOf(src.OID)
	n := needs{full: read.columns[0] || read.all}
	for _, c := range src.Columns {
		if read.columns[int(c.Num)] {
			n.columns = append(n.columns, c.Name)
		}
	}
	return n
}

// grouping checks that the body groups rows of one table, and brings DISTINCT
// into the form of GROUP BY.
func (a *analysis) grouping(ctx context.Context, p *Plan) (*grouping, string, error) {
	s := a.top
	distinct := s.q.has("distinctClause")
	grouped := s.q.has("groupClause") || s.q.is("hasAggs")
	switch {
	case s.q.has("setOperations"):
		return nil, "it is a set operation", nil
	case s.q.is("hasDistinctOn"):
		return nil, "DISTINCT ON keeps one row of each group", nil
	case s.q.has("groupingSets"):
		return nil, "grouping sets show a row in several groups", nil
	case distinct && grouped:
		return nil, "DISTINCT merges the groups again", nil
	case !distinct && !grouped:
		return nil, "it does not group rows", nil
	case s.q.has("havingQual"):
		return nil, "HAVING hides groups, whose sums would be unknown when they come back", nil
	}
	r, why := s.plainFrom()
	if why == "" {
		why = a.onlyTable(r)
	}
	if why == "" {
		why = a.missingInStream(&p.Sources[0])
	}
	if why != "" {
		return nil, why, nil
	}
	g := &grouping{a: a, p: p, src: &p.Sources[0], scope: s, sql: withoutOrder(a.flat)}
	if distinct {
		if err := g.regroup(ctx); err != nil {
			return nil, "", err
		}
	}
	if !g.split() {
		return nil, "its text cannot be taken apart", nil
	}
	g.whole = g.sel
	why, err := g.expandDeclared(ctx)
	return g, why, err
}

// split finds the clauses of the text.
func (g *grouping) split() bool {
	sel, ok := splitSelect(g.sql)
	g.sel = sel
	return ok && len(sel.targets) == len(g.p.Columns)
}

// regroup writes SELECT DISTINCT as GROUP BY around it.
func (g *grouping) regroup(ctx context.Context) error {
	sel, ok := splitSelect(g.a.flat)
	if !ok {
		return fmt.Errorf("take apart the body: %s", g.a.flat)
	}
	inner := g.a.flat[:sel.distinct.start] + g.a.flat[sel.distinct.end:]
	if !sel.order.empty() {
		inner = withoutOrder(inner)
	}
	var cols []string
	for _, c := range g.p.Columns {
		cols = append(cols, "q."+quoteAlways(c.Name))
	}
	sql := "SELECT " + join(cols) + " FROM (" + inner + ") q GROUP BY " + join(cols)
	d, err := g.a.try(ctx, sql)
	if err != nil {
		return err
	}
	g.sql, g.scope = d.text, newScope(g.a, d.tree, nil)
	return nil
}

// try lets Postgres analyse a statement of ours: it becomes a view, is described,
// and is undone.
func (a *analysis) try(ctx context.Context, sql string) (described, error) {
	sub, err := a.tx.Begin(ctx)
	if err != nil {
		return described{}, fmt.Errorf("try a statement: %w", err)
	}
	defer sub.Rollback(ctx) // the outer transaction's end shows a broken connection
	if _, err := sub.Exec(ctx, a.viewPrefix(testView, nil)+sql); err != nil {
		return described{}, fmt.Errorf("try %s: %w", sql, err)
	}
	d, err := a.describe(ctx, testView)
	if err != nil {
		return d, err
	}
	var refs treeRefs
	refs.collect(d.tree)
	if err := a.loadTypes(ctx, refs.types); err != nil {
		return d, err
	}
	return d, a.loadCollations(ctx, refs.collations)
}

// readGroups finds the output column of each group.
func (g *grouping) readGroups() string {
	for _, c := range g.scope.q.nodes("groupClause") {
		t := g.scope.sortGroup(c)
		if t == nil || t.is("resjunk") {
			return "it groups by what it does not project"
		}
		i := t.num("resno") - 1
		col := g.p.Columns[i]
		at := g.a.columns[i]
		if !g.a.exact(col.TypeOID, col.Modifier, at.Collation) {
			return "values of " + col.Name + " are equal that are not the same, so that images cannot tell which one a group shows"
		}
		g.groups = append(g.groups, i)
	}
	if len(g.groups) != len(g.sel.groups) {
		return "its groups cannot be taken apart"
	}
	return ""
}

// readResults takes the output columns apart: groups, aggregates, and
// expressions over both.
func (g *grouping) readResults(ctx context.Context) (string, error) {
	// The multiplicity of a group says whether it exists.
	g.add(partialRule{kind: countPartial, name: "n", call: "count(#)", result: fixedType(int8OID)}, "*", "", nil)
	calls := g.findCalls()
	nodes, err := g.analyzeCalls(ctx, calls)
	if err != nil {
		return "", err
	}
	for i, c := range calls {
		done, why := g.decompose(c, nodes[i])
		if why != "" {
			return why, nil
		}
		g.calls = append(g.calls, done)
	}
	for i, t := range g.sel.targets {
		g.results = append(g.results, g.result(i, t))
	}
	return "", nil
}

// findCalls finds the aggregate calls of the target list.
func (g *grouping) findCalls() []call {
	names := map[string]bool{}
	walk(g.scope.q.fields["targetList"], func(n *node) bool {
		if f := g.a.functions[n.oid("aggfnoid")]; n.tag == "AGGREF" && f != nil {
			names[f.Name] = true
		}
		return true
	})
	return g.sel.calls(g.sel.list, names)
}

// analyzeCalls has Postgres analyse each call alone, so that there is no doubt
// which call is which aggregate.
func (g *grouping) analyzeCalls(ctx context.Context, calls []call) ([]*node, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	var cols []string
	for i, c := range calls {
		cols = append(cols, c.of(g.sql)+" AS "+prefixed("x", i))
	}
	d, err := g.a.try(ctx, splice(g.sql, edit{g.sel.list, join(cols)}))
	if err != nil {
		return nil, err
	}
	nodes := make([]*node, len(calls))
	for i, t := range newScope(g.a, d.tree, nil).outputs() {
		nodes[i] = t.child("expr")
	}
	return nodes, nil
}

// decompose finds the partials of a call, and its result over them.
func (g *grouping) decompose(c call, n *node) (done aggregateCall, why string) {
	args, why := g.arguments(c, n)
	if why != "" {
		return done, why
	}
	r, why := g.rule(c, n, args)
	if why != "" {
		return done, why
	}
	done = aggregateCall{call: c, shown: -1}
	values := map[string]string{}
	counts := -1
	for _, pr := range r.partials {
		i := g.addCall(pr, c, n, args)
		if pr.kind == countPartial {
			counts = i
		} else {
			g.partials[i].counts = counts
		}
		values[pr.name] = "m." + g.partials[i].typ.Name
		if pr.name == r.shown {
			done.shown = i
		}
	}
	done.result = "(" + fill(r.result, values) + ")"
	return done, ""
}

// rule finds the algebra of a call: Postgres' own or a declared one.
func (g *grouping) rule(c call, n *node, args []*node) (*rule, string) {
	f := g.a.functions[n.oid("aggfnoid")]
	if d := g.a.declared[n.oid("aggfnoid")]; d != nil && d.state != nil {
		return d.rule(), ""
	}
	var arg *node
	if len(args) > 0 {
		arg = args[0]
	}
	if r, ok := g.a.algebraOf(f, arg); ok && len(args) <= 1 {
		return r, ""
	}
	text := c.of(g.sql)
	switch {
	case f != nil && f.Schema != "pg_catalog":
		return nil, text + " has no algebra; declare one under aggregates: " + f.signature()
	case arg != nil && g.scope.isFloat(arg):
		return nil, text + " adds floats, whose sums depend on the order"
	}
	return nil, text + " has no algebra that is exact for its argument"
}

// arguments returns the arguments of a call whose rows add up one by one.
func (g *grouping) arguments(c call, n *node) (args []*node, why string) {
	text := c.of(g.sql)
	switch {
	case n == nil || n.tag != "AGGREF":
		return nil, text + " is no plain aggregate"
	case n.has("aggdistinct"):
		return nil, text + " counts each value once, which needs all values"
	case n.has("aggorder") || n.text("aggkind") != "n":
		return nil, text + " needs all values in order"
	case n.is("aggvariadic"):
		return nil, text + " takes its arguments from an array"
	}
	for _, t := range n.nodes("args") {
		args = append(args, t.child("expr"))
	}
	return args, ""
}

// addCall adds a partial of a call. Arguments that are never NULL and are not
// filtered are counted by the group's own multiplicity.
func (g *grouping) addCall(pr partialRule, c call, n *node, args []*node) int {
	filter := c.suffix.of(g.sql)
	if pr.kind == countPartial && filter == "" && (pr.call == "count(*)" || g.scope.allSolid(args)) {
		return 0
	}
	var arg *node
	if len(args) > 0 {
		arg = args[0]
	}
	i := g.add(pr, c.args.of(g.sql), filter, arg)
	pt := g.partials[i]
	if pr.result == nil {
		t := n.oid("aggtype")
		pt.typ.TypeOID, pt.typ.Type = t, g.a.types[t].Display
		pt.typ.HasArray = g.a.types[t].HasArray
		collation := n.oid("aggcollid")
		if l := n.oid("inputcollid"); l != 0 && g.a.collationName(collation, t) == "" {
			collation = l
		}
		pt.typ.Collation = g.a.collationName(collation, t)
		pt.exact = g.a.exact(t, -1, collation)
	}
	return i
}

// add adds a partial, or finds the same one.
func (g *grouping) add(pr partialRule, args, suffix string, arg *node) int {
	expr := strings.ReplaceAll(pr.call, "#", args) + suffix
	if i := slices.IndexFunc(g.partials, func(p *partial) bool { return p.expr == expr }); i >= 0 {
		return i
	}
	pt := &partial{partialRule: pr, expr: expr, arg: arg, bare: -1, counts: -1}
	pt.typ = Column{Name: prefixed("a", len(g.partials)-1), Modifier: -1}
	if len(g.partials) == 0 {
		pt.typ.Name = "n"
	}
	if pr.result != nil {
		t := uint32(int8OID)
		if base := g.a.argType(arg); base != nil {
			t = pr.result(base)
			pt.special = pr.kind == sumPartial && base.OID != int2OID && base.OID != int4OID && base.OID != int8OID && base.Name != "money"
		}
		pt.typ.TypeOID = t
		if info := g.a.types[t]; info != nil {
			pt.typ.Type, pt.typ.HasArray = info.Display, info.HasArray
		}
	}
	if arg != nil && suffix == "" {
		pt.bare = g.bare(arg)
	}
	g.partials = append(g.partials, pt)
	return len(g.partials) - 1
}

// bare returns the index of the source column that an expression is, or -1.
func (g *grouping) bare(e *node) int {
	at, ok := g.scope.attrOf(e)
	if !ok || e.tag != "VAR" || kind(g.scope.rte(at.rt)) != rteRelation {
		return -1
	}
	return slices.IndexFunc(g.src.Columns, func(c SourceColumn) bool { return int(c.Num) == at.num })
}

// hide finds where the stored row holds each partial: in an output column that
// shows it, else in a hidden column.
func (g *grouping) hide() {
	for i, t := range g.sel.targets {
		for _, c := range g.calls {
			if c.shown >= 0 && c.span == t.expr && g.partials[c.shown].stored == "" {
				g.partials[c.shown].stored = g.p.Columns[i].Name
				g.partials[c.shown].visible = true
			}
		}
	}
	for i, pt := range g.partials {
		if pt.stored != "" || i == 0 && !g.needsCount() {
			continue
		}
		pt.stored = g.freeName("mvsync_" + pt.typ.Name)
		h := pt.typ
		h.Name = pt.stored
		h.NotNull = pt.kind == countPartial
		h.Equal = ""
		g.p.Hidden = append(g.p.Hidden, h)
	}
}

// needsCount reports whether the rows of a group must be counted: to know when
// it is gone, and where a result asks.
func (g *grouping) needsCount() bool {
	return len(g.groups) > 0 || slices.ContainsFunc(g.results, func(r string) bool { return strings.Contains(r, "m.n") })
}

func (g *grouping) freeName(name string) string {
	for slices.ContainsFunc(g.p.visible(), func(c Column) bool { return c.Name == name }) {
		name += "_"
	}
	return name
}
