package plans

import (
	"context"
	"slices"
)

// planProjection is the arm of inverse-projection.
func planProjection(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	r, why := a.top.simple()
	if why == "" {
		why = a.onlyTable(r)
	}
	if why != "" {
		return why, nil, nil
	}
	src := &p.Sources[0]
	keyed, from, why := a.keyFrom(p, src)
	if why != "" {
		return why, nil, nil
	}
	sql, err := a.withImages(withoutOrder(a.flat), src, newImages(0))
	if err != nil {
		return "", nil, err
	}
	if why, err := a.confirm(ctx, sql, p.Columns, imagesInput(newImages(0), src)); why != "" || err != nil {
		return why, nil, err
	}
	p.Projection = &Projection{
		New: sql, KeyFrom: from, KeyColumns: keyColumns(keyed), Touched: keyMatch("s", keyed, "mvsync_keys", "k"),
		Bare: a.bareColumns(p, src),
	}
	n := needs{}
	for _, i := range from {
		if i < 0 {
			continue
		}
		n.columns = append(n.columns, src.Columns[i].Name)
	}
	return "", []needs{n}, nil
}

// bareColumns returns [Projection.Bare]: nothing filters the rows, and every output is
// a column of the table itself, of the same type.
func (a *analysis) bareColumns(p *Plan, src *Source) []int {
	tree := a.top.q.child("jointree")
	items := tree.nodes("fromlist")
	if len(items) != 1 || items[0].tag != "RANGETBLREF" || tree.has("quals") || len(p.Hidden) > 0 {
		return nil
	}
	var from []int
	for k, t := range a.top.outputs() {
		e := t.child("expr")
		if e.tag != "VAR" {
			return nil
		}
		c, rest := a.top.resolve(e)
		if rest != nil || c.s != a.top || kind(c.s.rte(c.rt)) != rteRelation || c.s.rte(c.rt).has("tablesample") {
			return nil
		}
		i := slices.IndexFunc(src.Columns, func(sc SourceColumn) bool { return int(sc.Num) == c.attr })
		if i < 0 || src.Columns[i].TypeOID != p.Columns[k].TypeOID || src.Columns[i].Modifier != p.Columns[k].Modifier {
			return nil
		}
		from = append(from, i)
	}
	return from
}

// keyFrom finds the source column behind each column of the view's key, and the
// key's columns without those that are constants, which tell no rows apart.
func (a *analysis) keyFrom(p *Plan, src *Source) (keyed []Column, from []int, why string) {
	outs := a.top.outputs()
	for _, k := range p.Key {
		e := outs[k].child("expr")
		if e.tag == "CONST" {
			from = append(from, -1)
			continue
		}
		c, rest := a.top.bare(e)
		if rest == nil {
			c, _ = c.base()
		}
		i := slices.IndexFunc(src.Columns, func(sc SourceColumn) bool { return int(sc.Num) == c.attr })
		if rest != nil || i < 0 || kind(c.s.rte(c.rt)) != rteRelation {
			return nil, nil, "the key column " + p.Columns[k].Name + " is not a bare column of the table"
		}
		if a.version < 180000 && src.Columns[i].Generated {
			return nil, nil, "the key column " + p.Columns[k].Name + " is generated, and not in the stream before PostgreSQL 18"
		}
		from = append(from, i)
		keyed = append(keyed, p.Columns[k])
	}
	return keyed, from, ""
}
