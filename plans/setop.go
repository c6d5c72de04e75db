package plans

import (
	"context"
	"slices"
	"strings"
)

// leg is one SELECT of a set operation, as text and as a tree.
type leg struct {
	at    span
	scope *scope
	rel   *relation
}

// setOperation is a body whose legs each filter and project one table. Its slices
// are the rows by the view's key: a changed image touches the rows that it gives in
// its leg, and all legs are run again for those.
type setOperation struct {
	a    *analysis
	p    *Plan
	sql  string
	legs []leg
	need []needs
}

// planSetOperation is residual-recompute for set operations.
func planSetOperation(ctx context.Context, a *analysis, p *Plan) (string, []needs, error) {
	s := &setOperation{a: a, p: p, sql: a.flat, need: make([]needs, len(p.Sources))}
	if why := s.read(); why != "" {
		return why, nil, nil
	}
	keyed := p.keyed()
	if len(keyed) == 0 {
		return "it has one row", nil, nil
	}
	keys, why, err := s.keysSQL(ctx, keyed)
	if why != "" || err != nil {
		return why, nil, err
	}
	slice := Slice{
		Keys: keys, KeyColumns: keyColumns(keyed), New: s.newSQL(keyed), Touched: keyMatch("s", keyed, "mvsync_keys", "k"),
	}
	for i := range p.Sources {
		slice.Inputs = append(slice.Inputs, i)
	}
	p.Residual = &Residual{Slices: []Slice{slice}}
	why, err = a.confirmSlice(ctx, p, slice)
	return why, s.need, err
}

// read finds the legs in the tree and in the text, in the same order.
func (s *setOperation) read() string {
	q := s.a.top.q
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
	scopes := s.a.top.legs().scopes
	if len(spans) != len(scopes) {
		return "its text cannot be taken apart"
	}
	for i, sc := range scopes {
		if sc == nil {
			return "its legs are no plain queries"
		}
		rel, why := sc.simple()
		if why != "" {
			return "in a leg " + why
		}
		if s.a.readsOf(rel.OID).columns[tableoid] {
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
		src := slices.IndexFunc(s.p.Sources, func(c Source) bool { return c.OID == l.rel.OID })
		d, err := s.a.try(ctx, core)
		if err != nil {
			return "", "", err
		}
		s.readBy(src, readsIn(d.tree, l.rel.OID))
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

// readBy notes what old images of a source must carry.
func (s *setOperation) readBy(src int, r reads) {
	n := &s.need[src]
	n.full = n.full || r.columns[0] || r.all
	for _, c := range s.p.Sources[src].Columns {
		if r.columns[int(c.Num)] && !slices.Contains(n.columns, c.Name) {
			n.columns = append(n.columns, c.Name)
		}
	}
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
			keyMatch("q", s.legKey(l, keyed), "mvsync_keys", "k")})
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
