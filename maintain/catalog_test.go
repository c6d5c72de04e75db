package maintain

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/plans"
)

// catalogSchema has an object of each class on which views may depend.
const catalogSchema = `
CREATE SCHEMA app;
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE TYPE pair AS (x int, y int);
CREATE DOMAIN small AS int CHECK (VALUE < 1000);
CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE app.item (id int PRIMARY KEY, a int, b text, m mood, s small, p pair, gone int);
CREATE UNIQUE INDEX item_a ON app.item (a);
CREATE TABLE part (id int, k int NOT NULL, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE part1 PARTITION OF part FOR VALUES IN (1);
CREATE TABLE part3 (id int NOT NULL, k int NOT NULL, v int, CHECK (k = 3));
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE backing (id int PRIMARY KEY, n bigint);
CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 2';
CREATE FUNCTION step(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + $2';
CREATE AGGREGATE total(int) (sfunc = step, stype = int, initcond = '0');
CREATE VIEW through AS SELECT id, a FROM app.item;
INSERT INTO app.item VALUES (1, 1, 'x', 'low', 1, '(1,2)'), (2, 2, 'y', 'high', 2, '(3,4)');
INSERT INTO part VALUES (1, 1, 1);
CREATE PUBLICATION pub FOR TABLE app.item, part, parent, ONLY child;
CREATE TABLE unrelated (i int);`

// catalogWatch watches the objects of catalogSchema, and names them by class and
// name.
func catalogWatch(t *testing.T, db *pgtest.DB) (watch, map[object]string) {
	t.Helper()
	names := map[object]string{{class: "publication"}: "publication"}
	list := func(sql string, classes ...string) []uint32 {
		t.Helper()
		var out []uint32
		rows, err := db.Pool.Query(t.Context(), sql)
		require.NoError(t, err)
		var oid uint32
		var name string
		_, err = pgx.ForEachRow(rows, []any{&oid, &name}, func() error {
			out = append(out, oid)
			for _, class := range classes {
				names[object{class, oid}] = class + " " + name
			}
			return nil
		})
		require.NoError(t, err)
		return out
	}
	w := watch{publication: "pub"}
	w.tables = list("SELECT oid, relname FROM pg_class WHERE relname IN ('item', 'part', 'parent')", "table", "storage", "member")
	w.functions = list("SELECT oid, proname FROM pg_proc WHERE proname IN ('twice', 'total') AND pronamespace = 'public'::regnamespace", "function")
	w.views = list("SELECT oid, relname FROM pg_class WHERE relname = 'through'", "view")
	w.types = list("SELECT oid, typname FROM pg_type WHERE typname IN ('mood', 'small', 'pair')", "type")
	w.collations = list("SELECT oid, collname FROM pg_collation WHERE collname = 'nocase'", "collation")
	w.producers = list("SELECT oid, relname FROM pg_class WHERE relname = 'backing'", "producer")
	return w, names
}

// TestFingerprint checks which objects differ after a statement, and no others.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, catalogSchema)
	w, names := catalogWatch(t, db)
	conn := db.Conn(t)
	for _, tc := range []struct {
		name        string
		before, sql string // before is no part of the comparison
		want        []string
	}{
		// Nothing.
		{name: "rows", sql: "INSERT INTO app.item (id) VALUES (99); UPDATE app.item SET b = 'z'; DELETE FROM app.item WHERE id = 99"},
		{name: "grant on a table", sql: "GRANT SELECT ON app.item, part, backing TO PUBLIC"},
		{name: "index", sql: "CREATE INDEX ON app.item (b); CREATE INDEX ON part (v)"},
		{name: "statistics", sql: "ANALYZE app.item; ANALYZE part; ANALYZE parent"},
		{name: "vacuum", sql: "VACUUM app.item"},
		{name: "vacuum that freezes the catalog", sql: "VACUUM FREEZE pg_attribute; VACUUM FREEZE pg_class; VACUUM FREEZE pg_type; VACUUM FREEZE pg_proc"},
		{name: "reindex", sql: "REINDEX TABLE app.item"},
		{name: "storage parameter", sql: "ALTER TABLE app.item SET (fillfactor = 90)"},
		{name: "trigger", sql: "CREATE FUNCTION trg() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL;END'; CREATE TRIGGER x AFTER INSERT ON app.item FOR EACH ROW EXECUTE FUNCTION trg()"},
		{name: "comment", sql: "COMMENT ON TABLE app.item IS 'x'; COMMENT ON COLUMN app.item.a IS 'y'"},
		{name: "another table", sql: "ALTER TABLE unrelated ADD COLUMN j int; TRUNCATE unrelated"},
		{name: "another publication", sql: "CREATE PUBLICATION other FOR TABLE app.item"},
		{name: "a step rolled back", sql: "BEGIN; ALTER TABLE app.item RENAME a TO z; ROLLBACK"},
		{name: "index to cluster on", sql: "ALTER TABLE app.item CLUSTER ON item_pkey"},

		// Files alone.
		{name: "truncate", sql: "TRUNCATE app.item", want: []string{"storage item"}},
		{name: "truncate a partition", sql: "TRUNCATE part1", want: []string{"storage part"}},
		{name: "cluster", sql: "CLUSTER app.item USING item_pkey", want: []string{"storage item"}},
		{name: "vacuum full", sql: "VACUUM FULL app.item", want: []string{"storage item"}},
		{name: "truncate a producer", sql: "TRUNCATE backing", want: []string{"producer backing"}},

		// Shapes.
		{name: "rename a table", sql: "ALTER TABLE app.item RENAME TO thing", want: []string{"table item"}},
		{name: "rename it back", sql: "ALTER TABLE app.thing RENAME TO item", want: []string{"table item"}},
		{name: "rename a schema", sql: "ALTER SCHEMA app RENAME TO app2", want: []string{"table item"}},
		{name: "rename the schema back", sql: "ALTER SCHEMA app2 RENAME TO app", want: []string{"table item"}},
		{name: "rename a column", sql: "ALTER TABLE app.item RENAME a TO aa", want: []string{"table item"}},
		{name: "rename the column back", sql: "ALTER TABLE app.item RENAME aa TO a", want: []string{"table item"}},
		{name: "rename a partition", sql: "ALTER TABLE part1 RENAME TO part_one", want: []string{"table part"}},
		{name: "add a column", sql: "ALTER TABLE app.item ADD COLUMN fresh int", want: []string{"table item"}},
		{name: "add a column with a default", sql: "ALTER TABLE app.item ADD COLUMN fast int DEFAULT 7", want: []string{"table item"}},
		{name: "drop a column", sql: "ALTER TABLE app.item DROP COLUMN gone", want: []string{"table item"}},
		{name: "drop and add again", sql: "ALTER TABLE app.item DROP COLUMN fresh; ALTER TABLE app.item ADD COLUMN fresh int", want: []string{"table item"}},
		{name: "set a type", sql: "ALTER TABLE app.item ALTER fresh TYPE bigint", want: []string{"storage item", "table item"}},
		{name: "set not null", sql: "ALTER TABLE app.item ALTER b SET NOT NULL", before: "UPDATE app.item SET b = 'x'", want: []string{"table item"}},
		{name: "replica identity", sql: "ALTER TABLE app.item REPLICA IDENTITY FULL", want: []string{"table item"}},
		{name: "replica identity by index", sql: "ALTER TABLE app.item ALTER a SET NOT NULL; ALTER TABLE app.item REPLICA IDENTITY USING INDEX item_a", want: []string{"table item"}},
		{name: "the identity's index dropped", sql: "DROP INDEX app.item_a", want: []string{"table item"}},
		{name: "replica identity of a partition", sql: "ALTER TABLE part_one REPLICA IDENTITY FULL", want: []string{"table part"}},
		{name: "primary key dropped", sql: "ALTER TABLE app.item DROP CONSTRAINT item_pkey", want: []string{"table item"}},
		{name: "row security", sql: "ALTER TABLE app.item ENABLE ROW LEVEL SECURITY", want: []string{"table item"}},
		{name: "row security forced", sql: "ALTER TABLE app.item FORCE ROW LEVEL SECURITY", want: []string{"table item"}},
		{name: "unlogged partition", sql: "ALTER TABLE part_one SET UNLOGGED", want: []string{"storage part", "table part"}},
		{name: "logged again", sql: "ALTER TABLE part_one SET LOGGED", want: []string{"storage part", "table part"}},
		{name: "partition made", sql: "CREATE TABLE part2 PARTITION OF part FOR VALUES IN (2)", want: []string{"storage part", "table part"}},
		{name: "partition attached", sql: "ALTER TABLE part ATTACH PARTITION part3 FOR VALUES IN (3)", want: []string{"storage part", "table part"}},
		{name: "partition detached", sql: "ALTER TABLE part DETACH PARTITION part3", want: []string{"storage part", "table part"}},
		{name: "partition dropped", sql: "DROP TABLE part2", want: []string{"storage part", "table part"}},
		{name: "inheritance child", sql: "CREATE TABLE child2 () INHERITS (parent)", want: []string{"storage parent", "table parent"}},
		{name: "no longer a child", sql: "ALTER TABLE child2 NO INHERIT parent", want: []string{"storage parent", "table parent"}},
		{name: "column of a producer", sql: "ALTER TABLE backing ADD COLUMN x int", want: []string{"producer backing"}},

		// What bodies call and read through.
		{name: "function replaced", sql: "CREATE OR REPLACE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + $1'", want: []string{"function twice"}},
		{name: "function altered", sql: "ALTER FUNCTION twice(int) STRICT", want: []string{"function twice"}},
		{name: "step of an aggregate replaced", sql: "CREATE OR REPLACE FUNCTION step(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 2 * $2'", want: []string{"function total"}},
		{name: "plain view replaced", sql: "CREATE OR REPLACE VIEW through AS SELECT id, a FROM app.item WHERE a > 1", want: []string{"view through"}},
		{name: "plain view renamed", sql: "ALTER VIEW through RENAME TO past", want: []string{"view through"}},
		{name: "column of a plain view renamed", sql: "ALTER VIEW past RENAME COLUMN a TO aa", want: []string{"view through"}},
		{name: "enum label renamed", sql: "ALTER TYPE mood RENAME VALUE 'low' TO 'down'", want: []string{"type mood"}},
		{name: "enum label added", sql: "ALTER TYPE mood ADD VALUE 'middle' BEFORE 'high'", want: []string{"type mood"}},
		{name: "domain constraint added", sql: "ALTER DOMAIN small ADD CONSTRAINT positive CHECK (VALUE >= 0)", want: []string{"type small"}},
		{name: "domain constraint dropped", sql: "ALTER DOMAIN small DROP CONSTRAINT positive", want: []string{"type small"}},
		{name: "attribute of a composite renamed", sql: "ALTER TYPE pair RENAME ATTRIBUTE x TO z", want: []string{"type pair"}},
		{name: "collation renamed", sql: "ALTER COLLATION nocase RENAME TO nocase2", want: []string{"collation nocase"}},

		// The publication.
		{name: "options", sql: "ALTER PUBLICATION pub SET (publish = 'insert')", want: []string{"publication"}},
		{name: "options put back", sql: "ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')", want: []string{"publication"}},
		{name: "via root", sql: "ALTER PUBLICATION pub SET (publish_via_partition_root = true)", want: []string{"publication"}},
		{name: "member dropped and put back", sql: "ALTER PUBLICATION pub DROP TABLE app.item; ALTER PUBLICATION pub ADD TABLE app.item", want: []string{"member item"}},
		{name: "row filter", sql: "ALTER PUBLICATION pub DROP TABLE part; ALTER PUBLICATION pub ADD TABLE part WHERE (k > 0)", want: []string{"member part"}},
		{name: "child no longer published", sql: "ALTER PUBLICATION pub DROP TABLE ONLY child", want: []string{"member parent"}},
		{name: "another member", sql: "ALTER PUBLICATION pub ADD TABLE unrelated"},
		{name: "schema added", sql: "ALTER PUBLICATION pub ADD TABLES IN SCHEMA app", want: []string{"publication"}},
		{name: "dropped and made again", sql: "DROP PUBLICATION pub; CREATE PUBLICATION pub FOR TABLE app.item, part, ONLY parent", want: []string{"member item", "member parent", "member part", "publication"}},
		{name: "dropped", sql: "DROP PUBLICATION pub", want: []string{"member item", "member parent", "member part", "publication"}},

		// Gone.
		{name: "dropped and made again under its name", sql: "DROP TABLE backing; CREATE TABLE backing (id int PRIMARY KEY, n bigint)", want: []string{"producer backing"}},
		{name: "source dropped", sql: "DROP TABLE app.item CASCADE", want: []string{"storage item", "table item", "view through"}},
		{name: "function dropped", sql: "DROP FUNCTION twice(int)", want: []string{"function twice"}},
	} {
		// Not parallel: each statement builds on the ones before.
		t.Run(tc.name, func(t *testing.T) {
			if tc.before != "" {
				db.Exec(t, tc.before)
			}
			before, err := w.read(t.Context(), db.Pool)
			require.NoError(t, err)
			for _, statement := range strings.Split(tc.sql, "; ") { // VACUUM and its like run alone
				_, err := conn.Exec(t.Context(), statement)
				require.NoError(t, err, statement)
			}
			after, err := w.read(t.Context(), db.Pool)
			require.NoError(t, err)
			var got []string
			for _, o := range before.changed(after) {
				require.NotEmpty(t, names[o], "%+v", o)
				got = append(got, names[o])
			}
			slices.Sort(got)
			require.Equal(t, tc.want, got)
			require.Equal(t, len(got), len(after.changed(before)), "a difference is one from both sides")
		})
	}
}

// TestFingerprintPendingDetach checks that a partition whose concurrent detach did not
// finish differs from one that is attached, though it still stands in pg_inherits.
func TestFingerprintPendingDetach(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, catalogSchema)
	w, names := catalogWatch(t, db)
	before, err := w.read(t.Context(), db.Pool)
	require.NoError(t, err)
	reader := db.Conn(t)
	_, err = reader.Exec(t.Context(), "BEGIN; SELECT * FROM part")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	detached := make(chan error, 1)
	detacher := db.Conn(t)
	go func() {
		_, err := detacher.Exec(ctx, "ALTER TABLE part DETACH PARTITION part1 CONCURRENTLY")
		detached <- err
	}()
	// It waits for the reader, between its two transactions.
	pgtest.Eventually(t, 10*time.Second, func() error {
		if db.Value(t, "SELECT count(*) FROM pg_inherits WHERE inhdetachpending") == "0" {
			return errors.New("not pending yet")
		}
		return nil
	})
	pending, err := w.read(t.Context(), db.Pool)
	require.NoError(t, err)
	diff := before.changed(pending)
	require.Len(t, diff, 1)
	require.Equal(t, "table part", names[diff[0]])
	rollbackConn(t, reader)
	require.NoError(t, <-detached)
	cancel()
	after, err := w.read(t.Context(), db.Pool)
	require.NoError(t, err)
	require.NotEmpty(t, pending.changed(after))
}

// TestFingerprintAtSnapshot checks that what a round compares inside its transaction is
// what its snapshot shows, and a side connection sees the rest.
func TestFingerprintAtSnapshot(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, catalogSchema)
	w, names := catalogWatch(t, db)
	w.publication = "it's"
	known, err := w.read(t.Context(), db.Pool)
	require.NoError(t, err)
	conn := db.Conn(t)
	_, err = conn.Prepare(t.Context(), fingerprintName, fingerprintSQL)
	require.NoError(t, err)
	o, err := open(t.Context(), conn.PgConn(), time.Second, "", openTables(t, db, "part"), w.execute())
	require.NoError(t, err)
	first, err := parse(o.then)
	require.NoError(t, err)
	require.Equal(t, known, first)
	// None of these is kept out by ACCESS SHARE on the parent.
	db.Exec(t, "CREATE OR REPLACE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 0'")
	db.Exec(t, "ALTER TABLE part ATTACH PARTITION part3 FOR VALUES IN (3)")
	inside, err := w.read(t.Context(), conn)
	require.NoError(t, err)
	require.Empty(t, known.changed(inside))
	outside, err := w.read(t.Context(), db.Pool)
	require.NoError(t, err)
	var got []string
	for _, o := range known.changed(outside) {
		got = append(got, names[o])
	}
	slices.Sort(got)
	require.Equal(t, []string{"function twice", "storage part", "table part"}, got)
	rollbackConn(t, conn)
}

func TestWatchOf(t *testing.T) {
	t.Parallel()
	w := watchOf("pub", nil)
	require.Equal(t, watch{
		publication: "pub", tables: []uint32{}, functions: []uint32{}, views: []uint32{}, types: []uint32{},
		collations: []uint32{}, producers: []uint32{},
	}, w, "lists that are nil would be NULL in SQL")
	a := &plans.Plan{
		Sources: []plans.Source{{OID: 2}, {OID: 9, Producer: true}, {Producer: true}},
		Depends: []plans.Object{{Class: plans.Function, OID: 5}, {Class: plans.Operator, OID: 6}, {Class: plans.Type, OID: 7}},
	}
	b := &plans.Plan{
		Sources: []plans.Source{{OID: 1}, {OID: 2}},
		Depends: []plans.Object{{Class: plans.Function, OID: 5}, {Class: plans.Relation, OID: 3}, {Class: plans.Collation, OID: 4}},
	}
	require.Equal(t, watch{
		publication: "pub", tables: []uint32{1, 2}, functions: []uint32{5}, views: []uint32{3}, types: []uint32{7},
		collations: []uint32{4}, producers: []uint32{9},
	}, watchOf("pub", []*plans.Plan{a, b}))
}

func TestObjectAffects(t *testing.T) {
	t.Parallel()
	base := &plans.Plan{
		Sources: []plans.Source{{OID: 1}},
		Depends: []plans.Object{{Class: plans.Function, OID: 5}, {Class: plans.Type, OID: 1}},
	}
	consumer := &plans.Plan{Sources: []plans.Source{{OID: 9, Producer: true}}}
	for _, tc := range []struct {
		object         object
		base, consumer bool
	}{
		{object{"publication", 0}, true, false}, // nothing of a consumer of views alone is streamed
		{object{"table", 1}, true, false},
		{object{"storage", 1}, true, false},
		{object{"member", 1}, true, false},
		{object{"table", 2}, false, false},
		{object{"table", 9}, false, false},
		{object{"producer", 9}, false, true},
		{object{"producer", 1}, false, false},
		{object{"function", 5}, true, false},
		{object{"function", 1}, false, false}, // an oid is unique within its class only
		{object{"type", 1}, true, false},
		{object{"view", 5}, false, false},
		{object{"collation", 5}, false, false},
	} {
		require.Equal(t, tc.base, tc.object.affects(base), "%+v", tc.object)
		require.Equal(t, tc.consumer, tc.object.affects(consumer), "%+v", tc.object)
	}
}
