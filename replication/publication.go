package replication

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// publicationMark is the comment by which a publication is known as ours.
const publicationMark = "managed by mvsync"

// Publication is mvsync's own publication by name: explicit leaf tables, all operations.
type Publication struct {
	Name string
}

// Membership is what [Publication.Ensure] changed. Whatever is in it wants a [Fence] before the tables are read.
type Membership struct {
	Added   []string // tables that joined, quoted, with schema
	Removed []string // tables that left
	Mended  []string // options and memberships that somebody had altered, in words
}

// Changed reports whether anything was altered.
func (m Membership) Changed() bool { return len(m.Added)+len(m.Removed)+len(m.Mended) > 0 }

// beginner starts transactions: a connection or a pool.
type beginner interface {
	querier
	Begin(ctx context.Context) (pgx.Tx, error)
}

// publicationRow is the publication as the catalog has it.
type publicationRow struct {
	exists    bool
	ours      bool
	allTables bool
	viaRoot   bool
	allOps    bool
	generated string // publish_generated_columns: n or s; "" before 18
	schemas   []string
}

const publicationSQL = `
SELECT coalesce(pg_catalog.obj_description(p.oid, 'pg_publication'), ''), p.puballtables, p.pubviaroot,
       p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate,
       coalesce(pg_catalog.to_jsonb(p) ->> 'pubgencols', ''),
       ARRAY(SELECT n.nspname::text FROM pg_catalog.pg_publication_namespace m
             JOIN pg_catalog.pg_namespace n ON n.oid = m.pnnspid WHERE m.pnpubid = p.oid ORDER BY 1)
FROM pg_catalog.pg_publication p WHERE p.pubname = $1`

func (p Publication) read(ctx context.Context, q querier) (publicationRow, error) {
	var row publicationRow
	var comment string
	err := q.QueryRow(ctx, publicationSQL, p.Name).
		Scan(&comment, &row.allTables, &row.viaRoot, &row.allOps, &row.generated, &row.schemas)
	if errors.Is(err, pgx.ErrNoRows) {
		return publicationRow{}, nil
	}
	if err != nil {
		return publicationRow{}, fmt.Errorf("read publication %s: %w", p.Name, err)
	}
	row.exists, row.ours = true, comment == publicationMark
	return row, nil
}

// foreign returns [ErrPublicationForeign] where a publication of that name must be left alone.
func (p Publication) foreign(row publicationRow) error {
	switch {
	case row.exists && !row.ours:
		return fmt.Errorf("%w: publication %s exists and lacks the comment %q; set source.publication to another name",
			ErrPublicationForeign, p.Name, publicationMark)
	case row.allTables:
		return fmt.Errorf("%w: publication %s is FOR ALL TABLES, which would send mvsync's own tables back to it; "+
			"run DROP PUBLICATION %s", ErrPublicationForeign, p.Name, quoteName(p.Name))
	}
	return nil
}

// Exists reports whether our publication is there. One that is not ours is an [ErrPublicationForeign].
func (p Publication) Exists(ctx context.Context, q querier) (bool, error) {
	row, err := p.read(ctx, q)
	if err != nil {
		return false, err
	}
	return row.exists, p.foreign(row)
}

// member is a table that the publication holds or shall hold.
type member struct {
	oid      uint32
	name     string // quoted, with schema
	narrowed bool   // has a row filter or a column list, which ours never have
}

// Ensure makes the publication, if need be, and its members: exactly the leaves of tables. It adds and drops single
// tables and leaves alone what is right already, so that a running stream does not notice. A table without a replica
// identity is never published: it is left out, everything else is done, and an [*IdentityError] names it.
//
// The locks are SHARE UPDATE EXCLUSIVE on the tables that join, which no writer waits for. After a change the caller
// waits for a [Fence].
func (p Publication) Ensure(ctx context.Context, db beginner, tables []uint32) (Membership, error) {
	var done Membership
	var refused *IdentityError
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		// Waiting behind a schema change is no use: the caller tries again.
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '5s'"); err != nil {
			return fmt.Errorf("bound the wait for locks: %w", err)
		}
		wanted, identityErr, err := p.wanted(ctx, tx, tables)
		if err != nil {
			return err
		}
		refused = identityErr
		row, err := p.read(ctx, tx)
		if err != nil {
			return err
		}
		if err := p.foreign(row); err != nil {
			return err
		}
		if !row.exists {
			done, err = p.create(ctx, tx, wanted)
			return err
		}
		done, err = p.alter(ctx, tx, row, wanted)
		return err
	})
	if err != nil {
		return Membership{}, fmt.Errorf("ensure publication %s: %w", p.Name, err)
	}
	if refused != nil {
		return done, refused
	}
	return done, nil
}

// wanted returns the leaves of tables that can be members, by oid.
func (p Publication) wanted(ctx context.Context, q querier, tables []uint32) (map[uint32]member, *IdentityError, error) {
	leaves, err := Leaves(ctx, q, tables)
	if err != nil {
		return nil, nil, err
	}
	oids := slices.Sorted(maps.Keys(leaves))
	missing, err := missingIdentities(ctx, q, oids)
	if err != nil {
		return nil, nil, err
	}
	var refused *IdentityError
	if len(missing) > 0 {
		refused = &IdentityError{Tables: missing}
		for _, m := range missing {
			delete(leaves, m.OID)
		}
	}
	members, err := readMembers(ctx, q, `
SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname), false
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY ($1)`, slices.Sorted(maps.Keys(leaves)))
	return members, refused, err
}

// present returns the members that the publication has.
func (p Publication) present(ctx context.Context, q querier) (map[uint32]member, error) {
	return readMembers(ctx, q, `
SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname), r.prqual IS NOT NULL OR r.prattrs IS NOT NULL
FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = $1`, p.Name)
}

func readMembers(ctx context.Context, q querier, sql string, arg any) (map[uint32]member, error) {
	rows, err := q.Query(ctx, sql, arg)
	if err != nil {
		return nil, fmt.Errorf("read publication members: %w", err)
	}
	members := map[uint32]member{}
	var m member
	_, err = pgx.ForEachRow(rows, []any{&m.oid, &m.name, &m.narrowed}, func() error {
		members[m.oid] = m
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read publication members: %w", err)
	}
	return members, nil
}

// names returns the names of members in one order, so that two starts take locks alike.
func names(members map[uint32]member) []string {
	list := make([]string, 0, len(members))
	for _, m := range members {
		list = append(list, m.name)
	}
	slices.Sort(list)
	return list
}

// only lists tables for FOR TABLE, ADD TABLE and DROP TABLE. ONLY keeps an inheritance parent from bringing its children
// in as a side effect: they are members of their own.
func only(tables []string) string { return "ONLY " + strings.Join(tables, ", ONLY ") }

// options are those of our publication. Through the root leaf partitions would show NULLs where their identity has no
// column, and their own TRUNCATE not at all. Without stored generated columns an update under FULL would fail on 18.
func options(generated string) string {
	with := "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"
	if generated != "" {
		with += ", publish_generated_columns = stored"
	}
	return with
}

func (p Publication) create(ctx context.Context, tx pgx.Tx, wanted map[uint32]member) (Membership, error) {
	var generated string
	err := tx.QueryRow(ctx, `SELECT CASE WHEN pg_catalog.current_setting('server_version_num')::int >= 180000 THEN 's' ELSE '' END`).
		Scan(&generated)
	if err != nil {
		return Membership{}, fmt.Errorf("read the server's version: %w", err)
	}
	tables := names(wanted)
	sql := "CREATE PUBLICATION " + quoteName(p.Name)
	if len(tables) > 0 {
		sql += " FOR TABLE " + only(tables)
	}
	sql += " WITH (" + options(generated) + ")"
	if _, err := tx.Exec(ctx, sql); err != nil {
		return Membership{}, fmt.Errorf("create it: %w", err)
	}
	sql = "COMMENT ON PUBLICATION " + quoteName(p.Name) + " IS " + quoteText(publicationMark)
	if _, err := tx.Exec(ctx, sql); err != nil {
		return Membership{}, fmt.Errorf("mark it: %w", err)
	}
	return Membership{Added: tables}, nil
}

// alter brings an existing publication to the wanted members, dropping what narrows it.
func (p Publication) alter(ctx context.Context, tx pgx.Tx, row publicationRow, wanted map[uint32]member) (Membership, error) {
	present, err := p.present(ctx, tx)
	if err != nil {
		return Membership{}, err
	}
	var done Membership
	add, drop := map[uint32]member{}, map[uint32]member{}
	for oid, m := range wanted {
		if _, ok := present[oid]; !ok {
			add[oid] = m
		}
	}
	for oid, m := range present {
		_, want := wanted[oid]
		if want && !m.narrowed {
			continue
		}
		drop[oid] = m
		if want {
			add[oid] = m
			done.Mended = append(done.Mended, "row filter or column list of "+m.name)
		}
	}
	done.Added, done.Removed = names(add), names(drop)
	return done, p.apply(ctx, tx, row, &done)
}

// apply runs the statements, dropping before adding.
func (p Publication) apply(ctx context.Context, tx pgx.Tx, row publicationRow, done *Membership) error {
	alter := "ALTER PUBLICATION " + quoteName(p.Name) + " "
	run := func(doing, sql string) error {
		if _, err := tx.Exec(ctx, alter+sql); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		return nil
	}
	for _, schema := range row.schemas {
		if err := run("drop schema "+schema, "DROP TABLES IN SCHEMA "+quoteName(schema)); err != nil {
			return err
		}
		done.Mended = append(done.Mended, "tables in schema "+schema)
	}
	if row.viaRoot || !row.allOps || row.generated == "n" {
		if err := run("restore its options", "SET ("+options(row.generated)+")"); err != nil {
			return err
		}
		done.Mended = append(done.Mended, "options")
	}
	if len(done.Removed) > 0 {
		if err := run("drop tables", "DROP TABLE "+only(done.Removed)); err != nil {
			return err
		}
	}
	if len(done.Added) > 0 {
		return run("add tables", "ADD TABLE "+only(done.Added))
	}
	return nil
}

// Drop removes the publication and reports whether there was one. One that is not ours is refused with
// [ErrPublicationForeign].
func (p Publication) Drop(ctx context.Context, q querier) (bool, error) {
	row, err := p.read(ctx, q)
	if err != nil || !row.exists {
		return false, err
	}
	if !row.ours {
		return false, p.foreign(row)
	}
	if _, err := q.Exec(ctx, "DROP PUBLICATION "+quoteName(p.Name)); err != nil {
		return false, fmt.Errorf("drop publication %s: %w", p.Name, err)
	}
	return true, nil
}
