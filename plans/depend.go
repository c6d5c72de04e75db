package plans

import "slices"

// Functional dependencies prove keys. An attribute is a column of a range table
// entry of one query level; attribute 0 stands for the entry's row itself.
type attr struct{ rt, num int }

// fd says that the left attributes fix the right one, by the equality of their
// types. For an entry on the nullable side of an outer join, no row counts as a
// value too.
type fd struct {
	left  []attr
	right attr
}

// facts are what holds for the rows that FROM and WHERE let through.
type facts struct {
	fds      []fd
	rows     []attr        // the entries that make up a row
	nullable map[int]bool  // entries that an outer join may leave out
	notNull  map[attr]bool // proven by a strict condition
	ok       bool          // false: FROM holds something without an identity
}

// closure adds what the given attributes fix.
func (f *facts) closure(from []attr) map[attr]bool {
	known := make(map[attr]bool, len(from))
	for _, a := range from {
		known[a] = true
	}
	for changed := true; changed; {
		changed = false
		for _, d := range f.fds {
			if known[d.right] || slices.ContainsFunc(d.left, func(a attr) bool { return !known[a] }) {
				continue
			}
			known[d.right], changed = true, true
		}
	}
	return known
}

// fixesRow reports whether the attributes fix the whole input row.
func (f *facts) fixesRow(from []attr) bool {
	if !f.ok {
		return false
	}
	known := f.closure(from)
	return !slices.ContainsFunc(f.rows, func(r attr) bool { return !known[r] })
}

// facts derives the dependencies of the scope's FROM and WHERE.
func (s *scope) facts() *facts {
	if s.known != nil {
		return s.known
	}
	f := &facts{nullable: map[int]bool{}, notNull: map[attr]bool{}, ok: true}
	s.known = f // breaks the circle of a query that asks about itself
	tree := s.q.child("jointree")
	s.strictColumns(f, tree.child("quals")) // first, since it lets nullable unique columns be keys
	for _, item := range tree.nodes("fromlist") {
		s.fromItem(f, item, false)
	}
	s.conditions(f, tree.child("quals"), false)
	s.absences(f, tree.child("quals"))
	return f
}

// absences records entries that WHERE wants absent: a column that is never NULL in
// the table is NULL, so that an outer join found no row.
func (s *scope) absences(f *facts, quals *node) {
	for _, c := range conjuncts(quals) {
		if c.tag != "NULLTEST" || c.num("nulltesttype") != 0 {
			continue
		}
		a, ok := s.attrOf(c.child("arg"))
		if !ok || !f.nullable[a.rt] || kind(s.rte(a.rt)) != rteRelation {
			continue
		}
		r := s.a.relations[s.rte(a.rt).oid("relid")]
		if at := r.attr(a.num); at != nil && at.NotNull {
			f.fds = append(f.fds, fd{nil, attr{a.rt, 0}})
		}
	}
}

// entries lists the range table indexes below a FROM item.
func entries(item *node) []int {
	switch item.tag {
	case "RANGETBLREF":
		return []int{item.num("rtindex")}
	case "JOINEXPR":
		return append(entries(item.child("larg")), entries(item.child("rarg"))...)
	case "FROMEXPR":
		var out []int
		for _, i := range item.nodes("fromlist") {
			out = append(out, entries(i)...)
		}
		return out
	}
	return nil
}

// Join types as Postgres numbers them.
const (
	joinInner = iota
	joinLeft
	joinFull
	joinRight
)

// fromItem adds what a FROM item says.
func (s *scope) fromItem(f *facts, item *node, nullable bool) {
	switch item.tag {
	case "RANGETBLREF":
		s.entry(f, item.num("rtindex"), nullable)
		return
	case "JOINEXPR":
	default:
		f.ok = false
		return
	}
	l, r, quals := item.child("larg"), item.child("rarg"), item.child("quals")
	switch item.num("jointype") {
	case joinInner:
		if !nullable {
			s.strictColumns(f, quals)
		}
		s.fromItem(f, l, nullable)
		s.fromItem(f, r, nullable)
		s.conditions(f, quals, nullable)
	case joinLeft:
		s.fromItem(f, l, nullable)
		s.fromItem(f, r, true)
		s.outer(f, l, r, quals)
	case joinRight:
		s.fromItem(f, r, nullable)
		s.fromItem(f, l, true)
		s.outer(f, r, l, quals)
	default:
		s.fromItem(f, l, true)
		s.fromItem(f, r, true)
	}
}

// outer adds that the rows of the preserved side fix those of the other, where
// the condition pins a unique key of it.
func (s *scope) outer(f *facts, kept, other, quals *node) {
	inner := &facts{nullable: f.nullable, notNull: f.notNull, ok: true, fds: slices.Clone(f.fds)}
	s.conditions(inner, quals, false)
	var from []attr
	for _, i := range entries(kept) {
		from = append(from, attr{i, 0})
	}
	known := inner.closure(from)
	var rows []attr
	for _, i := range entries(other) {
		if !known[attr{i, 0}] {
			return
		}
		rows = append(rows, attr{i, 0})
	}
	for _, row := range rows {
		f.fds = append(f.fds, fd{from, row})
	}
}

// entry adds the keys of one range table entry.
func (s *scope) entry(f *facts, rt int, nullable bool) {
	rte := s.rte(rt)
	row := attr{rt, 0}
	f.rows = append(f.rows, row)
	f.nullable[rt] = nullable
	width := len(rte.child("eref").items("colnames"))
	for i := range width {
		f.fds = append(f.fds, fd{[]attr{row}, attr{rt, i + 1}})
	}
	for _, key := range s.entryKeys(f, rt, rte) {
		left := make([]attr, len(key))
		for i, num := range key {
			left[i] = attr{rt, num}
		}
		if rte.is("lateral") || kind(rte) == rteFunction {
			left = slices.Concat(left, f.othersThan(rt))
		}
		f.fds = append(f.fds, fd{left, row})
	}
}

// othersThan are the rows of the entries before a lateral one.
func (f *facts) othersThan(rt int) []attr {
	return slices.DeleteFunc(slices.Clone(f.rows), func(a attr) bool { return a.rt == rt })
}

// entryKeys lists the unique column sets of an entry.
func (s *scope) entryKeys(f *facts, rt int, rte *node) [][]int {
	switch kind(rte) {
	case rteRelation:
		return s.relationKeys(f, rt, rte)
	case rteSubquery, rteCTE:
		if sub := s.sub(rte); sub != nil {
			return sub.outputKeys()
		}
		return s.recursiveKeys(rte)
	case rteFunction:
		return s.functionKeys(rte)
	case rteValues:
		return s.valuesKeys(rte)
	case rteResult:
		return [][]int{{}}
	}
	return nil
}

// recursiveKeys: a recursive UNION removes duplicates, so that all of its columns
// are a key.
func (s *scope) recursiveKeys(rte *node) [][]int {
	at := s
	for range rte.num("ctelevelsup") {
		if at = at.parent; at == nil {
			return nil
		}
	}
	for _, c := range at.q.nodes("cteList") {
		op := c.child("ctequery").child("setOperations")
		if c.text("ctename") != rte.text("ctename") || op == nil || op.is("all") || setOp(op) != setUnion {
			continue
		}
		key := make([]int, len(rte.child("eref").items("colnames")))
		for i := range key {
			key[i] = i + 1
		}
		return [][]int{key}
	}
	return nil
}

func (s *scope) relationKeys(f *facts, rt int, rte *node) [][]int {
	r := s.a.relations[rte.oid("relid")]
	if r == nil || r.Parent && rte.is("inh") {
		return nil // a parent's keys are unique for each child only
	}
	if r.producer != nil {
		key := make([]int, len(r.producer.Key))
		for i, k := range r.producer.Key {
			key[i] = int(r.attrs[k].Num)
			if f.nullable[rt] && !r.producer.Columns[k].NotNull {
				return nil // a key of NULL looks like no row
			}
		}
		return [][]int{key} // nulls are not distinct in the key of a backing table
	}
	var out [][]int
	for _, u := range r.uniques {
		key := make([]int, len(u.Columns))
		usable := true
		for i, num := range u.Columns {
			key[i] = int(num)
			at := r.attr(int(num))
			usable = usable && at != nil && (at.NotNull || u.NullsNotDistinct && !f.nullable[rt] || f.notNull[attr{rt, int(num)}])
		}
		if usable {
			out = append(out, key)
		}
	}
	return out
}

// functionKeys knows the functions whose rows differ in a column: by ordinality,
// or by nature.
func (s *scope) functionKeys(rte *node) [][]int {
	if rte.is("funcordinality") {
		return [][]int{{len(rte.child("eref").items("colnames"))}}
	}
	switch fn := s.onlyFunction(rte); {
	case fn == nil:
	case !fn.ReturnSet:
		return [][]int{{}}
	case fn.distinct():
		return [][]int{{1}}
	}
	return nil
}

// conjuncts splits a condition at AND.
func conjuncts(quals *node) []*node {
	if quals == nil {
		return nil
	}
	if quals.tag != "BOOLEXPR" || quals.text("boolop") != "and" {
		return []*node{quals}
	}
	var out []*node
	for _, arg := range quals.nodes("args") {
		out = append(out, conjuncts(arg)...)
	}
	return out
}

// conditions adds what equalities say. Within the nullable side of an outer
// join two columns are equal or both absent, but a value fixes nothing.
func (s *scope) conditions(f *facts, quals *node, nullable bool) {
	for _, c := range conjuncts(quals) {
		l, r, ok := s.equality(s.undistinct(c, nullable))
		if !ok {
			continue
		}
		la, lok := s.attrOf(l)
		ra, rok := s.attrOf(r)
		if lok && rok {
			f.fds = append(f.fds, fd{[]attr{la}, ra}, fd{[]attr{ra}, la})
			continue
		}
		if from, fixed := s.readBy(r); lok && fixed && !nullable {
			f.fds = append(f.fds, fd{from, la})
		}
		if from, fixed := s.readBy(l); rok && fixed && !nullable {
			f.fds = append(f.fds, fd{from, ra})
		}
	}
}

// undistinct gives x IS NOT DISTINCT FROM y as x = y: it fixes values as well, NULL being one.
func (s *scope) undistinct(c *node, nullable bool) *node {
	if nullable || c.tag != "BOOLEXPR" || c.text("boolop") != "not" || c.nodes("args")[0].tag != "DISTINCTEXPR" {
		return c
	}
	inner := c.nodes("args")[0]
	return &node{tag: "OPEXPR", fields: inner.fields}
}

// readBy lists the attributes that fix the value of an expression: what it reads. It says no where equal values of them may
// be different ones to the expression, as 1.0 and 1.00 are, or where it depends on other rows.
func (s *scope) readBy(e *node) ([]attr, bool) {
	fixed := true
	var from []attr
	walk(e, func(n *node) bool {
		switch n.tag {
		case "VAR":
			if n.num("varlevelsup") > 0 {
				return true
			}
			a, ok := s.attrOf(n)
			fixed = fixed && ok && s.a.exactExpr(n)
			from = append(from, a)
		case "SUBLINK", "AGGREF", "WINDOWFUNC":
			fixed = false
		}
		return fixed
	})
	return from, fixed
}

// equality recognises a condition that holds for equal values alone.
func (s *scope) equality(c *node) (l, r *node, ok bool) {
	if c.tag != "OPEXPR" {
		return nil, nil, false
	}
	op, args := s.a.operators[c.oid("opno")], c.nodes("args")
	if op == nil || !op.Equality || len(args) != 2 {
		return nil, nil, false
	}
	coll := c.oid("inputcollid")
	if info := s.a.collations[coll]; coll != 0 && (info == nil || !info.Deterministic) {
		// Under such a collation equal is not the same, unless the columns' own
		// keys are under it too.
		for _, arg := range args {
			if arg.tag == "VAR" && arg.oid("varcollid") != coll {
				return nil, nil, false
			}
		}
	}
	return args[0], args[1], true
}

// attrOf returns the attribute that an expression is.
func (s *scope) attrOf(e *node) (attr, bool) {
	c, rest := s.bare(e)
	if rest != nil || c.s != s || c.attr <= 0 {
		return attr{}, false
	}
	return attr{c.rt, c.attr}, true
}

// strictColumns records columns that a condition proves not to be NULL.
func (s *scope) strictColumns(f *facts, quals *node) {
	for _, c := range conjuncts(quals) {
		var args []*node
		switch {
		case c.tag == "NULLTEST" && c.num("nulltesttype") == 1:
			args = []*node{c.child("arg")}
		case c.tag == "OPEXPR":
			if fn := s.a.functions[c.oid("opfuncid")]; fn != nil && fn.Strict {
				args = c.nodes("args")
			}
		}
		for _, arg := range args {
			if a, ok := s.attrOf(arg); ok {
				f.notNull[a] = true
			}
		}
	}
}
