package plans

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// leg is one SELECT of a set operation, as text and as a tree.
type leg struct {
	at    span
	scope *scope
	rel   *relation // nil where it joins tables, or more
}

// setOperation is a body whose legs filter, project and join tables. Its slices
// are the rows by the view's key: a changed image touches the rows that it gives in
// its leg, and all legs are run again for those.
type setOperation struct {
	a     *analysis
	p     *Plan
	scope *scope
	sql   string
	legs  []leg
	need  []needs
	floor map[int]bool // sources any change of which may touch every row
}

// planSetOperation is residual-recompute for set operations.
func planSetOperation(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	s := newSetOperation(a, p, a.top, a.flat)
	if why := s.read(); why != "" {
		return why, nil, nil
	}
	keyed := p.keyed()
	if len(keyed) == 0 {
		return "it has one row", nil, nil
	}
	if why := drifting(keyed); why != "" {
		return why, nil, nil
	}
	keys, why, err := s.keysSQL(ctx, keyed)
	if why != "" || err != nil {
		return why, nil, err
	}
	slice := Slice{Keys: keys, KeyColumns: keyColumns(keyed), Touched: keyMatch("s", keyed, touchedKeys(0), "k")}
	why, err = a.oneSlice(ctx, p, slice, s.newSQL(keyed))
	if len(s.floor) == len(p.Sources) {
		why = "a change of any of its tables may touch every row"
	}
	p.Residual.Floor = slices.Sorted(maps.Keys(s.floor))
	return why, s.need, err
}

func newSetOperation(a *analysis, p *Plan, s *scope, sql string) *setOperation {
	return &setOperation{a: a, p: p, scope: s, sql: sql, need: make([]needs, len(p.Sources)), floor: map[int]bool{}}
}

// read finds the legs in the tree and in the text, in the same order.
func (s *setOperation) read() string {
	q := s.scope.q
	switch {
	case q.has("limitCount") || q.has("limitOffset"):
		return "LIMIT looks at other rows"
	case q.has("cteList"):
		return "it is a set operation over common table expressions"
	}
	var spans []span
	toks, err := scan(s.sql)
	if err != nil {
		return "its text cannot be taken apart"
	}
	legSpans(toks, &spans)
	scopes := s.scope.legs().scopes
	if len(spans) != len(scopes) {
		return "its text cannot be taken apart"
	}
	for i, sc := range scopes {
		if sc == nil {
			return "its legs are no plain queries"
		}
		rel, why := sc.simple()
		switch {
		case why != "":
			rel = nil
		case s.a.readsOf(rel.OID).columns[tableoid]:
			return "it reads tableoid, which images do not carry"
		}
		s.legs = append(s.legs, leg{spans[i], sc, rel})
	}
	for i := range s.p.Sources {
		if why := s.a.missingInStream(&s.p.Sources[i]); why != "" {
			return why
		}
	}
	return ""
}

// legSpans lists the SELECTs of a set operation, which canonical text nests in
// parentheses where the operations differ.
func legSpans(toks []token, out *[]span) {
	toks = stripParens(toks)
	depth, start, found := 0, 0, false
	end := len(toks)
	for i, t := range toks {
		switch t.text {
		case "(", "[":
			depth++
		case ")", "]":
			depth--
		}
		if depth != 0 {
			continue
		}
		switch {
		case t.is("UNION") || t.is("INTERSECT") || t.is("EXCEPT"):
			legSpans(toks[start:i], out)
			start, found = i+1, true
			if start < len(toks) && toks[start].is("ALL") {
				start++
			}
		case found && t.is("ORDER") && i+1 < len(toks) && toks[i+1].is("BY"):
			end = i
		}
	}
	if found {
		legSpans(toks[start:end], out)
		return
	}
	if len(toks) > 0 {
		*out = append(*out, span{toks[0].start, toks[end-1].end})
	}
}

// keysSQL unites the keys that the images give in each leg.
func (s *setOperation) keysSQL(ctx context.Context, keyed []Column) (sql, why string, err error) {
	var parts []string
	for _, l := range s.legs {
		text := l.at.of(s.sql)
		sel, ok := splitSelect(text)
		if !ok || len(sel.targets) != len(s.p.Columns) {
			return "", "the text of a leg cannot be taken apart", nil
		}
		cols := make([]string, len(keyed))
		for i, k := range s.p.Key {
			cols[i] = collate("("+sel.targets[k].expr.of(text)+")::"+keyed[i].Type, keyed[i]) + " AS " + prefixed("k", i)
		}
		core := splice(text, edit{sel.list, join(cols)})
		if !l.scope.isPlain() {
			core = s.wrapped(text, keyed)
		}
		if l.rel == nil {
			part, why, err := s.joinedKeys(ctx, core, len(keyed))
			if why != "" || err != nil {
				return "", why, err
			}
			parts = append(parts, "SELECT * FROM ("+part+") x"+itoa(len(parts)))
			continue
		}
		src := slices.IndexFunc(s.p.Sources, func(c Source) bool { return c.OID == l.rel.OID })
		core, err := s.imageCore(ctx, core, src)
		if err != nil {
			return "", "", err
		}
		for _, images := range []string{newImages(src), oldImages(src)} {
			part, err := s.a.withImages(core, &s.p.Sources[src], images)
			if err != nil {
				return "", "", err
			}
			parts = append(parts, "SELECT * FROM ("+part+") x"+itoa(len(parts)))
		}
	}
	return "SELECT DISTINCT * FROM (" + strings.Join(parts, "\n  UNION ALL ") + ") u", "", nil
}

// wrapped gives the keys of a leg that groups rows or the like: it is then a query in
// FROM, with slices of its own.
func (s *setOperation) wrapped(text string, keyed []Column) string {
	cols, names := make([]string, len(keyed)), make([]string, len(s.p.Columns))
	for i, c := range keyed {
		cols[i] = collate("q."+quoteAlways(c.Name)+"::"+c.Type, c) + " AS " + prefixed("k", i)
	}
	for i, c := range s.p.Columns {
		names[i] = quoteAlways(c.Name)
	}
	return "SELECT " + join(cols) + " FROM (" + text + ") q(" + join(names) + ")"
}

// joinedKeys gives the keys of a leg's rows that hold a touched row of one of the
// tables that it joins.
func (s *setOperation) joinedKeys(ctx context.Context, core string, n int) (sql, why string, err error) {
	d, err := s.a.try(ctx, core)
	if err != nil {
		return "", "", err
	}
	j, why, err := s.a.newJoinTree(ctx, s.p, d.text, newScope(s.a, d.tree, nil), d.tree)
	if why == "" && err == nil {
		why = j.readable()
	}
	if why != "" || err != nil {
		return "", "in a leg " + why, err
	}
	for i, need := range j.groupNeeds(d.tree) {
		s.need[i].full = s.need[i].full || need.full
		s.need[i].add(need.columns...)
	}
	for i := range j.floor {
		s.floor[i] = true
	}
	return j.groupKeys(n), j.widened(), nil
}

// imageCore notes what old images must carry for a leg. Its filter is left out where the
// identity holds all but the filter's columns: some rows more are then run again.
func (s *setOperation) imageCore(ctx context.Context, core string, src int) (string, error) {
	d, err := s.a.try(ctx, core)
	if err != nil {
		return "", err
	}
	from := &s.p.Sources[src]
	read := readsIn(d.tree, from.OID)
	if sel, ok := splitSelect(core); ok && !sel.where.empty() && !s.a.carried(from, s.needed(src, read)) {
		bare := core[:sel.from.end] + core[sel.where.end:]
		if d, err = s.a.try(ctx, bare); err != nil {
			return "", err
		}
		if less := readsIn(d.tree, from.OID); s.a.carried(from, s.needed(src, less)) {
			core, read = bare, less
		}
	}
	s.need[src].full = s.need[src].full || read.columns[0] || read.all
	s.need[src].add(s.needed(src, read).columns...)
	return core, nil
}

// needed are the columns of a source that are read.
func (s *setOperation) needed(src int, r reads) needs {
	n := needs{full: r.columns[0] || r.all}
	for _, c := range s.p.Sources[src].Columns {
		if r.columns[int(c.Num)] {
			n.add(c.Name)
		}
	}
	return n
}

// newSQL restricts each leg, since Postgres pushes no condition into EXCEPT.
func (s *setOperation) newSQL(keyed []Column) string {
	names := make([]string, len(s.p.Columns))
	for i, c := range s.p.Columns {
		names[i] = quoteAlways(c.Name)
	}
	var edits []edit
	for _, l := range s.legs {
		edits = append(edits, edit{l.at, "SELECT " + qualify("q", s.p.Columns) + " FROM (" + l.at.of(s.sql) + ") q(" + join(names) + ") WHERE " +
			keyMatch("q", s.legKey(l, keyed), touchedKeys(0), "k")})
	}
	return "SELECT " + qualify("q", s.p.Columns) + " FROM (" + splice(s.sql, edits...) + ") q"
}

// legKey: a column that the whole never shows as NULL may be NULL in one leg.
func (s *setOperation) legKey(l leg, keyed []Column) []Column {
	out := slices.Clone(keyed)
	for i, k := range s.p.Key {
		out[i].NotNull = l.scope.notNull(l.scope.outputs()[k].child("expr"), k)
	}
	return out
}

// sources are the indexes of all sources that stand in the legs.
func (s *setOperation) sources() []int {
	var out []int
	for i := range s.p.Sources {
		if readsIn(s.scope.q, s.p.Sources[i].OID).places > 0 {
			out = append(out, i)
		}
	}
	return out
}
