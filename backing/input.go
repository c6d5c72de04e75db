package backing

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/ingest"
)

// Input is a relation that a statement reads beside tables, such as the new images of a batch. Statements see it as a
// CTE of its name.
type Input struct {
	Name    string // of the CTE, such as mvsync_new_0
	Columns []InputColumn
	// Rows are shipped as they are; none is legal. A missing value is an error of the caller and panics.
	Rows []ingest.Row
}

// InputColumn is a column of an [Input].
type InputColumn struct {
	Name string
	Type string // as format_type prints it under an empty search_path
}

// Array is an argument of a statement: the values of one column, to be bound to a parameter of an array type. A condition
// such as "k = ANY ($1::integer[])" goes through grouping and window clauses into the tables, which a sub-select does not.
type Array struct {
	Type   string // of the elements
	Values []ingest.Value
}

// CTE is a further common table expression of a statement, after its inputs.
type CTE struct {
	Name string
	SQL  string // a SELECT, without parentheses
}

// cteHead returns name(columns) AS.
func (in *Input) cteHead() string {
	names := make([]string, len(in.Columns))
	for i, c := range in.Columns {
		names[i] = pgx.Identifier{c.Name}.Sanitize()
	}
	return pgx.Identifier{in.Name}.Sanitize() + "(" + strings.Join(names, ", ") + ") AS "
}

// arrayCTE returns the CTE over array parameters from number first on, and their values: one array a column, in text.
// Values of types without an array type, and of composite types, whose fields unnest would spread over several columns,
// are shipped as text and cast one by one, which goes through the same input functions.
func (in *Input) arrayCTE(t types, first int) (string, []any) {
	var arrays, names, selects []string
	var args []any
	for i, c := range in.Columns {
		name, param := numbered("c", i), "$"+strconv.Itoa(first+i)+"::"
		delimiter := byte(',')
		if f := t[c.Type]; f.hasArray && !f.row {
			arrays, selects = append(arrays, param+c.Type+"[]"), append(selects, name)
			delimiter = f.delimiter
		} else {
			arrays, selects = append(arrays, param+"text[]"), append(selects, name+"::"+c.Type)
		}
		names = append(names, name)
		args = append(args, arrayLiteral(len(in.Rows), delimiter, func(n int) ingest.Value { return in.Rows[n][i] }))
	}
	return in.cteHead() + "MATERIALIZED (SELECT " + strings.Join(selects, ", ") + " FROM unnest(" + strings.Join(arrays, ", ") +
		") AS u(" + strings.Join(names, ", ") + "))", args
}

// arrayLiteral returns n values as the text of an array.
func arrayLiteral(n int, delimiter byte, value func(int) ingest.Value) string {
	b := append(make([]byte, 0, 2+16*n), '{')
	for i := range n {
		if i > 0 {
			b = append(b, delimiter)
		}
		b = appendElement(b, value(i))
	}
	return string(append(b, '}'))
}

// appendElement appends an element of an array in text. It is always quoted, so that the word NULL, braces, blanks and
// delimiters need no look.
func appendElement(b []byte, v ingest.Value) []byte {
	p := v.Pointer()
	if p == nil {
		return append(b, "NULL"...)
	}
	b = append(b, '"')
	for s := *p; ; {
		i := strings.IndexAny(s, `"\`)
		if i < 0 {
			b = append(b, s...)
			break
		}
		b = append(append(b, s[:i]...), '\\', s[i])
		s = s[i+1:]
	}
	return append(b, '"')
}

// stage is the temporary table for inputs of one list of columns.
type stage struct {
	table   string // quoted
	columns []InputColumn
}

// stageOf returns the n-th stage for the columns of the input. The name holds a hash of them, so that a session makes
// each list of columns once, whatever the inputs are called.
func stageOf(columns []InputColumn, n int) stage {
	sum := fnv.New64a()
	for _, c := range columns {
		fmt.Fprintf(sum, "%d:%s", len(c.Type), c.Type)
	}
	name := fmt.Sprintf("mvsync_input_%016x_%d", sum.Sum64(), n)
	return stage{table: "pg_temp." + name, columns: columns}
}

func (s stage) create() string {
	defs := make([]string, len(s.columns))
	for i, c := range s.columns {
		defs[i] = numbered("c", i) + " " + c.Type
	}
	return "CREATE TEMPORARY TABLE IF NOT EXISTS " + s.table + " (" + strings.Join(defs, ", ") + ") ON COMMIT DELETE ROWS"
}

// copyRows ships the rows into the stage.
func (s stage) copyRows(ctx context.Context, conn *pgx.Conn, rows Feed) error {
	_, err := conn.PgConn().CopyFrom(ctx, &copyReader{rows: rows}, "COPY "+s.table+" FROM STDIN")
	return err
}

// listFeed gives the rows of a list.
type listFeed struct {
	rows []ingest.Row
	next int
}

func (f *listFeed) Len() int { return len(f.rows) }

func (f *listFeed) Next() ingest.Row {
	if f.next == len(f.rows) {
		return nil
	}
	f.next++
	return f.rows[f.next-1]
}

// copyReader writes rows in COPY's text format.
type copyReader struct {
	rows Feed
	buf  []byte // encoded and not yet read
	off  int
	done bool
}

// copyChunk is how much is encoded at a time, in bytes.
const copyChunk = 64 << 10

// Read implements [io.Reader].
func (r *copyReader) Read(p []byte) (int, error) {
	if r.off == len(r.buf) {
		r.buf, r.off = r.buf[:0], 0
		for !r.done && len(r.buf) < copyChunk {
			row := r.rows.Next()
			if r.done = row == nil; !r.done {
				r.buf = appendCopyRow(r.buf, row)
			}
		}
		if len(r.buf) == 0 {
			return 0, io.EOF
		}
	}
	n := copy(p, r.buf[r.off:])
	r.off += n
	return n, nil
}

func appendCopyRow(b []byte, row []ingest.Value) []byte {
	for i := range row {
		if i > 0 {
			b = append(b, '\t')
		}
		p := row[i].Pointer()
		if p == nil {
			b = append(b, '\\', 'N')
			continue
		}
		b = appendCopyText(b, *p)
	}
	return append(b, '\n')
}

// appendCopyText escapes what COPY would take for structure. The encoding is UTF-8, so that no byte of a longer character
// looks like one of these.
func appendCopyText(b []byte, s string) []byte {
	from := 0
	for i := range len(s) {
		var escaped byte
		switch s[i] {
		case '\\':
			escaped = '\\'
		case '\n':
			escaped = 'n'
		case '\r':
			escaped = 'r'
		case '\t':
			escaped = 't'
		default:
			continue
		}
		b = append(append(b, s[from:i]...), '\\', escaped)
		from = i + 1
	}
	return append(b, s[from:]...)
}
