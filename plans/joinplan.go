package plans

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// planJoin is the arm of join-residual: rows are addressed by the keys of the rows
// that they are made of.
func planJoin(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	switch {
	case a.top.q.has("setOperations"):
		return "it is a set operation", nil, nil
	case a.top.q.has("groupClause") || a.top.q.has("groupingSets") || a.top.q.is("hasAggs"):
		return "it groups rows", nil, nil
	case a.top.q.has("distinctClause"):
		return "DISTINCT merges rows", nil, nil
	case !a.top.isPlain():
		return "a window function or LIMIT looks at other rows", nil, nil
	}
	sql, scope, err := a.withoutCTEs(ctx, withoutOrder(a.flat), a.top)
	if err != nil {
		return "", nil, err
	}
	j, why, err := a.newJoinTree(ctx, p, sql, scope, scope.q)
	if why == "" && err == nil {
		why = j.someSlices()
	}
	if why != "" || err != nil {
		return why, nil, err
	}
	j.findStored()
	if why := cmp.Or(j.readable(), j.widened()); why != "" {
		return why, nil, nil
	}
	if why, err := j.build(ctx); why != "" || err != nil {
		return why, nil, err
	}
	return "", j.needs(), nil
}

// held are the places whose rows stand in output rows.
func (j *joinTree) held() []*site {
	return slices.DeleteFunc(slices.Clone(j.places), func(p *site) bool { return p.apart })
}

// someSlices declines where any change would touch everything.
func (j *joinTree) someSlices() string {
	if len(j.floor) == len(j.p.Sources) {
		return "a change of any of its tables may touch every row"
	}
	if len(j.held()) == 0 {
		return "its rows hold no row of a table"
	}
	return ""
}

// findKeys finds the columns by which each table's rows are known: those of its
// key, or all, where it has none. They need not be unique.
func (j *joinTree) findKeys() string {
	for _, p := range j.places {
		if p.derived != nil {
			j.neverNull(p)
			continue
		}
		src := &j.p.Sources[p.src]
		columns := src.Key
		if len(columns) == 0 {
			columns = make([]int, len(src.Columns))
			for i := range columns {
				columns[i] = i
			}
		}
		for _, k := range columns {
			at := p.rel.attr(int(src.Columns[k].Num))
			if at != nil && (len(src.Key) > 0 || j.a.equal(at.TypeOID) != "") {
				p.key = append(p.key, *at)
			}
		}
		if len(p.key) == 0 {
			return "rows of " + src.Table().String() + " have nothing by which they could be told apart"
		}
		j.neverNull(p)
	}
	return ""
}

// neverNull takes a key's column for NOT NULL where rows with NULL are never seen: a key
// of NULL looks like no row.
func (j *joinTree) neverNull(p *site) {
	for i := range p.key {
		p.key[i].NotNull = p.key[i].NotNull || j.never[columnRef{p.id, int(p.key[i].Num)}]
	}
}

// findStored finds the stored columns that hold the keys, and hides those that are
// not projected. A column that the body equates with a key column serves as well,
// unless one of the two may be absent.
func (j *joinTree) findStored() {
	for _, p := range j.held() {
		for i := range p.key {
			at := &p.key[i]
			p.shown = append(p.shown, j.spell(p, at))
			c, ok := j.projected(columnRef{p.id, int(at.Num)}, at)
			if !ok {
				c = j.hide(p, at)
			}
			c.NotNull = at.NotNull // keys are what is looked for: absent rows have none
			p.stored = append(p.stored, c)
		}
	}
}

// projected finds an output column that shows a column of a place.
func (j *joinTree) projected(want columnRef, at *attribute) (Column, bool) {
	for _, wanted := range j.alike(want) {
		for i, t := range j.scope.outputs() {
			e := t.child("expr")
			got, ok := j.column(j.scope, e)
			c := j.p.Columns[i]
			if ok && got == wanted && e.tag == "VAR" && c.Type == at.Type && c.Collation == j.a.collationName(at.Collation, at.TypeOID) {
				return c, true
			}
		}
	}
	return Column{}, false
}

// hide keeps a key column beside the table.
func (j *joinTree) hide(p *site, at *attribute) Column {
	c := j.a.keyColumn(*at)
	c.Name = j.a.freeName(j.p, "mvsync_"+p.name()+"_"+at.Name)
	c.NotNull = at.NotNull && !p.nullable
	j.p.Hidden = append(j.p.Hidden, c)
	return c
}

// freeName lengthens a name until no column of the plan has it. Names end at 63
// bytes.
func (a *analysis) freeName(p *Plan, name string) string {
	name = strings.ToValidUTF8(name[:min(len(name), 55)], "")
	for slices.ContainsFunc(p.visible(), func(c Column) bool { return c.Name == name }) {
		name += "_"
	}
	return name
}

// readable declines where walks need old values that no identity brings.
func (j *joinTree) readable() string {
	for _, w := range j.walks {
		if j.places[w.start()].derived != nil || j.fromStored(w) {
			continue
		}
		only := j.p.Sources[j.places[w.start()].src]
		only.Columns = slices.DeleteFunc(slices.Clone(only.Columns), func(c SourceColumn) bool { return !slices.Contains(j.firstColumns(w), c.Name) })
		if why := j.a.missingInStream(&only); why != "" {
			return why
		}
	}
	return ""
}

// build writes the statements of join-residual.
func (j *joinTree) build(ctx context.Context) (string, error) {
	j.p.Eval = j.text(nil)
	r := &Residual{Floor: j.floorSources()}
	var arms []string
	var earlier []*site
	var keys []input
	for i, p := range j.held() {
		sql, inputs := j.keys(p)
		refs := make([]string, len(p.stored))
		for k, c := range p.stored {
			refs[k] = "s." + quoteAlways(c.Name)
		}
		names := numberedKeys("", len(p.key))
		slice := Slice{
			Keys: sql, Inputs: inputs, Stored: strings.Contains(sql, " mvsync_stored "), KeyColumns: j.keyColumns(p),
			Touched: refMatch(refs, p.stored, touchedKeys(i), names),
		}
		conds := []string{refMatch(p.shown, p.stored, touchedKeys(i), names)}
		for k, e := range earlier {
			conds = append(conds, missKeys(e.shown, e.stored, touchedKeys(k)))
		}
		edits, more := j.pushed(p, touchedKeys(i))
		arms = append(arms, "SELECT "+qualify("q", j.p.visible())+" FROM ("+j.text(slices.Concat(conds, more), edits...)+") q")
		earlier = append(earlier, p)
		keys = append(keys, input{touchedKeys(i), slice.KeyColumns})
		r.Slices = append(r.Slices, slice)
		if why, err := j.a.confirm(ctx, sql, slice.KeyColumns, j.p.inputs()...); why != "" || err != nil {
			return why, err
		}
	}
	r.New, r.Touched = strings.Join(arms, "\nUNION ALL\n"), either(r.Slices)
	j.p.Residual = r
	j.index()
	j.advise()
	return j.a.confirm(ctx, r.New, j.p.visible(), keys...)
}

// text is the body with hidden columns, further conditions and further edits.
func (j *joinTree) text(conds []string, more ...edit) string {
	edits := slices.Concat(j.edits, more)
	hidden := ""
	next := 0
	for _, p := range j.held() {
		for i, c := range p.stored {
			if next < len(j.p.Hidden) && c.Name == j.p.Hidden[next].Name {
				hidden += ", " + p.shown[i] + " AS " + quoteAlways(c.Name)
				next++
			}
		}
	}
	end := j.root.sel.list.end
	edits = append(edits, edit{span{end, end}, hidden})
	return splice(j.sql, append(edits, j.root.filtered(conds...)...)...)
}

// inputs are the images of all sources, and the stored rows.
func (p *Plan) inputs() []input {
	var out []input
	for i := range p.Sources {
		out = append(out, imagesInput(newImages(i), &p.Sources[i]), imagesInput(oldImages(i), &p.Sources[i]))
	}
	return append(out, input{"mvsync_stored", p.visible()})
}

// index asks for indexes by which stored rows are found: none where the columns
// begin the view's key.
func (j *joinTree) index() {
	for _, p := range j.held() {
		var visible, hidden []string
		var at []int
		for _, c := range p.stored {
			if i := slices.IndexFunc(j.p.Columns, func(o Column) bool { return o.Name == c.Name }); i >= 0 {
				visible, at = append(visible, quoteAlways(c.Name)), append(at, i)
				continue
			}
			hidden = append(hidden, quoteAlways(c.Name))
		}
		begins := len(at) <= len(j.p.Key) && !slices.ContainsFunc(at, func(i int) bool { return !slices.Contains(j.p.Key[:len(at)], i) })
		if len(visible) > 0 && !begins {
			j.p.Indexes = addOnce(j.p.Indexes, join(visible))
		}
		if len(hidden) > 0 {
			j.p.HiddenIndexes = addOnce(j.p.HiddenIndexes, join(hidden))
		}
	}
}

func addOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// advise notes the look-ups by conditions, and names the sources that cost a whole
// evaluation.
func (j *joinTree) advise() {
	for _, i := range j.floorSources() {
		j.p.Advice = append(j.p.Advice, fmt.Sprintf("a change of %s may touch every row, so that the view is evaluated as a whole in such a round",
			j.p.Sources[i].Table()))
	}
	for _, p := range j.places {
		if p.derived != nil && p.derived.index != nil {
			j.a.lookUp(p.derived.index.rel, p.derived.index.exprs...)
		}
	}
	for _, c := range j.lookups() {
		p := j.places[c.place]
		if p.derived != nil {
			continue
		}
		if at := p.rel.attr(c.attr); at != nil {
			j.a.lookUpColumn(p.rel, at.Name)
		}
	}
}

// lookups are the columns by which rows of one table are found from another's.
func (j *joinTree) lookups() []columnRef {
	var out []columnRef
	for _, c := range j.met {
		for _, col := range c.cols {
			if c.equality && !slices.Contains(out, col) {
				out = append(out, col)
			}
		}
	}
	return out
}

// maxCTEs bounds how many common table expressions are put in place.
const maxCTEs = 64

// withoutCTEs puts the common table expressions of a text in the place of their
// names, and lets Postgres analyse the result. What it cannot do it leaves.
func (a *analysis) withoutCTEs(ctx context.Context, sql string, s *scope) (string, *scope, error) {
	changed := false
	for range maxCTEs {
		next, ok := inlineCTE(sql)
		if !ok {
			break
		}
		sql, changed = next, true
	}
	if !changed {
		return sql, s, nil
	}
	d, err := a.try(ctx, sql)
	if err != nil {
		return "", nil, err
	}
	return d.text, newScope(a, d.tree, nil), nil
}

// inlineCTE puts the first common table expression of the outermost level in
// place: it names none of the others.
func inlineCTE(sql string) (string, bool) {
	sel, ok := splitSelect(sql)
	if !ok || sel.with.empty() {
		return sql, false
	}
	toks := sel.within(sel.with)
	names, err := cteNames(sql)
	if err != nil || len(toks) < 5 || toks[1].is("RECURSIVE") || !toks[2].is("AS") {
		return sql, false
	}
	name, at := unquoteIdent(toks[1].text), 3
	for toks[at].is("NOT") || toks[at].is("MATERIALIZED") {
		at++
	}
	same := slices.DeleteFunc(names, func(n string) bool { return n != strings.ToLower(name) })
	if toks[at].text != "(" || len(same) != 1 {
		return sql, false
	}
	end := at + closes(toks[at:])
	body := sql[toks[at].start:toks[end].end]
	refs, err := tableRefs(sql)
	if err != nil {
		return sql, false
	}
	cut := span{toks[0].start, toks[end].end}
	if end+1 < len(toks) {
		cut = span{toks[1].start, toks[end+1].end} // with the comma
	}
	edits := []edit{{cut, ""}}
	for _, ref := range refs {
		if ref.name != (Name{"", name}) {
			continue
		}
		text := body
		if !ref.alias {
			text += " " + quoteAlways(name)
		}
		edits = append(edits, edit{span{ref.start, ref.end}, text})
	}
	return splice(sql, edits...), true
}
