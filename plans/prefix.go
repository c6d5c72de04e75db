package plans

import (
	"context"
	"slices"
)

// planPrefix is the arm of prefix-delete: set-returning functions fan out each row
// of one table, so that a changed row's images give all rows of its slice, and its
// key finds the stored ones.
func planPrefix(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	s := a.top
	switch {
	case len(p.Coarsened) > 0:
		return "its key is coarsened", nil, nil
	case s.q.has("setOperations") || s.q.has("groupClause") || s.q.has("groupingSets") || s.q.is("hasAggs") || s.q.has("distinctClause"):
		return "it merges rows", nil, nil
	case s.q.is("hasWindowFuncs"):
		return "a window function looks at other rows", nil, nil
	case s.q.is("hasSubLinks"):
		return "a subquery looks at other rows", nil, nil
	case !slices.ContainsFunc(s.rtable, func(rte *node) bool { return kind(rte) == rteFunction }):
		return "no function in FROM fans rows out", nil, nil
	}
	j := &joins{a: a, p: p, functions: true}
	why := j.read()
	if why == "" && len(j.top) != 1 {
		why = "it joins tables"
	}
	if why == "" {
		why = a.onlyTable(j.top[0].rel)
	}
	if why != "" {
		return why, nil, nil
	}
	j.findStored()
	return j.buildPrefix(ctx)
}

// buildPrefix writes the statements.
func (j *joins) buildPrefix(ctx context.Context) (string, []needs, error) {
	p, o, src := j.p, j.top[0], &j.p.Sources[0]
	sql := j.sql
	p.Eval = p.Body
	if len(j.hidden) > 0 {
		sql = splice(sql, edit{span{j.sel.list.end, j.sel.list.end}, ", " + join(j.hidden)})
		p.Eval = sql
	}
	fresh, err := j.a.withImages(sql, src, newImages(0))
	if err != nil {
		return "", nil, err
	}
	arm := &Projection{New: fresh}
	stored := slices.Clone(o.stored)
	for i, name := range o.key {
		stored[i].NotNull = true
		arm.KeyFrom = append(arm.KeyFrom, src.Column(name))
	}
	arm.KeyColumns = keyColumns(stored)
	arm.Touched = keyMatch("s", stored, "mvsync_keys", "k")
	p.Projection = arm
	j.indexes()
	if why, err := j.a.confirm(ctx, arm.New, p.visible(), imagesInput(newImages(0), src)); why != "" || err != nil {
		return why, nil, err
	}
	return "", []needs{{columns: o.key}}, nil
}
