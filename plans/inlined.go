package plans

import (
	"context"
	"slices"
)

// inlined is the body over base tables alone, for a view that reads other declared
// views together with tables; "" for others, and where a view that it reads does
// not hold exactly what its body gives.
func (a *analysis) inlined(ctx context.Context, p *Plan) (string, error) {
	views := 0
	for i := range p.Sources {
		if p.Sources[i].Producer {
			views++
		}
	}
	if views == 0 || views == len(p.Sources) {
		return "", nil
	}
	text, ok := a.overTables(a.flat, p.Sources)
	if !ok {
		return "", nil
	}
	why, err := a.confirm(ctx, text, p.Columns)
	if why != "" {
		text = ""
	}
	return text, err
}

// overTables puts the bodies of declared views in the place of their names in a
// text that reads the sources. It says no where one of them is not named there,
// since a plain view stands between.
func (a *analysis) overTables(sql string, sources []Source) (string, bool) {
	refs, err := tableRefs(sql)
	if err != nil {
		return "", false
	}
	var edits []edit
	for i := range sources {
		if !sources[i].Producer {
			continue
		}
		name := sources[i].Table()
		producer := a.o.Producers[name]
		named := slices.ContainsFunc(refs, func(r tableRef) bool { return r.name == name })
		if producer == nil || !named || len(producer.Coarsened) > 0 || producer.Nondeterministic {
			return "", false
		}
		body, ok := a.overTables(producer.Body, producer.Sources)
		if !ok {
			return "", false
		}
		for _, ref := range refs {
			if ref.name != name {
				continue
			}
			text := "(" + body + ")"
			if !ref.alias {
				text += " " + quoteAlways(name.Name)
			}
			edits = append(edits, edit{span{ref.start, ref.end}, text})
		}
	}
	return splice(sql, edits...), true
}
