package plans

import (
	"context"
	"slices"
	"strings"
)

// planJoinSlices is residual-recompute over joins: the touched groups are those
// of the joined rows in the touched slices, in the new state and in the old one.
func planJoinSlices(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	if why := a.top.slicesJoin(); why != "" {
		return why, nil, nil
	}
	sql, scope, err := a.withoutCTEs(ctx, withoutOrder(a.flat), a.top)
	if err != nil {
		return "", nil, err
	}
	s := &slicing{a: a, p: p, scope: scope, sql: sql}
	sel, ok := splitSelect(sql)
	if !ok || len(sel.targets) != len(p.Columns) {
		return "its text cannot be taken apart", nil, nil
	}
	s.sel = sel
	if why, err := s.find(ctx); why != "" || err != nil {
		return why, nil, err
	}
	if why := drifting(s.columns); why != "" {
		return why, nil, nil
	}
	core, err := a.try(ctx, s.keysText(true))
	if err != nil {
		return "", nil, err
	}
	j, why, err := a.newJoinTree(ctx, p, core.text, newScope(a, core.tree, nil), scope.q)
	if why == "" && err == nil {
		why = j.someSlices()
	}
	if why == "" && err == nil {
		why = j.readable()
	}
	if why != "" || err != nil {
		return why, nil, err
	}
	n := j.groupNeeds(core.tree)
	if why, err := j.buildGroups(ctx, s); why != "" || err != nil {
		return why, nil, err
	}
	return "", n, nil
}

// slicesJoin says why the rows of a query over several tables do not split into
// slices, "" where they may.
func (s *scope) slicesJoin() string {
	q := s.q
	switch {
	case q.has("setOperations"):
		return "it is a set operation"
	case q.has("groupingSets"):
		return "grouping sets show a row in several groups"
	case q.is("hasAggs") && !q.has("groupClause"):
		return "its one row depends on every row"
	case q.has("limitCount") || q.has("limitOffset"):
		return "LIMIT looks at other rows"
	case q.is("hasTargetSRFs"):
		return "a set-returning function fans rows out"
	case !q.has("groupClause") && !q.has("distinctClause") && !q.is("hasWindowFuncs"):
		return "its rows do not split into slices"
	case usesTag(q.fields["targetList"], "SUBLINK"), usesTag(q.fields["havingQual"], "SUBLINK"):
		return "a subquery beside the grouping looks at other rows"
	}
	return ""
}

// groupNeeds are the columns that old images must carry so that the old state can
// be joined.
func (j *joinTree) groupNeeds(core *node) []needs {
	out := j.needs()
	for i := range j.p.Sources {
		src := &j.p.Sources[i]
		read := readsIn(core, src.OID)
		out[i].full = read.columns[0] || read.all
		for _, c := range src.Columns {
			if read.columns[int(c.Num)] {
				out[i].add(c.Name)
			}
		}
	}
	return out
}

// Names of common table expressions in the statement that finds touched groups.
const (
	changedRows = "mvsync_changed_"
	touchedRows = "mvsync_touched_"
)

// buildGroups writes the statements for slices by expressions over joined rows.
func (j *joinTree) buildGroups(ctx context.Context, s *slicing) (string, error) {
	p := j.p
	s.withHidden()
	keys := j.groupKeys(len(s.exprs))
	if why := j.widened(); why != "" {
		return why, nil
	}
	slice := Slice{
		Keys: keys, KeyColumns: keyColumns(s.columns), Touched: keyMatch("s", s.columns, touchedKeys(0), "k"),
	}
	eval := p.Eval
	if len(p.Hidden) == 0 {
		eval = s.sql
	}
	s.index()
	j.advise()
	why, err := j.a.oneSlice(ctx, p, slice, restricted(withoutOrder(eval), p.visible(), s.columns, touchedKeys(0)))
	p.Residual.Floor = j.floorSources()
	return why, err
}

// oneSlice makes the residual of one slice over the images of all sources, and
// lets Postgres judge it.
func (a *analysis) oneSlice(ctx context.Context, p *Plan, slice Slice, fresh string) (string, error) {
	for i := range p.Sources {
		slice.Inputs = append(slice.Inputs, i)
	}
	p.Residual = &Residual{Slices: []Slice{slice}, New: fresh, Touched: slice.Touched}
	if why, err := a.confirm(ctx, slice.Keys, slice.KeyColumns, p.inputs()...); why != "" || err != nil {
		return why, err
	}
	return a.confirm(ctx, fresh, p.visible(), input{touchedKeys(0), slice.KeyColumns})
}

// groupKeys gives the groups of the joined rows that hold a touched row of some
// table.
func (j *joinTree) groupKeys(n int) string {
	var ctes, rows []string
	for i := range j.p.Sources {
		src := &j.p.Sources[i]
		if len(src.Key) == 0 {
			continue
		}
		ctes = append(ctes, changedRows+itoa(i)+" AS ("+changedKeys(src, i)+")")
	}
	for _, p := range j.held() {
		ctes = append(ctes, touchedRows+itoa(p.id)+" AS MATERIALIZED ("+first(j.keys(p))+")")
		for i := range p.key {
			p.shown = append(p.shown, j.spell(p, &p.key[i]))
		}
	}
	before := j.oldState(func(src int) string { return changedRows + itoa(src) })
	for _, p := range j.held() {
		cond := refMatch(p.shown, j.keyColumns(p), touchedRows+itoa(p.id), numberedKeys("", len(p.key)))
		rows = append(rows, splice(j.sql, slices.Concat(j.edits, j.root.filtered(cond))...))
		olds := slices.Concat(j.edits, before, j.root.filtered(append(slices.Clone(j.guards), cond)...))
		rows = append(rows, splice(j.sql, olds...))
	}
	for i := range rows {
		rows[i] = "SELECT * FROM (" + rows[i] + ") r"
	}
	return "SELECT * FROM (WITH " + strings.Join(ctes, ",\n") + "\nSELECT DISTINCT " + join(numberedKeys("u.", n)) +
		" FROM (" + strings.Join(rows, "\nUNION ALL ") + ") u) k"
}

func first(sql string, _ []int) string { return sql }

// changedKeys are the keys of a source's changed rows, as k0, k1, ...
func changedKeys(src *Source, i int) string {
	cols := make([]string, len(src.Key))
	for n, k := range src.Key {
		cols[n] = "i." + quoteAlways(src.Columns[k].Name) + " AS " + prefixed("k", n)
	}
	list := "SELECT " + join(cols) + " FROM "
	return list + imageTable(src, newImages(i)) + " i UNION ALL " + list + imageTable(src, oldImages(i)) + " i"
}
