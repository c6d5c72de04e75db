package plans

import (
	"slices"
	"strings"
)

// partialKind says how a partial of an aggregate is maintained.
type partialKind int

const (
	// countPartial and sumPartial are groups: an old image subtracts.
	countPartial partialKind = iota + 1
	sumPartial
	// latticePartial only ever moves one way; an old image may force a look at
	// the source.
	latticePartial
	// statePartial is the result of a user-defined aggregate, which a declared
	// function decodes into its state.
	statePartial
)

// partialRule is one partial of an aggregate: an aggregate itself, whose result
// is what is stored.
type partialRule struct {
	kind partialKind
	// name in the result's template.
	name string
	// call is the aggregate over images; # stands for the arguments.
	call string
	// result is the type of its result; nil: that of the aggregate.
	result func(arg *typeInfo) uint32
	// combine gives the two values' merge, for a lattice: x is stored, y comes from
	// new images. Both may be NULL.
	combine string
	// moved is true where a retraction (r, over old images) may change the merged
	// value x, for a lattice. R is not NULL.
	moved string
	// covered is true where new images of the same batch (y) hold what the old ones
	// (r) took away, so that the retraction cannot matter. It is sound only where
	// every new image is there at the end of the batch.
	covered string
	// state is set for a statePartial.
	state *stateRule
	// fold is the operation that Go knows, 0 for none.
	fold FoldOp
}

// rule is the declared algebra of an aggregate: which partials it decomposes
// into, and how its result is read from them.
type rule struct {
	names []string
	// accepts says which argument types have an exact algebra.
	accepts  func(a *analysis, arg *node) bool
	partials []partialRule
	// result is an expression over the partials by name in braces. A partial of
	// kind count stands for the number of arguments that are not NULL.
	result string
	// shown names the partial whose stored form the result is, "" for none.
	shown string
}

// Partials that several aggregates share.
var (
	countOf   = partialRule{kind: countPartial, name: "c", call: "count(#)", result: fixedType(int8OID), fold: FoldCount}
	sumOf     = partialRule{kind: sumPartial, name: "s", call: "sum(#)", result: sumType, fold: FoldSum}
	squaresOf = partialRule{
		kind: sumPartial, name: "q", call: "sum((#)::numeric * (#)::numeric)", result: fixedType(numericOID), fold: FoldSquares,
	}
)

// lattice is the result of a lattice that cannot tell no value from one.
const lattice = "CASE WHEN {c} = 0 THEN NULL ELSE {v} END"

// variance is the numerator of every variance, as Postgres computes it.
const variance = "({c} * {q}::numeric - {s}::numeric * {s}::numeric)"

// Postgres prints a variance of zero as 0. It takes the square root of the
// variance as it is rounded for print, to as many digits: sqrt alone would choose
// its own, and 30 more digits keep the second rounding from showing.
const (
	varPop   = "CASE WHEN {c} = 0 THEN NULL WHEN " + variance + " <= 0 THEN 0 ELSE " + variance + " / ({c}::numeric * {c}) END"
	varSamp  = "CASE WHEN {c} <= 1 THEN NULL WHEN " + variance + " <= 0 THEN 0 ELSE " + variance + " / ({c}::numeric * ({c} - 1)) END"
	rootOpen = "(SELECT CASE WHEN v IN (0, 'NaN') THEN v ELSE round(sqrt(round(v, scale(v) + 30)), scale(v)) END FROM (SELECT "
	rootShut = ") AS deviation(v))"
)

// algebra declares every aggregate that is kept by its partials. An aggregate
// that is missing here takes the residual; adding one is adding a row.
var algebra = []rule{
	{names: []string{"count"}, accepts: anyType, partials: []partialRule{countOf}, result: "{c}", shown: "c"},
	{
		names: []string{"sum"}, accepts: summable, partials: []partialRule{countOf, sumOf},
		result: "CASE WHEN {c} = 0 THEN NULL ELSE {s} END", shown: "s",
	},
	{
		names: []string{"avg"}, accepts: exactNumber, partials: []partialRule{countOf, sumOf},
		result: "CASE WHEN {c} = 0 THEN NULL ELSE {s}::numeric / {c} END",
	},
	{
		names: []string{"avg"}, accepts: isInterval, partials: []partialRule{countOf, sumOf},
		result: "CASE WHEN {c} = 0 THEN NULL ELSE {s} / {c}::float8 END",
	},
	{names: []string{"var_pop"}, accepts: exactNumber, partials: []partialRule{countOf, sumOf, squaresOf}, result: varPop},
	{
		names: []string{"var_samp", "variance"}, accepts: exactNumber, partials: []partialRule{countOf, sumOf, squaresOf},
		result: varSamp,
	},
	{
		names: []string{"stddev_pop"}, accepts: exactNumber, partials: []partialRule{countOf, sumOf, squaresOf},
		result: rootOpen + varPop + rootShut,
	},
	{
		names: []string{"stddev_samp", "stddev"}, accepts: exactNumber, partials: []partialRule{countOf, sumOf, squaresOf},
		result: rootOpen + varSamp + rootShut,
	},
	{names: []string{"max"}, accepts: ordered, result: "{v}", shown: "v", partials: []partialRule{{
		kind: latticePartial, name: "v", call: "max(#)", combine: "GREATEST(x, y)", moved: "NOT coalesce(r < x, false)",
		covered: "y > r OR E AND y = r", fold: FoldMax,
	}}},
	{names: []string{"min"}, accepts: ordered, result: "{v}", shown: "v", partials: []partialRule{{
		kind: latticePartial, name: "v", call: "min(#)", combine: "LEAST(x, y)", moved: "NOT coalesce(r > x, false)",
		covered: "y < r OR E AND y = r", fold: FoldMin,
	}}},
	{names: []string{"bool_and", "every"}, accepts: anyType, result: lattice, shown: "v", partials: []partialRule{countOf, {
		kind: latticePartial, name: "v", call: "bool_and(#)", combine: "coalesce(x, true) AND coalesce(y, true)", moved: "NOT r",
		covered: "NOT y", fold: FoldAnd,
	}}},
	{names: []string{"bool_or"}, accepts: anyType, result: lattice, shown: "v", partials: []partialRule{countOf, {
		kind: latticePartial, name: "v", call: "bool_or(#)", combine: "coalesce(x, false) OR coalesce(y, false)", moved: "r",
		covered: "y", fold: FoldOr,
	}}},
	{names: []string{"bit_or"}, accepts: isInteger, result: lattice, shown: "v", partials: []partialRule{countOf, {
		kind: latticePartial, name: "v", call: "bit_or(#)", combine: "coalesce(x, 0::T) | coalesce(y, 0::T)", moved: "r <> 0",
		covered: "(r & ~ y) = 0", fold: FoldBitOr,
	}}},
	{names: []string{"bit_and"}, accepts: isInteger, result: lattice, shown: "v", partials: []partialRule{countOf, {
		kind: latticePartial, name: "v", call: "bit_and(#)", combine: "coalesce(x, (-1)::T) & coalesce(y, (-1)::T)", moved: "r <> -1",
		covered: "(y & ~ r) = 0", fold: FoldBitAnd,
	}}},
}

// algebraOf finds the rule of a builtin aggregate for its argument.
func (a *analysis) algebraOf(f *function, arg *node) (*rule, bool) {
	if f == nil || f.Schema != "pg_catalog" {
		return nil, false
	}
	for i := range algebra {
		if slices.Contains(algebra[i].names, f.Name) && algebra[i].accepts(a, arg) {
			return &algebra[i], true
		}
	}
	return nil, false
}

func fixedType(oid uint32) func(*typeInfo) uint32 { return func(*typeInfo) uint32 { return oid } }

// sumType is the type of sum(x): wider than its argument for integers.
func sumType(arg *typeInfo) uint32 {
	switch arg.OID {
	case int2OID, int4OID:
		return int8OID
	case int8OID:
		return numericOID
	}
	return arg.OID
}

func anyType(*analysis, *node) bool { return true }

// isInteger accepts the types that Go can add.
func isInteger(a *analysis, arg *node) bool {
	t := a.argType(arg)
	return t != nil && (t.OID == int2OID || t.OID == int4OID || t.OID == int8OID)
}

// fixedNumeric accepts a numeric whose scale is fixed by its modifier: sums of
// others change their display scale with the widest value.
func fixedNumeric(a *analysis, arg *node) bool {
	t := a.argType(arg)
	return t != nil && t.OID == numericOID && exprModifier(arg) >= 0
}

func exactNumber(a *analysis, arg *node) bool { return isInteger(a, arg) || fixedNumeric(a, arg) }

func isInterval(a *analysis, arg *node) bool {
	t := a.argType(arg)
	return t != nil && t.Schema == "pg_catalog" && t.Name == "interval"
}

func summable(a *analysis, arg *node) bool {
	t := a.argType(arg)
	return exactNumber(a, arg) || isInterval(a, arg) || t != nil && t.Schema == "pg_catalog" && t.Name == "money"
}

// ordered accepts types that pg_catalog's own operators compare.
func ordered(a *analysis, arg *node) bool {
	t := a.argType(arg)
	return t != nil && t.EqualIn == "pg_catalog" && t.Kind != "c"
}

func (a *analysis) argType(arg *node) *typeInfo {
	if arg == nil {
		return nil
	}
	return a.baseType(exprType(arg))
}

// fill puts values in the place of a template's names.
func fill(template string, values map[string]string) string {
	pairs := make([]string, 0, 2*len(values))
	for name, v := range values {
		pairs = append(pairs, "{"+name+"}", v)
	}
	return strings.NewReplacer(pairs...).Replace(template)
}

// words puts values in the place of a merge rule's one-letter words.
func words(template string, values map[string]string) string {
	var b strings.Builder
	for i := 0; i < len(template); {
		j := i
		for j < len(template) && isLetter(template[j]) {
			j++
		}
		if j == i {
			b.WriteByte(template[i])
			i++
			continue
		}
		word := template[i:j]
		if v, ok := values[word]; ok {
			word = v
		}
		b.WriteString(word)
		i = j
	}
	return b.String()
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
