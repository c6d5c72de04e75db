package backing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/ingest"
)

// privileges are those that a grant on a backing table may give: nobody else writes it.
var privileges = []string{"select", "references"}

// companion returns the quoted name of the table that holds the layout's hidden columns.
func (h *Host) companion(l *Layout) string { return h.own(fmt.Sprintf("state_%d", l.ID)) }

// Find returns the oid of the relation of that name and the id of the view that it belongs to: 0 and 0 where there is no
// such relation, and [ErrNotOurs], with what to do, where there is one that mvsync did not make. Ours are known by their
// oid, so that a table renamed into the place of one is not taken for it.
func (h *Host) Find(ctx context.Context, q Querier, name Name) (oid uint32, view int64, err error) {
	var owner *int64
	err = q.QueryRow(ctx, `SELECT c.oid, v.id FROM pg_catalog.pg_class c
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace LEFT JOIN `+h.own("view")+` v ON v.relid = c.oid
		WHERE n.nspname = $1 AND c.relname = $2`, name.Schema, name.Name).Scan(&oid, &owner)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, 0, nil
	case err != nil:
		return 0, 0, fmt.Errorf("look for %s: %w", name, err)
	case owner == nil:
		return oid, 0, fmt.Errorf("%s: %w; rename or drop it, or give the view another name", name, ErrNotOurs)
	}
	return oid, *owner, nil
}

// Create makes the backing table of a view that [Host.AddView] has added, with key, guard, comment, indexes and grants,
// and its companion, and records it as ours. The schema must exist. It runs in the caller's transaction. The table comes
// empty; the session must be registered ([Host.Open]) to fill it.
func (s *Session) Create(ctx context.Context, tx pgx.Tx, l *Layout) error {
	err := s.create(ctx, tx, l)
	if err != nil {
		return fmt.Errorf("create backing table %s: %w", l.Name, err)
	}
	return nil
}

func (s *Session) create(ctx context.Context, tx pgx.Tx, l *Layout) error {
	if _, _, err := s.host.Find(ctx, tx, l.Name); err != nil {
		return err
	}
	if err := s.learn(ctx, tx, l); err != nil {
		return err
	}
	statements, err := s.ddl(l)
	if err != nil {
		return err
	}
	for _, d := range statements {
		if _, err := tx.Exec(ctx, d.sql, pgx.QueryExecModeExec); err != nil {
			return fmt.Errorf("%s: %w", d.what, err)
		}
	}
	tag, err := tx.Exec(ctx, "UPDATE "+s.host.own("view")+` SET relid = (SELECT c.oid FROM pg_catalog.pg_class c
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $2 AND c.relname = $3)
		WHERE id = $1`, l.ID, l.Name.Schema, l.Name.Name)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNoView
	}
	return err
}

// Reshape fits the tables of a view to another layout of the same columns: the companion is made anew, empty, and columns
// that may be NULL now lose their constraint; with HashKey a hash takes the place of the key's own index. The view must be
// reconciled in the same transaction.
func (s *Session) Reshape(ctx context.Context, tx pgx.Tx, l *Layout) error {
	if err := s.learn(ctx, tx, l); err != nil {
		return fmt.Errorf("reshape %s: %w", l.Name, err)
	}
	statements := []definition{{"companion", "DROP TABLE IF EXISTS " + s.host.companion(l)}}
	for i, c := range l.Columns {
		if !c.NotNull && !slices.Contains(l.Key, i) {
			statements = append(statements, definition{
				"column " + c.Name,
				"ALTER TABLE " + l.Name.SQL() + " ALTER COLUMN " + pgx.Identifier{c.Name}.Sanitize() + " DROP NOT NULL",
			})
		}
	}
	if hashed, err := s.host.Hashed(ctx, tx, l); err != nil {
		return err
	} else if l.HashKey && !hashed {
		statements = append(statements, definition{"key", dropKey(l)})
		statements = append(statements, s.keyDDL(l)...)
	}
	if len(l.Hidden) > 0 {
		statements = append(statements, s.companionDDL(l)...)
	}
	for _, d := range statements {
		if _, err := tx.Exec(ctx, d.sql); err != nil {
			return fmt.Errorf("reshape %s: %s: %w", l.Name, d.what, err)
		}
	}
	return nil
}

// dropKey drops the constraint that keeps the key unique, whatever it is called.
func dropKey(l *Layout) string {
	return "DO LANGUAGE plpgsql " + literal(fmt.Sprintf(`DECLARE c name;
BEGIN
FOR c IN SELECT k.conname FROM pg_catalog.pg_constraint k WHERE k.conrelid = %[1]s::regclass AND k.contype IN ('p', 'u') AND NOT k.condeferrable
	AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_catalog.pg_attribute a WHERE a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey))
	= (SELECT array_agg(n ORDER BY n) FROM unnest(%[2]s::text[]) n) LOOP
EXECUTE format('ALTER TABLE %%s DROP CONSTRAINT %%I', %[1]s, c);
END LOOP;
END`, literal(l.Name.SQL()), literal(textArray(l.keyColumns()))))
}

// textArray is an array of the columns' names as text.
func textArray(columns []Column) string {
	values := make([]ingest.Value, len(columns))
	for i, c := range columns {
		values[i] = ingest.Text(c.Name)
	}
	return arrayLiteral(len(values), ',', func(n int) ingest.Value { return values[n] })
}

// Hashed reports whether the view's table is kept unique by a hash of its key, since no index could hold a key itself.
func (h *Host) Hashed(ctx context.Context, q Querier, l *Layout) (bool, error) {
	var hashed bool
	// With both classes named, pg_depend is read by an index and not as a whole.
	err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_index x
		JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = x.indexrelid
		WHERE x.indrelid = pg_catalog.to_regclass($1)
		AND d.refclassid = 'pg_catalog.pg_proc'::regclass AND d.refobjid = pg_catalog.to_regprocedure($2))`,
		l.Name.SQL(), h.own("row_hash")+"(record)").Scan(&hashed)
	if err != nil {
		return false, fmt.Errorf("look at the key of %s: %w", l.Name, err)
	}
	return hashed, nil
}

// Fits reports whether the view's tables have the layout's companion, and no constraint that its columns may violate.
// Where they do not, [Session.Reshape] makes them fit.
func (h *Host) Fits(ctx context.Context, q Querier, l *Layout) (bool, error) {
	var strict, found []string
	err := q.QueryRow(ctx, `SELECT
		COALESCE((SELECT array_agg(a.attname::text) FROM pg_catalog.pg_attribute a WHERE a.attrelid = pg_catalog.to_regclass($1)
			AND a.attnum > 0 AND a.attnotnull), '{}'),
		COALESCE((SELECT array_agg(a.attname::text || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum)
			FROM pg_catalog.pg_attribute a WHERE a.attrelid = pg_catalog.to_regclass($2) AND a.attnum > 0 AND NOT a.attisdropped), '{}')`,
		l.Name.SQL(), h.companion(l)).Scan(&strict, &found)
	if err != nil {
		return false, fmt.Errorf("look at the tables of %s: %w", l.Name, err)
	}
	hashed, err := h.Hashed(ctx, q, l)
	if err != nil || hashed != l.HashKey {
		return false, err
	}
	for i, c := range l.Columns {
		if !c.NotNull && !slices.Contains(l.Key, i) && slices.Contains(strict, c.Name) {
			return false, nil
		}
	}
	var want []string
	if len(l.Hidden) > 0 {
		for _, c := range slices.Concat(l.keyColumns(), l.Hidden) {
			want = append(want, c.Name+" "+c.Type)
		}
	}
	return slices.Equal(found, want), nil
}

// DDL returns the statements by which [Session.Create] makes the table, for people to read.
func (s *Session) DDL(ctx context.Context, q Querier, l *Layout) ([]string, error) {
	if err := s.learn(ctx, q, l); err != nil {
		return nil, err
	}
	statements, err := s.ddl(l)
	out := make([]string, len(statements))
	for i, d := range statements {
		out[i] = d.sql
	}
	return out, err
}

// definition is one statement of DDL and what it is, for errors.
type definition struct{ what, sql string }

func (s *Session) ddl(l *Layout) ([]definition, error) {
	out := []definition{{"table", s.tableDDL(l)}}
	out = append(out, s.keyDDL(l)...)
	for _, text := range l.Indexes {
		out = append(out, definition{"index " + text, markedDDL(l.Name.SQL(), indexDDL(l, text), text)})
	}
	grants, err := grantDDL(l)
	if err != nil {
		return nil, err
	}
	out = append(out, grants...)
	out = append(out, definition{"guard", s.host.guardDDL(l.Name.SQL())})
	comment := "Maintained by mvsync (catalog " + s.host.catalog + "), read only. Its query:\n" + l.Query
	out = append(out, definition{"comment", "COMMENT ON TABLE " + l.Name.SQL() + " IS " + literal(comment)})
	if len(l.Hidden) == 0 {
		return out, nil
	}
	return append(out, s.companionDDL(l)...), nil
}

func (s *Session) tableDDL(l *Layout) string {
	sql := "CREATE TABLE " + l.Name.SQL() + " (" + columnDefs(l.Columns) + ")"
	if len(l.Storage) == 0 {
		return sql
	}
	var params []string
	for _, name := range slices.Sorted(maps.Keys(l.Storage)) {
		// A parameter of the TOAST table is written toast.name, two names to SQL.
		params = append(params, pgx.Identifier(strings.SplitN(name, ".", 2)).Sanitize()+" = "+literal(l.Storage[name]))
	}
	return sql + " WITH (" + strings.Join(params, ", ") + ")"
}

func columnDefs(columns []Column) string {
	defs := make([]string, len(columns))
	for i, c := range columns {
		defs[i] = pgx.Identifier{c.Name}.Sanitize() + " " + c.Type
		if c.Collation != "" {
			defs[i] += " COLLATE " + c.Collation
		}
		if c.NotNull {
			defs[i] += " NOT NULL"
		}
	}
	return strings.Join(defs, ", ")
}

// keyDDL returns the statements that make the key unique.
func (s *Session) keyDDL(l *Layout) []definition {
	table, key := l.Name.SQL(), names(l.keyColumns())
	switch {
	case len(key) == 0:
		return []definition{{"key", "CREATE UNIQUE INDEX ON " + table + " ((true))"}}
	case l.HashKey:
		out := []definition{{"key", "CREATE UNIQUE INDEX ON " + table + " (" + s.host.own("row_hash") + "(ROW(" + list(key) + ")))"}}
		// Conditions speak of columns and not of the hash: an index for them, of the kind that takes values of any length.
		if hashable(l.keyColumns()[0], s.types) {
			out = append(out, definition{"key", "CREATE INDEX ON " + table + " USING hash (" + key[0] + ")"})
		}
		return out
	case l.nullableKey():
		return []definition{{"key", "ALTER TABLE " + table + " ADD UNIQUE NULLS NOT DISTINCT (" + list(key) + ")"}}
	default:
		return []definition{{"key", "ALTER TABLE " + table + " ADD PRIMARY KEY (" + list(key) + ")"}}
	}
}

func hashable(c Column, t types) bool { return t[c.Type].hash }

// companionDDL returns the statements that make the companion. Its index fits the condition of
// [statement.companionJoin].
func (s *Session) companionDDL(l *Layout) []definition {
	table := s.host.companion(l)
	keys := l.keyColumns()
	columns := append(slices.Clone(keys), l.Hidden...)
	out := []definition{{"companion", "CREATE TABLE " + table + " (" + columnDefs(columns) + ")"}}
	var exprs []string
	for _, c := range keys {
		for _, x := range keyIndexed(c, s.types[c.Type], pgx.Identifier{c.Name}.Sanitize()) {
			exprs = append(exprs, "("+x+")")
		}
	}
	switch {
	case len(keys) == 0:
		exprs = []string{"(true)"}
	case l.HashKey:
		exprs = []string{"(" + s.host.own("row_hash") + "(ROW(" + list(names(keys)) + ")))"}
	}
	for _, text := range l.HiddenIndexes {
		out = append(out, definition{"companion's index " + text, markedDDL(table, "CREATE INDEX ON "+table+" "+text, text)})
	}
	return append(out,
		definition{"companion's key", "CREATE UNIQUE INDEX ON " + table + " (" + list(exprs) + ")"},
		definition{"companion's guard", s.host.guardDDL(table)},
		definition{"companion's comment", "COMMENT ON TABLE " + table + " IS " +
			literal("What mvsync keeps beside "+l.Name.SQL()+", read only.")})
}

// guardName is the name of the guard's trigger. BEFORE triggers fire in the order of their names.
const guardName = "mvsync_guard"

// guardDDL returns the trigger that refuses writes by others. ALWAYS, since a plain trigger is skipped under
// session_replication_role = replica; a statement must have its table opened up even where no row is touched.
func (h *Host) guardDDL(table string) string {
	return "DO LANGUAGE plpgsql " + literal(fmt.Sprintf(`BEGIN
CREATE TRIGGER %[1]s BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %[2]s FOR EACH STATEMENT EXECUTE FUNCTION %[3]s();
ALTER TABLE %[2]s ENABLE ALWAYS TRIGGER %[1]s;
END`, guardName, table, h.own("guard")))
}

func grantDDL(l *Layout) ([]definition, error) {
	var out []definition
	for _, privilege := range slices.Sorted(maps.Keys(l.Grants)) {
		if !slices.Contains(privileges, strings.ToLower(privilege)) {
			return nil, fmt.Errorf("grant %s: a backing table is read only; grant one of %s", privilege, strings.Join(privileges, ", "))
		}
		for _, role := range l.Grants[privilege] {
			to := pgx.Identifier{role}.Sanitize()
			if strings.EqualFold(role, "public") { // no role may have that name
				to = "PUBLIC"
			}
			out = append(out, definition{
				"grant " + privilege + " to " + role,
				"GRANT " + strings.ToUpper(privilege) + " ON " + l.Name.SQL() + " TO " + to,
			})
		}
	}
	return out, nil
}

// literal quotes a string for a statement that takes no parameters.
func literal(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return " E'" + strings.ReplaceAll(s, `\`, `\\`) + "'"
	}
	return "'" + s + "'"
}

// Drop drops the view's backing table and companion, if they are still there and ours. Objects of users that depend on
// the table are an error.
func (h *Host) Drop(ctx context.Context, q Querier, l *Layout) error {
	oid, view, err := h.Find(ctx, q, l.Name)
	if err != nil {
		return fmt.Errorf("drop backing table %s: %w", l.Name, err)
	}
	if oid != 0 && view != l.ID {
		return fmt.Errorf("drop backing table %s: %w", l.Name, ErrNotOurs)
	}
	_, err = q.Exec(ctx, "DROP TABLE IF EXISTS "+l.Name.SQL())
	if err == nil {
		_, err = q.Exec(ctx, "DROP TABLE IF EXISTS "+h.companion(l))
	}
	if err != nil {
		return fmt.Errorf("drop backing table %s: %w", l.Name, err)
	}
	return nil
}

// Detach makes the view's backing table an ordinary table, with its rows, key, indexes and grants, and forgets the view.
func (h *Host) Detach(ctx context.Context, q Querier, l *Layout) error {
	oid, view, err := h.Find(ctx, q, l.Name)
	if err == nil && oid != 0 && view != l.ID {
		err = ErrNotOurs
	}
	if err != nil {
		return fmt.Errorf("detach %s: %w", l.Name, err)
	}
	var statements []string
	if oid != 0 {
		statements = append(statements, "DROP TRIGGER IF EXISTS "+guardName+" ON "+l.Name.SQL(), "COMMENT ON TABLE "+l.Name.SQL()+" IS NULL",
			unmarkDDL(l.Name.SQL()))
		if l.HashKey {
			// Its function goes with the catalog.
			statements = append(statements, h.dropHashIndexes(l))
		}
	}
	statements = append(statements, "DROP TABLE IF EXISTS "+h.companion(l))
	for _, sql := range statements {
		if _, err := q.Exec(ctx, sql); err != nil {
			return fmt.Errorf("detach %s: %w", l.Name, err)
		}
	}
	return h.ForgetView(ctx, q, l.ID)
}

// dropHashIndexes returns the statement that drops the table's indexes over the catalog's function.
func (h *Host) dropHashIndexes(l *Layout) string {
	return "DO LANGUAGE plpgsql " + literal(fmt.Sprintf(`DECLARE i regclass;
BEGIN
FOR i IN SELECT DISTINCT x.indexrelid::regclass FROM pg_catalog.pg_index x
	JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = x.indexrelid
	WHERE x.indrelid = %s::regclass AND d.refclassid = 'pg_catalog.pg_proc'::regclass AND d.refobjid = to_regprocedure(%s) LOOP
EXECUTE 'DROP INDEX ' || i;
END LOOP;
END`, literal(l.Name.SQL()), literal(h.own("row_hash")+"(record)")))
}

// Count returns the number of rows of the backing table.
func (h *Host) Count(ctx context.Context, q Querier, l *Layout) (int64, error) {
	var n int64
	if err := q.QueryRow(ctx, "SELECT count(*) FROM "+l.Name.SQL()).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the rows of %s: %w", l.Name, err)
	}
	return n, nil
}
