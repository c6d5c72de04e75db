package plans

import (
	"context"
	"slices"
	"strings"
)

// planJoinGroups is residual-recompute for groups over joined tables. The touched
// groups are those of the joined rows with a touched key, in the new state of the
// tables and in the old one, and are run again as a whole.
func planJoinGroups(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	s := a.top
	switch {
	case s.q.has("groupingSets"):
		return "grouping sets show a row in several groups", nil, nil
	case s.q.has("distinctClause") || s.q.is("hasWindowFuncs"):
		return "it looks at groups once more", nil, nil
	case s.q.is("hasSubLinks"):
		return "a subquery looks at other rows", nil, nil
	}
	j := &joins{a: a, p: p}
	if why := j.read(); why != "" {
		return why, nil, nil
	}
	next := 0
	for _, o := range j.top {
		o.first = next
		next += len(o.key)
	}
	for i := range p.Sources {
		if len(p.Sources[i].Key) == 0 {
			return "rows of " + p.Sources[i].Table().String() + " have no key to tell old from new", nil, nil
		}
		if why := a.missingInStream(&p.Sources[i]); why != "" {
			return why, nil, nil
		}
		j.need[i] = a.allColumns(&p.Sources[i])
	}
	return j.buildGroups(ctx)
}

// groups are the output columns by which the body groups, and their text.
func (j *joins) groups() (columns []Column, exprs []string) {
	s := j.a.top
	for _, c := range s.q.nodes("groupClause") {
		t := s.sortGroup(c)
		if t == nil || t.is("resjunk") {
			continue // the slice is a little wider
		}
		i := t.num("resno") - 1
		columns = append(columns, j.p.Columns[i])
		exprs = append(exprs, j.sel.targets[i].expr.of(j.sql))
	}
	return columns, exprs
}

func (j *joins) buildGroups(ctx context.Context) (string, []needs, error) {
	columns, exprs := j.groups()
	if len(columns) == 0 {
		return "its groups are not projected", nil, nil
	}
	keys, err := j.groupKeys(exprs)
	if err != nil {
		return "", nil, err
	}
	p := j.p
	slice := Slice{
		Keys: keys, KeyColumns: keyColumns(columns), New: restricted(withoutOrder(p.Body), p.Columns, columns),
		Touched: keyMatch("s", columns, "mvsync_keys", "k"),
	}
	for i := range p.Sources {
		slice.Inputs = append(slice.Inputs, i)
	}
	p.Eval, p.Residual = p.Body, &Residual{Slices: []Slice{slice}}
	why, err := j.a.confirmSlice(ctx, p, slice)
	return why, j.need, err
}

// groupKeys evaluates the groups over the rows with a touched key.
func (j *joins) groupKeys(exprs []string) (string, error) {
	cols := make([]string, len(exprs))
	for i, e := range exprs {
		cols[i] = e + " AS " + prefixed("k", i)
	}
	var parts []string
	for _, o := range j.top {
		fresh := j.rowsBefore(join(cols), o.match(j.a))
		gone, err := j.oldState(fresh)
		if err != nil {
			return "", err
		}
		for _, sql := range []string{fresh, gone} {
			parts = append(parts, "SELECT * FROM ("+sql+") x"+itoa(len(parts)))
		}
	}
	touched := j.keyColumns()
	return "SELECT * FROM (WITH mvsync_keys AS MATERIALIZED (" + j.keysSQL(touched) + ")\nSELECT DISTINCT * FROM (" +
		strings.Join(parts, "\n  UNION ALL ") + ") u) k", nil
}

// rowsBefore is the body before grouping, with another target list and one
// condition more.
func (j *joins) rowsBefore(list, condition string) string {
	end := j.sel.from.end
	edits := []edit{{j.sel.list, list}}
	if w := j.sel.where; w.empty() {
		edits = append(edits, edit{span{end, end}, " WHERE " + condition})
	} else {
		end = w.end
		edits = append(edits, edit{span{w.start, w.start}, "("}, edit{span{w.end, w.end}, ") AND " + condition})
	}
	return splice(j.sql[:end], edits...)
}

// oldState puts the tables as they were at the view's as-of in the place of the
// tables: without the rows of the batch's images, and with the old ones.
func (j *joins) oldState(sql string) (string, error) {
	refs, err := tableRefs(sql)
	if err != nil {
		return "", err
	}
	var edits []edit
	for _, ref := range refs {
		i := slices.IndexFunc(j.p.Sources, func(s Source) bool { return s.Table() == ref.name })
		if i < 0 {
			continue
		}
		text := oldTable(&j.p.Sources[i], i)
		if !ref.alias {
			text += " " + quoteAlways(ref.name.Name)
		}
		edits = append(edits, edit{span{ref.start, ref.end}, text})
	}
	return splice(sql, edits...), nil
}

// oldTable is one table as it was.
func oldTable(src *Source, i int) string {
	cols := make([]string, len(src.Columns))
	for k, c := range src.Columns {
		cols[k] = c.Name
	}
	same := make([]string, len(src.Key))
	for k, at := range src.Key {
		name := quoteAlways(src.Columns[at].Name)
		same[k] = "i." + name + " = t." + name
	}
	gone := func(images string) string {
		return "NOT EXISTS (SELECT FROM " + images + " i WHERE " + conjunction(same) + ")"
	}
	return "(SELECT " + quoted("t", cols) + " FROM " + quoteAlways(src.Schema) + "." + quoteAlways(src.Name) + " t WHERE " +
		gone(newImages(i)) + " AND " + gone(oldImages(i)) + " UNION ALL SELECT " + quoted("i", cols) + " FROM " + imageTable(src, oldImages(i)) + " i)"
}
