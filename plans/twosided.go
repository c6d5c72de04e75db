package plans

import "slices"

// twoSided reports a partial that new and old images contribute to apart.
func (pt *partial) twoSided() bool { return pt.kind == latticePartial || pt.kind == statePartial }

// uncovered is what old images give to a lattice, or NULL where new ones give it
// back: all of them are there at the end of the batch.
func (pt *partial) uncovered(y, r string) string {
	exact := "false"
	if pt.exact {
		exact = "true"
	}
	return "CASE WHEN " + words(pt.covered, map[string]string{"y": y, "r": r, "E": exact}) + " THEN NULL ELSE " + r + " END"
}

// stateful reports partials for which Postgres has no aggregate that adds two.
func (g *grouping) stateful() bool {
	return slices.ContainsFunc(g.partials, func(pt *partial) bool { return pt.kind == statePartial })
}

// paired is delta where the sides cannot be added up by an aggregate: it puts
// each group's row of one side beside that of the other.
func (g *grouping) paired(fresh, gone string) string {
	var out, left, right []string
	for k := range g.groups {
		name := prefixed("g", k)
		out = append(out, "coalesce(f."+name+", g."+name+") AS "+name)
		left, right = append(left, "f."+name), append(right, "g."+name)
	}
	for _, pt := range g.partials {
		n := pt.typ.Name
		f, gr := collate("f."+n, pt.typ), collate("g."+n, pt.typ)
		switch pt.kind {
		case latticePartial:
			out = append(out, f+" AS "+pt.inserted().Name, pt.uncovered(f, gr)+" AS "+pt.retracted().Name)
		case statePartial:
			out = append(out, f+" AS "+pt.inserted().Name, gr+" AS "+pt.retracted().Name)
		case countPartial, sumPartial:
			out = append(out, "coalesce("+f+", "+pt.zero()+") - coalesce("+gr+", "+pt.zero()+") AS "+n)
		}
	}
	out = append(out, "coalesce(f.dirty, false) OR coalesce(g.dirty, false) AS dirty")
	on := "CROSS JOIN (" + gone + ") g"
	if len(g.groups) > 0 { // whole records are compared, NULL with NULL
		on = "FULL JOIN (" + gone + ") g ON ROW(" + join(left) + ")::record = ROW(" + join(right) + ")::record"
	}
	return "SELECT " + join(out) + "\nFROM (" + fresh + ") f\n  " + on
}

// doubt is true where a retraction may have changed the merged value of a
// two-sided partial in a way that the value does not show. Without values left,
// it does not matter what they were.
func (g *grouping) doubt(pt *partial, value string) string {
	gone := "d." + pt.retracted().Name + " IS NOT NULL"
	some := ""
	if pt.counts >= 0 {
		some = g.mergedValue(g.partials[pt.counts]) + " <> 0 AND "
	}
	if pt.kind == latticePartial {
		r := collate("d."+pt.retracted().Name, pt.typ)
		return some + gone + " AND (" + words(pt.moved, map[string]string{"r": r, "x": value}) + ")"
	}
	lost := "(" + value + ") IS NULL OR " + g.hadSome(pt) + " AND (s." + quoteAlways(pt.stored) + ") IS NULL"
	if pt.state.negate == "" {
		lost += " OR NOT (d." + pt.retracted().Name + " IS NULL)"
	}
	return some + "(" + lost + ")"
}

// hadSome is true where the stored row counted values of the partial.
func (g *grouping) hadSome(pt *partial) string {
	return "coalesce(s." + quoteAlways(g.partials[pt.counts].stored) + ", 0) > 0"
}

// mergedState merges the states that results stand for.
func (g *grouping) mergedState(pt *partial) string {
	st := pt.state
	decoded := func(ref string) (state, there string) {
		ref = collate(ref, pt.typ)
		return st.decode + "(" + ref + ")", "NOT (" + ref + " IS NULL)"
	}
	x, _ := decoded("s." + quoteAlways(pt.stored))
	y, hasY := decoded("d." + pt.inserted().Name)
	v := st.merged(x, g.hadSome(pt), y, hasY)
	if st.negate != "" {
		r, hasR := decoded("d." + pt.retracted().Name)
		v = "CASE WHEN " + hasR + " THEN " + st.merge + "(" + v + ", " + st.negate + "(" + r + ")) ELSE " + v + " END"
	}
	some := g.mergedValue(g.partials[pt.counts]) + " > 0"
	return "CASE WHEN " + some + " THEN " + finalOf(st, v) + " END"
}
