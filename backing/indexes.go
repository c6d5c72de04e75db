package backing

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// An index that mvsync made as declared, by the configuration or by a plan, has a comment that holds the declaration's
// text: Postgres prints expressions in words of its own, and users may have indexes on the same table.
const indexMark = "mvsync: "

// Index makes the declared indexes that the view's tables lack. Nobody who reads them waits for it. It is for tables that
// stand: [Session.Create] makes new ones with their indexes. The companion must be the layout's own ([Host.Fits]).
func (h *Host) Index(ctx context.Context, q Querier, l *Layout) error {
	return h.eachIndexed(l, func(table string, want map[string]string) error {
		have, err := h.marked(ctx, q, table)
		if err != nil {
			return err
		}
		for _, text := range slices.Sorted(maps.Keys(want)) {
			if _, ok := have[text]; ok {
				continue
			}
			h.log.Info("making an index", "table", table, "index", text)
			if _, err := q.Exec(ctx, markedDDL(table, want[text], text)); err != nil {
				return fmt.Errorf("make index %s of %s: %w", text, table, err)
			}
		}
		return nil
	})
}

// Unindex drops the indexes that mvsync made for an earlier declaration or plan. For a moment it keeps all others from the
// tables.
func (h *Host) Unindex(ctx context.Context, q Querier, l *Layout) error {
	return h.eachIndexed(l, func(table string, want map[string]string) error {
		have, err := h.marked(ctx, q, table)
		if err != nil {
			return err
		}
		for _, text := range slices.Sorted(maps.Keys(have)) {
			if _, ok := want[text]; ok {
				continue
			}
			h.log.Info("dropping an index that is no longer declared", "table", table, "index", text)
			if _, err := q.Exec(ctx, have[text]); err != nil {
				return fmt.Errorf("drop index %s of %s: %w", text, table, err)
			}
		}
		return nil
	})
}

// eachIndexed visits the view's tables with the statements of their declared indexes, by text.
func (h *Host) eachIndexed(l *Layout, visit func(table string, want map[string]string) error) error {
	want := map[string]string{}
	for _, text := range l.Indexes {
		want[text] = indexDDL(l, text)
	}
	if err := visit(l.Name.SQL(), want); err != nil || len(l.Hidden) == 0 {
		return err
	}
	table, hidden := h.companion(l), map[string]string{}
	for _, text := range l.HiddenIndexes {
		hidden[text] = "CREATE INDEX ON " + table + " " + text
	}
	return visit(table, hidden)
}

// marked returns, by their texts, the statements that drop the indexes that mvsync made as declared.
func (h *Host) marked(ctx context.Context, q Querier, table string) (map[string]string, error) {
	rows, err := q.Query(ctx, `SELECT substr(d.description, length($2::text) + 1), COALESCE(
			(SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', $1::text, k.conname) FROM pg_catalog.pg_constraint k
			  WHERE k.conrelid = x.indrelid AND k.conindid = x.indexrelid AND k.contype IN ('p', 'u', 'x')),
			format('DROP INDEX %I.%I', n.nspname, c.relname))
		FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class c ON c.oid = x.indexrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_catalog.pg_description d ON d.classoid = 'pg_catalog.pg_class'::regclass AND d.objoid = x.indexrelid AND d.objsubid = 0
		WHERE x.indrelid = pg_catalog.to_regclass($1::text) AND x.indisvalid AND starts_with(d.description, $2::text)`, table, indexMark)
	if err != nil {
		return nil, fmt.Errorf("look at the indexes of %s: %w", table, err)
	}
	out := map[string]string{}
	var text, drop string
	_, err = pgx.ForEachRow(rows, []any{&text, &drop}, func() error {
		out[text] = drop
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look at the indexes of %s: %w", table, err)
	}
	return out, nil
}

// markedDDL returns a statement that makes an index of the table and marks it.
func markedDDL(table, create, text string) string {
	return "DO LANGUAGE plpgsql " + literal(fmt.Sprintf(`DECLARE
before oid[] := ARRAY(SELECT x.indexrelid FROM pg_catalog.pg_index x WHERE x.indrelid = %[1]s::pg_catalog.regclass);
BEGIN
%[2]s;
EXECUTE format('COMMENT ON INDEX %%s IS %%L', (SELECT x.indexrelid::pg_catalog.regclass FROM pg_catalog.pg_index x
	WHERE x.indrelid = %[1]s::pg_catalog.regclass AND x.indexrelid <> ALL (before)), %[3]s);
END`, literal(table), create, literal(indexMark+text)))
}

// unmarkDDL returns a statement that takes the marks off the table's indexes, which stay.
func unmarkDDL(table string) string {
	return "DO LANGUAGE plpgsql " + literal(fmt.Sprintf(`DECLARE i pg_catalog.regclass;
BEGIN
FOR i IN SELECT x.indexrelid::pg_catalog.regclass FROM pg_catalog.pg_index x JOIN pg_catalog.pg_description d ON d.objoid = x.indexrelid
	WHERE x.indrelid = %s::pg_catalog.regclass AND d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND starts_with(d.description, %s) LOOP
EXECUTE format('COMMENT ON INDEX %%s IS NULL', i);
END LOOP;
END`, literal(table), literal(indexMark)))
}

// indexDDL returns the statement of a further index as the configuration declares it. A UNIQUE over plain columns becomes
// a deferrable constraint, which is checked at the end of a statement: rows of one merge may swap their values.
func indexDDL(l *Layout, text string) string {
	rest, unique := cutUnique(text)
	if !unique {
		return "CREATE INDEX ON " + l.Name.SQL() + " " + text
	}
	if columns, ok := plainColumns(l, rest); ok {
		return "ALTER TABLE " + l.Name.SQL() + " ADD UNIQUE (" + list(columns) + ") DEFERRABLE INITIALLY IMMEDIATE"
	}
	return "CREATE UNIQUE INDEX ON " + l.Name.SQL() + " " + rest
}

// cutUnique cuts the word UNIQUE off the front of an index's declaration.
func cutUnique(text string) (rest string, unique bool) {
	const word = "unique"
	text = strings.TrimSpace(text)
	if len(text) <= len(word) || !strings.EqualFold(text[:len(word)], word) {
		return text, false
	}
	rest = strings.TrimSpace(text[len(word):])
	return rest, rest[0] == '(' || rest != text[len(word):]
}

// plainColumns returns the quoted columns of a declaration that is nothing but a list of the layout's columns, such as
// (a, "B").
func plainColumns(l *Layout, text string) ([]string, bool) {
	inner, ok := strings.CutPrefix(text, "(")
	if !ok {
		return nil, false
	}
	inner, ok = strings.CutSuffix(inner, ")")
	if !ok {
		return nil, false
	}
	var out []string
	for part := range strings.SplitSeq(inner, ",") {
		part = strings.TrimSpace(part)
		i := slices.IndexFunc(l.Columns, func(c Column) bool {
			quoted := pgx.Identifier{c.Name}.Sanitize()
			return part == quoted || c.Name == strings.ToLower(part) && !strings.Contains(part, `"`)
		})
		if i < 0 {
			return nil, false
		}
		out = append(out, pgx.Identifier{l.Columns[i].Name}.Sanitize())
	}
	return out, true
}
