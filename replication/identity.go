package replication

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// MissingIdentity is a table that must not be published as it is: its own application's updates and deletes would fail.
type MissingIdentity struct {
	OID   uint32
	Table string // quoted, with schema
	Why   string
	Do    string // the statement to run
}

// IdentityError lists the tables that were not published for want of a replica identity.
type IdentityError struct {
	Tables []MissingIdentity
}

// Error names each table with the statement to run.
func (e *IdentityError) Error() string {
	parts := make([]string, 0, len(e.Tables))
	for _, t := range e.Tables {
		parts = append(parts, fmt.Sprintf("publish %s: %s; run %s", t.Table, t.Why, t.Do))
	}
	return strings.Join(parts, "\n")
}

// identitySQL judges each table by itself: a leaf partition's identity is its own, never its parent's. A primary key that
// is deferrable does not serve. On 18 a virtual generated column makes FULL refuse every update.
const identitySQL = `
SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname), c.relreplident::text,
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
               AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
       EXISTS (SELECT FROM pg_catalog.pg_attribute a
               WHERE a.attrelid = c.oid AND a.attgenerated = 'v' AND NOT a.attisdropped),
       (SELECT ic.relname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
        WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND i.indisunique AND i.indpred IS NULL
          AND i.indexprs IS NULL
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid
                          AND a.attnum = ANY (i.indkey) AND NOT a.attnotnull)
        ORDER BY i.indisprimary DESC, i.indnkeyatts, ic.relname LIMIT 1)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY ($1)
ORDER BY 2`

// missingIdentities returns those of the tables that must not be published.
func missingIdentities(ctx context.Context, q querier, tables []uint32) ([]MissingIdentity, error) {
	rows, err := q.Query(ctx, identitySQL, tables)
	if err != nil {
		return nil, fmt.Errorf("read replica identities: %w", err)
	}
	var missing []MissingIdentity
	var oid uint32
	var table, identity string
	var indexed, virtual bool
	var candidate *string
	_, err = pgx.ForEachRow(rows, []any{&oid, &table, &identity, &indexed, &virtual, &candidate}, func() error {
		var why string
		switch {
		case identity == "f" && virtual:
			why = "its replica identity is FULL and it has virtual generated columns, so its updates would fail"
		case identity == "f" || indexed:
			return nil
		case identity == "d":
			why = "it has no primary key to serve as replica identity, so its updates would fail"
		case identity == "i":
			why = "the index of its replica identity is gone or invalid, so its updates would fail"
		default:
			why = "its replica identity is NOTHING, so its updates would fail"
		}
		missing = append(missing, MissingIdentity{OID: oid, Table: table, Why: why, Do: cure(table, candidate, virtual)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read replica identities: %w", err)
	}
	return missing, nil
}

// cure is the cheapest statement that gives the table an identity.
func cure(table string, candidate *string, virtual bool) string {
	switch {
	case candidate != nil:
		return fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY USING INDEX %s", table, quoteName(*candidate))
	case virtual:
		return fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (...), then REPLICA IDENTITY DEFAULT", table)
	default:
		return fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY FULL (or ADD PRIMARY KEY (...))", table)
	}
}
