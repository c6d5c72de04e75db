package plans

import (
	"slices"
	"strings"
)

// notNull reports whether an output expression cannot be NULL. The output's
// number decides for set operations.
func (s *scope) notNull(e *node, output int) bool {
	if s.q.has("setOperations") {
		l := s.legs()
		check := l.scopes
		if l.left {
			check = check[:1]
		}
		return !slices.ContainsFunc(check, func(leg *scope) bool {
			return leg == nil || !leg.notNull(leg.outputs()[output].child("expr"), output)
		})
	}
	return s.solid(e)
}

// Builtin aggregates and window functions that never return NULL.
var countLike = wordSet(`count regr_count row_number rank dense_rank percent_rank cume_dist ntile`)

// Builtin functions that return NULL for NULL arguments only. Not extract, which
// has no day of infinity.
var totalFunctions = wordSet(`date_trunc lower upper abs length char_length octet_length int2 int4 int8 numeric float4 float8
	text varchar bpchar date timestamp timestamptz md5 concat`)

// isTotal reports such a function. Of its namesakes over ranges and JSON some
// return NULL: an empty range has no lower bound, a JSON null is no number.
func isTotal(f *function) bool {
	return f.Schema == "pg_catalog" && totalFunctions[f.Name] && !strings.Contains(f.Args, "range") && !strings.Contains(f.Args, "json")
}

// Operators that return NULL for NULL arguments only.
var totalOperators = wordSet(`+ - * / % || = <> < > <= >= & |`)

// solid reports whether an expression of the scope cannot be NULL.
func (s *scope) solid(e *node) bool {
	if e == nil {
		return false
	}
	switch e.tag {
	case "VAR":
		return s.solidColumn(e)
	case "CONST":
		return !e.is("constisnull")
	case "RELABELTYPE", "COERCETODOMAIN", "COLLATEEXPR":
		return s.solid(e.child("arg"))
	case "NULLTEST", "BOOLEANTEST", "DISTINCTEXPR", "GROUPINGFUNC":
		return true
	case "COALESCE", "COALESCEEXPR", "MINMAX", "MINMAXEXPR":
		return slices.ContainsFunc(e.nodes("args"), s.solid)
	case "BOOLEXPR":
		return s.allSolid(e.nodes("args"))
	case "CASE", "CASEEXPR":
		return s.solidCase(e)
	}
	return s.solidCall(e)
}

// solidCall is solid for functions, operators and aggregates.
func (s *scope) solidCall(e *node) bool {
	switch e.tag {
	case "AGGREF", "WINDOWFUNC":
		f := s.a.functions[e.oid("aggfnoid")+e.oid("winfnoid")]
		return f != nil && f.Schema == "pg_catalog" && countLike[f.Name]
	case "FUNCEXPR":
		f := s.a.functions[e.oid("funcid")]
		return f != nil && isTotal(f) && s.allSolid(e.nodes("args"))
	case "OPEXPR":
		f, op := s.a.functions[e.oid("opfuncid")], s.a.operators[e.oid("opno")]
		return f != nil && op != nil && f.Schema == "pg_catalog" && f.Strict && totalOperators[op.Name] && s.allSolid(e.nodes("args"))
	}
	return false
}

func (s *scope) allSolid(args []*node) bool {
	return !slices.ContainsFunc(args, func(e *node) bool { return !s.solid(e) })
}

func (s *scope) solidCase(e *node) bool {
	for _, when := range e.nodes("args") {
		if !s.solid(when.child("result")) {
			return false
		}
	}
	return e.child("defresult") != nil && s.solid(e.child("defresult"))
}

// solidColumn: a NOT NULL column of a table that no outer join leaves out, or
// one that WHERE proves.
func (s *scope) solidColumn(v *node) bool {
	if s.q.has("groupingSets") {
		return false // NULL stands for all values
	}
	c, rest := s.resolve(v)
	if rest != nil {
		return rest != v && c.s == nil && s.solid(rest)
	}
	if c.attr <= 0 {
		return false
	}
	if c.s == s {
		f := s.facts()
		if f.notNull[attr{c.rt, c.attr}] {
			return true
		}
		if f.nullable[c.rt] {
			return false
		}
	}
	rte := c.s.rte(c.rt)
	switch kind(rte) {
	case rteRelation:
		r := s.a.relations[rte.oid("relid")]
		if r == nil {
			return false
		}
		if r.producer != nil {
			i := slices.IndexFunc(r.attrs, func(a attribute) bool { return int(a.Num) == c.attr })
			return i >= 0 && r.producer.Columns[i].NotNull
		}
		at := r.attr(c.attr)
		return at != nil && at.NotNull
	case rteSubquery, rteCTE:
		sub := c.s.sub(rte)
		if sub == nil || c.attr > len(sub.outputs()) {
			return false
		}
		return sub.notNull(sub.outputs()[c.attr-1].child("expr"), c.attr-1)
	case rteFunction:
		if rte.is("funcordinality") {
			return c.attr == len(rte.child("eref").items("colnames"))
		}
		return c.attr == 1 && s.onlyFunction(rte).distinct()
	}
	return false
}
