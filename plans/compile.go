package plans

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Querier opens a transaction: a connection, a pool, or a transaction, in which
// it is a savepoint.
type Querier interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Compile plans the view. It asks Postgres inside a transaction of its own,
// which it rolls back. The error is a [*Refusal] where the view is refused; any
// other says that Postgres could not be asked.
func Compile(ctx context.Context, q Querier, d Declaration, o Options) (*Plan, error) {
	tx, err := q.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("plan %s: open a transaction: %w", d.Name, err)
	}
	p, err := compile(ctx, tx, d, o)
	if undo := tx.Rollback(ctx); undo != nil && !errors.Is(undo, pgx.ErrTxClosed) {
		err = errors.Join(err, undo)
	}
	if _, ok := errors.AsType[*Refusal](err); ok {
		return nil, err
	}
	if err == nil && o.Compare {
		err = p.compare(ctx, q, d, o)
	}
	if err != nil {
		return nil, fmt.Errorf("plan %s: %w", d.Name, err)
	}
	return p, nil
}

func compile(ctx context.Context, tx pgx.Tx, d Declaration, o Options) (*Plan, error) {
	a, err := analyze(ctx, tx, d, o)
	if err != nil {
		return nil, err
	}
	if r := a.check(); r != nil {
		return nil, r
	}
	p := a.outline()
	if r := a.chooseKey(p); r != nil {
		return nil, r
	}
	if err := a.choose(ctx, p); err != nil {
		return nil, err
	}
	if len(p.Coarsened) > 0 {
		if p.KeySource = a.keySource(p); p.KeySource == nil {
			return nil, a.noKey()
		}
	}
	if err := a.checkRebuild(ctx, p); err != nil {
		return nil, err
	}
	if p.Inlined, err = a.inlined(ctx, p); err != nil {
		return nil, err
	}
	if o.Estimate || o.Compare {
		if p.Cost, err = Estimate(ctx, tx, p); err != nil {
			return nil, err
		}
	}
	a.forgetStandIns(p)
	return p, nil
}

// check refuses what no strategy could keep.
func (a *analysis) check() *Refusal {
	switch {
	case len(a.columns) == 0:
		r := refuse(NoRelation, "query", "it has no output columns", "select at least one column")
		r.Position = skipSpace(a.d.Query, a.stmt.start)
		return r
	case len(a.d.Columns) > 0 && len(a.d.Columns) != len(a.columns):
		return refusef(Invalid, "columns", "name every column of the body, or none",
			"%d names for %d columns", len(a.d.Columns), len(a.columns))
	}
	if r := a.checkSources(); r != nil {
		return r
	}
	return a.checkDeterminism()
}

// outline is the plan as far as it does not depend on the strategy.
func (a *analysis) outline() *Plan {
	p := &Plan{
		Name: a.d.Name, Body: a.body, Eval: a.body, Hash: a.hash(), Declined: map[Strategy]string{},
		Nondeterministic: a.d.Nondeterministic,
	}
	p.Columns = a.describeColumns(a.columns, a.top)
	for i := range p.Columns {
		p.Columns[i].Dependent = a.top.dependence(i)
	}
	for _, r := range a.sources {
		p.Sources = append(p.Sources, a.source(r))
	}
	p.Depends = a.depends()
	p.Indexes = a.orderIndex()
	return p
}

// describeColumns describes the columns of a query.
func (a *analysis) describeColumns(attrs []attribute, s *scope) []Column {
	outs := s.outputs()
	var out []Column
	for i, at := range attrs {
		out = append(out, Column{
			Name: at.Name, Type: at.Type, TypeOID: at.TypeOID, Modifier: at.Modifier,
			Collation: a.collationName(at.Collation, at.TypeOID), NotNull: s.notNull(outs[i].child("expr"), i),
			HasArray: a.types[at.TypeOID] != nil && a.types[at.TypeOID].HasArray, Equal: a.equal(at.TypeOID),
		})
	}
	return out
}

// hash identifies the canonical text under this major version, which decides how
// Postgres writes it.
func (a *analysis) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d\n%s", a.version/10000, a.body))
	return hex.EncodeToString(sum[:16])
}

// depends lists the catalog objects other than sources that results depend on.
func (a *analysis) depends() []Object {
	var out []Object
	for _, oid := range a.views {
		out = append(out, Object{Relation, oid})
	}
	for oid, f := range a.functions {
		if f != nil {
			out = append(out, Object{Function, oid})
		}
	}
	for oid, op := range a.operators {
		if op != nil {
			out = append(out, Object{Operator, oid})
		}
	}
	for oid, t := range a.types {
		if t != nil {
			out = append(out, Object{Type, oid})
		}
	}
	for oid, l := range a.collations {
		if l != nil {
			out = append(out, Object{Collation, oid})
		}
	}
	slices.SortFunc(out, func(x, y Object) int {
		if c := strings.Compare(string(x.Class), string(y.Class)); c != 0 {
			return c
		}
		return int(x.OID) - int(y.OID)
	})
	return out
}

// orderIndex turns the body's ORDER BY, which a table does not keep, into an
// index of the backing table, where it sorts by output columns.
func (a *analysis) orderIndex() []string {
	if a.top.q.has("limitCount") {
		return nil
	}
	var cols []string
	for _, c := range a.top.q.nodes("sortClause") {
		t := a.top.sortGroup(c)
		if t == nil || t.is("resjunk") {
			return nil
		}
		col := quoteAlways(a.columns[t.num("resno")-1].Name)
		if op := a.operators[c.oid("sortop")]; op != nil && op.Name == ">" {
			col += " DESC"
		}
		cols = append(cols, col)
	}
	if len(cols) == 0 {
		return nil
	}
	return []string{join(cols)}
}

// chooseKey proves a key: the asserted one, else the best.
func (a *analysis) chooseKey(p *Plan) *Refusal {
	key, ok := a.top.key()
	if !ok {
		a.coarse = true
		a.top.forget()
		if key, ok = a.top.key(); !ok {
			a.coarse = false
			a.top.forget()
		}
	}
	if a.d.Key != nil {
		var r *Refusal
		if key, r = a.assertedKey(p); r != nil {
			return r
		}
		ok = true
	}
	if !ok {
		return a.noKey()
	}
	p.Key = key
	for _, k := range key {
		if p.Columns[k].Equal == "" {
			return refusef(NoKey, p.Columns[k].Name, "cast the column, or group by another",
				"the key needs the column %s, whose type %s has no order", p.Columns[k].Name, p.Columns[k].Type)
		}
		if a.coarse && a.weakens(a.top.outputs()[k].child("expr")) {
			p.Coarsened = append(p.Coarsened, p.Columns[k].Name)
		}
	}
	return nil
}

// weakens reports a COLLATE that makes values equal that are not the same.
func (a *analysis) weakens(e *node) bool {
	l := a.collations[e.oid("collOid")]
	return (e.tag == "COLLATEEXPR" || e.tag == "COLLATE") && l != nil && !l.Deterministic
}

func (a *analysis) assertedKey(p *Plan) ([]int, *Refusal) {
	var key []int
	for _, name := range a.d.Key {
		i := slices.IndexFunc(p.Columns, func(c Column) bool { return c.Name == name })
		if i < 0 {
			return nil, refusef(NoKey, "key", "name output columns of the body", "the body has no column %q", name)
		}
		key = append(key, i)
	}
	if !a.top.identifies(pick(a.top.outputs(), key)) {
		return nil, refusef(NoKey, "key", "leave key out, and mvsync finds one, or name columns that a constraint keeps unique",
			"(%s) is not provably unique", strings.Join(a.d.Key, ", "))
	}
	return key, nil
}

// noKey says what would make a key.
func (a *analysis) noKey() *Refusal {
	suggestion := "project the primary key of each table that the body reads, or add DISTINCT"
	if a.top.q.has("setOperations") {
		suggestion = "use UNION in place of UNION ALL, or give each leg a constant column of its own and its key"
	}
	if len(a.sources) == 1 && !a.top.q.has("setOperations") {
		r := a.sources[0]
		switch pk := slices.IndexFunc(r.uniques, func(u unique) bool { return u.Primary }); {
		case r.Parent:
			suggestion = "read ONLY " + r.name().String() + ", or group: keys of an inheritance parent are unique for each child only"
		case pk >= 0:
			var cols []string
			for _, num := range r.uniques[pk].Columns {
				cols = append(cols, r.attr(int(num)).Name)
			}
			suggestion = "project the primary key (" + join(cols) + ") of " + r.name().String() + ", or add DISTINCT"
		default:
			suggestion = "add a primary key to " + r.name().String() + " and project it, or add DISTINCT"
		}
	}
	return refuse(NoKey, "query", "no set of its columns is provably unique, so that its rows cannot be told apart", suggestion)
}

// forget drops what was proven, since another premise holds.
func (s *scope) forget() {
	s.known, s.keyDone = nil, false
	for _, sub := range s.subs {
		if sub != nil {
			sub.forget()
		}
	}
}
