package plans

import (
	"context"
	"slices"
	"strings"
)

// build writes the statements of a delta-aggregate.
func (g *grouping) build(ctx context.Context) (string, error) {
	p := g.p
	delta, err := g.delta()
	if err != nil {
		return "", err
	}
	groups := g.groupColumns()
	agg := &Aggregate{
		Delta: delta, DeltaColumns: g.deltaColumns(), Merge: g.merge(), KeyColumns: keyColumns(groups), Fold: g.fold(),
		Touched: "true", RerunTouched: "true",
	}
	for k, i := range g.groups {
		agg.Groups = append(agg.Groups, GroupColumn{Column: i, Type: groups[k].Type, Source: g.bare(g.scope.plain(g.groupExpr(k)))})
	}
	p.Eval, p.Laws = g.eval(), g.laws
	agg.Rerun = p.Eval
	if len(groups) > 0 {
		agg.Touched = keyMatch("s", groups, "mvsync_delta", "g")
		agg.RerunTouched = keyMatch("s", groups, "mvsync_keys", "k")
		agg.Rerun = restricted(p.Eval, p.visible(), groups, "mvsync_keys")
	}
	agg.Keys = g.flagged(groups)
	p.Aggregate = agg
	return g.confirmAll(ctx, agg)
}

// restricted is a SELECT of the given columns for keys.
func restricted(sql string, columns, keyed []Column, keys string) string {
	return "SELECT " + qualify("q", columns) + " FROM (" + sql + ") q WHERE " + keyMatch("q", keyed, keys, "k")
}

// qualify lists columns of an alias.
func qualify(alias string, columns []Column) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = alias + "." + quoteAlways(c.Name)
	}
	return join(out)
}

func (g *grouping) groupExpr(k int) *node {
	return g.scope.sortGroup(g.scope.q.nodes("groupClause")[k]).child("expr")
}

func (g *grouping) groupColumns() []Column {
	out := make([]Column, len(g.groups))
	for k, i := range g.groups {
		out[k] = g.p.Columns[i]
	}
	return out
}

// eval is the body with the hidden columns at its end.
func (g *grouping) eval() string {
	var hidden strings.Builder
	for _, pt := range g.partials {
		if pt.stored != "" && !pt.visible {
			hidden.WriteString(", " + pt.expr + " AS " + quoteAlways(pt.stored))
		}
	}
	if hidden.Len() == 0 {
		return g.p.Body
	}
	return splice(g.whole.sql, edit{span{g.whole.list.end, g.whole.list.end}, hidden.String()})
}

// cells are the columns of a partial in DeltaColumns: a two-sided one has one over
// new and one over old images.
func (pt *partial) cells() []Column {
	if !pt.twoSided() {
		return []Column{pt.typ}
	}
	return []Column{pt.inserted(), pt.retracted()}
}

func (pt *partial) inserted() Column {
	c := pt.typ
	c.Name += "_i"
	return c
}

func (pt *partial) retracted() Column {
	c := pt.typ
	c.Name += "_r"
	return c
}

func (g *grouping) deltaColumns() []Column {
	var out []Column
	for k, c := range g.groupColumns() {
		c.Name = prefixed("g", k)
		out = append(out, c)
	}
	for _, pt := range g.partials {
		out = append(out, pt.cells()...)
	}
	return append(out, Column{Name: "dirty", Type: "boolean", TypeOID: boolOID, Modifier: -1, NotNull: true, HasArray: true})
}

// collate gives a value the collation that the input lost.
func collate(ref string, c Column) string {
	if c.Collation == "" {
		return ref
	}
	return ref + " COLLATE " + c.Collation
}

// zero is the neutral element of a sum.
func (pt *partial) zero() string { return "'0'::" + pt.typ.Type }

// leg evaluates the partials over one side's images.
func (g *grouping) leg(images string) (string, error) {
	var cols, dirty []string
	for k, gs := range g.sel.groups {
		cols = append(cols, gs.of(g.sql)+" AS "+prefixed("g", k))
	}
	for _, pt := range g.partials {
		expr := pt.expr
		switch pt.kind {
		case sumPartial:
			expr = "coalesce(" + pt.finite() + ", " + pt.zero() + ")"
		case statePartial: // NULL is kept for no rows
			counted := g.partials[pt.counts].expr + " > 0"
			dirty = append(dirty, counted+" AND ("+expr+") IS NULL")
			expr = "CASE WHEN " + counted + " THEN " + expr + " END"
		case countPartial, latticePartial:
		}
		cols = append(cols, expr+" AS "+pt.typ.Name)
		if pt.special {
			dirty = append(dirty, pt.infinite())
		}
	}
	cols = append(cols, "coalesce("+orFalse(dirty)+", false) AS dirty")
	sql := splice(g.sql, edit{g.sel.list, join(cols)})
	return g.a.withImages(sql, g.src, images)
}

func orFalse(conditions []string) string {
	if len(conditions) == 0 {
		return "false"
	}
	return strings.Join(conditions, " OR ")
}

// infinite says that a sum holds NaN or an infinity, which no subtraction takes
// out again.
func (pt *partial) infinite() string {
	if pt.typ.TypeOID == numericOID {
		return pt.expr + " IN ('NaN', 'Infinity', '-Infinity')"
	}
	return "NOT isfinite(" + pt.expr + ")"
}

// finite is the sum, or NULL where it is not finite.
func (pt *partial) finite() string {
	if !pt.special {
		return pt.expr
	}
	return "CASE WHEN " + pt.infinite() + " THEN NULL ELSE " + pt.expr + " END"
}

// delta subtracts what old images give from what new images give.
func (g *grouping) delta() (string, error) {
	fresh, err := g.leg(newImages(0))
	if err != nil {
		return "", err
	}
	gone, err := g.leg(oldImages(0))
	if err != nil {
		return "", err
	}
	if g.stateful() {
		return g.paired(fresh, gone), nil
	}
	var groups, plus, minus, out []string
	for k := range g.groups {
		name := prefixed("g", k)
		groups = append(groups, "u."+name)
		plus, minus = append(plus, name), append(minus, name)
	}
	out = append(out, groups...)
	for _, pt := range g.partials {
		n := pt.typ.Name
		if pt.kind == latticePartial {
			none := collate("NULL::"+pt.typ.Type, pt.typ)
			plus = append(plus, n+" AS "+n+"_i", none+" AS "+n+"_r")
			minus = append(minus, none, n)
			i, r := pt.fold2("u."+pt.inserted().Name), pt.fold2("u."+pt.retracted().Name)
			out = append(out, i+" AS "+pt.inserted().Name, pt.uncovered(i, r)+" AS "+pt.retracted().Name)
			continue
		}
		plus, minus = append(plus, n), append(minus, pt.negated())
		out = append(out, "sum(u."+n+")::"+pt.typ.Type+" AS "+n)
	}
	plus, minus, out = append(plus, "dirty"), append(minus, "dirty"), append(out, "bool_or(u.dirty) AS dirty")
	sql := "SELECT " + join(out) + "\nFROM (SELECT " + join(plus) + " FROM (" + fresh + ") f\n  UNION ALL SELECT " + join(minus) + " FROM (" + gone + ") g) u"
	if len(groups) > 0 {
		sql += "\nGROUP BY " + join(groups)
	}
	return sql, nil
}

func (pt *partial) negated() string {
	if pt.typ.Type == "money" {
		return pt.typ.Name + " * (-1)"
	}
	return "-" + pt.typ.Name
}

// fold2 merges cells of a lattice by the aggregate itself.
func (pt *partial) fold2(ref string) string {
	return strings.ReplaceAll(pt.call, "#", collate(ref, pt.typ))
}

// merge adds the batch's contributions to the stored rows.
func (g *grouping) merge() string {
	var cols []string
	for i, c := range g.p.Columns {
		cols = append(cols, "("+g.results[i]+")::"+c.Type+" AS "+quoteAlways(c.Name))
	}
	for _, pt := range g.partials {
		if pt.stored != "" && !pt.visible {
			cols = append(cols, "("+g.storedForm(pt)+")::"+pt.typ.Type+" AS "+quoteAlways(pt.stored))
		}
	}
	residual, keep := g.verdict()
	cols = append(cols, residual+" AS mvsync_residual", keep+" AS mvsync_keep")
	return "SELECT " + join(cols) + "\nFROM (" + g.merged() + ") m"
}

// storedForm is a partial as its own aggregate prints it: mostly NULL without a
// value.
func (g *grouping) storedForm(pt *partial) string {
	if pt.kind == countPartial || pt.counts < 0 {
		return "m." + pt.typ.Name
	}
	empty := "NULL"
	if pt.state != nil {
		empty = pt.state.empty
	}
	return "CASE WHEN m." + g.partials[pt.counts].typ.Name + " = 0 THEN " + empty + " ELSE m." + pt.typ.Name + " END"
}

// verdict says when a merged row must be run again, and when its group lives.
func (g *grouping) verdict() (residual, keep string) {
	bad := []string{"m.bad"}
	var left []string
	grouped := len(g.groups) > 0
	for i, pt := range g.partials {
		if pt.kind != countPartial || pt.stored == "" {
			continue
		}
		name := "m." + pt.typ.Name
		bad = append(bad, name+" < 0")
		if i > 0 {
			left = append(left, name+" <> 0")
			if g.partials[0].stored != "" {
				bad = append(bad, name+" > m.n")
			}
		}
	}
	if !grouped {
		return strings.Join(bad, " OR "), "true"
	}
	// An empty group is gone, whatever was taken from it, unless the counts
	// contradict each other.
	return "CASE WHEN m.n = 0 THEN " + orFalse(left) + " ELSE " + strings.Join(bad, " OR ") + " END", "m.n > 0"
}

// merged joins the batch, one row a group, with the stored rows.
func (g *grouping) merged() string {
	var groups, sums, cols []string
	for k := range g.groups {
		groups = append(groups, "d."+prefixed("g", k))
	}
	cols = append(cols, groups...)
	sums = append(sums, groups...)
	bad := []string{"d.dirty"}
	for _, pt := range g.partials {
		for _, c := range pt.cells() {
			switch pt.kind {
			case latticePartial:
				sums = append(sums, pt.fold2("d."+c.Name)+" AS "+c.Name)
			case countPartial, sumPartial:
				sums = append(sums, "sum(d."+c.Name+")::"+c.Type+" AS "+c.Name)
			case statePartial: // the rows are taken as they come
			}
		}
		value := g.mergedValue(pt)
		cols = append(cols, value+" AS "+pt.typ.Name)
		if pt.twoSided() {
			bad = append(bad, "("+g.doubt(pt, value)+")")
		}
	}
	cols = append(cols, "coalesce("+strings.Join(bad, " OR ")+", false) AS bad")
	delta := "SELECT " + join(append(sums, "bool_or(d.dirty) AS dirty")) + " FROM mvsync_delta d"
	if len(groups) > 0 {
		delta += " GROUP BY " + join(groups)
	}
	if g.stateful() { // Delta alone gives them, one row a group
		delta = "TABLE mvsync_delta"
	}
	return "SELECT " + join(cols) + "\n  FROM (" + delta + ") d\n  LEFT JOIN " + g.storedJoin()
}

// mergedValue is a partial after the batch.
func (g *grouping) mergedValue(pt *partial) string {
	stored := "s." + quoteAlways(pt.stored)
	switch {
	case pt.stored == "":
		return "d." + pt.typ.Name
	case pt.kind == statePartial:
		return g.mergedState(pt)
	case pt.kind == countPartial:
		return "(coalesce(" + stored + ", 0) + coalesce(d." + pt.typ.Name + ", 0))"
	case pt.kind == sumPartial:
		return "(coalesce(" + stored + ", " + pt.zero() + ") + coalesce(d." + pt.typ.Name + ", " + pt.zero() + "))"
	}
	return "(" + words(pt.combine, map[string]string{
		"x": collate(stored, pt.typ), "y": collate("d."+pt.inserted().Name, pt.typ), "T": pt.typ.Type,
	}) + ")"
}

// storedJoin joins the stored rows by group, NULL with NULL. A join needs a plain
// equality to be hashed or to use an index; where no group column is free of
// NULL, the rows are looked up one by one instead, apart for NULL.
func (g *grouping) storedJoin() string {
	groups := g.groupColumns()
	if len(groups) == 0 {
		return "mvsync_stored s ON true"
	}
	if slices.ContainsFunc(groups, func(c Column) bool { return c.NotNull }) {
		return "mvsync_stored s ON " + sameKey("s", groups, "d", "g")
	}
	first := "x." + quoteAlways(groups[0].Name)
	rest := ""
	if len(groups) > 1 {
		var parts []string
		for i, c := range groups[1:] {
			l, r := "x."+quoteAlways(c.Name), "d."+prefixed("g", i+1)
			parts = append(parts, "("+l+" "+equalOp(c)+" "+r+" OR "+l+" IS NULL AND "+r+" IS NULL)")
		}
		rest = " AND " + conjunction(parts)
	}
	return "LATERAL (SELECT x.* FROM mvsync_stored x WHERE " + first + " " + equalOp(groups[0]) + " d.g0" + rest +
		"\n    UNION ALL SELECT x.* FROM mvsync_stored x WHERE " + first + " IS NULL AND d.g0 IS NULL" + rest + ") s ON true"
}

// flagged reads the keys of the rows that must be run again.
func (g *grouping) flagged(groups []Column) string {
	var cols []string
	for i, c := range groups {
		cols = append(cols, "m."+quoteAlways(c.Name)+" AS "+prefixed("k", i))
	}
	return "SELECT " + join(cols) + " FROM mvsync_merged m WHERE m.mvsync_residual"
}

// fold says how Go computes the same as Delta: groups and arguments are columns
// of the table, every row counts, and all is exact in Go.
func (g *grouping) fold() *Fold {
	from := g.scope.q.child("jointree")
	if from.has("quals") || kind(g.scope.rte(from.nodes("fromlist")[0].num("rtindex"))) != rteRelation {
		return nil
	}
	f := &Fold{}
	for k := range g.groups {
		at := g.bare(g.scope.plain(g.groupExpr(k)))
		if at < 0 {
			return nil
		}
		f.Groups = append(f.Groups, at)
	}
	for _, pt := range g.partials[1:] {
		if pt.bare < 0 || pt.fold == 0 || !g.foldable(pt) {
			return nil
		}
		integer := isInteger(g.a, pt.arg)
		f.Cells = append(f.Cells, FoldCell{Op: pt.fold, Argument: pt.bare, Integer: integer})
		if pt.kind == latticePartial {
			f.Cells = append(f.Cells, FoldCell{Op: pt.fold, Argument: pt.bare, Integer: integer, Old: true})
		}
	}
	return f
}

// foldable reports an operation that is exact in Go for its argument.
func (g *grouping) foldable(pt *partial) bool {
	switch pt.fold {
	case FoldCount, FoldAnd, FoldOr:
		return true
	case FoldSum, FoldSquares:
		return exactNumber(g.a, pt.arg)
	default:
		return isInteger(g.a, pt.arg)
	}
}

// confirmAll lets Postgres judge every statement.
func (g *grouping) confirmAll(ctx context.Context, agg *Aggregate) (string, error) {
	rows := g.p.visible()
	images := []input{imagesInput(newImages(0), g.src), imagesInput(oldImages(0), g.src)}
	delta, stored := input{"mvsync_delta", agg.DeltaColumns}, input{"mvsync_stored", rows}
	keys := input{"mvsync_keys", agg.KeyColumns}
	verdict := slices.Concat(rows, []Column{
		{Name: "mvsync_residual", TypeOID: boolOID}, {Name: "mvsync_keep", TypeOID: boolOID},
	})
	for _, try := range []struct {
		sql    string
		want   []Column
		inputs []input
	}{
		{agg.Delta, agg.DeltaColumns, images},
		{agg.Merge, verdict, []input{delta, stored}},
		{g.p.Eval, rows, nil},
		{agg.Rerun, rows, []input{keys}},
	} {
		if why, err := g.a.confirm(ctx, try.sql, try.want, try.inputs...); why != "" || err != nil {
			return why, err
		}
	}
	return "", nil
}
