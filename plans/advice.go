package plans

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// lookup is a way in which statements of a plan find rows of a table: by equality
// of columns or expressions, as CREATE INDEX writes them.
type lookup struct {
	rel   *relation
	exprs []string
}

// lookUp notes a look-up, for which an index may be advised.
func (a *analysis) lookUp(rel *relation, exprs ...string) {
	if rel == nil || rel.producer != nil || len(exprs) == 0 {
		return
	}
	same := func(l lookup) bool { return l.rel == rel && slices.Equal(l.exprs, exprs) }
	if !slices.ContainsFunc(a.lookups, same) {
		a.lookups = append(a.lookups, lookup{rel, exprs})
	}
}

// lookUpColumn is lookUp for a column.
func (a *analysis) lookUpColumn(rel *relation, column string) { a.lookUp(rel, quoteIdent(column)) }

// bigTable is the number of pages from which on reading all of a table is worth an
// index.
const bigTable = 100

// advise says what would make the plan cheaper: indexes for look-ups that have none,
// and columns to project.
func (a *analysis) advise(ctx context.Context, p *Plan) error {
	a.lookUpGroups(p)
	if len(a.lookups) > 0 {
		if err := a.adviseIndexes(ctx, p); err != nil {
			return err
		}
	}
	a.adviseColumns(p)
	return nil
}

// lookUpGroups notes how groups that lose their extreme are run again.
func (a *analysis) lookUpGroups(p *Plan) {
	if p.Aggregate == nil || !p.mayRerun() {
		return
	}
	var exprs []string
	for _, g := range p.Aggregate.Groups {
		if g.Source < 0 {
			return
		}
		exprs = append(exprs, quoteIdent(p.Sources[0].Columns[g.Source].Name))
	}
	a.lookUp(a.relations[p.Sources[0].OID], exprs...)
}

func (a *analysis) adviseIndexes(ctx context.Context, p *Plan) error {
	var oids []uint32
	for _, l := range a.lookups {
		oids = append(oids, l.rel.OID)
	}
	// An index on a partition alone does not count.
	leading, err := collect[struct {
		Relation uint32
		Expr     string
	}](ctx, a.tx, "read the indexes of the sources", `
SELECT i.indrelid, pg_get_indexdef(i.indexrelid, 1, true)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
WHERE i.indrelid = ANY ($1::oid[]) AND i.indisvalid AND i.indpred IS NULL AND m.amname IN ('btree', 'hash')`, oids)
	if err != nil {
		return err
	}
	for _, l := range a.lookups {
		found := false
		for _, have := range leading {
			found = found || have.Relation == l.rel.OID && slices.ContainsFunc(l.exprs, func(e string) bool { return bareText(e) == bareText(have.Expr) })
		}
		if found || !a.canIndex(ctx, l) {
			continue
		}
		create := "CREATE INDEX ON " + l.rel.name().String() + " (" + join(l.exprs) + ");"
		if rows, big := l.rel.size(); big {
			p.Advice = append(p.Advice, fmt.Sprintf("rounds read all of %s, about %.0f rows, to find a few by (%s): %s",
				l.rel.name(), rows, join(l.exprs), create))
			continue
		}
		p.Advice = append(p.Advice, fmt.Sprintf("rounds read all of %s to find rows by (%s), which is dear once it has grown: %s",
			l.rel.name(), join(l.exprs), create))
	}
	return nil
}

// canIndex tries an index over expressions, which must be IMMUTABLE, on an empty
// table.
func (a *analysis) canIndex(ctx context.Context, l lookup) bool {
	if !slices.ContainsFunc(l.exprs, func(e string) bool { return strings.ContainsAny(e, "( :") }) {
		return true
	}
	const table = `pg_temp."mvsync$like"`
	for _, sql := range []string{
		`DROP TABLE IF EXISTS ` + table,
		`CREATE TEMP TABLE "mvsync$like" (LIKE ` + l.rel.name().String() + `)`,
		"CREATE INDEX ON " + table + " (" + join(l.exprs) + ")",
	} {
		if a.tryExec(ctx, sql) != nil {
			return false
		}
	}
	return true
}

// size is the number of rows, as Postgres estimates it, and whether reading them all
// takes long.
func (r *relation) size() (rows float64, big bool) {
	var pages int64
	for _, l := range r.leaves {
		rows += max(l.Tuples, 0)
		pages += l.Pages
	}
	return rows, pages >= bigTable
}

// bareText compares expressions as Postgres prints them in one place and another.
func bareText(expr string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("() ", r) {
			return -1
		}
		return r
	}, expr)
}

// plainQuotes finds quoted names that may not need their quotes.
var plainQuotes = regexp.MustCompile(`"[a-z_][a-z0-9_]*"`)

// adviseColumns names what is kept in the companion, which costs a second write for
// each row.
func (a *analysis) adviseColumns(p *Plan) {
	if len(p.Hidden) == 0 || len(p.Key) == 0 {
		return
	}
	sel, ok := splitSelect(p.Eval)
	if !ok || len(sel.targets) != len(p.Columns)+len(p.Hidden) {
		return
	}
	exprs := make([]string, len(p.Hidden))
	for i, t := range sel.targets[len(p.Columns):] {
		exprs[i] = plainQuotes.ReplaceAllStringFunc(t.expr.of(p.Eval), func(q string) string { return quoteIdent(unquoteIdent(q)) })
	}
	p.Advice = append(p.Advice, "each row is written twice, since what the body does not project is kept beside the table; project as well: "+join(exprs))
}

// adviseFilter tells of a filter that touched keys are derived without, since old
// images do not carry its columns.
func (a *analysis) adviseFilter(p *Plan, src *Source) {
	var alter []string
	for _, l := range a.relations[src.OID].leaves {
		if slices.Contains(src.Leaves, l.OID) && l.Identity != "f" {
			alter = append(alter, "ALTER TABLE "+l.name().String()+" REPLICA IDENTITY FULL;")
		}
	}
	if len(alter) > 0 && !src.Producer && !src.External {
		p.Advice = append(p.Advice, "changes of rows that the body filters out run slices again, since old images do not hold the filter's columns: "+
			strings.Join(alter, " "))
	}
}
