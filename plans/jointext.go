package plans

import (
	"slices"
	"strings"
)

// levelText is a query level in the text: the outermost one, or a plain subquery
// in FROM.
type levelText struct {
	scope  *scope
	sel    *selectText
	parent *levelText
	alias  string // by which the parent knows it
	shown  int    // columns added to its target list
}

// leafText is a table in the text.
type leafText struct {
	level *levelText
	ref   span   // its name, with ONLY
	named bool   // an alias follows
	alias string // by which its columns are spelt, as it stands
	names []string
	guard *guard
}

// guard is where a condition on a table's rows alone can stand so that it acts
// before the join: in the ON of the nearest outer join that may leave it out, else
// in WHERE.
type guard struct {
	on    int  // offset after ON's condition; 0 is WHERE
	below bool // nowhere but below the join
}

// fromReader reads FROM by its tokens, beside the rule tree of the same text.
// Canonical text puts each join into parentheses.
type fromReader struct {
	j     *joinTree
	level *levelText
	toks  []token
	at    int
	ok    bool
}

// readText finds the places in the text.
func (j *joinTree) readText() string {
	sel, ok := splitSelect(j.sql)
	if !ok {
		return "its text cannot be taken apart"
	}
	j.root = &levelText{scope: j.scope, sel: sel}
	if !j.readLevel(j.root) || slices.ContainsFunc(j.places, func(p *site) bool { return !p.apart && p.text == nil }) {
		return "its FROM cannot be taken apart"
	}
	return ""
}

func (j *joinTree) readLevel(l *levelText) bool {
	r := &fromReader{j: j, level: l, toks: l.sel.within(l.sel.from), ok: true}
	for i, item := range l.scope.q.child("jointree").nodes("fromlist") {
		if i > 0 {
			r.take(",")
		}
		r.item(item, &guard{})
	}
	return r.ok && r.at == len(r.toks)
}

func (r *fromReader) peek() token {
	if r.at >= len(r.toks) {
		return token{}
	}
	return r.toks[r.at]
}

// take expects a keyword or sign.
func (r *fromReader) take(word string) {
	if !r.peek().is(word) {
		r.ok = false
		return
	}
	r.at++
}

// skip passes a keyword if it is there.
func (r *fromReader) skip(word string) bool {
	if r.peek().is(word) {
		r.at++
		return true
	}
	return false
}

// parens passes a parenthesis with all in it.
func (r *fromReader) parens() (from, to int) {
	if r.peek().text != "(" {
		r.ok = false
		return r.at, r.at
	}
	from = r.at
	r.at += closes(r.toks[r.at:]) + 1
	return from, r.at
}

func (r *fromReader) item(n *node, g *guard) {
	if !r.ok {
		return
	}
	if n.tag != "JOINEXPR" {
		r.leaf(n, g)
		return
	}
	r.take("(")
	lg, rg := g, g
	switch n.num("jointype") {
	case joinLeft:
		rg = &guard{}
	case joinRight:
		lg = &guard{}
	case joinFull:
		lg, rg = &guard{below: true}, &guard{below: true}
	}
	r.item(n.child("larg"), lg)
	for _, w := range []string{"CROSS", "LEFT", "RIGHT", "FULL"} {
		r.skip(w)
	}
	r.take("JOIN")
	r.item(n.child("rarg"), rg)
	end := 0
	switch {
	case r.skip("ON"):
		_, to := r.parens()
		end = r.toks[max(to, 1)-1].end
	case r.skip("USING"):
		r.parens()
		if r.skip("AS") {
			r.at++
		}
	}
	for _, side := range []*guard{lg, rg} {
		if side != g {
			side.on, side.below = end, side.below || end == 0
		}
	}
	r.take(")")
	r.alias()
}

// leafEnd words end an item that is no join.
var leafEnd = wordSet(`, ) JOIN CROSS LEFT RIGHT FULL ON USING`)

// alias passes an alias and its columns.
func (r *fromReader) alias() (name string, columns []string) {
	if r.at >= len(r.toks) || leafEnd[strings.ToUpper(r.peek().text)] || r.peek().text == "(" {
		return "", nil
	}
	r.skip("AS")
	name = r.peek().text
	r.at++
	if r.peek().text == "(" {
		from, to := r.parens()
		for _, t := range r.toks[from+1 : to-1] {
			if t.text != "," {
				columns = append(columns, t.text)
			}
		}
	}
	return name, columns
}

func (r *fromReader) leaf(n *node, g *guard) {
	rt := n.num("rtindex")
	rte := r.level.scope.rte(rt)
	r.skip("LATERAL")
	switch {
	case kind(rte) == rteRelation:
		r.table(rt, g)
	case kind(rte) == rteSubquery && r.peek().text == "(":
		from, to := r.parens()
		name, columns := r.alias()
		sub := r.level.scope.sub(rte)
		if !r.ok || sub == nil || name == "" {
			return
		}
		if !sub.isPlain() {
			r.notPlain(rt, g, span{r.toks[from].start, r.toks[to-1].end}, r.toks[from+1:to-1], name, columns)
			return
		}
		l := &levelText{scope: sub, parent: r.level, alias: name}
		l.sel = &selectText{sql: r.j.sql, toks: r.toks[from+1 : to-1]}
		r.ok = l.sel.split() && r.j.readLevel(l)
	default:
		r.pass()
	}
}

// notPlain notes where a grouping or the like stands.
func (r *fromReader) notPlain(rt int, g *guard, at span, inner []token, name string, columns []string) {
	e := entryRef{r.level.scope, rt}
	r.j.texts[e] = span{inner[0].start, inner[len(inner)-1].end}
	sel := &selectText{sql: r.j.sql, toks: inner}
	if sel.split() {
		r.j.lists[e] = sel.list.end
	}
	t := &leafText{level: r.level, guard: g, ref: at, named: true, alias: name, names: columns}
	r.j.grouped[e] = t
	p, ok := r.j.derivedAt(e.s, rt)
	if !ok {
		return
	}
	p.text = t
	if p.derived.extra != "" {
		end := r.j.lists[e]
		r.j.edits = append(r.j.edits, edit{span{end, end}, p.derived.extra})
	}
}

// pass skips an item of which nothing is needed.
func (r *fromReader) pass() {
	for r.at < len(r.toks) && !leafEnd[strings.ToUpper(r.peek().text)] {
		if r.peek().text == "(" {
			r.parens()
			continue
		}
		r.at++
	}
}

func (r *fromReader) table(rt int, g *guard) {
	t := &leafText{level: r.level, guard: g}
	t.ref.start = r.peek().start
	r.skip("ONLY")
	if r.at+2 >= len(r.toks) || r.toks[r.at+1].text != "." {
		r.ok = false
		return
	}
	t.alias, t.ref.end = r.toks[r.at+2].text, r.toks[r.at+2].end
	r.at += 3
	r.skip("*")
	if name, columns := r.alias(); name != "" {
		t.named, t.alias, t.names = true, name, columns
	}
	if r.peek().is("TABLESAMPLE") {
		r.ok = false
	}
	for _, i := range r.j.below[entryRef{r.level.scope, rt}] {
		r.j.places[i].text = t
	}
}

// spell writes a column of a place as the outermost level sees it, and notes the
// edits that carry it there.
func (j *joinTree) spell(p *site, at *attribute) string {
	t := p.text
	name := quoteAlways(at.Name)
	if len(t.names) > 0 {
		i := slices.IndexFunc(p.rel.attrs, func(a attribute) bool { return a.Num == at.Num })
		if i >= 0 && i < len(t.names) {
			name = t.names[i]
		}
	}
	text := t.alias + "." + name
	for l := t.level; l.parent != nil; l = l.parent {
		shown := prefixed("mvsync_x"+itoa(p.id)+"_", l.shown)
		l.shown++
		j.edits = append(j.edits, edit{span{l.sel.list.end, l.sel.list.end}, ", " + text + " AS " + shown})
		text = l.alias + "." + shown
	}
	return text
}

// widened declines where columns were added to a query of which something reads whole
// rows: it would see them.
func (j *joinTree) widened() string {
	if len(j.edits) > 0 && j.scope.readsRows() {
		return "it reads rows of a subquery as a whole"
	}
	return ""
}

// readsRows reports whether a query, or one in it, reads whole rows of a subquery.
func (s *scope) readsRows() bool {
	found := false
	for _, f := range s.q.fields {
		walk(f, func(n *node) bool {
			switch n.tag {
			case "QUERY":
				found = found || newScope(s.a, n, s).readsRows()
				return false
			case "VAR":
				at := s
				for range n.num("varlevelsup") {
					if at = at.parent; at == nil {
						return true
					}
				}
				k := kind(at.rte(n.num("varno")))
				found = found || n.num("varattno") == 0 && (k == rteSubquery || k == rteCTE)
			}
			return true
		})
	}
	return found
}

// filtered are the edits that add conditions to the WHERE of a level.
func (l *levelText) filtered(conds ...string) []edit {
	if len(conds) == 0 {
		return nil
	}
	text := conjunction(conds)
	if l.sel.where.empty() {
		return []edit{{span{l.sel.from.end, l.sel.from.end}, "\n  WHERE " + text}}
	}
	return []edit{
		{span{l.sel.where.start, l.sel.where.start}, "("},
		{span{l.sel.where.end, l.sel.where.end}, ") AND " + text},
	}
}

// oldState are the edits that evaluate the text over the state before the batch:
// each table without the rows that changed, and with their old images. Where it
// can, the condition on changed rows stands beside the join's, so that Postgres
// still finds rows by an index. Changed names, for each source, a relation of
// changed keys.
func (j *joinTree) oldState(changed func(src int) string) []edit {
	refs, err := tableRefs(j.sql)
	if err != nil {
		return nil
	}
	var out []edit
	where := map[*levelText][]string{}
	on := map[int][]string{}
	done := map[int]bool{}
	for _, p := range j.places {
		if p.text == nil || p.derived != nil {
			continue
		}
		done[p.text.ref.start] = true
		src := &j.p.Sources[p.src]
		marked := !p.text.guard.below && len(src.Key) > 0 && !src.Inherits
		text := j.oldTable(src, changed(p.src), marked)
		if !p.text.named {
			text += " " + p.text.alias
		}
		out = append(out, edit{p.text.ref, text})
		if !marked {
			continue
		}
		cond := "(" + p.text.alias + ".mvsync_gone OR " + j.unchanged(p.text.alias, p, changed(p.src)) + ")"
		if p.text.guard.on > 0 {
			on[p.text.guard.on] = append(on[p.text.guard.on], cond)
		} else {
			where[p.text.level] = append(where[p.text.level], cond)
		}
	}
	for _, ref := range refs {
		i := slices.IndexFunc(j.p.Sources, func(s Source) bool { return s.Table() == ref.name })
		if i < 0 || done[ref.start] {
			continue
		}
		text := j.oldTable(&j.p.Sources[i], changed(i), false)
		if !ref.alias {
			text += " " + quoteAlways(ref.name.Name)
		}
		out = append(out, edit{span{ref.start, ref.end}, text})
	}
	for at, conds := range on {
		slices.Sort(conds)
		out = append(out, edit{span{at, at}, " AND " + conjunction(conds)})
	}
	for l, conds := range where {
		if l != j.root { // the outermost level is the caller's
			out = append(out, l.filtered(conds...)...)
		}
	}
	j.guards = where[j.root]
	return out
}

// unchanged: the row is none of those that changed.
func (j *joinTree) unchanged(alias string, p *site, changed string) string {
	src := &j.p.Sources[p.src]
	var refs []string
	for _, k := range src.Key {
		name := quoteAlways(src.Columns[k].Name)
		if len(p.text.names) > 0 {
			i := slices.IndexFunc(p.rel.attrs, func(a attribute) bool { return a.Name == src.Columns[k].Name })
			name = p.text.names[i]
		}
		refs = append(refs, alias+"."+name)
	}
	return missKeys(refs, j.sourceKey(src), changed)
}

// sourceKey are the columns by which a source's changes are netted.
func (j *joinTree) sourceKey(src *Source) []Column {
	out := make([]Column, len(src.Key))
	for i, k := range src.Key {
		c := src.Columns[k]
		out[i] = Column{
			Name: c.Name, Type: c.Type, TypeOID: c.TypeOID, Modifier: c.Modifier, NotNull: c.NotNull, HasArray: c.HasArray,
			Equal: j.a.equal(c.TypeOID), Collation: c.Collation,
		}
	}
	return out
}

// oldTable is a table as it was before the batch. Marked: with the changed rows
// that are there still, and a column that says which are old images. Rows without
// a key of their own are told apart by their content.
func (j *joinTree) oldTable(src *Source, changed string, marked bool) string {
	var cols []string
	for _, c := range src.Columns {
		cols = append(cols, "x."+quoteAlways(c.Name))
	}
	list, table := join(cols), quoteAlways(src.Schema)+"."+quoteAlways(src.Name)+" x"
	if j.a.readsOf(src.OID).onlySelf {
		table = "ONLY " + table
	}
	i := slices.IndexFunc(j.p.Sources, func(s Source) bool { return s.Table() == src.Table() })
	gone, fresh := imageTable(src, oldImages(i))+" x", imageTable(src, newImages(i))+" x"
	if marked {
		// OFFSET 0 keeps the images a subquery: Postgres parameterizes that, and so the
		// whole union, where it would not a common table expression.
		return "(SELECT " + list + ", false AS mvsync_gone FROM " + table + " UNION ALL (SELECT " + list + ", true FROM " + gone + " OFFSET 0))"
	}
	was := " UNION ALL SELECT " + list + " FROM " + gone + ")"
	if len(src.Key) == 0 {
		return "((SELECT " + list + " FROM " + table + " EXCEPT ALL SELECT " + list + " FROM " + fresh + ")" + was
	}
	refs := make([]string, len(src.Key))
	for n, k := range src.Key {
		refs[n] = "x." + quoteAlways(src.Columns[k].Name)
	}
	key := j.sourceKey(src)
	text := "(SELECT " + list + " FROM " + table + " WHERE " + missKeys(refs, key, changed)
	if src.Inherits {
		// The key is unique for each child only.
		text += " UNION ALL (SELECT " + list + " FROM " + table + " WHERE " + refMatch(refs, key, changed, numberedKeys("", len(refs))) +
			" EXCEPT ALL SELECT " + list + " FROM " + fresh + ")"
	}
	return text + was
}
