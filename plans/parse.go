package plans

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"github.com/pganalyze/pg_query_go/v5/parser"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Limits of a body, checked on its tokens before it is parsed: the C parser
// recurses without a guard, and its crash cannot be recovered. A sum of 8,000
// terms it still survives.
const (
	maxBodyBytes  = 256 << 10
	maxBodyTokens = 15_000
	maxBodyDepth  = 500
)

// token is a lexical token of SQL text, by byte offsets.
type token struct {
	start, end int
	text       string
}

// is reports whether the token is the keyword or sign, given in upper case.
func (t token) is(word string) bool { return strings.EqualFold(t.text, word) }

// scan splits SQL text into tokens, without comments.
func scan(sql string) ([]token, error) {
	res, err := pg_query.Scan(sql)
	if err != nil {
		return nil, err
	}
	out := make([]token, 0, len(res.Tokens))
	for _, t := range res.Tokens {
		if t.Token == pg_query.Token_SQL_COMMENT || t.Token == pg_query.Token_C_COMMENT {
			continue
		}
		out = append(out, token{int(t.Start), int(t.End), sql[t.Start:t.End]})
	}
	return out, nil
}

// checkSize refuses text that the parser may not survive.
func checkSize(sql string) *Refusal {
	const less = "split the body into several views"
	if len(sql) > maxBodyBytes {
		return refusef(Invalid, "query", less, "it is longer than %d kB", maxBodyBytes>>10)
	}
	toks, err := scan(sql)
	if err != nil {
		return syntaxRefusal(sql, err)
	}
	if len(toks) > maxBodyTokens {
		r := refusef(Invalid, "query", less, "it has more than %d words and signs", maxBodyTokens)
		r.Position = toks[maxBodyTokens].start
		return r
	}
	depth := 0
	for _, t := range toks {
		switch t.text {
		case "(", "[":
			depth++
		case ")", "]":
			depth--
		}
		if depth > maxBodyDepth {
			r := refusef(Invalid, "query", less, "it nests more than %d parentheses deep", maxBodyDepth)
			r.Position = t.start
			return r
		}
	}
	return nil
}

// syntaxRefusal tells of text that is not SQL.
func syntaxRefusal(sql string, err error) *Refusal {
	r := refuse(Invalid, "query", err.Error(),
		"write one SELECT; grammar newer than that of PostgreSQL 16 is not understood")
	if e, ok := errors.AsType[*parser.Error](err); ok {
		r.Reason = e.Message
		r.Position = byteOffset(sql, e.Cursorpos-1) // it counts characters
	}
	return r
}

// statement is the one SELECT of a declared query.
type statement struct {
	text  string // without a semicolon
	start int    // byte offset of text in the query
	from  bool   // it has a FROM, somewhere
}

// parseDeclared checks that the query is one SELECT, and cuts it out.
func parseDeclared(query string) (statement, *Refusal) {
	if r := checkSize(query); r != nil {
		return statement{}, r
	}
	res, err := pg_query.Parse(query)
	if err != nil {
		r := syntaxRefusal(query, err)
		if !hasFrom(query) {
			r.Suggestion = "there is no FROM in it: look at its spelling"
		}
		return statement{}, r
	}
	switch len(res.Stmts) {
	case 0:
		return statement{}, refuse(Invalid, "query", "it is empty", "write one SELECT")
	case 1:
	default:
		r := refuse(Invalid, "query", "it holds more than one statement", "write one SELECT; declare a view for each")
		r.Position = skipSpace(query, int(res.Stmts[1].StmtLocation))
		return statement{}, r
	}
	raw := res.Stmts[0]
	start := int(raw.StmtLocation)
	end := len(query)
	if raw.StmtLen > 0 {
		end = start + int(raw.StmtLen)
	}
	s := statement{text: query[start:end], start: start}
	sel := raw.Stmt.GetSelectStmt()
	if sel == nil {
		r := refuse(Invalid, strings.ToUpper(firstWord(s.text)), "it is not a SELECT", "a view's body is one SELECT")
		r.Position = skipSpace(query, start)
		return s, r
	}
	s.from = hasFrom(s.text)
	return s, checkSelect(sel)
}

// hasFrom looks for the keyword. Text that cannot be scanned has none.
func hasFrom(sql string) bool {
	toks, err := scan(sql)
	return err == nil && slices.ContainsFunc(toks, func(t token) bool { return t.is("FROM") })
}

// checkSelect refuses the clauses that make a SELECT more than a question.
func checkSelect(sel *pg_query.SelectStmt) *Refusal {
	if sel.IntoClause != nil {
		return refuse(Invalid, "SELECT INTO", "it would make a table", "leave INTO out: mvsync makes the table")
	}
	if len(sel.LockingClause) > 0 {
		return refuse(Invalid, "FOR UPDATE", "it would lock the source's rows", "leave the locking clause out")
	}
	if len(sel.ValuesLists) > 0 {
		return refuse(NoSource, "VALUES", "it reads no table, so that nothing can change it", "select from a table")
	}
	return nil
}

func firstWord(s string) string {
	f := strings.Fields(s)
	if len(f) == 0 {
		return ""
	}
	return f[0]
}

// skipSpace moves on to the next character that is no white space.
func skipSpace(s string, at int) int {
	for at < len(s) && strings.ContainsRune(" \t\r\n;", rune(s[at])) {
		at++
	}
	return at
}

// tableRef is a place in canonical text where a table or view is named.
type tableRef struct {
	name       Name // Schema is empty for a common table expression
	start, end int  // of the name, with ONLY where it says so
	alias      bool
	columns    bool // the alias renames columns
}

// tableRefs finds the tables that canonical text names, in the order of the
// text.
func tableRefs(sql string) ([]tableRef, error) {
	toks, err := scan(sql)
	if err != nil {
		return nil, err
	}
	if len(toks) > 8*maxBodyTokens {
		return nil, fmt.Errorf("the body with its views in place is too long")
	}
	res, err := pg_query.Parse(sql)
	if err != nil {
		return nil, err
	}
	var out []tableRef
	search(res.ProtoReflect(), func(m protoreflect.Message) {
		rv, ok := m.Interface().(*pg_query.RangeVar)
		if !ok {
			return
		}
		out = append(out, refAt(rv, toks))
	})
	slices.SortFunc(out, func(a, b tableRef) int { return a.start - b.start })
	return out, nil
}

// refAt finds the tokens of a RangeVar.
func refAt(rv *pg_query.RangeVar, toks []token) tableRef {
	ref := tableRef{name: Name{rv.Schemaname, rv.Relname}, alias: rv.Alias != nil}
	ref.columns = rv.Alias != nil && len(rv.Alias.Colnames) > 0
	i := slices.IndexFunc(toks, func(t token) bool { return t.start == int(rv.Location) })
	if i < 0 {
		return ref
	}
	ref.start, ref.end = toks[i].start, toks[i].end
	if rv.Schemaname != "" && i+2 < len(toks) {
		ref.end = toks[i+2].end
	}
	if !rv.Inh && i > 0 && toks[i-1].is("ONLY") {
		ref.start = toks[i-1].start
	}
	return ref
}

// search visits a message and all below it.
func search(m protoreflect.Message, visit func(protoreflect.Message)) {
	visit(m)
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Message() == nil {
			return true
		}
		if fd.IsList() {
			for i := range v.List().Len() {
				search(v.List().Get(i).Message(), visit)
			}
			return true
		}
		search(v.Message(), visit)
		return true
	})
}

// cteNames lists the names of all common table expressions of a query, in
// lower case.
func cteNames(sql string) ([]string, error) {
	res, err := pg_query.Parse(sql)
	if err != nil {
		return nil, err
	}
	var out []string
	search(res.ProtoReflect(), func(m protoreflect.Message) {
		if c, ok := m.Interface().(*pg_query.CommonTableExpr); ok {
			out = append(out, strings.ToLower(c.Ctename))
		}
	})
	return out, nil
}
