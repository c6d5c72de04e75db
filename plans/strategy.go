package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
)

// arm plans one strategy. It returns why the strategy does not fit, or "" and
// what it must find in old images of each source.
type arm struct {
	strategy Strategy
	plan     func(context.Context, *analysis, *Plan) (declined string, n []needs, err error)
}

// arms are tried in this order, cheapest first. The floor is what remains.
var arms = []arm{
	{InverseProjection, planProjection},
	{DeltaAggregate, planAggregate},
	{ResidualRecompute, planResidual},
	{PrefixDelete, planPrefix},
	{JoinResidual, planJoin},
}

// choose plans a strategy of the first family that has one that fits.
func (a *analysis) choose(ctx context.Context, p *Plan) error {
	fits, err := a.fitting(ctx, p)
	if err != nil {
		return err
	}
	if len(fits) == 0 {
		p.Strategy = FullRebuild
		return a.requireIdentities(p, make([]needs, len(p.Sources)))
	}
	chosen, err := a.weigh(ctx, p, fits)
	if err != nil {
		return err
	}
	a.put(p, chosen.planned)
	if err := a.requireIdentities(p, chosen.needs); err != nil {
		return err
	}
	return a.advise(ctx, p)
}

// fitting tries the arms up to the end of the family of the first that fits, and says
// of those before why they do not.
func (a *analysis) fitting(ctx context.Context, p *Plan) ([]fit, error) {
	var fits []fit
	blank := a.taken(p)
	for _, arm := range arms {
		if len(fits) > 0 && arm.strategy.family() != fits[0].strategy.family() {
			break
		}
		if a.d.Force != "" && a.d.Force != arm.strategy {
			if len(fits) == 0 {
				p.Declined[arm.strategy] = "the declaration forces " + string(a.d.Force)
			}
			continue
		}
		p.Strategy = arm.strategy
		declined, n, err := arm.plan(ctx, a, p)
		if _, ok := errors.AsType[*Refusal](err); ok && len(fits) > 0 {
			declined, err = err.Error(), nil // another way is there
		}
		switch {
		case err != nil:
			return nil, err
		case declined == "":
			fits = append(fits, fit{a.taken(p), n, 0})
		case len(fits) == 0:
			p.Declined[arm.strategy] = declined
		}
		a.put(p, blank)
	}
	return fits, nil
}

func (a *analysis) requireIdentities(p *Plan, n []needs) error {
	for i := range p.Sources {
		if r := a.requireIdentity(p, i, n[i]); r != nil {
			return r
		}
	}
	return nil
}

// newImages and oldImages name the inputs of the i-th source.
func newImages(i int) string { return "mvsync_new_" + itoa(i) }
func oldImages(i int) string { return "mvsync_old_" + itoa(i) }

// simple reports why a query is more than a filter and a projection of one
// table; "" where it is not, with the table.
func (s *scope) simple() (*relation, string) {
	switch {
	case s.q.has("setOperations"):
		return nil, "it is a set operation"
	case s.q.has("groupClause") || s.q.has("groupingSets") || s.q.is("hasAggs"):
		return nil, "it groups rows"
	case s.q.has("distinctClause"):
		return nil, "DISTINCT merges rows"
	}
	return s.plainFrom()
}

// plainFrom is simple for what is below the grouping: FROM and WHERE.
func (s *scope) plainFrom() (*relation, string) {
	switch {
	case s.q.is("hasWindowFuncs"):
		return nil, "a window function looks at other rows"
	case s.q.is("hasTargetSRFs"):
		return nil, "a set-returning function fans rows out"
	case s.q.is("hasSubLinks"):
		return nil, "a subquery looks at other rows"
	case s.q.has("limitCount") || s.q.has("limitOffset"):
		return nil, "LIMIT looks at other rows"
	}
	items := s.q.child("jointree").nodes("fromlist")
	if len(items) != 1 || items[0].tag != "RANGETBLREF" {
		return nil, "it joins tables"
	}
	rte := s.rte(items[0].num("rtindex"))
	switch kind(rte) {
	case rteRelation:
		return s.a.relations[rte.oid("relid")], ""
	case rteSubquery, rteCTE:
		if sub := s.sub(rte); sub != nil {
			return sub.simple()
		}
		return nil, "it is recursive"
	}
	return nil, "it reads no table alone"
}

// onlyTable checks that images can stand in for the one table of the body.
func (a *analysis) onlyTable(r *relation) string {
	read := a.readsOf(r.OID)
	switch {
	case len(a.sources) != 1 || read.places != 1:
		return "the body names more than one table"
	case read.columns[tableoid]:
		return "it reads tableoid, which images do not carry"
	}
	return ""
}

// missingInStream reports a column of the source that old images cannot carry.
func (a *analysis) missingInStream(src *Source) string {
	if a.version >= 180000 {
		return ""
	}
	for _, c := range src.Columns {
		if c.Generated {
			return "the generated column " + c.Name + " is not in the stream before PostgreSQL 18"
		}
	}
	return ""
}

// withImages replaces the i-th source in canonical text by images.
func (a *analysis) withImages(sql string, src *Source, images string) (string, error) {
	refs, err := tableRefs(sql)
	if err != nil {
		return "", fmt.Errorf("find %s in the body: %w", src.Table(), err)
	}
	var edits []edit
	for _, ref := range refs {
		if ref.name != src.Table() {
			continue
		}
		text := imageTable(src, images)
		if !ref.alias {
			text += " " + quoteAlways(ref.name.Name)
		}
		edits = append(edits, edit{span{ref.start, ref.end}, text})
	}
	return splice(sql, edits...), nil
}

// imageTable is what stands in for a table. Images come under default
// collations: where a column has another, it is given back here.
func imageTable(src *Source, images string) string {
	if !slices.ContainsFunc(src.Columns, func(c SourceColumn) bool { return c.Collation != "" }) {
		return images
	}
	var cols []string
	for _, c := range src.Columns {
		name := quoteAlways(c.Name)
		if c.Collation != "" {
			name += " COLLATE " + c.Collation + " AS " + name
		}
		cols = append(cols, name)
	}
	return "(SELECT " + join(cols) + " FROM " + images + ")"
}

// withoutOrder cuts the ORDER BY of the outermost SELECT.
func withoutOrder(sql string) string {
	s, ok := splitSelect(sql)
	if !ok || s.order.empty() || s.limit || !s.distinct.empty() {
		return sql
	}
	i := slices.IndexFunc(s.toks, func(t token) bool { return t.start == s.order.start })
	from := s.toks[i-2].start // ORDER BY
	return strings.TrimRightFunc(sql[:from]+sql[s.order.end:], unicode.IsSpace)
}

// input is a common table expression that a statement reads, for a try.
type input struct {
	name string
	cols []Column
}

func imagesInput(name string, src *Source) input {
	in := input{name: name}
	for _, c := range src.Columns {
		in.cols = append(in.cols, Column{Name: c.Name, Type: c.Type})
	}
	return in
}

// withInputs puts empty inputs in front of a statement.
func withInputs(sql string, inputs ...input) string {
	var ctes []string
	if len(inputs) == 0 {
		return "SELECT * FROM (" + sql + ") q LIMIT 0"
	}
	for _, in := range inputs {
		var cols, nulls []string
		for _, c := range in.cols {
			cols = append(cols, quoteAlways(c.Name))
			nulls = append(nulls, "NULL::"+c.Type)
		}
		if len(cols) == 0 {
			ctes = append(ctes, in.name+" AS (SELECT WHERE false)")
			continue
		}
		ctes = append(ctes, in.name+"("+join(cols)+") AS (SELECT "+join(nulls)+" WHERE false)")
	}
	return "WITH " + join(ctes) + " SELECT * FROM (" + sql + ") q LIMIT 0"
}

// confirm lets Postgres judge a spliced statement: it must have the expected
// columns. It returns what is wrong, "" for nothing.
func (a *analysis) confirm(ctx context.Context, sql string, want []Column, inputs ...input) (string, error) {
	sub, err := a.tx.Begin(ctx)
	if err != nil {
		return "", fmt.Errorf("try a statement: %w", err)
	}
	defer sub.Rollback(ctx) // the outer transaction's end shows a broken connection
	rows, err := sub.Query(ctx, withInputs(sql, inputs...))
	if err != nil {
		return confirmError(err)
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return confirmError(err)
	}
	fields := rows.FieldDescriptions()
	if len(fields) != len(want) {
		return fmt.Sprintf("its statement has %d columns in place of %d", len(fields), len(want)), nil
	}
	for i, f := range fields {
		if f.DataTypeOID != a.wireType(want[i].TypeOID) || f.Name != want[i].Name {
			return fmt.Sprintf("its statement gives column %s another name or type", want[i].Name), nil
		}
	}
	return "", nil
}

// wireType: Postgres describes a domain's column by its base type.
func (a *analysis) wireType(oid uint32) uint32 {
	if t := a.baseType(oid); t != nil {
		return t.OID
	}
	return oid
}

// confirmError turns Postgres' complaint into a reason to decline. Where this
// role may not do what the body does, no other strategy may either. A broken
// connection is an error.
func confirmError(err error) (string, error) {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return "", fmt.Errorf("try a statement: %w", err)
	case pg.Code == pgerrcode.InsufficientPrivilege:
		return "", refuse(Invalid, "query", pg.Message, "grant that to mvsync's role")
	}
	return "Postgres does not take its statement: " + pg.Message, nil
}

// visible are the plan's columns, then the hidden ones.
func (p *Plan) visible() []Column { return slices.Concat(p.Columns, p.Hidden) }
