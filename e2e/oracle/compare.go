package oracle

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Querier runs queries; connections, pools and transactions of pgx do.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Options says how a view is to be compared; the zero value is byte for byte.
type Options struct {
	// Key names the columns by which rows are matched (default: the table's primary key, else its first unique index).
	Key []string
	// Representative names the columns in which a value equal by the type's own = is right.
	Representative []string
	// Float names the columns whose last digits depend on the order of addition.
	Float []string
	// FloatTolerance is the relative error that such a column may have (default 1e-9; real columns 1e-5, since they hold
	// no more than six digits).
	FloatTolerance float64
	// Coarsened says that the body may have several rows of one key, of which the table holds any one.
	Coarsened bool
	// Limit is the number of rows of each sort that a Diff holds (default 10). All are counted.
	Limit int
}

const (
	defaultTolerance = 1e-9
	realTolerance    = 1e-5
	defaultLimit     = 10
)

// Compare compares the table, named as SQL names it, with what the body returns to q.
func Compare(ctx context.Context, q Querier, body, table string, opts Options) (Diff, error) {
	_, diff, err := compare(ctx, q, body, table, opts)
	return diff, err
}

func compare(ctx context.Context, q Querier, body, table string, opts Options) (*comparison, Diff, error) {
	c, err := prepare(ctx, q, q, body, table, opts)
	if err != nil {
		return nil, Diff{}, fmt.Errorf("compare %s with its body: %w", table, err)
	}
	diff, err := c.run(ctx, q, c.bodySQL())
	if err != nil {
		return nil, Diff{}, fmt.Errorf("compare %s with its body: %w", table, err)
	}
	return c, diff, nil
}

// CompareAcross is Compare for two sessions: what the body returns to one is compared with what the table holds for
// the other. The body's rows pass through the client as text, so it is for small views.
func CompareAcross(ctx context.Context, bodySide, storedSide Querier, body, table string, opts Options) (Diff, error) {
	c, err := prepare(ctx, bodySide, storedSide, body, table, opts)
	if err != nil {
		return Diff{}, fmt.Errorf("compare %s with its body: %w", table, err)
	}
	columns, err := c.fetch(ctx, bodySide)
	if err != nil {
		return Diff{}, fmt.Errorf("compare %s with its body: %w", table, err)
	}
	diff, err := c.run(ctx, storedSide, c.shippedSQL(), columns...)
	if err != nil {
		return Diff{}, fmt.Errorf("compare %s with its body: %w", table, err)
	}
	return diff, nil
}

// comparison is a view with all that its statements need.
type comparison struct {
	body   string
	table  string // qualified and quoted
	schema []column
	key    []int // indexes into schema
	opts   Options
}

// prepare reads what the catalog says of the table and Postgres of the body, and checks that they fit together.
func prepare(ctx context.Context, bodySide, storedSide Querier, body, table string, opts Options) (*comparison, error) {
	if opts.FloatTolerance == 0 {
		opts.FloatTolerance = defaultTolerance
	}
	if opts.Limit == 0 {
		opts.Limit = defaultLimit
	}
	c := &comparison{body: strings.TrimRight(strings.TrimSpace(body), "; \t\r\n"), opts: opts}
	var key []string
	var err error
	if c.table, c.schema, key, err = describeTable(ctx, storedSide, table); err != nil {
		return nil, err
	}
	if err := c.describeBody(ctx, bodySide); err != nil {
		return nil, err
	}
	if len(opts.Key) > 0 {
		key = opts.Key
	}
	if c.key, err = c.indexes(key); err != nil {
		return nil, err
	}
	return c, c.classify()
}

// classify marks the plan-dependent columns, and checks that rows can be matched where that is needed.
func (c *comparison) classify() error {
	for rule, names := range map[rule][]string{representative: c.opts.Representative, float: c.opts.Float} {
		indexes, err := c.indexes(names)
		if err != nil {
			return err
		}
		for _, i := range indexes {
			c.schema[i].rule = rule
		}
	}
	if !c.opts.Coarsened {
		return nil
	}
	if len(c.key) == 0 {
		return fmt.Errorf("a coarsened key is a key, and %s has no unique index: name the key's columns", c.table)
	}
	if c.tolerant() {
		return fmt.Errorf("%s has a coarsened key and plan-dependent columns: there is no rule for both at once", c.table)
	}
	return nil
}

// tolerant says whether any column is not compared by bytes.
func (c *comparison) tolerant() bool {
	return len(c.opts.Representative)+len(c.opts.Float) > 0
}

// indexes finds columns by name.
func (c *comparison) indexes(names []string) ([]int, error) {
	indexes := make([]int, 0, len(names))
next:
	for _, name := range names {
		for i := range c.schema {
			if c.schema[i].name == name {
				indexes = append(indexes, i)
				continue next
			}
		}
		return nil, fmt.Errorf("%s has no column %q", c.table, name)
	}
	return indexes, nil
}

// fetch returns what the body returns, as one array of texts a column.
func (c *comparison) fetch(ctx context.Context, q Querier) ([]any, error) {
	columns := make([][]*string, len(c.schema))
	rows, err := q.Query(ctx, "SELECT * FROM (\n"+c.body+"\n) AS q", asText...)
	if err != nil {
		return nil, fmt.Errorf("evaluate the body: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		for i, value := range texts(rows.RawValues()) {
			columns[i] = append(columns[i], value)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("evaluate the body: %w", err)
	}
	args := make([]any, len(columns))
	for i := range columns {
		args[i] = columns[i]
	}
	return args, nil
}

// run executes the comparison, with the given SQL for the body's rows, and collects the differences.
func (c *comparison) run(ctx context.Context, q Querier, bodySQL string, args ...any) (Diff, error) {
	d := newDiff(c)
	var err error
	if d.Stored, err = count(ctx, q, c.table); err != nil {
		return d, err
	}
	if c.tolerant() && len(c.key) == 0 && d.Stored > 1 {
		return d, fmt.Errorf("plan-dependent columns are compared row by row, and the table has no unique index to match %d rows by: name the key's columns", d.Stored)
	}
	rows, err := q.Query(ctx, c.statement(bodySQL), append(append([]any{}, asText...), args...)...)
	if err != nil {
		return d, err
	}
	defer rows.Close()
	collect := collector{c: c, diff: &d}
	for rows.Next() {
		values := texts(rows.RawValues())
		collect.add(*values[0], *values[1] == "1", *values[2] == "t", values[3:])
	}
	collect.flush()
	return d, rows.Err()
}

// asText asks for values as their types print them, and keeps no prepared statement: tables change between calls.
var asText = []any{pgx.QueryExecModeDescribeExec, pgx.QueryResultFormats{pgx.TextFormatCode}}

// texts copies raw values, of which NULL is nil.
func texts(raw [][]byte) []*string {
	values := make([]*string, len(raw))
	for i, value := range raw {
		if value != nil {
			values[i] = new(string(value))
		}
	}
	return values
}

func count(ctx context.Context, q Querier, table string) (int64, error) {
	rows, err := q.Query(ctx, "SELECT count(*) FROM "+table, pgx.QueryExecModeDescribeExec)
	if err != nil {
		return 0, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
}
