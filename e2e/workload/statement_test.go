package workload

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// contents are the rows of a table: for each key the values by column, as text.
type contents map[string]map[string]string

func read(t *testing.T, tx pgx.Tx, table *Table) contents {
	t.Helper()
	rows, err := tx.Query(t.Context(), "SELECT * FROM "+table.sql(), pgx.QueryExecModeExec, pgx.QueryResultFormats{pgx.TextFormatCode})
	require.NoError(t, err)
	defer rows.Close()
	found := contents{}
	for rows.Next() {
		row := map[string]string{}
		for i, raw := range rows.RawValues() {
			row[rows.FieldDescriptions()[i].Name] = fmt.Sprintf("%t %s", raw == nil, raw)
		}
		key := make([]string, len(table.Key))
		for i, name := range table.Key {
			key[i] = row[name]
		}
		found[strings.Join(key, "|")] = row
	}
	require.NoError(t, rows.Err())
	return found
}

// changed returns the columns in which rows of one key differ.
func changed(before, after contents) []string {
	columns := map[string]bool{}
	for key, row := range before {
		for name, value := range after[key] {
			if value != row[name] {
				columns[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(columns))
}

// values returns the multiset of the rows without their keys.
func (c contents) values(table *Table) []string {
	var all []string
	for _, row := range c {
		row = maps.Clone(row)
		for _, name := range table.Key {
			delete(row, name)
		}
		all = append(all, fmt.Sprint(row))
	}
	slices.Sort(all)
	return all
}

func columnNames(columns []*Column) []string {
	all := make([]string, len(columns))
	for i, c := range columns {
		all[i] = c.Name
	}
	return all
}

// TestKindsDoWhatTheySay runs each kind on each table to which it applies and looks at the rows before and after.
func TestKindsDoWhatTheySay(t *testing.T) {
	t.Parallel()
	db, _ := seededDB(t, nil)
	conn := db.Conn(t)
	effects := map[Kind]int{}
	r := rand.New(rand.NewPCG(6, 6))
	spec := Fixtures()
	for i := range spec.Tables {
		table := &spec.Tables[i]
		for _, kind := range Kinds() {
			if !kind.applies(table) {
				continue
			}
			for range 12 {
				tx, err := conn.Begin(t.Context())
				require.NoError(t, err)
				before := read(t, tx, table)
				sql := table.statement(r, kind)
				if _, err = tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err == nil {
					after := read(t, tx, table)
					checkEffect(t, table, kind, before, after, sql)
					if !maps.EqualFunc(before, after, maps.Equal) {
						effects[kind]++
					}
				} else {
					e, ok := errors.AsType[*pgconn.PgError](err)
					require.True(t, ok, "%v: %s", err, sql)
					require.True(t, pgerrcode.IsIntegrityConstraintViolation(e.Code), "%v: %s", err, sql)
				}
				require.NoError(t, tx.Rollback(t.Context()))
			}
		}
	}
	for _, kind := range Kinds() {
		if slices.Contains([]Kind{UpdateNothing, ThereAndBack, Reinsert}, kind) {
			require.Zero(t, effects[kind], "%s changes nothing in the end", kind)
			continue
		}
		require.Positive(t, effects[kind], kind)
	}
}

// checkEffect checks what a statement of the kind did to its table.
func checkEffect(t *testing.T, table *Table, kind Kind, before, after contents, sql string) {
	t.Helper()
	keys := func(c contents) []string { return slices.Sorted(maps.Keys(c)) }
	within := func(columns []string) {
		require.Equal(t, keys(before), keys(after), sql)
		require.Subset(t, columns, changed(before, after), sql)
	}
	switch kind {
	case InsertRow, InsertRows:
		require.Subset(t, keys(after), keys(before), sql)
		require.Empty(t, changed(before, after), sql)
	case Upsert:
		require.LessOrEqual(t, len(after)-len(before), 1, sql)
		require.GreaterOrEqual(t, len(after), len(before), sql)
	case UpdatePayload:
		within(columnNames(table.payload()))
	case UpdateGroup:
		within(table.Group)
	case UpdateKey:
		require.Equal(t, before.values(table), after.values(table), sql)
	case UpdateNothing, ThereAndBack, Reinsert:
		require.Equal(t, before, after, sql)
	case UpdateAll, UpdatePredicate:
		require.Len(t, after, len(before), sql)
	case UpdateAroundWide:
		within(columnNames(table.narrow()))
	case Swap:
		within(columnNames(table.unkeyed()))
		require.Equal(t, before.values(table), after.values(table), sql)
	case Delete, Cascade:
		require.LessOrEqual(t, len(before)-len(after), 1, sql)
		require.Subset(t, keys(before), keys(after), sql)
	case DeletePredicate:
		require.Subset(t, keys(before), keys(after), sql)
	case Truncate:
		if len(table.Leaves) == 0 {
			require.Empty(t, after, sql)
		}
		require.Subset(t, keys(before), keys(after), sql)
	}
}

// TestCascadeReachesTheChildren: deleting from a table that cascades deletes what references it.
func TestCascadeReachesTheChildren(t *testing.T) {
	t.Parallel()
	db, _ := seededDB(t, nil)
	conn := db.Conn(t)
	dim := &Fixtures().Tables[2]
	require.Equal(t, "dim", dim.Name)
	r := rand.New(rand.NewPCG(1, 3))
	var deleted int64
	for range 30 {
		var before, after int64
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM fact").Scan(&before))
		_, err := conn.Exec(t.Context(), dim.statement(r, Cascade), pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM fact").Scan(&after))
		deleted += before - after
	}
	require.Positive(t, deleted)
}

// TestWideValuesStayOutOfTheStream: an update around a wide value streams no copy of it, which is what it is for.
func TestWideValuesStayOutOfTheStream(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	require.NoError(t, Create(t.Context(), db.Pool, nil))
	db.Exec(t, "INSERT INTO txt (body, at) SELECT "+Wide()(rand.New(rand.NewPCG(1, 1)))+", now() FROM generate_series(1, 3)")
	slot := db.Name + "_slot" // slots are of the whole server
	db.Exec(t, "SELECT pg_create_logical_replication_slot('"+slot+"', 'test_decoding')")
	texts := texts()
	texts.Schema = "public"
	db.Exec(t, texts.statement(rand.New(rand.NewPCG(2, 2)), UpdateAroundWide))
	stream := db.Query(t, "SELECT data FROM pg_logical_slot_get_changes('"+slot+"', NULL, NULL) WHERE data LIKE 'table public.txt: UPDATE:%'")
	require.Len(t, stream, 3)
	for _, change := range stream {
		require.Contains(t, change[0], "body[text]:unchanged-toast-datum")
	}
}

// TestBoundedStatements: on a table that may be large, no condition reaches more rows than the bound.
func TestBoundedStatements(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE big (id int PRIMARY KEY, n int, body text); INSERT INTO big SELECT i, i % 3, repeat('x', 4001) FROM generate_series(1, 500) i")
	spec, err := Reflect(t.Context(), db.Pool, "big")
	require.NoError(t, err)
	big := &spec.Tables[0]
	require.False(t, Truncate.applies(big))
	conn := db.Conn(t)
	r := rand.New(rand.NewPCG(3, 3))
	var most int64
	for _, kind := range []Kind{UpdatePredicate, DeletePredicate, UpdateNothing, UpdateAroundWide} {
		for range 15 {
			tag, err := conn.Exec(t.Context(), big.statement(r, kind), pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
			require.LessOrEqual(t, tag.RowsAffected(), int64(big.Bound))
			most = max(most, tag.RowsAffected())
		}
	}
	require.Equal(t, int64(big.Bound), most)
}

// TestTruncateTakesLeaves: a partitioned table is truncated as a whole or by leaf.
func TestTruncateTakesLeaves(t *testing.T) {
	t.Parallel()
	spec := Fixtures()
	part := &spec.Tables[9]
	seen := map[string]bool{}
	r := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		seen[part.statement(r, Truncate)] = true
	}
	want := []string{`TRUNCATE "public"."part"`, `TRUNCATE "public"."part_north"`, `TRUNCATE "public"."part_rest"`, `TRUNCATE "public"."part_south"`}
	require.Equal(t, want, slices.Sorted(maps.Keys(seen)))
}

func TestKindNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, kind := range Kinds() {
		require.NotEmpty(t, kind.String())
		require.False(t, seen[kind.String()])
		seen[kind.String()] = true
		require.Positive(t, DefaultWeights()[kind])
	}
}

func TestSpecMistakes(t *testing.T) {
	t.Parallel()
	_, err := Fixtures().Only("item", "itme")
	require.ErrorContains(t, err, "itme is not in the spec, which has item, nul")
	picked, err := Fixtures().Only("part", "dim")
	require.NoError(t, err)
	require.Equal(t, []string{"dim", "part"}, picked.names())
	table := Table{Name: "x", Key: []string{"id"}}
	require.PanicsWithValue(t, `workload: table x has no column "id"`, func() { table.named(table.Key) })
}
