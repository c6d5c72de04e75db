package plans

import (
	"slices"
	"strings"
)

// checkDeterminism refuses a body that may give another result for the same
// rows.
func (a *analysis) checkDeterminism() *Refusal {
	if a.d.Nondeterministic {
		return nil
	}
	if r := a.checkFunctions(); r != nil {
		return r
	}
	return a.top.eachScope(func(s *scope) *Refusal { return s.checkOrder() })
}

// eachScope visits the scope and every query level below it, and stops at the
// first refusal.
func (s *scope) eachScope(visit func(*scope) *Refusal) *Refusal {
	if r := visit(s); r != nil {
		return r
	}
	for _, c := range s.q.nodes("cteList") {
		if q := c.child("ctequery"); q != nil {
			if r := newScope(s.a, q, s).eachScope(visit); r != nil {
				return r
			}
		}
	}
	for _, rte := range s.rtable {
		if kind(rte) == rteSubquery && s.sub(rte) != nil {
			if r := s.sub(rte).eachScope(visit); r != nil {
				return r
			}
		}
	}
	for _, q := range s.sublinks() {
		if r := newScope(s.a, q, s).eachScope(visit); r != nil {
			return r
		}
	}
	return nil
}

// sublinks are the queries of this level's expressions.
func (s *scope) sublinks() []*node {
	var out []*node
	for _, part := range []string{"targetList", "jointree", "havingQual", "limitCount", "limitOffset", "rtable"} {
		walk(s.q.fields[part], func(n *node) bool {
			if n.tag == "RANGETBLENTRY" && kind(n) == rteSubquery {
				return false
			}
			if n.tag == "QUERY" {
				out = append(out, n)
				return false
			}
			return true
		})
	}
	return out
}

// sqlValueFunctions are the SQL value functions by Postgres' numbers.
var sqlValueFunctions = []string{
	"current_date", "current_time", "current_time", "current_timestamp", "current_timestamp", "localtime", "localtime",
	"localtimestamp", "localtimestamp", "current_role", "current_user", "user", "session_user", "current_catalog",
	"current_schema",
}

// checkFunctions refuses functions whose results depend on more than their
// arguments.
func (a *analysis) checkFunctions() *Refusal {
	var bad []*Refusal
	seen := func(r *Refusal) { bad = append(bad, r) }
	walk(a.top.q, func(n *node) bool {
		switch n.tag {
		case "SQLVALUEFUNCTION":
			if op := n.num("op"); op < len(sqlValueFunctions) {
				seen(a.sessionRefusal(sqlValueFunctions[op]))
			}
		case "NEXTVALUEEXPR":
			seen(a.functionRefusal("nextval", "it gives another result each time", ""))
		case "RANGETBLENTRY":
			if n.has("tablesample") {
				seen(a.functionRefusal("TABLESAMPLE", "which rows it picks depends on where they are stored",
					"filter by a column instead"))
			}
		}
		return true
	})
	for oid, f := range a.functions {
		if f != nil && oid != 0 && !a.reproducible(f) {
			seen(a.volatileRefusal(f))
		}
	}
	if len(bad) == 0 {
		return nil
	}
	// The first in the text; the walk's own order is no order.
	slices.SortFunc(bad, func(x, y *Refusal) int {
		if c := (x.Position+1<<30)%(1<<30) - (y.Position+1<<30)%(1<<30); c != 0 {
			return c
		}
		return strings.Compare(x.Construct, y.Construct)
	})
	return bad[0]
}

// reproducible reports whether a function gives the same result for the same
// arguments under the pinned settings.
func (a *analysis) reproducible(f *function) bool {
	return f.Volatile == "i" || a.o.Deterministic[f.signature()] || f.Volatile == "s" && isStableBuiltin(f)
}

func (a *analysis) functionRefusal(name, reason, suggestion string) *Refusal {
	if suggestion == "" {
		suggestion = "compute it in the application, or keep it in a column"
	}
	r := refuse(NonDeterministic, name, reason, suggestion)
	r.Position = a.find(name)
	return r
}

// sessionRefusal is for what depends on the time or the session.
func (a *analysis) sessionRefusal(name string) *Refusal {
	if strings.Contains(name, "time") || strings.Contains(name, "date") {
		return a.functionRefusal(name, name+" moves with the clock, and no row changes when it does",
			"filter by time where the view is read, or keep the time in a column")
	}
	return a.functionRefusal(name, name+" depends on who asks", "filter where the view is read")
}

// Functions that read the clock or the session, for a better word than theirs.
var clockFunctions = wordSet(`now transaction_timestamp statement_timestamp clock_timestamp timeofday age timetz timezone`)

func (a *analysis) volatileRefusal(f *function) *Refusal {
	name := f.Name
	if f.Schema != "pg_catalog" {
		name = quoteIdent(f.Schema) + "." + quoteIdent(f.Name)
	}
	builtin := f.Schema == "pg_catalog"
	switch {
	case builtin && clockFunctions[f.Name]:
		r := a.sessionRefusal("time")
		r.Construct, r.Position = name+"("+f.Args+")", a.find(f.Name)
		r.Reason = name + "() moves with the clock, and no row changes when it does"
		return r
	case builtin && f.Volatile == "s":
		return a.functionRefusal(f.Name, name+"() depends on the session or on the catalog, which change without a row changing",
			"compute it where the view is read")
	case builtin:
		return a.functionRefusal(f.Name, name+"() gives another result each time", "")
	}
	word := map[string]string{"v": "VOLATILE", "s": "STABLE"}[f.Volatile]
	r := a.functionRefusal(f.Name, f.signature()+" is declared "+word+": it may give another result for the same arguments",
		"declare it IMMUTABLE if it is, or configure functions: "+f.signature()+": {deterministic: true}")
	r.Construct = f.signature()
	return r
}

// find returns the byte offset of a function's name in the declared query, -1
// where it stands elsewhere: in a view that the body reads, say.
func (a *analysis) find(name string) int {
	toks, err := scan(a.stmt.text)
	if err != nil {
		return -1
	}
	for i, t := range toks {
		if unquoteIdent(t.text) != strings.ToLower(name) && unquoteIdent(t.text) != name {
			continue
		}
		called := i+1 < len(toks) && toks[i+1].text == "("
		if called || slices.Contains(sqlValueFunctions, strings.ToLower(name)) || strings.EqualFold(name, "TABLESAMPLE") {
			return a.stmt.start + t.start
		}
	}
	return -1
}

// checkOrder refuses results that depend on the order in which rows come.
func (s *scope) checkOrder() *Refusal {
	if s.q.is("hasForUpdate") || s.q.has("rowMarks") {
		return refuse(Invalid, "FOR UPDATE", "it would lock the source's rows", "leave the locking clause out")
	}
	if s.q.is("hasDistinctOn") && !s.picksTotally() {
		return s.a.orderRefusal("DISTINCT ON", "DISTINCT ON keeps any row of those that ORDER BY does not tell apart")
	}
	if s.limits() && !s.sortsTotally() {
		return s.a.orderRefusal("LIMIT", "LIMIT keeps any rows of those that ORDER BY does not tell apart")
	}
	var found *Refusal
	for _, part := range []string{"targetList", "havingQual"} {
		walk(s.q.fields[part], func(n *node) bool {
			if found != nil || n.tag == "QUERY" {
				return false
			}
			switch n.tag {
			case "AGGREF":
				found = s.checkAggregateOrder(n)
			case "WINDOWFUNC":
				found = s.checkWindowOrder(n)
			}
			return found == nil
		})
	}
	return found
}

// limits reports a LIMIT or OFFSET that cuts between peers. WITH TIES does not.
func (s *scope) limits() bool {
	if s.q.has("limitOffset") {
		return true
	}
	count := s.q.child("limitCount")
	return count != nil && !count.is("constisnull") && s.q.num("limitOption") != limitWithTies
}

// limitWithTies is LIMIT_OPTION_WITH_TIES; plain LIMIT is 0.
const limitWithTies = 1

func (a *analysis) orderRefusal(construct, reason string) *Refusal {
	r := refuse(NonDeterministic, construct, reason, "add an ORDER BY that ends with a unique column")
	word, _, _ := strings.Cut(construct, " ")
	toks, err := scan(a.stmt.text)
	if err != nil {
		return r
	}
	for _, t := range toks {
		if t.is(word) {
			r.Position = a.stmt.start + t.start
			break
		}
	}
	return r
}

// sortsTotally reports whether ORDER BY tells every two rows apart.
func (s *scope) sortsTotally() bool {
	var entries []*node
	for _, c := range s.q.nodes("sortClause") {
		if t := s.sortGroup(c); t != nil {
			entries = append(entries, t)
		}
	}
	return len(entries) > 0 && s.identifies(entries)
}

// picksTotally reports whether ORDER BY settles which row DISTINCT ON keeps: it
// tells apart the rows before that.
func (s *scope) picksTotally() bool {
	exprs := s.clauseExprs(s.q.nodes("sortClause"))
	if s.q.has("groupClause") && !s.q.has("groupingSets") {
		var given []*node
		for _, c := range s.q.nodes("sortClause") {
			given = append(given, s.sortGroup(c))
		}
		return s.coversClauses(given, exprs, s.q.nodes("groupClause"))
	}
	return s.determines(exprs)
}

// checkAggregateOrder refuses an order-sensitive aggregate without a total
// order: neither do the sort columns tell the rows of a group apart, nor do they
// settle all of its arguments.
func (s *scope) checkAggregateOrder(agg *node) *Refusal {
	f := s.a.functions[agg.oid("aggfnoid")]
	if f == nil || f.Schema != "pg_catalog" || !orderSensitive[f.Name] || agg.num("agglevelsup") > 0 {
		return nil
	}
	args := agg.nodes("args")
	order := agg.nodes("aggorder")
	if agg.has("aggdistinct") {
		order = agg.nodes("aggdistinct")
	}
	sorted := map[int]bool{}
	var exprs []*node
	for _, c := range order {
		for _, t := range args {
			if t.num("ressortgroupref") == c.num("tleSortGroupRef") {
				sorted[t.num("resno")] = true
				exprs = append(exprs, t.child("expr"))
			}
		}
	}
	covered := !slices.ContainsFunc(args, func(t *node) bool {
		e := t.child("expr")
		settled := t.is("resjunk") || e.tag == "CONST" || sorted[t.num("resno")] && s.a.exactExpr(e)
		return !settled
	})
	if len(args) > 0 && covered || s.settledInGroup(args, exprs) {
		return nil
	}
	r := s.a.orderRefusal(f.Name, f.Name+"() depends on the order of its rows, which ORDER BY inside it does not settle")
	r.Suggestion = "write " + f.Name + "(... ORDER BY ...) and end the order with a unique column"
	r.Position = s.a.find(f.Name)
	return r
}

// settledInGroup reports whether rows of one group that agree in the sort
// expressions are one row, or several in which all that the arguments read is the
// same: then any order gives the same.
func (s *scope) settledInGroup(args, exprs []*node) bool {
	f := s.facts()
	if !f.ok {
		return false
	}
	if !s.q.has("groupingSets") {
		exprs = slices.Concat(exprs, s.clauseExprs(s.q.nodes("groupClause")))
	}
	known := f.closure(s.attrs(exprs))
	if !slices.ContainsFunc(f.rows, func(r attr) bool { return !known[r] }) {
		return true
	}
	return len(args) > 0 && !slices.ContainsFunc(args, func(t *node) bool { return !t.is("resjunk") && !s.readsOnly(t.child("expr"), known) })
}

// readsOnly reports whether an expression is over known rows, and known columns of
// which equal values are the same bytes, alone.
func (s *scope) readsOnly(e *node, known map[attr]bool) bool {
	only := true
	walk(e, func(n *node) bool {
		switch n.tag {
		case "SUBLINK":
			only = false
		case "VAR":
			c, rest := s.resolve(n)
			same := known[attr{c.rt, 0}] || known[attr{c.rt, c.attr}] && s.a.exactExpr(n)
			only = only && rest == nil && (c.s != s || same)
		}
		return only
	})
	return only
}

// Bits of a window's frame options.
const frameRows = 0x4

// checkWindowOrder refuses window functions that tell peers apart.
func (s *scope) checkWindowOrder(fn *node) *Refusal {
	f := s.a.functions[fn.oid("winfnoid")]
	win := s.window(fn.num("winref"))
	if f == nil || win == nil {
		return nil
	}
	sensitive := f.Schema == "pg_catalog" && (orderSensitiveWindow[f.Name] || orderSensitive[f.Name])
	if !sensitive && (win.num("frameOptions")&frameRows == 0 || f.Kind != "a") {
		return nil
	}
	exprs := s.clauseExprs(slices.Concat(win.nodes("partitionClause"), win.nodes("orderClause")))
	if s.determines(exprs) {
		return nil
	}
	r := s.a.orderRefusal(f.Name, f.Name+"() tells rows apart that the window's ORDER BY does not")
	r.Suggestion = "end the window's ORDER BY with a unique column"
	r.Position = s.a.find(f.Name)
	return r
}

func (s *scope) window(ref int) *node {
	for _, w := range s.q.nodes("windowClause") {
		if w.num("winref") == ref {
			return w
		}
	}
	return nil
}

// clauseExprs are the expressions that sort or group clauses refer to.
func (s *scope) clauseExprs(clauses []*node) []*node {
	var out []*node
	for _, c := range clauses {
		if t := s.sortGroup(c); t != nil {
			out = append(out, t.child("expr"))
		}
	}
	return out
}

// exactExpr reports whether equal values of the expression are the same bytes.
func (a *analysis) exactExpr(e *node) bool {
	return a.exact(exprType(e), exprModifier(e), exprCollation(e))
}

// exprModifier returns the type modifier of an expression, -1 where it has none.
func exprModifier(e *node) int32 {
	for _, f := range []string{"vartypmod", "consttypmod", "resulttypmod", "reftypmod"} {
		if e.text(f) != "" {
			return int32(e.num(f))
		}
	}
	if e.tag == "FUNCEXPR" && e.num("funcformat") != 0 { // a length coercion: numeric(x, modifier)
		if args := e.nodes("args"); len(args) >= 2 && args[1].tag == "CONST" && args[1].oid("consttype") == int4OID {
			return constInt(args[1])
		}
	}
	return -1
}

// constInt decodes an integer constant, stored as bytes in the server's order,
// which is little-endian wherever Postgres is packaged today.
func constInt(c *node) int32 {
	f := strings.Fields(c.text("constvalue"))
	if len(f) < 6 {
		return -1
	}
	var v uint32
	for i := range 4 {
		b := &node{fields: map[string]any{"b": atom(f[2+i])}}
		v |= uint32(byte(b.num("b"))) << (8 * i)
	}
	return int32(v)
}

// exprCollation returns the collation of an expression's result.
func exprCollation(e *node) uint32 {
	for _, f := range []string{
		"varcollid", "constcollid", "funccollid", "opcollid", "resultcollid", "aggcollid", "wincollid", "collOid",
		"casecollid", "coalescecollid", "minmaxcollid", "array_collid", "refcollid",
	} {
		if c := e.oid(f); c != 0 {
			return c
		}
	}
	return 0
}
