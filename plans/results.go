package plans

import "slices"

// result is the expression of an output column over the merged row m: the
// column's text with groups and aggregates in place. Where something else of the
// source is left in it, Postgres will say so.
func (g *grouping) result(i int, t target) string {
	if k := slices.Index(g.groups, i); k >= 0 {
		return "m." + prefixed("g", k)
	}
	var edits []edit
	for _, c := range g.calls {
		if c.start >= t.expr.start && c.end <= t.expr.end {
			edits = append(edits, edit{c.span, c.result})
		}
	}
	edits = append(edits, g.groupEdits(t.expr, edits)...)
	for j := range edits {
		edits[j].start -= t.expr.start
		edits[j].end -= t.expr.start
	}
	return splice(t.expr.of(g.sql), edits...)
}

// groupEdits replaces the groups that stand within an expression, outside of
// aggregates. Canonical text writes the same expression in the same words.
func (g *grouping) groupEdits(within span, taken []edit) []edit {
	var out []edit
	for k, gs := range g.sel.groups {
		words := stripParens(g.sel.within(gs))
		for i := range g.sel.toks {
			if i+len(words) > len(g.sel.toks) || !within.holds(g.sel.toks[i]) || !sameWords(g.sel.toks[i:i+len(words)], words) {
				continue
			}
			found := span{g.sel.toks[i].start, g.sel.toks[i+len(words)-1].end}
			inside := func(e edit) bool { return found.start < e.end && found.end > e.start }
			if g.sel.isWhole(i, i+len(words)) && !slices.ContainsFunc(taken, inside) && !slices.ContainsFunc(out, inside) {
				out = append(out, edit{found, "m." + prefixed("g", k)})
			}
		}
	}
	return out
}

// within lists the tokens of a span.
func (s *selectText) within(sp span) []token {
	return slices.DeleteFunc(slices.Clone(s.toks), func(t token) bool { return !sp.holds(t) })
}

// isWhole reports whether tokens are no part of a longer name or a call.
func (s *selectText) isWhole(from, to int) bool {
	before := from == 0 || s.toks[from-1].text != "."
	after := to == len(s.toks) || s.toks[to].text != "." && s.toks[to].text != "("
	return before && after
}

func sameWords(x, y []token) bool {
	return len(x) == len(y) && slices.EqualFunc(x, y, func(a, b token) bool { return a.text == b.text })
}

// stripParens removes parentheses around the whole.
func stripParens(toks []token) []token {
	for len(toks) > 2 && toks[0].text == "(" && closes(toks) == len(toks)-1 {
		toks = toks[1 : len(toks)-1]
	}
	return toks
}

// closes returns the index of the parenthesis that closes the first token.
func closes(toks []token) int {
	depth := 0
	for i, t := range toks {
		switch t.text {
		case "(", "[":
			depth++
		case ")", "]":
			depth--
		}
		if depth == 0 {
			return i
		}
	}
	return -1
}
