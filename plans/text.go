package plans

import (
	"slices"
	"strings"
)

// span is a piece of text by byte offsets.
type span struct{ start, end int }

func (s span) empty() bool            { return s.end <= s.start }
func (s span) of(sql string) string   { return sql[s.start:s.end] }
func (s span) holds(t token) bool     { return t.start >= s.start && t.end <= s.end }
func join(parts []string) string      { return strings.Join(parts, ", ") }
func conjunction(p []string) string   { return strings.Join(p, " AND ") }
func prefixed(p string, n int) string { return p + itoa(n) }

// edit replaces a piece of text.
type edit struct {
	span
	text string
}

// splice applies edits that do not overlap.
func splice(sql string, edits ...edit) string {
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b edit) int { return a.start - b.start })
	var b strings.Builder
	at := 0
	for _, e := range edits {
		b.WriteString(sql[at:e.start])
		b.WriteString(e.text)
		at = e.end
	}
	b.WriteString(sql[at:])
	return b.String()
}

// target is an output column of a SELECT.
type target struct {
	expr span
	name string // as AS or the column itself gives it
}

// selectText is where the clauses of the outermost SELECT of canonical text
// stand. Canonical text puts every operator into parentheses, so that a clause's
// keyword at depth 0 begins that clause. A clause's span leaves the keyword out;
// an absent clause's is empty.
type selectText struct {
	sql      string
	toks     []token
	with     span // WITH and all its members, the keyword included
	selectAt int  // start of the keyword SELECT
	distinct span // DISTINCT and its ON list, the keyword included
	targets  []target
	list     span // the whole target list
	tail     span // from FROM on, the keyword included, to the end
	from     span
	where    span
	group    span
	groups   []span
	having   span
	window   span
	order    span
	limit    bool
}

// splitSelect finds the clauses. It says no where the text is not one SELECT
// with a FROM: a set operation, say.
func splitSelect(sql string) (*selectText, bool) {
	toks, err := scan(sql)
	if err != nil {
		return nil, false
	}
	toks = slices.DeleteFunc(toks, func(t token) bool { return t.text == ";" })
	s := &selectText{sql: sql, toks: toks}
	return s, s.split()
}

// clause is a keyword at depth 0 of a SELECT.
type clause struct {
	word string
	at   int // index of its token
	body int // index of the token after the keyword
}

// clauseWords begin clauses in canonical text at depth 0.
var clauseWords = []string{
	"WITH", "SELECT", "FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "OFFSET", "FETCH",
	"FOR", "UNION", "INTERSECT", "EXCEPT",
}

// clauses lists the clause keywords at depth 0.
func (s *selectText) clauses() []clause {
	var out []clause
	depth := 0
	for i, t := range s.toks {
		switch t.text {
		case "(", "[":
			depth++
		case ")", "]":
			depth--
		}
		if depth != 0 || !slices.ContainsFunc(clauseWords, t.is) {
			continue
		}
		word := strings.ToUpper(t.text)
		body := i + 1
		switch word {
		case "WITH": // also in: timestamp with time zone, with ordinality
			if i > 0 {
				continue
			}
		case "GROUP", "ORDER": // also in: within group
			if i+1 == len(s.toks) || !s.toks[i+1].is("BY") {
				continue
			}
			body++
		}
		out = append(out, clause{word, i, body})
	}
	return out
}

func (s *selectText) split() bool {
	cl := s.clauses()
	sel := slices.IndexFunc(cl, func(c clause) bool { return c.word == "SELECT" })
	if sel < 0 || sel+1 >= len(cl) || cl[sel+1].word != "FROM" {
		return false
	}
	if sel > 0 {
		s.with = span{s.toks[0].start, s.toks[cl[sel].at-1].end}
	}
	s.selectAt = s.toks[cl[sel].at].start
	first := s.distinctEnd(cl[sel].body)
	s.list = s.span(first, cl[sel+1].at)
	s.targets = s.readTargets(first, cl[sel+1].at)
	s.tail = s.span(cl[sel+1].at, len(s.toks))
	for i, c := range cl[sel+1:] {
		to := len(s.toks)
		if sel+2+i < len(cl) {
			to = cl[sel+2+i].at
		}
		if !s.put(c, s.span(c.body, to), to) {
			return false
		}
	}
	return true
}

// put records a clause; it says no for one that this does not know.
func (s *selectText) put(c clause, body span, to int) bool {
	switch c.word {
	case "FROM":
		s.from = body
	case "WHERE":
		s.where = body
	case "GROUP":
		s.group = body
		for _, part := range s.commas(c.body, to) {
			s.groups = append(s.groups, s.span(part[0], part[1]))
		}
	case "HAVING":
		s.having = body
	case "WINDOW":
		s.window = body
	case "ORDER":
		s.order = body
	case "LIMIT", "OFFSET", "FETCH":
		s.limit = true
	default:
		return false
	}
	return true
}

// span is the text of the tokens from up to, but without, to.
func (s *selectText) span(from, to int) span {
	if from >= to {
		return span{}
	}
	return span{s.toks[from].start, s.toks[to-1].end}
}

// distinctEnd reads DISTINCT [ON (...)] and returns the index of the first
// token of the target list.
func (s *selectText) distinctEnd(i int) int {
	if !s.toks[i].is("DISTINCT") {
		return i
	}
	end := i + 1
	if s.toks[end].is("ON") {
		end = s.closing(end+1) + 1
	}
	s.distinct = s.span(i, end)
	return end
}

// closing returns the index of the parenthesis that closes the one at i, or the
// last index.
func (s *selectText) closing(i int) int {
	depth := 0
	for ; i < len(s.toks); i++ {
		switch s.toks[i].text {
		case "(", "[":
			depth++
		case ")", "]":
			depth--
		}
		if depth == 0 {
			return i
		}
	}
	return len(s.toks) - 1
}

// commas splits tokens at the commas of depth 0.
func (s *selectText) commas(from, to int) [][2]int {
	var out [][2]int
	depth, start := 0, from
	for i := from; i < to; i++ {
		switch s.toks[i].text {
		case "(", "[":
			depth++
		case ")", "]":
			depth--
		case ",":
			if depth == 0 {
				out = append(out, [2]int{start, i})
				start = i + 1
			}
		}
	}
	if start < to {
		out = append(out, [2]int{start, to})
	}
	return out
}

func (s *selectText) readTargets(from, to int) []target {
	parts := s.commas(from, to)
	out := make([]target, 0, len(parts))
	for _, p := range parts {
		last := p[1] - 1
		t := target{expr: s.span(p[0], p[1]), name: unquoteIdent(s.toks[last].text)}
		if last-1 > p[0] && s.toks[last-1].is("AS") {
			t.expr = s.span(p[0], last-1)
		}
		out = append(out, t)
	}
	return out
}

// unquoteIdent returns the name that an identifier token stands for.
func unquoteIdent(text string) string {
	if len(text) >= 2 && text[0] == '"' {
		return strings.ReplaceAll(text[1:len(text)-1], `""`, `"`)
	}
	return strings.ToLower(text)
}

// call is a function call in canonical text.
type call struct {
	span
	name   string // without schema
	fn     span   // the name as it stands, qualified or not
	args   span   // between the parentheses
	suffix span   // FILTER, WITHIN GROUP and so on
	over   bool   // a window function
}

// calls finds the calls of functions of the given names within a piece of the
// text, outermost only.
func (s *selectText) calls(within span, names map[string]bool) []call {
	var out []call
	for i := 0; i+1 < len(s.toks); i++ {
		if !within.holds(s.toks[i]) || s.toks[i+1].text != "(" || !names[unquoteIdent(s.toks[i].text)] {
			continue
		}
		c, end := s.callAt(i)
		out = append(out, c)
		i = end
	}
	return out
}

// callAt reads the call whose name is token i, and returns the index of its
// last token.
func (s *selectText) callAt(i int) (call, int) {
	c := call{name: unquoteIdent(s.toks[i].text), fn: span{s.toks[i].start, s.toks[i].end}}
	if i >= 2 && s.toks[i-1].text == "." {
		c.fn.start = s.toks[i-2].start
	}
	end := s.closing(i + 1)
	c.args = span{s.toks[i+1].end, s.toks[end].start}
	after := end
	for after+1 < len(s.toks) {
		switch t := s.toks[after+1]; {
		case t.is("FILTER"):
			after = s.closing(after + 2)
		case t.is("WITHIN"):
			after = s.closing(after + 3)
		case t.is("OVER"):
			c.over = true
			after = s.closing(after + 2)
		default:
			c.suffix = span{s.toks[end].end, s.toks[after].end}
			c.span = span{c.fn.start, s.toks[after].end}
			return c, after
		}
	}
	c.suffix = span{s.toks[end].end, s.toks[after].end}
	c.span = span{c.fn.start, s.toks[after].end}
	return c, after
}
