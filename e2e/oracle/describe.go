package oracle

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// rule is how a column is compared.
type rule int

const (
	exact rule = iota
	representative
	float
)

// column is a column of the table.
type column struct {
	name      string
	typ       string // as format_type prints it
	base      uint32 // the type below domains
	modifier  int32  // of that type
	collation string // qualified and quoted, empty for types without
	rule      rule
}

const (
	tableSQL = `SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = to_regclass($1)`

	columnsSQL = `SELECT a.attname, format_type(a.atttypid, a.atttypmod), b.oid, b.modifier,
       coalesce((SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname)
                   FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation), '')
  FROM pg_attribute a
 CROSS JOIN LATERAL (
       WITH RECURSIVE chain AS (
           SELECT t.oid, t.typbasetype, a.atttypmod AS modifier, t.typtypmod FROM pg_type t WHERE t.oid = a.atttypid
            UNION ALL
           SELECT t.oid, t.typbasetype, chain.typtypmod, t.typtypmod FROM chain JOIN pg_type t ON t.oid = chain.typbasetype
       )
       SELECT oid, modifier FROM chain WHERE typbasetype = 0) b
 WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum`

	// The key's columns are taken from a whole index over plain columns.
	keySQL = `SELECT a.attname
  FROM (SELECT indrelid, indkey FROM pg_index
         WHERE indrelid = $1 AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
         ORDER BY indisprimary DESC, indexrelid LIMIT 1) i
 CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(num, n)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num
 ORDER BY k.n`
)

// describeTable returns the table's full name, its columns, and the columns of its key, if it has one.
func describeTable(ctx context.Context, q Querier, name string) (table string, columns []column, key []string, err error) {
	rows, err := q.Query(ctx, tableSQL, pgx.QueryExecModeDescribeExec, name)
	if err != nil {
		return "", nil, nil, err
	}
	var oid uint32
	if table, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (table string, err error) {
		err = row.Scan(&oid, &table)
		return table, err
	}); errors.Is(err, pgx.ErrNoRows) {
		return "", nil, nil, errors.New("there is no such table")
	} else if err != nil {
		return "", nil, nil, err
	}
	if rows, err = q.Query(ctx, columnsSQL, pgx.QueryExecModeDescribeExec, oid); err != nil {
		return "", nil, nil, err
	}
	if columns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (column, error) {
		var c column
		err := row.Scan(&c.name, &c.typ, &c.base, &c.modifier, &c.collation)
		return c, err
	}); err != nil {
		return "", nil, nil, err
	}
	if rows, err = q.Query(ctx, keySQL, pgx.QueryExecModeDescribeExec, oid); err != nil {
		return "", nil, nil, err
	}
	key, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return table, columns, key, err
}

// describeBody checks that the body returns the table's columns.
func (c *comparison) describeBody(ctx context.Context, q Querier) error {
	rows, err := q.Query(ctx, "SELECT * FROM (\n"+c.body+"\n) AS q LIMIT 0", pgx.QueryExecModeDescribeExec)
	if err != nil {
		return fmt.Errorf("describe the body: %w", err)
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return fmt.Errorf("describe the body: %w", err)
	}
	fields := rows.FieldDescriptions()
	if len(fields) != len(c.schema) {
		return fmt.Errorf("the body has %d columns, the table %d", len(fields), len(c.schema))
	}
	for i, field := range fields {
		stored := c.schema[i]
		if field.Name != stored.name {
			return fmt.Errorf("column %d is %q in the body and %q in the table", i+1, field.Name, stored.name)
		}
		if field.DataTypeOID != stored.base || field.TypeModifier != stored.modifier {
			return fmt.Errorf("column %q is %s in the table, and of another type in the body (type oid %d, modifier %d)",
				stored.name, stored.typ, field.DataTypeOID, field.TypeModifier)
		}
	}
	return nil
}
