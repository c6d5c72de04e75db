package replication

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A leaf is a table that stores rows: a plain table, a leaf partition, or a parent or child in an inheritance tree. Only
// leaves are published, and only leaves appear in the stream.

// leavesSQL walks down from the roots, and from each table that stores rows up again: a leaf may be read through tables
// beside those asked for. A foreign partition and an unlogged table have no WAL: a publication
// takes neither, and the plans refuse them.
const leavesSQL = `
WITH RECURSIVE down(oid) AS (
	SELECT r FROM unnest($1::oid[]) r
	UNION
	SELECT i.inhrelid FROM down JOIN pg_catalog.pg_inherits i ON i.inhparent = down.oid
), up(leaf, oid) AS (
	SELECT down.oid, i.inhparent FROM down JOIN pg_catalog.pg_inherits i ON i.inhrelid = down.oid
	UNION
	SELECT up.leaf, i.inhparent FROM up JOIN pg_catalog.pg_inherits i ON i.inhrelid = up.oid
)
SELECT c.oid, ARRAY(SELECT up.oid FROM up WHERE up.leaf = c.oid ORDER BY 1)
FROM down JOIN pg_catalog.pg_class c ON c.oid = down.oid
WHERE c.relkind = 'r' AND c.relpersistence = 'p'`

// Leaves returns the tables in which the rows of the roots stand, each with all tables through which it is read as well
// (its partitioned and inheritance parents, whether among the roots or not).
func Leaves(ctx context.Context, q querier, roots []uint32) (map[uint32][]uint32, error) {
	rows, err := q.Query(ctx, leavesSQL, roots)
	if err != nil {
		return nil, fmt.Errorf("list leaf tables: %w", err)
	}
	leaves := map[uint32][]uint32{}
	var oid uint32
	var ancestors []uint32
	_, err = pgx.ForEachRow(rows, []any{&oid, &ancestors}, func() error {
		leaves[oid] = append([]uint32(nil), ancestors...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list leaf tables: %w", err)
	}
	return leaves, nil
}

// lineageSQL is one leaf's row of [leavesSQL], from below.
const lineageSQL = `
WITH RECURSIVE up(oid) AS (
	SELECT inhparent FROM pg_catalog.pg_inherits WHERE inhrelid = $1
	UNION
	SELECT i.inhparent FROM up JOIN pg_catalog.pg_inherits i ON i.inhrelid = up.oid
)
SELECT coalesce((SELECT relispartition FROM pg_catalog.pg_class WHERE oid = $1), false),
       ARRAY(SELECT oid FROM up ORDER BY 1)`

// lineage is what the stream does not say of a relation.
type lineage struct {
	partition bool
	ancestors []uint32
}

// lookUpLineage asks the present catalog. A table that is gone by now has none; its views notice by their fingerprint.
func lookUpLineage(ctx context.Context, q querier, oid uint32) (lineage, error) {
	var l lineage
	if err := q.QueryRow(ctx, lineageSQL, oid).Scan(&l.partition, &l.ancestors); err != nil {
		return lineage{}, fmt.Errorf("look up the parents of relation %d: %w", oid, err)
	}
	return l, nil
}
