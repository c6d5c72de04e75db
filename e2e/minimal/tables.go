package minimal

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
)

// tables are sources by name, without their schema.
type tables map[string]*table

// table is a source with its rows.
type table struct {
	name    string
	columns []string
	given   map[string]bool // columns whose values the server generates
	key     []string
	rows    map[string]row // by key
}

// row is a row's values by column, as Postgres prints them.
type row map[string]ingest.Value

// readTables reads every ordinary table of schema public.
func readTables(t testing.TB, db *pgtest.DB) tables {
	t.Helper()
	all := tables{}
	for _, c := range db.Query(t, `SELECT c.relname, a.attname, a.attidentity <> '' AND a.attidentity = 'a',
		coalesce((SELECT a.attnum = ANY (i.indkey) FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary), true)
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' ORDER BY c.relname, a.attnum`) {
		tab := all[c[0]]
		if tab == nil {
			tab = &table{name: c[0], given: map[string]bool{}, rows: map[string]row{}}
			all[c[0]] = tab
		}
		tab.columns = append(tab.columns, c[1])
		tab.given[c[1]] = c[2] == "t"
		if c[3] == "t" {
			tab.key = append(tab.key, c[1])
		}
	}
	for _, tab := range all {
		tab.read(t, db)
	}
	return all
}

func (tab *table) read(t testing.TB, db *pgtest.DB) {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), fmt.Sprintf("SELECT %s FROM ONLY %s", list(tab.columns), ident(tab.name)),
		pgx.QueryResultFormats{pgx.TextFormatCode})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		r := row{}
		for i, raw := range rows.RawValues() {
			r[tab.columns[i]] = ingest.Null
			if raw != nil {
				r[tab.columns[i]] = ingest.Text(string(raw))
			}
		}
		tab.rows[tab.keyOf(r)] = r
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func (tab *table) keyOf(r row) string {
	var b strings.Builder
	for _, c := range tab.key {
		b.WriteString(literal(r[c]) + ",")
	}
	return b.String()
}

// image makes a row of an image; what that lacks is taken from before, which may be nil.
func image(c *ingest.Change, values ingest.Row, before row) row {
	r := row{}
	for i, column := range c.Table.Columns {
		if v := values[i]; !v.IsMissing() {
			r[column.Name] = v
		} else if v, ok := before[column.Name]; ok {
			r[column.Name] = v
		}
	}
	return r
}

func (all tables) clone() tables {
	out := tables{}
	for name, tab := range all {
		c := *tab
		c.rows = map[string]row{}
		for k, r := range tab.rows {
			c.rows[k] = r // rows are replaced, never altered
		}
		out[name] = &c
	}
	return out
}

// apply makes the changes of a transaction, and returns the statements that do the same.
func (all tables) apply(tx transaction) []string {
	var statements []string
	var truncated []string
	for _, c := range tx.changes {
		tab := all[c.Table.Name]
		if tab == nil {
			continue
		}
		if c.Op == ingest.Truncate {
			clear(tab.rows)
			truncated = append(truncated, ident(tab.name))
			continue
		}
		statements, truncated = flush(statements, truncated), nil
		statements = append(statements, tab.change(c))
	}
	return flush(statements, truncated)
}

// flush adds one statement for tables that were truncated together: one alone may be referenced by another.
func flush(statements, truncated []string) []string {
	if len(truncated) == 0 {
		return statements
	}
	return append(statements, "TRUNCATE "+strings.Join(truncated, ", ")+" CASCADE")
}

func (tab *table) change(c *ingest.Change) string {
	switch c.Op {
	case ingest.Insert:
		r := image(c, c.New, nil)
		tab.rows[tab.keyOf(r)] = r
		return tab.insert(r)
	case ingest.Delete:
		key := tab.keyOf(image(c, c.Old, nil))
		before := tab.rows[key]
		delete(tab.rows, key)
		return "DELETE FROM " + ident(tab.name) + tab.where(before)
	default:
		old := c.Old
		if old == nil {
			old = c.New
		}
		key := tab.keyOf(image(c, old, nil))
		before := tab.rows[key]
		after := image(c, c.New, before)
		delete(tab.rows, key)
		tab.rows[tab.keyOf(after)] = after
		return tab.update(before, after)
	}
}

func (tab *table) insert(r row) string {
	values := make([]string, len(tab.columns))
	for i, c := range tab.columns {
		values[i] = literal(r[c])
	}
	overriding := ""
	if slices.ContainsFunc(tab.columns, func(c string) bool { return tab.given[c] }) {
		overriding = " OVERRIDING SYSTEM VALUE"
	}
	return fmt.Sprintf("INSERT INTO %s (%s)%s VALUES (%s)", ident(tab.name), list(tab.columns), overriding, strings.Join(values, ", "))
}

// update sets what differs, so that a value that TOASTs and stays is left out of the stream again.
func (tab *table) update(before, after row) string {
	var set []string
	same := ""
	for _, c := range tab.columns {
		if literal(before[c]) != literal(after[c]) {
			set = append(set, ident(c)+" = "+literal(after[c]))
		} else if !tab.given[c] && len(before[c].Text()) < long {
			same = ident(c) + " = " + ident(c)
		}
	}
	if len(set) == 0 {
		set = []string{same}
	}
	return "UPDATE " + ident(tab.name) + " SET " + strings.Join(set, ", ") + tab.where(before)
}

func (tab *table) where(r row) string {
	conditions := make([]string, len(tab.key))
	for i, c := range tab.key {
		conditions[i] = ident(c) + " = " + literal(r[c])
	}
	return " WHERE " + strings.Join(conditions, " AND ")
}

// long is the length from which on a text is shortened: what matters of it is that it TOASTs.
const long = 1000

// literal writes a value in SQL. A long one keeps its beginning and its length.
func literal(v ingest.Value) string {
	if v.IsNull() || v.IsMissing() {
		return "NULL"
	}
	text := v.Text()
	if len(text) >= long {
		return "rpad(" + quote(strings.ToValidUTF8(text[:24], "")) + ", " + strconv.Itoa(len(text)) + ", 'x')"
	}
	return quote(text)
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

func ident(name string) string {
	plain := strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_0123456789") == ""
	if plain && !slices.Contains([]string{"key", "at", "group", "order", "user"}, name) {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}

func list(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = ident(n)
	}
	return strings.Join(quoted, ", ")
}
