package plans

import "slices"

// KeySource says which source's rows the members of a coarsened key's classes are.
type KeySource struct {
	Source int // index into Plan.Sources
	// Columns holds, for each column of the view's key, the index into the source's
	// Columns of the column that gives its value; or -1 where it is a constant.
	Columns []int
}

// keySource finds the source whose key the view's key weakens; nil where the columns
// of the key come from several, or are no bare columns.
func (a *analysis) keySource(p *Plan) *KeySource {
	out := &KeySource{Source: -1}
	outs := a.top.outputs()
	for _, k := range p.Key {
		e := outs[k].child("expr")
		if e.tag == "CONST" {
			out.Columns = append(out.Columns, -1)
			continue
		}
		c, rest := a.top.bare(e)
		if rest != nil {
			return nil
		}
		c, _ = c.base()
		rte := c.s.rte(c.rt)
		if kind(rte) != rteRelation {
			return nil
		}
		i := slices.IndexFunc(p.Sources, func(s Source) bool { return s.OID == rte.oid("relid") })
		if i < 0 || (out.Source >= 0 && out.Source != i) {
			return nil
		}
		at := slices.IndexFunc(p.Sources[i].Columns, func(sc SourceColumn) bool { return int(sc.Num) == c.attr })
		if at < 0 {
			return nil
		}
		out.Source = i
		out.Columns = append(out.Columns, at)
	}
	if out.Source < 0 {
		return nil
	}
	return out
}
