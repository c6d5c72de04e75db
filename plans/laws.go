package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Law is a question to Postgres whether the declared algebra of an aggregate
// holds for rows that a body gives it.
type Law struct {
	// Aggregate is the signature under which the algebra is declared.
	Aggregate string
	// SQL gives a row (law text, sizes bigint[]) for a law that does not hold: the
	// sizes are those of the samples that show it. No row: no counterexample.
	SQL string
}

// CheckLaws tries the declared algebra of the plan's aggregates on random samples
// of its sources' rows. The refusal, which is nil where all laws hold, names the
// law and the sizes of the samples that break it, and no value.
func (p *Plan) CheckLaws(ctx context.Context, q Querier) (*Refusal, error) {
	for _, l := range p.Laws {
		r, err := l.check(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("check the algebra of %s: %w", l.Aggregate, err)
		}
		if r != nil {
			return r, nil
		}
	}
	return nil, nil
}

const lawSuggestion = "mend the functions or the expression, or take the declaration out: then the view is kept without it, at a higher price"

func (l *Law) check(ctx context.Context, q Querier) (*Refusal, error) {
	tx, err := q.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx) // it only reads
	if _, err := tx.Exec(ctx, "SET LOCAL search_path = ''; SET LOCAL transaction_read_only = on"); err != nil {
		return nil, err
	}
	var law string
	var sizes []int64
	err = tx.QueryRow(ctx, l.SQL).Scan(&law, &sizes)
	construct := "aggregates: " + l.Aggregate
	switch pg, failed := errors.AsType[*pgconn.PgError](err); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case failed && isBodyError(pg.Code):
		// The message may hold a value.
		return refusef(Invalid, construct, lawSuggestion, "its algebra fails on rows of the view's source: SQLSTATE %s", pg.Code), nil
	case err != nil:
		return nil, err
	}
	return refusef(Invalid, construct, lawSuggestion, "%s does not hold: samples of %s rows show it", law, sizesText(sizes)), nil
}

func sizesText(sizes []int64) string {
	text := ""
	for i, n := range sizes {
		switch {
		case i > 0 && i == len(sizes)-1:
			text += " and "
		case i > 0:
			text += ", "
		}
		text += strconv.FormatInt(n, 10)
	}
	return text
}

// Bounds of a sample: rows that are read, rows that are drawn from them, and parts
// into which those are dealt, most into the first ones.
const (
	lawRead  = 20000
	lawRows  = 800
	lawParts = 10
)

// law asks whether the algebra of a call holds for the rows that the body gives
// it.
func (g *grouping) law(r *declaredRule, c call, args []*node) Law {
	s := g.sel
	cols, names := []string{"1 AS one"}, []string{}
	if len(args) > 0 {
		cols = nil
	}
	for i, text := range g.argumentTexts(c, args, r) {
		names = append(names, prefixed("x", i))
		cols = append(cols, text+" AS "+names[i])
	}
	sql := s.with.of(s.sql) + " SELECT " + join(cols) + " FROM " + s.from.of(s.sql)
	where := slices.DeleteFunc([]string{s.where.of(s.sql), s.filterOf(c)}, func(t string) bool { return t == "" })
	for i := range where {
		where[i] = "(" + where[i] + ")"
	}
	if len(where) > 0 {
		sql += " WHERE " + conjunction(where)
	}
	counted := ""
	if r.strict {
		counted = " WHERE num_nulls(" + join(names) + ") = 0"
	}
	rows := fmt.Sprintf(`WITH source AS MATERIALIZED (%s LIMIT %d),
drawn AS MATERIALIZED (
  SELECT s.*, least(floor(-ln(1 - random()) * 3), %d)::int AS part
  FROM (SELECT * FROM source%s ORDER BY random() LIMIT %d) s)`, sql, lawRead, lawParts-1, counted, lawRows)
	if r.state == nil {
		return Law{r.signature, rows + r.expandedLaw(names)}
	}
	return Law{r.signature, rows + r.stateLaws(names)}
}

// differ compares two values by their bytes.
func differ(x, y string) string { return "NOT (ROW(" + x + ")::record *= ROW(" + y + ")::record)" }

// expandedLaw compares the aggregate with its expression, over nothing too.
func (r *declaredRule) expandedLaw(names []string) string {
	agg, expr := r.call(names), "("+r.expand(names, "")+")::"+r.result
	return fmt.Sprintf(`
SELECT 'the aggregate is its expression', ARRAY[count(*)] FROM drawn GROUP BY part HAVING %[1]s
UNION ALL SELECT 'the aggregate is its expression', ARRAY[count(*)] FROM drawn HAVING %[1]s
UNION ALL SELECT 'the aggregate is its expression', ARRAY[count(*)] FROM drawn WHERE false HAVING %[1]s
LIMIT 1`, differ(agg, expr))
}

// stateLaws are those that make merging as good as running the aggregate again.
func (r *declaredRule) stateLaws(names []string) string {
	st, agg := r.state, r.call(names)
	merge := func(x, y string) string { return st.merge + "(" + x + ", " + y + ")" }
	state := st.decode + "(" + agg + ")"
	sql := fmt.Sprintf(`,
parts AS MATERIALIZED (SELECT part, count(*) AS n, %s AS v, %s AS s FROM drawn GROUP BY part),
pairs AS MATERIALIZED (
  SELECT a.part AS ap, b.part AS bp, a.n AS an, b.n AS bn, a.s AS x, b.s AS y, %s AS m,
         (SELECT %s FROM drawn WHERE part IN (a.part, b.part)) AS u
  FROM parts a JOIN parts b ON a.part <> b.part)
SELECT 'agg(x) from decode(agg(x))', ARRAY[n] FROM parts WHERE %s
UNION ALL SELECT 'merge(decode(agg(x)), decode(agg(y))) = decode(agg(x and y))', ARRAY[an, bn] FROM pairs WHERE %s
UNION ALL SELECT 'merge(a, b) = merge(b, a)', ARRAY[an, bn] FROM pairs WHERE %s
UNION ALL SELECT 'merge(merge(a, b), c) = merge(a, merge(b, c))', ARRAY[an, bn, c.n]
  FROM pairs JOIN parts c ON c.part NOT IN (ap, bp) WHERE %s`,
		agg, state, merge("a.s", "b.s"), state,
		differ(finalOf(st, "s"), "v"), differ("m", "u"), differ("m", merge("y", "x")),
		differ(merge("m", "c.s"), merge("x", merge("y", "c.s"))))
	if st.negate != "" {
		sql += "\nUNION ALL SELECT 'merge(merge(a, b), negate(b)) = a', ARRAY[an, bn] FROM pairs WHERE " +
			differ(merge("m", st.negate+"(y)"), "x")
	}
	return sql + "\nLIMIT 1"
}
