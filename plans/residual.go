package plans

import (
	"context"
	"slices"
)

// slicing is a body whose rows split into slices by expressions over the rows of
// its one table.
type slicing struct {
	a     *analysis
	p     *Plan
	src   *Source
	from  int // its index
	scope *scope
	sql   string // flat text without ORDER BY
	sel   *selectText
	exprs []string // the slice's expressions as text
	// outputs are the output columns that show them, -1 for those that need a
	// hidden one.
	outputs []int
	columns []Column // as they stand in the stored row
	read    needs    // what old images must carry
}

// planResidual is the arm of residual-recompute.
func planResidual(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	if a.top.q.has("setOperations") {
		return planSetOperation(ctx, a, p)
	}
	if _, why := a.top.sliceFrom(); why != "" || len(a.sources) > 1 || a.readsOf(a.sources[0].OID).places > 1 {
		return planJoinSlices(ctx, a, p)
	}
	s, why, err := a.slicing(ctx, p)
	if why != "" || err != nil {
		return why, nil, err
	}
	if why, err := s.build(ctx); why != "" || err != nil {
		return why, nil, err
	}
	return "", []needs{s.read}, nil
}

// slicing checks that the body reads one table, and finds its slices.
func (a *analysis) slicing(ctx context.Context, p *Plan) (*slicing, string, error) {
	r, why := a.top.sliceFrom()
	if why == "" {
		why = a.onlyTable(r)
	}
	if why != "" {
		return nil, why, nil
	}
	s := &slicing{a: a, p: p, src: &p.Sources[0], scope: a.top, sql: withoutOrder(a.flat)}
	sel, ok := splitSelect(s.sql)
	if !ok || len(sel.targets) != len(p.Columns) {
		return nil, "its text cannot be taken apart", nil
	}
	s.sel = sel
	why, err := s.find(ctx)
	return s, why, err
}

// sliceFrom is plainFrom where windows are allowed at this level.
func (s *scope) sliceFrom() (*relation, string) {
	switch {
	case s.q.has("groupingSets"):
		return nil, "grouping sets show a row in several groups"
	case s.q.is("hasAggs") && !s.q.has("groupClause"):
		return nil, "its one row depends on every row"
	case s.q.is("hasWindowFuncs"):
		without := &node{tag: s.q.tag, fields: map[string]any{}}
		for f, v := range s.q.fields {
			without.fields[f] = v
		}
		without.fields["hasWindowFuncs"] = atom("false")
		return newScope(s.a, without, s.parent).plainFrom()
	case !s.q.has("groupClause") && !s.q.has("distinctClause"):
		return nil, "its rows do not split into slices"
	}
	return s.plainFrom()
}

// find collects the slice's expressions: what every level of grouping has in
// common.
func (s *slicing) find(ctx context.Context) (string, error) {
	var common []*node
	started := false
	meet := func(clauses []*node) {
		exprs := s.scope.clauseExprs(clauses)
		if !started {
			common, started = exprs, true
			return
		}
		common = slices.DeleteFunc(common, func(e *node) bool {
			return !slices.ContainsFunc(exprs, func(o *node) bool { return s.scope.sameExpr(e, o) })
		})
	}
	q := s.scope.q
	for _, w := range q.nodes("windowClause") {
		meet(w.nodes("partitionClause"))
	}
	if q.has("groupClause") {
		meet(q.nodes("groupClause"))
	}
	if q.has("distinctClause") {
		meet(q.nodes("distinctClause"))
	}
	for _, e := range common {
		if why, err := s.addExpr(ctx, e); why != "" || err != nil {
			return why, err
		}
	}
	if len(s.exprs) == 0 {
		return "its rows do not split into slices", nil
	}
	return "", nil
}

// addExpr finds the text of a slice's expression: that of an output column, or
// of PARTITION BY.
func (s *slicing) addExpr(ctx context.Context, e *node) (string, error) {
	if usesTag(e, "AGGREF", "WINDOWFUNC", "SUBLINK") {
		return "", nil // no column of the table's rows: the slice is a little wider
	}
	if i := s.shows(e); i >= 0 {
		s.exprs = append(s.exprs, s.sel.targets[i].expr.of(s.sql))
		s.outputs = append(s.outputs, i)
		s.columns = append(s.columns, s.p.Columns[i])
		return "", nil
	}
	return s.addHidden(ctx, e)
}

// shows finds the output column that is the expression, else one that is a cast of it, which makes the same slices where
// equal values have one text; -1 where there is none.
func (s *slicing) shows(e *node) int {
	outs := s.scope.outputs()
	i := slices.IndexFunc(outs, func(t *node) bool { return s.scope.sameExpr(t.child("expr"), e) })
	if i >= 0 || !s.a.exactExpr(e) {
		return i
	}
	return slices.IndexFunc(outs, func(t *node) bool { return s.scope.sameExpr(s.scope.uncast(t.child("expr")), e) })
}

// addHidden keeps a PARTITION BY expression that is not projected beside the
// table. A grouped expression that is not projected is left out.
func (s *slicing) addHidden(ctx context.Context, e *node) (string, error) {
	for _, text := range s.sel.partitions() {
		d, err := s.a.try(ctx, splice(s.core(true), edit{s.sel.list, text + " AS k"}))
		if err != nil {
			return "", err
		}
		sc := newScope(s.a, d.tree, nil)
		got := sc.outputs()[0].child("expr")
		if !equalTrees(stripLocations(got), stripLocations(s.scope.plain(e))) {
			continue
		}
		if sc.dependence(0) == Float {
			return "", nil // computed again it would come out otherwise
		}
		at := d.columns[0]
		c := Column{
			Name: prefixed("mvsync_k", len(s.p.Hidden)), Type: at.Type, TypeOID: at.TypeOID, Modifier: at.Modifier,
			Collation: s.a.collationName(at.Collation, at.TypeOID), NotNull: sc.solid(got), Equal: s.a.equal(at.TypeOID),
			HasArray: s.a.types[at.TypeOID] != nil && s.a.types[at.TypeOID].HasArray,
		}
		for slices.ContainsFunc(s.p.visible(), func(o Column) bool { return o.Name == c.Name }) {
			c.Name += "_"
		}
		s.p.Hidden = append(s.p.Hidden, c)
		s.exprs = append(s.exprs, text)
		s.outputs = append(s.outputs, -1)
		s.columns = append(s.columns, c)
		return "", nil
	}
	return "", nil // not in the text: the other expressions' slices are wider
}

// stripLocations copies a tree without what depends on its place.
func stripLocations(n *node) *node {
	out := &node{tag: n.tag, fields: make(map[string]any, len(n.fields))}
	for f, v := range n.fields {
		switch f {
		case "location", "varnosyn", "varattnosyn", "varnullingrels", "ressortgroupref":
			continue
		}
		out.fields[f] = stripValue(v)
	}
	return out
}

func stripValue(v any) any {
	switch v := v.(type) {
	case *node:
		return stripLocations(v)
	case list:
		items := make([]any, len(v.items))
		for i, item := range v.items {
			items[i] = stripValue(item)
		}
		return list{v.kind, items}
	}
	return v
}

// partitions lists the expressions of every PARTITION BY in the target list and
// the WINDOW clause.
func (s *selectText) partitions() []string {
	var out []string
	for i := 0; i+1 < len(s.toks); i++ {
		if !s.toks[i].is("PARTITION") || !s.toks[i+1].is("BY") {
			continue
		}
		from, to, depth := i+2, i+2, 0
		for ; to < len(s.toks); to++ {
			t := s.toks[to]
			switch t.text {
			case "(", "[":
				depth++
			case ")", "]":
				depth--
			}
			if depth < 0 || depth == 0 && (t.is("ORDER") || t.is("ROWS") || t.is("RANGE") || t.is("GROUPS")) {
				break
			}
		}
		for _, part := range s.commas(from, to) {
			out = append(out, s.span(part[0], part[1]).of(s.sql))
		}
	}
	return out
}

// core is the text up to FROM and, if asked, WHERE: the rows before grouping.
func (s *slicing) core(where bool) string {
	end := s.sel.from.end
	if where && !s.sel.where.empty() {
		end = s.sel.where.end
	}
	text := s.sql[:end]
	if s.sel.distinct.empty() {
		return text
	}
	// Blank out DISTINCT, so that positions stay.
	return text[:s.sel.distinct.start] + spaces(s.sel.distinct.end-s.sel.distinct.start) + text[s.sel.distinct.end:]
}

func spaces(n int) string { return string(slices.Repeat([]byte{' '}, n)) }

// keysText gives the slices of the table's rows.
func (s *slicing) keysText(where bool) string {
	cols := make([]string, len(s.exprs))
	for i, e := range s.exprs {
		cols[i] = e + " AS " + prefixed("k", i)
	}
	return splice(s.core(where), edit{s.sel.list, join(cols)})
}

// build writes the statements.
func (s *slicing) build(ctx context.Context) (string, error) {
	where, err := s.readKeys(ctx)
	if err != nil {
		return "", err
	}
	if why := s.generated(); why != "" {
		return why, nil
	}
	s.withHidden()
	keys, err := s.imageKeys(s.keysText(where))
	if err != nil {
		return "", err
	}
	slice := Slice{
		Keys: keys, Inputs: []int{0}, KeyColumns: keyColumns(s.columns), Touched: keyMatch("s", s.columns, touchedKeys(0), "k"),
	}
	fresh := restricted(withoutOrder(s.p.Eval), s.p.visible(), s.columns, touchedKeys(0))
	s.p.Residual = &Residual{Slices: []Slice{slice}, New: fresh, Touched: slice.Touched}
	s.indexes()
	images := []input{imagesInput(newImages(0), s.src), imagesInput(oldImages(0), s.src)}
	if why, err := s.a.confirm(ctx, slice.Keys, slice.KeyColumns, images...); why != "" || err != nil {
		return why, err
	}
	return s.a.confirm(ctx, fresh, s.p.visible(), input{touchedKeys(0), slice.KeyColumns})
}

// withHidden evaluates what the slice needs beside the body's columns.
func (s *slicing) withHidden() {
	if len(s.p.Hidden) == 0 {
		return
	}
	var hidden string
	for i, c := range s.columns {
		if s.outputs[i] < 0 {
			hidden += ", " + s.exprs[i] + " AS " + quoteAlways(c.Name)
		}
	}
	s.p.Eval = splice(s.sql, edit{span{s.sel.list.end, s.sel.list.end}, hidden})
}

// imageKeys unites the slices of new and old images.
func (s *slicing) imageKeys(sql string) (string, error) {
	fresh, err := s.a.withImages(sql, s.src, newImages(s.from))
	if err != nil {
		return "", err
	}
	gone, err := s.a.withImages(sql, s.src, oldImages(s.from))
	if err != nil {
		return "", err
	}
	cols := make([]string, len(s.exprs))
	for i := range cols {
		cols[i] = "u." + prefixed("k", i)
	}
	return "SELECT DISTINCT " + join(cols) + " FROM (SELECT * FROM (" + fresh + ") f\n  UNION ALL SELECT * FROM (" + gone + ") g) u", nil
}

// readKeys finds what old images must carry. The filter is left out where the
// identity does not hold its columns: some slices more are then run again.
func (s *slicing) readKeys(ctx context.Context) (where bool, err error) {
	for _, where := range []bool{true, false} {
		d, err := s.a.try(ctx, s.keysText(where))
		if err != nil {
			return false, err
		}
		read := readsIn(d.tree, s.src.OID)
		s.read = needs{full: read.columns[0] || read.all}
		for _, c := range s.src.Columns {
			if read.columns[int(c.Num)] {
				s.read.columns = append(s.read.columns, c.Name)
			}
		}
		if where && s.a.carried(s.src, s.read) || s.sel.where.empty() {
			return where, nil
		}
	}
	s.a.adviseFilter(s.p, s.src)
	return false, nil
}

// carried reports whether every leaf's identity holds the columns by now.
func (a *analysis) carried(src *Source, n needs) bool {
	if src.Producer || src.External || src.AppendOnly {
		return true
	}
	for _, l := range a.relations[src.OID].leaves {
		if slices.Contains(src.Leaves, l.OID) && l.Identity != "f" && (n.full || !subset(n.columns, l.Columns)) {
			return false
		}
	}
	return true
}

// generated reports a column that old images cannot carry.
func (s *slicing) generated() string {
	only := *s.src
	only.Columns = slices.DeleteFunc(slices.Clone(s.src.Columns), func(c SourceColumn) bool { return !slices.Contains(s.read.columns, c.Name) })
	return s.a.missingInStream(&only)
}

// indexes asks for an index of the backing table where the slice is no prefix of
// its key, and advises one on the source.
func (s *slicing) indexes() {
	s.index()
	if exprs, ok := s.indexable(); ok {
		s.a.lookUp(s.a.relations[s.src.OID], exprs...)
	}
}

// index asks for the index of the backing table, or of the companion, by which the
// stored rows of a slice are found.
func (s *slicing) index() {
	var cols, hidden []string
	for i, o := range s.outputs {
		name := quoteAlways(s.columns[i].Name)
		if o >= 0 {
			cols = append(cols, name)
		} else {
			hidden = append(hidden, name)
		}
	}
	if len(hidden) > 0 {
		s.p.HiddenIndexes = append(s.p.HiddenIndexes, join(hidden))
	}
	prefix := len(s.outputs) <= len(s.p.Key) && !slices.ContainsFunc(s.outputs, func(o int) bool {
		at := slices.Index(s.p.Key, o)
		return at < 0 || at >= len(s.outputs)
	})
	if len(hidden) == 0 && len(cols) > 0 && !prefix {
		s.p.Indexes = append(s.p.Indexes, join(cols))
	}
}

// indexable writes the slice's expressions as CREATE INDEX takes them. It says no
// where they are not over the table itself.
func (s *slicing) indexable() ([]string, bool) {
	from := s.scope.q.child("jointree").nodes("fromlist")[0]
	rte := s.scope.rte(from.num("rtindex"))
	if kind(rte) != rteRelation {
		return nil, false
	}
	alias := rte.child("eref").text("aliasname")
	out := make([]string, len(s.exprs))
	for i, e := range s.exprs {
		toks, err := scan(e)
		if err != nil {
			return nil, false
		}
		var cut []edit
		for k := 0; k+2 < len(toks); k++ {
			if unquoteIdent(toks[k].text) == alias && toks[k+1].text == "." {
				cut = append(cut, edit{span{toks[k].start, toks[k+1].end}, ""})
			}
		}
		out[i] = splice(e, cut...)
	}
	return out, true
}
