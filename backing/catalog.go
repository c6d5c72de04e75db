package backing

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// migrations holds one file a schema version: sql/0001_*.sql leads to version 1, and so on. A published file is never
// edited; a change is a further file.
//
//go:embed sql/*.sql
var migrations embed.FS

// Migrate brings the catalog to the version of this program, making it where it is missing, in one transaction. It may
// run at the same time in several sessions. A catalog of a newer version is refused with [ErrNewer], a schema of that
// name with other things in it with [ErrNotOurs].
func (h *Host) Migrate(ctx context.Context, db Beginner) error {
	steps, err := h.steps()
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		return h.migrate(ctx, tx, steps)
	})
	if err != nil {
		return fmt.Errorf("prepare catalog %s: %w", h.catalog, err)
	}
	return nil
}

func (h *Host) migrate(ctx context.Context, tx pgx.Tx, steps []string) error {
	// Taken before the version is read, so that the second of two at once sees what the first has done.
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1, $2)", migrateLock, h.lockKey()); err != nil {
		return err
	}
	version, err := h.Version(ctx, tx)
	if err != nil {
		return err
	}
	switch {
	case version > len(steps):
		return fmt.Errorf("%w (version %d, this program knows %d); run that one, or a newer", ErrNewer, version, len(steps))
	case version == len(steps):
		return nil
	case version == 0:
		if err := h.found(ctx, tx); err != nil {
			return err
		}
	}
	for i, sql := range steps[version:] {
		if _, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("step to version %d: %w", version+i+1, err)
		}
	}
	_, err = tx.Exec(ctx, "UPDATE "+h.own("schema_version")+" SET version = $1", len(steps))
	return err
}

// found makes the schema with its version table, unless the schema is somebody else's.
func (h *Host) found(ctx context.Context, tx pgx.Tx) error {
	var exists, used bool
	err := tx.QueryRow(ctx, `SELECT count(*) > 0, COALESCE(bool_or(EXISTS (
		SELECT FROM pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid)), false)
		FROM pg_namespace n WHERE nspname = $1`, h.catalog).Scan(&exists, &used)
	if err != nil {
		return err
	}
	if used {
		return fmt.Errorf("schema %s holds other objects; choose another name (backing.catalog) or empty it: %w", h.catalog, ErrNotOurs)
	}
	if !exists {
		if _, err := tx.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{h.catalog}.Sanitize()); err != nil {
			return err
		}
	}
	version := h.own("schema_version")
	if _, err := tx.Exec(ctx, "CREATE TABLE "+version+" (version integer NOT NULL)"); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "INSERT INTO "+version+" VALUES (0)")
	return err
}

// Version returns the catalog's schema version, 0 where there is no catalog.
func (h *Host) Version(ctx context.Context, q Querier) (int, error) {
	var exists bool
	err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = 'schema_version')`, h.catalog).Scan(&exists)
	if err != nil || !exists {
		return 0, err
	}
	var version int
	err = q.QueryRow(ctx, "SELECT version FROM "+h.own("schema_version")).Scan(&version)
	return version, err
}

// Ready reports whether the catalog has exactly the version of this program: an error says what to do, [ErrNewer] where
// the program is too old.
func (h *Host) Ready(ctx context.Context, q Querier) error {
	steps, err := h.steps()
	if err != nil {
		return err
	}
	version, err := h.Version(ctx, q)
	switch {
	case err != nil:
		return fmt.Errorf("read the version of catalog %s: %w", h.catalog, err)
	case version == 0:
		return fmt.Errorf("schema %s has no catalog of mvsync; start the daemon (mvsync run) first", h.catalog)
	case version > len(steps):
		return fmt.Errorf("catalog %s: %w (version %d, this program knows %d); run that one, or a newer", h.catalog, ErrNewer, version, len(steps))
	case version < len(steps):
		return fmt.Errorf("catalog %s has version %d and this program needs %d; start the daemon (mvsync run) to migrate it", h.catalog, version, len(steps))
	}
	return nil
}

// Remove drops the catalog with everything in it, companion tables included. Backing tables that still carry the guard
// stop it: detach or drop them first.
func (h *Host) Remove(ctx context.Context, q Querier) error {
	version, err := h.Version(ctx, q)
	if err != nil || version == 0 {
		return err
	}
	var guarded []string
	err = q.QueryRow(ctx, `SELECT COALESCE(array_agg(DISTINCT tgrelid::regclass::text), '{}') FROM pg_trigger
		JOIN pg_class c ON c.oid = tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE tgfoid = to_regprocedure($1) AND n.nspname <> $2`, h.own("guard")+"()", h.catalog).Scan(&guarded)
	if err != nil {
		return fmt.Errorf("look for guarded tables: %w", err)
	}
	if len(guarded) > 0 {
		return fmt.Errorf("remove catalog %s: %s still guarded by it; detach or drop them first", h.catalog, strings.Join(guarded, ", "))
	}
	if _, err := q.Exec(ctx, "DROP SCHEMA "+pgx.Identifier{h.catalog}.Sanitize()+" CASCADE"); err != nil {
		return fmt.Errorf("remove catalog %s: %w", h.catalog, err)
	}
	return nil
}

// steps returns the migrations in their order, made for this catalog.
func (h *Host) steps() ([]string, error) {
	// A function's body stands between $mvsync$ and names no schema, so the name cannot end it; it may only not be empty.
	if h.catalog == "" || strings.ContainsRune(h.catalog, 0) || len(h.catalog) > 63 {
		return nil, errors.New("catalog: a schema name has 1 to 63 bytes")
	}
	files, err := migrations.ReadDir("sql")
	if err != nil {
		return nil, err
	}
	fill := strings.NewReplacer(
		"{catalog}", pgx.Identifier{h.catalog}.Sanitize(),
		"{waiter_lock}", strconv.Itoa(int(waiterLock)),
		"{lock_key}", strconv.Itoa(int(h.lockKey())),
		"{channel}", h.Channel(),
	)
	var out []string
	for _, f := range files {
		text, err := migrations.ReadFile("sql/" + f.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, fill.Replace(string(text)))
	}
	return out, nil
}
