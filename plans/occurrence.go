package plans

import "slices"

// occurrence is one place of a table in FROM.
type occurrence struct {
	scope *scope
	rt    int
	rel   *relation
	key   []string // columns of the table that identify its rows
	// refs spell those columns at the body's own query level.
	refs []string
}

// findKey takes the first unique set of columns that cannot be NULL, preferring
// one that every identity carries.
func (o *occurrence) findKey() bool {
	var candidates [][]string
	for _, u := range o.rel.uniques {
		var names []string
		for _, num := range u.Columns {
			if at := o.rel.attr(int(num)); at != nil && at.NotNull {
				names = append(names, at.Name)
			}
		}
		if len(names) == len(u.Columns) {
			candidates = append(candidates, names)
		}
	}
	if p := o.rel.producer; p != nil {
		candidates = nil
		var names []string
		for _, c := range p.keyed() {
			if c.NotNull {
				names = append(names, c.Name)
			}
		}
		if len(names) == len(p.Key) && len(names) > 0 {
			candidates = append(candidates, names)
		}
	}
	carried := func(names []string) bool {
		return !slices.ContainsFunc(o.rel.leaves, func(l leaf) bool { return l.Identity != "f" && !subset(names, l.Columns) })
	}
	slices.SortStableFunc(candidates, func(x, y []string) int { return btoi(carried(y)) - btoi(carried(x)) })
	for _, names := range candidates {
		if refs, ok := o.spell(names); ok {
			o.key, o.refs = names, refs
			return true
		}
	}
	return false
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// spell writes columns of the table as the body's own level sees them.
func (o *occurrence) spell(names []string) ([]string, bool) {
	rte := o.scope.rte(o.rt)
	alias := quoteAlways(rte.child("eref").text("aliasname"))
	cols := rte.child("eref").items("colnames")
	var out []string
	for _, name := range names {
		found := false
		for i := range cols {
			if o.base(i+1) == name {
				shown, ok := cols[i].(atom)
				if !ok {
					return nil, false
				}
				out = append(out, alias+"."+quoteAlways(string(shown)))
				found = true
				break
			}
		}
		if !found {
			return nil, false
		}
	}
	return out, true
}

// base returns the table's column behind a column of the entry, "" for none.
func (o *occurrence) base(num int) string {
	c, rel := column{o.scope, o.rt, num}.base()
	if rel != o.rel {
		return ""
	}
	at := rel.attr(c.attr)
	if at == nil {
		return ""
	}
	return at.Name
}

// place finds the occurrence and the table's column that an expression is.
func place(s *scope, e *node, among []*occurrence) (*occurrence, string) {
	c, rest := s.bare(e)
	if rest != nil {
		return nil, ""
	}
	for _, o := range among {
		if o.scope == c.s && o.rt == c.rt {
			if name := o.base(c.attr); name != "" {
				return o, name
			}
		}
	}
	return nil, ""
}

// keyColumn describes a key's column of a table.
func (a *analysis) keyColumn(at attribute) Column {
	c := Column{
		Name: at.Name, Type: at.Type, TypeOID: at.TypeOID, Modifier: at.Modifier, NotNull: at.NotNull,
		Collation: a.collationName(at.Collation, at.TypeOID), Equal: a.equal(at.TypeOID),
	}
	if t := a.types[at.TypeOID]; t != nil {
		c.HasArray = t.HasArray
	}
	return c
}
