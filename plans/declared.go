package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// declaredRule is the algebra of a user-defined aggregate as it was declared,
// resolved by Postgres.
type declaredRule struct {
	signature string // of the declaration
	function  *function
	args      []string // the types of the arguments
	argOIDs   []uint32
	result    string // the type of the result
	strict    bool   // rows with a NULL argument do not count
	// Either state is set, or the expression over aggregates of the parameters.
	state *stateRule
	expansion
}

// stateRule is an algebra of functions over one state type.
type stateRule struct {
	merge, negate, decode string // names for SQL; negate may be empty
	final                 string // gives a state's result in place of #
	empty                 string // the result over no rows
}

// finalOf is the result of a state.
func finalOf(st *stateRule, state string) string { return strings.ReplaceAll(st.final, "#", state) }

// merged is the state of two, either of which may be missing, as its condition
// says.
func (st *stateRule) merged(x, hasX, y, hasY string) string {
	return "CASE WHEN " + hasX + " THEN CASE WHEN " + hasY + " THEN " + st.merge + "(" + x + ", " + y + ") ELSE " + x + " END ELSE " + y + " END"
}

// expansion is an expression over aggregates, in canonical text.
type expansion struct {
	expr   *selectText // its only target
	params []string
	calls  map[string]bool // names of the aggregates in it
}

// aggregateRow is what the catalog says of an aggregate.
type aggregateRow struct {
	Kind       string
	Final      uint32
	FinalExtra bool
	Transition uint32 // function
	Strict     bool
	State      string // types by name
	Result     string
	Variadic   bool
	Args       []string
	ArgOIDs    []uint32
	Names      []string
	Support    []uint32
}

const aggregateSQL = `
SELECT a.aggkind::text, a.aggfinalfn::oid, a.aggfinalextra, a.aggtransfn::oid, t.proisstrict,
       format_type(a.aggtranstype, -1), format_type(p.prorettype, -1), p.provariadic <> 0,
       coalesce((SELECT array_agg(format_type(x.t, -1) ORDER BY x.n) FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY x(t, n)), '{}'),
       p.proargtypes::oid[], coalesce(p.proargnames[:p.pronargs], '{}'),
       array_remove(ARRAY[a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn, a.aggdeserialfn]::oid[], 0::oid)
FROM pg_aggregate a JOIN pg_proc p ON p.oid = a.aggfnoid JOIN pg_proc t ON t.oid = a.aggtransfn
WHERE a.aggfnoid = $1`

// loadDeclared reads the user-defined aggregates of the body, and resolves the
// algebra that is declared for them.
func (a *analysis) loadDeclared(ctx context.Context) error {
	a.declared = map[uint32]*declaredRule{}
	var signatures map[uint32]string
	for _, f := range a.ownAggregates() {
		rows, err := collect[aggregateRow](ctx, a.tx, "read an aggregate", aggregateSQL, f.OID)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			continue // a window function
		}
		if err := a.loadFunctions(ctx, rows[0].Support); err != nil {
			return err
		}
		if signatures == nil {
			if signatures, err = a.resolveSignatures(ctx); err != nil {
				return err
			}
		}
		if s, ok := signatures[f.OID]; ok {
			if a.declared[f.OID], err = a.resolveDeclared(ctx, s, f, &rows[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

// ownAggregates are the aggregates of the body that are not Postgres' own.
func (a *analysis) ownAggregates() []*function {
	var out []*function
	for _, f := range a.functions {
		if f != nil && f.Kind == "a" && f.Schema != "pg_catalog" {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(x, y *function) int { return strings.Compare(x.signature(), y.signature()) })
	return out
}

// resolveSignatures finds the declared aggregates by oid, so that a type may be
// spelt in any way that Postgres knows. A signature that names nothing concerns
// no body.
func (a *analysis) resolveSignatures(ctx context.Context) (map[uint32]string, error) {
	out := map[uint32]string{}
	for s := range a.o.Aggregates {
		oid, err := a.resolveFunction(ctx, s, a.searchPath())
		if err != nil {
			return nil, err
		}
		if oid != 0 {
			out[oid] = s
		}
	}
	return out, nil
}

// resolveFunction returns the oid of a function by its signature, 0 where there
// is none. Types are looked up along the path.
func (a *analysis) resolveFunction(ctx context.Context, signature string, path []string) (uint32, error) {
	sub, err := a.tx.Begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("look up %s: %w", signature, err)
	}
	defer sub.Rollback(ctx) // the outer transaction's end shows a broken connection
	quoted := []string{"''"}
	if len(path) > 0 {
		quoted = quoted[:0]
	}
	for _, s := range path {
		quoted = append(quoted, quoteAlways(s))
	}
	if _, err := sub.Exec(ctx, "SET LOCAL search_path = "+join(quoted)); err != nil {
		return 0, fmt.Errorf("look up %s: %w", signature, err)
	}
	var oid uint32
	err = sub.QueryRow(ctx, "SELECT coalesce(to_regprocedure($1)::oid, 0)", signature).Scan(&oid)
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return 0, nil // no signature
	}
	if err != nil {
		return 0, fmt.Errorf("look up %s: %w", signature, err)
	}
	return oid, nil
}

// resolveDeclared checks a declaration against the catalog.
func (a *analysis) resolveDeclared(ctx context.Context, signature string, f *function, row *aggregateRow) (*declaredRule, error) {
	d := a.o.Aggregates[signature]
	r := &declaredRule{
		signature: signature, function: f, args: row.Args, argOIDs: row.ArgOIDs, result: row.Result, strict: row.Strict && len(row.Args) > 0,
	}
	if row.Kind != "n" || row.Variadic {
		return nil, a.algebraRefusal(r, "it takes its arguments in an order or in any number, for which there is no algebra")
	}
	if d.Decompose != "" {
		return r, a.resolveExpansion(ctx, r, row, d.Decompose)
	}
	return r, a.resolveState(ctx, r, row, d)
}

func (a *analysis) algebraRefusal(r *declaredRule, format string, args ...any) *Refusal {
	out := refusef(Invalid, "aggregates: "+r.signature, "mend the declaration under aggregates, or take it out: then the view is kept without it, at a higher price",
		format, args...)
	out.Position = a.find(r.function.Name)
	return out
}

// functionOf resolves a declared function over types, whose result must be as
// wanted: "" wants any.
func (a *analysis) functionOf(ctx context.Context, r *declaredRule, role, name string, args []string, want string) (sql, result string, err error) {
	signature := name + "(" + join(args) + ")"
	oid, err := a.resolveFunction(ctx, signature, nil)
	if err != nil {
		return "", "", err
	}
	if oid == 0 {
		return "", "", a.algebraRefusal(r, "%s: there is no function %s", role, signature)
	}
	if err := a.loadFunctions(ctx, []uint32{oid}); err != nil {
		return "", "", err
	}
	var pseudo bool
	err = a.tx.QueryRow(ctx, `SELECT format_type(t.oid, -1), t.typtype = 'p' FROM pg_proc p JOIN pg_type t ON t.oid = p.prorettype WHERE p.oid = $1`,
		oid).Scan(&result, &pseudo)
	f := a.functions[oid]
	switch {
	case err != nil:
		return "", "", fmt.Errorf("look up %s: %w", signature, err)
	case f.Volatile != "i" || f.Kind != "f" || f.ReturnSet:
		return "", "", a.algebraRefusal(r, "%s: %s must be an IMMUTABLE function", role, f.signature())
	case pseudo || want != "" && result != want:
		return "", "", a.algebraRefusal(r, "%s: %s returns %s in place of %s", role, f.signature(), result, orWord(want, "a type that can be stored"))
	}
	return quoteAlways(f.Schema) + "." + quoteAlways(f.Name), result, nil
}

func orWord(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// resolveState resolves functions over one state type: the type that decode
// gives.
func (a *analysis) resolveState(ctx context.Context, r *declaredRule, row *aggregateRow, d Declared) (err error) {
	st := &stateRule{}
	r.state = st
	var state string
	if st.decode, state, err = a.functionOf(ctx, r, "decode", d.Decode, []string{row.Result}, ""); err != nil {
		return err
	}
	if st.merge, _, err = a.functionOf(ctx, r, "merge", d.Merge, []string{state, state}, state); err != nil {
		return err
	}
	if d.Negate != "" {
		if st.negate, _, err = a.functionOf(ctx, r, "negate", d.Negate, []string{state}, state); err != nil {
			return err
		}
	}
	nulls := make([]string, len(row.Args))
	for i, t := range row.Args {
		nulls[i] = "NULL::" + t
	}
	final := a.functions[row.Final]
	switch {
	case state == row.State && final != nil:
		st.final = quoteAlways(final.Schema) + "." + quoteAlways(final.Name) + "(#"
		if row.FinalExtra {
			st.final += strings.Repeat(", ", min(1, len(nulls))) + join(nulls)
		}
		st.final += ")"
	case state == row.Result:
		st.final = "#"
	default:
		return a.algebraRefusal(r, "decode gives the state %s, and nothing makes a result of it: the aggregate's own state is %s", state, row.State)
	}
	st.empty = "(SELECT " + r.call(nulls) + " WHERE false)"
	return nil
}

// rule is the algebra of the functions: the aggregate's result stands for its
// state, unless no row counts.
func (r *declaredRule) rule() *rule {
	count := partialRule{kind: countPartial, name: "c", call: "count(*)", result: fixedType(int8OID)}
	switch {
	case r.strict && len(r.args) == 1:
		count.call = "count(#)"
	case r.strict:
		count.call = "count(CASE WHEN num_nulls(#) = 0 THEN 1 END)"
	}
	return &rule{
		partials: []partialRule{count, {kind: statePartial, name: "v", call: r.call([]string{"#"}), state: r.state}},
		result:   "CASE WHEN {c} = 0 THEN " + r.state.empty + " ELSE {v} END", shown: "v",
	}
}

// call is a call of the aggregate.
func (r *declaredRule) call(args []string) string {
	text := "*"
	if len(args) > 0 {
		text = join(args)
	}
	return quoteAlways(r.function.Schema) + "." + quoteAlways(r.function.Name) + "(" + text + ")"
}

// parameters are the names by which an expression calls the arguments: the
// aggregate's own, else x, or x1, x2 and so on.
func (row *aggregateRow) parameters() []string {
	if len(row.Names) == len(row.Args) && !slices.Contains(row.Names, "") {
		return row.Names
	}
	if len(row.Args) == 1 {
		return []string{"x"}
	}
	out := make([]string, len(row.Args))
	for i := range out {
		out[i] = prefixed("x", i+1)
	}
	return out
}
