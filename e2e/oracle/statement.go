package oracle

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// The statements below return, for rows that differ or may differ: a mark that rows to be shown together share, the side
// (0 the body's, 1 the stored), whether the difference is certain, and the columns c0, c1 and so on; ordered by the mark.

// bodySQL returns the body's rows.
func (c *comparison) bodySQL() string {
	// A body may end in a comment.
	return "SELECT q.* FROM (\n" + c.body + "\n) AS q"
}

// shippedSQL returns the body's rows as they were fetched: one array parameter a column. The cast reads what the type
// printed.
func (c *comparison) shippedSQL() string {
	arrays, aliases, casts := make([]string, len(c.schema)), make([]string, len(c.schema)), make([]string, len(c.schema))
	for i, column := range c.schema {
		arrays[i] = fmt.Sprintf("$%d::text[]", i+1)
		aliases[i] = fmt.Sprintf("v%d", i)
		casts[i] = fmt.Sprintf("x.v%d::%s", i, column.typ)
	}
	return fmt.Sprintf("SELECT %s FROM unnest(%s) AS x(%s)", strings.Join(casts, ", "), strings.Join(arrays, ", "), strings.Join(aliases, ", "))
}

// statement returns the comparison fit for the view.
func (c *comparison) statement(bodySQL string) string {
	switch {
	case c.opts.Coarsened:
		return c.both(bodySQL) + c.coarsenedSQL()
	case c.tolerant():
		return c.both(bodySQL) + c.tolerantSQL()
	default:
		return c.both(bodySQL) + c.exactSQL()
	}
}

// quickStatement returns rows only if the view may be wrong: it need not say where.
func (c *comparison) quickStatement() string {
	if c.opts.Coarsened || c.tolerant() {
		return c.statement(c.bodySQL())
	}
	return c.sides(c.bodySQL()) + `, ranked AS (SELECT side, dense_rank() OVER (ORDER BY ROW(0, ` + c.columns("") + `) USING *<) AS same FROM named)
SELECT FROM ranked GROUP BY same HAVING count(*) FILTER (WHERE side = 0) <> count(*) FILTER (WHERE side = 1) LIMIT 1`
}

// both returns a WITH clause that puts the two sides together: "both" has the side, the columns, the image of those that
// are compared by bytes, and the class of rows that are equal by key. Without a key all are of one class.
//
// dense_rank finds the classes since it takes NULLs as equal, which a join does not, and can go by an order of our
// choice, which GROUP BY cannot. UNION ALL comes first: an image of a domain is not comparable with one of its base type.
func (c *comparison) both(bodySQL string) string {
	images := []string{"0"} // a row must have a column
	for i, column := range c.schema {
		if column.rule == exact {
			images = append(images, fmt.Sprintf("c%d", i))
		}
	}
	class := "1::bigint"
	if len(c.key) > 0 {
		keys := make([]string, len(c.key))
		for n, i := range c.key {
			keys[n] = c.collated("", i)
		}
		class = "dense_rank() OVER (ORDER BY " + strings.Join(keys, ", ") + ")"
	}
	return c.sides(bodySQL) + fmt.Sprintf(`, "both" AS (SELECT *, ROW(%s) AS image, %s AS class FROM named)
`, strings.Join(images, ", "), class)
}

// sides returns a WITH clause of which "named" holds the rows of both sides, with the columns side, c0, c1 and so on.
func (c *comparison) sides(bodySQL string) string {
	stored := make([]string, len(c.schema))
	for i, column := range c.schema {
		stored[i] = "t." + pgx.Identifier{column.name}.Sanitize()
	}
	return fmt.Sprintf(`WITH side AS (SELECT 0 AS side, b.* FROM (%s) AS b UNION ALL SELECT 1, %s FROM %s AS t),
named(side, %s) AS (TABLE side)`, bodySQL, strings.Join(stored, ", "), c.table, c.columns(""))
}

// collated returns a column under the table's collation, whatever the body's is.
func (c *comparison) collated(alias string, i int) string {
	name := fmt.Sprintf("%sc%d", alias, i)
	if c.schema[i].collation != "" {
		return name + " COLLATE " + c.schema[i].collation
	}
	return name
}

// columns returns the list of all columns.
func (c *comparison) columns(alias string) string {
	all := make([]string, len(c.schema))
	for i := range c.schema {
		all[i] = fmt.Sprintf("%sc%d", alias, i)
	}
	return strings.Join(all, ", ")
}

// exactSQL compares multisets by image: of each image, the rows that one side has more often than the other.
func (c *comparison) exactSQL() string {
	return fmt.Sprintf(`, ranked AS (SELECT *, dense_rank() OVER (ORDER BY image USING *<) AS same FROM "both"),
counted AS (
    SELECT *, row_number() OVER (PARTITION BY same, side) AS nth,
           count(*) FILTER (WHERE side = 0) OVER (PARTITION BY same) AS bodies,
           count(*) FILTER (WHERE side = 1) OVER (PARTITION BY same) AS stored
      FROM ranked
)
SELECT class, side, true, %s FROM counted
 WHERE nth > CASE side WHEN 0 THEN stored ELSE bodies END
 ORDER BY class, side, same`, c.columns(""))
}

// tolerantSQL compares row by row: the nth of a class on one side with the nth on the other. Where only floats differ, the
// difference is not certain, and the client judges it: the arithmetic could overflow here.
func (c *comparison) tolerantSQL() string {
	certain, floats := []string{"o.side IS NULL", "NOT m.image *= o.image"}, []string{"false"}
	for i, column := range c.schema {
		differs := fmt.Sprintf("%s IS DISTINCT FROM %s", c.collated("m.", i), c.collated("o.", i))
		switch column.rule {
		case representative:
			certain = append(certain, differs)
		case float:
			floats = append(floats, differs)
		case exact: // in the image
		}
	}
	return fmt.Sprintf(`, numbered AS (SELECT *, row_number() OVER (PARTITION BY class, side) AS nth FROM "both"),
matched AS (
    SELECT m.*, %[1]s AS certain, %[2]s AS differs
      FROM numbered AS m LEFT JOIN numbered AS o ON o.class = m.class AND o.nth = m.nth AND o.side <> m.side
)
SELECT class || '.' || nth, side, certain, %[3]s FROM matched WHERE certain OR differs ORDER BY class, nth, side`,
		strings.Join(certain, " OR "), strings.Join(floats, " OR "), c.columns(""))
}

// coarsenedSQL returns a member of each class that has no stored row or a wrong one, and each stored row that is not the
// first of its class or has not the image of a member.
func (c *comparison) coarsenedSQL() string {
	return fmt.Sprintf(`, ranked AS (SELECT *, dense_rank() OVER (ORDER BY image USING *<) AS same FROM "both"),
counted AS (
    SELECT *, row_number() OVER (PARTITION BY class, side ORDER BY same) AS nth,
           count(*) FILTER (WHERE side = 1) OVER (PARTITION BY class) AS kept,
           count(*) FILTER (WHERE side = 0) OVER (PARTITION BY same) AS members
      FROM ranked
), judged AS (SELECT *, bool_or(side = 1 AND nth = 1 AND members = 0) OVER (PARTITION BY class) AS wrong FROM counted)
SELECT class, side, true, %s FROM judged
 WHERE side = 0 AND nth = 1 AND (kept = 0 OR wrong) OR side = 1 AND (nth > 1 OR members = 0)
 ORDER BY class, side, nth`, c.columns(""))
}
