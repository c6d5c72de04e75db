package plans

import "slices"

// push is a column of a grouping in FROM that equals a column of another place in all
// output rows that hold a row of the grouping.
type push struct {
	entry entryRef
	attr  int
	from  columnRef
	typ   uint32
}

// findPushes notes equalities that hold wherever rows of groupings among the places do.
//
// Postgres pushes a condition on a grouping's own column into it, but none that follows
// from an equality with another table's: it would group all rows for the few that are
// joined.
func (j *joinTree) findPushes(s *scope, quals *node, within []int) {
	for _, n := range conjuncts(quals) {
		l, r, ok := s.equality(n)
		if !ok || l.tag != "VAR" || r.tag != "VAR" || exprType(l) != exprType(r) || l.oid("varcollid") != r.oid("varcollid") {
			continue
		}
		for _, side := range [][2]*node{{l, r}, {r, l}} {
			e, attr, ok := j.groupingColumn(s, side[0])
			from, known := j.column(s, side[1])
			below := j.below[e]
			if ok && known && len(below) > 0 && contained(below, within) && !slices.Contains(below, from.place) {
				j.pushes = append(j.pushes, push{e, attr, from, exprType(l)})
			}
		}
	}
}

// groupingColumn follows a Var down to a column of a query that groups or the like, on
// which a condition picks whole slices.
func (j *joinTree) groupingColumn(s *scope, e *node) (entryRef, int, bool) {
	c, rest := s.resolve(e)
	if rest != nil || c.s == nil {
		return entryRef{}, 0, false
	}
	rte := c.s.rte(c.rt)
	if k := kind(rte); k != rteSubquery && k != rteCTE {
		return entryRef{}, 0, false
	}
	sub := c.s.sub(rte)
	if sub == nil || c.attr < 1 || c.attr > len(sub.outputs()) {
		return entryRef{}, 0, false
	}
	t := sub.outputs()[c.attr-1]
	if sub.isPlain() {
		if inner := t.child("expr"); inner.tag == "VAR" {
			return j.groupingColumn(sub, inner)
		}
		return entryRef{}, 0, false
	}
	p, own := j.derivedAt(c.s, c.rt)
	if own && slices.Contains(p.derived.slice, c.attr) || !own && sub.transparent(t) {
		return entryRef{c.s, c.rt}, c.attr, true
	}
	return entryRef{}, 0, false
}

// pushed are the edits, and the conditions for the outermost WHERE, that restrict
// groupings to what rows of a place with the given keys can meet.
func (j *joinTree) pushed(p *site, keys string) (edits []edit, conds []string) {
	if p.derived != nil || slices.ContainsFunc(p.key, func(at attribute) bool { return !at.NotNull }) {
		return nil, nil
	}
	inner := map[*levelText][]string{}
	var levels []*levelText
	for _, u := range j.pushes {
		t, set := j.grouped[u.entry], j.met0(u.from, p, keys)
		if t == nil || t.guard.below || set == "" {
			continue
		}
		info := j.a.types[u.typ]
		if info == nil || !info.HasArray || j.a.equal(u.typ) == "" {
			continue
		}
		cond := t.alias + "." + t.column(u) + " " + j.a.equal(u.typ) + " ANY (ARRAY(" + set + "))"
		switch {
		case t.guard.on > 0:
			edits = append(edits, edit{span{t.guard.on, t.guard.on}, " AND " + cond})
		case t.level == j.root:
			conds = append(conds, cond)
		default:
			if !slices.Contains(levels, t.level) {
				levels = append(levels, t.level)
			}
			inner[t.level] = append(inner[t.level], cond)
		}
	}
	for _, l := range levels {
		edits = append(edits, l.filtered(inner[l]...)...)
	}
	return edits, conds
}

// column spells the grouping's column at its own level.
func (t *leafText) column(u push) string {
	if u.attr <= len(t.names) {
		return t.names[u.attr-1]
	}
	name, ok := u.entry.s.rte(u.entry.rt).child("eref").items("colnames")[u.attr-1].(atom)
	if !ok {
		return "NULL"
	}
	return quoteAlways(string(name))
}

// met0 selects the values of a column in rows of the place with the given keys, or of
// one that is always equal to it; "" where it is no column of the place.
func (j *joinTree) met0(want columnRef, p *site, keys string) string {
	for _, c := range j.alike(want) {
		if c.place != p.id {
			continue
		}
		if i := slices.IndexFunc(p.key, func(at attribute) bool { return int(at.Num) == c.attr }); i >= 0 {
			return "SELECT " + keys + "." + prefixed("k", i) + " FROM " + keys
		}
		refs := make([]string, len(p.key))
		for i, at := range p.key {
			refs[i] = p.name() + "." + quoteAlways(at.Name)
		}
		at := p.rel.attr(c.attr)
		return "SELECT " + p.name() + "." + quoteAlways(at.Name) + " FROM " + j.table0(p, nil) + " WHERE " +
			refMatch(refs, j.keyColumns(p), keys, numberedKeys("", len(p.key)))
	}
	return ""
}

// alike are the columns that equal one in every output row, itself first.
func (j *joinTree) alike(want columnRef) []columnRef {
	same := []columnRef{want}
	for i := 0; i < len(same); i++ {
		for _, c := range j.solid {
			for k := range 2 {
				if c.cols[k] == same[i] && !slices.Contains(same, c.cols[1-k]) {
					same = append(same, c.cols[1-k])
				}
			}
		}
	}
	return same
}
