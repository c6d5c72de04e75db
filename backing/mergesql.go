package backing

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// statement builds the text of one merge. In it columns have numbers instead of names: c for the visible and h for the
// hidden ones; in the difference o and n for the stored and the new value of a visible column.
type statement struct {
	layout *Layout
	types  types
	merge  *Merge
	table  string // quoted
	state  string // the companion, quoted; empty where there is none
}

// Names of the statement's own common table expressions.
const (
	freshCTE  = "mvsync_fresh"  // what the body gives: New
	oldCTE    = "mvsync_old"    // the stored rows under Touched
	diffCTE   = "mvsync_diff"   // what is to be done
	storedCTE = "mvsync_stored" // the stored rows under Touched, by their names, for use in New
)

// names returns quoted names of columns.
func names(columns []Column) []string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = pgx.Identifier{c.Name}.Sanitize()
	}
	return out
}

// series returns prefix0, prefix1 and so on.
func series(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = numbered(prefix, i)
	}
	return out
}

// list joins names with commas.
func list(groups ...[]string) string {
	var all []string
	for _, g := range groups {
		all = append(all, g...)
	}
	return strings.Join(all, ", ")
}

// prefixed returns each name with the prefix in front.
func prefixed(prefix string, of []string) []string {
	out := make([]string, len(of))
	for i, s := range of {
		out[i] = prefix + s
	}
	return out
}

// keyJoin returns the condition that two relations agree on the key; left and right give the name of a key column.
// A view of one row joins on a constant, with which Postgres runs a full join as a merge join without a key.
func (s *statement) keyJoin(left, right func(i int) string) string {
	var parts []string
	for _, k := range s.layout.Key {
		c := s.layout.Columns[k]
		parts = append(parts, keyEquality(c, s.types[c.Type], left(k), right(k)))
	}
	if len(parts) == 0 {
		return "true"
	}
	return strings.Join(parts, " AND ")
}

// companionJoin returns the condition that joins the companion h to the backing table b. The companion's key is a copy,
// byte for byte, so that a key of which only the hash is indexed is found by the hash.
func (s *statement) companionJoin(catalog string) string {
	columns := names(s.layout.Columns)
	if s.layout.HashKey {
		var b, h []string
		for _, k := range s.layout.Key {
			b, h = append(b, "b."+columns[k]), append(h, "h."+columns[k])
		}
		f := pgx.Identifier{catalog, "row_hash"}.Sanitize()
		return f + "(ROW(" + list(b) + ")) = " + f + "(ROW(" + list(h) + "))"
	}
	return s.keyJoin(func(i int) string { return "b." + columns[i] }, func(i int) string { return "h." + columns[i] })
}

// stored returns FROM's item for the stored rows, under the alias s, with ctids mvsync_ctid and mvsync_hctid.
func (s *statement) stored(catalog string) string {
	if s.state == "" {
		return s.table + " s"
	}
	return "(SELECT b.ctid AS mvsync_ctid, h.ctid AS mvsync_hctid, " +
		list(prefixed("b.", names(s.layout.Columns)), prefixed("h.", names(s.layout.Hidden))) +
		" FROM " + s.table + " b LEFT JOIN " + s.state + " h ON " + s.companionJoin(catalog) + ") s"
}

// old returns the CTEs of the stored rows.
func (s *statement) old(catalog string) string {
	ctids := "s.ctid AS t, NULL::tid AS ht"
	if s.state != "" {
		ctids = "s.mvsync_ctid AS t, s.mvsync_hctid AS ht"
	}
	visible, hidden := names(s.layout.Columns), names(s.layout.Hidden)
	numbers := list(series("c", len(visible)), series("h", len(hidden)))
	rows := "SELECT " + ctids + ", " + list(prefixed("s.", visible), prefixed("s.", hidden)) +
		"\nFROM " + s.stored(catalog) + "\nWHERE ("
	text := rows + s.merge.Touched + "\n)"
	if by := s.merge.TouchedBy; len(by) > 0 {
		text = rows + strings.Join(by, "\n)\nUNION ALL "+rows) + "\n)"
	}
	if len(s.merge.TouchedBy) > 1 {
		text = "SELECT DISTINCT ON (t) * FROM (" + text + ") u"
	}
	return oldCTE + "(t, ht, " + numbers + ") AS MATERIALIZED (" + text + "),\n" +
		storedCTE + "(" + list(visible, hidden) + ") AS (SELECT " + numbers + " FROM " + oldCTE + ")"
}

// everything returns the CTE of all stored rows by their names.
func (s *statement) everything(catalog string) string {
	columns := list(prefixed("s.", names(s.layout.Columns)), prefixed("s.", names(s.layout.Hidden)))
	return storedCTE + " AS NOT MATERIALIZED (SELECT " + columns + " FROM " + s.stored(catalog) + ")"
}

// fresh returns the CTE of the new rows, cast to the very types of the table: what is compared is what would be stored.
// It is not materialised by word: read once, as the difference does, it costs no copy and keeps its statistics.
func (s *statement) fresh() string {
	var casts []string
	for i, c := range s.layout.Columns {
		casts = append(casts, castTo(numbered("q.c", i), c)+" AS "+numbered("c", i))
	}
	for i, c := range s.layout.Hidden {
		casts = append(casts, castTo(numbered("q.h", i), c)+" AS "+numbered("h", i))
	}
	in := list(series("c", len(s.layout.Columns)), series("h", len(s.layout.Hidden)))
	flags := "true AS keep, false AS rerun"
	if s.merge.Flags {
		in += ", rerun, keep"
		flags = "q.keep, q.rerun"
	}
	return freshCTE + " AS (SELECT true AS p, " + flags + ", " + list(casts) +
		"\nFROM (" + s.merge.New + "\n) q(" + in + "))"
}

func castTo(x string, c Column) string {
	x += "::" + c.Type
	if c.Collation != "" {
		x += " COLLATE " + c.Collation
	}
	return x
}

// diff returns the CTE of what is to be done: one row for each stored or new row. op is what to do to the backing table and
// hop to the companion: I, U, D, - for nothing, and R in op for a row to be rerun. Rows with nothing to do stand there for
// the counts and are narrow.
func (s *statement) diff() string {
	stored := func(i int) string { return numbered("o.c", i) }
	fresh := func(i int) string { return numbered("m.c", i) }
	var columns, named []string
	add := func(expr, name string) {
		columns = append(columns, expr+" AS "+name)
		named = append(named, "CASE WHEN op <> '-' OR hop <> '-' THEN "+name+" END AS "+name)
	}
	for i, c := range s.layout.Columns {
		if s.merge.Effects {
			add(stored(i), numbered("o", i))
		}
		add(s.resolved(c, stored(i), fresh(i)), numbered("n", i))
	}
	for i, c := range s.layout.Hidden {
		add(s.resolved(c, numbered("o.h", i), numbered("m.h", i)), numbered("nh", i))
	}
	op := "CASE WHEN m.rerun THEN 'R' WHEN o.t IS NULL THEN CASE WHEN m.keep THEN 'I' ELSE '-' END" +
		" WHEN m.p IS NULL OR NOT m.keep THEN 'D'" +
		" WHEN " + sameRow(s.types, s.layout.Columns, stored, fresh) + " THEN '-' ELSE 'U' END"
	// The inner query is fenced by OFFSET, so that the comparisons are evaluated once.
	return diffCTE + " AS MATERIALIZED (SELECT t, ht, p, op, hop, " + list(named) + "\nFROM (SELECT o.t, o.ht, m.p, " + op +
		" AS op, " + s.hiddenOp() + " AS hop, " + list(columns) + "\nFROM " + oldCTE + " o FULL JOIN " + freshCTE + " m ON " +
		s.keyJoin(stored, fresh) + "\nOFFSET 0) x)"
}

// hiddenOp returns the expression of what to do to the companion. Its key follows the backing table's bytes.
func (s *statement) hiddenOp() string {
	if s.state == "" {
		return "'-'"
	}
	same := []string{sameRow(s.types, s.layout.Hidden,
		func(i int) string { return numbered("o.h", i) }, func(i int) string { return numbered("m.h", i) })}
	if len(s.layout.Key) > 0 {
		same = append(same, sameRow(s.types, s.layout.keyColumns(),
			func(i int) string { return numbered("o.c", s.layout.Key[i]) },
			func(i int) string { return numbered("m.c", s.layout.Key[i]) }))
	}
	return "CASE WHEN m.rerun THEN '-' WHEN m.p IS NULL OR NOT m.keep THEN CASE WHEN o.ht IS NULL THEN '-' ELSE 'D' END" +
		" WHEN o.ht IS NULL THEN 'I' WHEN (" + strings.Join(same, ") AND (") + ") THEN '-' ELSE 'U' END"
}

// resolved returns the value to store: the new one, or, in a column whose bytes are not fixed, a stored one that is right.
func (s *statement) resolved(c Column, stored, fresh string) string {
	if c.Dependent == Exact {
		return fresh
	}
	return "CASE WHEN o.t IS NOT NULL AND m.p AND " + sameSQL(c, s.types[c.Type], stored, fresh) +
		" THEN " + stored + " ELSE " + fresh + " END"
}

// writes returns the data-modifying CTEs. Postgres runs them from the last to the first: deletes before updates before
// inserts, so that a unique index of the user's that is checked at once finds a freed value free.
func (s *statement) writes() string {
	visible := names(s.layout.Columns)
	out := writeCTEs("mvsync_b", s.table, "op", "t", visible, series("n", len(visible)))
	if s.state != "" {
		columns, values := s.companionColumns("n", "nh")
		out += ",\n" + writeCTEs("mvsync_h", s.state, "hop", "ht", columns, values)
	}
	return out
}

// companionColumns returns the quoted columns of the companion, and where their values stand.
func (s *statement) companionColumns(visible, hidden string) (columns, values []string) {
	for _, k := range s.layout.Key {
		columns = append(columns, pgx.Identifier{s.layout.Columns[k].Name}.Sanitize())
		values = append(values, numbered(visible, k))
	}
	return append(columns, names(s.layout.Hidden)...), append(values, series(hidden, len(s.layout.Hidden))...)
}

func writeCTEs(prefix, table, op, ctid string, columns, values []string) string {
	sets := make([]string, len(columns))
	for i := range columns {
		sets[i] = columns[i] + " = d." + values[i]
	}
	return fmt.Sprintf(`%[1]s_insert AS (INSERT INTO %[2]s (%[3]s) SELECT %[4]s FROM %[5]s d WHERE d.%[6]s = 'I'),
%[1]s_update AS (UPDATE %[2]s b SET %[7]s FROM %[5]s d WHERE b.ctid = d.%[8]s AND d.%[6]s = 'U'),
%[1]s_delete AS (DELETE FROM %[2]s b USING %[5]s d WHERE b.ctid = d.%[8]s AND d.%[6]s = 'D')`,
		prefix, table, list(columns), list(prefixed("d.", values)), diffCTE, op, strings.Join(sets, ", "), ctid)
}

// counts are what stands in front of each result row.
type counts struct {
	stored                     int64 // stored rows under Touched
	unmatched                  int64 // of them, those without a new row
	pairs                      int64 // pairs of a stored and a new row
	inserted, updated, deleted int64
}

// countColumns is the number of counts.
const countColumns = 6

// result returns the final SELECT: one row of counts, or one for each effective change and each row to be rerun, with the
// counts in front of each.
func (s *statement) result() string {
	counts := "SELECT (SELECT count(*) FROM " + oldCTE + ") AS stored, count(*) FILTER (WHERE p IS NULL) AS unmatched," +
		" count(*) FILTER (WHERE t IS NOT NULL AND p) AS pairs, count(*) FILTER (WHERE op = 'I') AS i," +
		" count(*) FILTER (WHERE op = 'U') AS u, count(*) FILTER (WHERE op = 'D') AS d FROM " + diffCTE
	head := "SELECT c.stored, c.unmatched, c.pairs, c.i, c.u, c.d"
	var wanted []string
	if s.merge.Flags {
		wanted = append(wanted, "e.op = 'R'")
	}
	if s.merge.Effects {
		wanted = append(wanted, fmt.Sprintf("(e.op IN ('I', 'U', 'D') AND c.i + c.u + c.d <= %d)", s.merge.limit()))
	}
	if len(wanted) == 0 {
		return head + " FROM (" + counts + ") c"
	}
	n := len(s.layout.Columns)
	columns := prefixed("e.", series("n", n))
	if s.merge.Effects {
		columns = append(columns, prefixed("e.", series("o", n))...)
	}
	return head + ", e.op, " + list(columns) + "\nFROM (" + counts + ") c LEFT JOIN " + diffCTE + " e ON " +
		strings.Join(wanted, " OR ")
}

// text returns the whole statement over the CTEs of the inputs.
func (s *statement) text(catalog string, inputs []string) string {
	ctes := append([]string{}, inputs...)
	for _, c := range s.merge.With {
		ctes = append(ctes, pgx.Identifier{c.Name}.Sanitize()+" AS MATERIALIZED ("+c.SQL+"\n)")
	}
	if s.merge.Append {
		return s.appendText(ctes)
	}
	ctes = append(ctes, s.old(catalog), s.fresh(), s.diff(), s.writes())
	return "WITH " + strings.Join(ctes, ",\n") + "\n" + s.result()
}

// appendText returns the statement that inserts all new rows.
func (s *statement) appendText(ctes []string) string {
	visible := names(s.layout.Columns)
	numbers := series("c", len(visible))
	insert := "INSERT INTO " + s.table + " (" + list(visible) + ") SELECT " + list(numbers) + " FROM " + freshCTE
	if s.state == "" && !s.merge.Effects {
		// Without a materialised copy: this is how a view is filled.
		insert = "INSERT INTO " + s.table + " (" + list(visible) + ") SELECT * FROM (" + s.merge.New + "\n) q"
		if len(ctes) > 0 {
			insert = "WITH " + strings.Join(ctes, ",\n") + "\n" + insert
		}
		return insert
	}
	ctes = append(ctes, s.fresh(), "mvsync_b_insert AS ("+insert+")")
	if s.state != "" {
		columns, values := s.companionColumns("c", "h")
		ctes = append(ctes, "mvsync_h_insert AS (INSERT INTO "+s.state+" ("+list(columns)+") SELECT "+list(values)+" FROM "+freshCTE+")")
	}
	counts := "SELECT count(*) AS i FROM " + freshCTE
	head := "SELECT 0, 0, 0, c.i, 0, 0"
	if !s.merge.Effects {
		return "WITH " + strings.Join(ctes, ",\n") + "\n" + head + " FROM (" + counts + ") c"
	}
	nulls := make([]string, len(visible))
	for i := range nulls {
		nulls[i] = "NULL"
	}
	return "WITH " + strings.Join(ctes, ",\n") + "\n" + head + ", CASE WHEN e.p THEN 'I' END, " + list(prefixed("e.", numbers), nulls) +
		"\nFROM (" + counts + ") c LEFT JOIN " + freshCTE + fmt.Sprintf(" e ON c.i <= %d", s.merge.limit())
}

// text returns the query over the CTEs of the inputs. The SELECT stands in FROM: it may bring a WITH of its own.
func (q *Select) text(ctes []string) string {
	for _, c := range q.With {
		ctes = append(ctes, pgx.Identifier{c.Name}.Sanitize()+" AS MATERIALIZED ("+c.SQL+"\n)")
	}
	if len(ctes) == 0 {
		return q.SQL
	}
	return "WITH " + strings.Join(ctes, ",\n") + "\nSELECT * FROM (" + q.SQL + "\n) q"
}
