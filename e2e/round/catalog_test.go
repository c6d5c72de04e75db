package round

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

// TestSilentChanges: what changes a body's result without a word in the stream is
// noticed, and the views over it are right in the next round (INV-9). Rows change in
// the same breath, so that images from before and after the change meet in a batch.
func TestSilentChanges(t *testing.T) {
	t.Parallel()
	const touch = "; UPDATE item SET p = p + 1 WHERE pk % 3 = 0"
	for _, tc := range []struct {
		name   string
		before string // beside item
		query  string
		change []string // each followed by a wait for exact rounds
		want   string   // a query over v that must say true in the end
	}{
		{
			name:   "function replaced",
			before: "CREATE FUNCTION vat(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n * 2'",
			query:  "SELECT pk, vat(p) AS v FROM item",
			change: []string{
				"CREATE OR REPLACE FUNCTION vat(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n * 3'",
				"CREATE OR REPLACE FUNCTION vat(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n * 4'" + touch,
			},
			want: "SELECT bool_and(v.v = 4 * p) FROM v JOIN item USING (pk)",
		},
		{
			name:   "plain view replaced",
			before: "CREATE VIEW seen AS SELECT pk, p FROM item WHERE bucket = 1",
			query:  "SELECT pk, p FROM seen",
			change: []string{
				"CREATE OR REPLACE VIEW seen AS SELECT pk, p FROM item WHERE bucket = 2",
				"CREATE OR REPLACE VIEW seen AS SELECT pk, q AS p FROM item WHERE bucket = 0",
				"UPDATE item SET q = q + 1, bucket = (bucket + 1) % 3",
			},
			want: "SELECT bool_and(bucket = 0 AND v.p = item.q) FROM v JOIN item USING (pk)",
		},
		{
			name: "enum label renamed",
			before: `CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TABLE person (id int PRIMARY KEY, m mood);
				ALTER TABLE person REPLICA IDENTITY FULL; INSERT INTO person VALUES (1, 'sad'), (2, 'happy')`,
			query: "SELECT id, m::text AS m FROM person",
			change: []string{
				"ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
				"BEGIN; UPDATE person SET m = 'happy' WHERE id = 1; ALTER TYPE mood RENAME VALUE 'happy' TO 'glad'; COMMIT",
			},
			want: "SELECT count(*) = 2 FROM v WHERE m = 'glad'",
		},
		{
			name:  "whole row read, column added",
			query: "SELECT pk, to_jsonb(item) AS j FROM item",
			change: []string{
				"ALTER TABLE item ADD extra int DEFAULT 7",
				"UPDATE item SET extra = 8 WHERE pk = 1",
				"ALTER TABLE item RENAME extra TO more" + touch,
				"ALTER TABLE item DROP more",
			},
			want: "SELECT bool_and(j = to_jsonb(item)) FROM v JOIN item USING (pk)",
		},
		{
			name:  "unread columns added and dropped",
			query: "SELECT pk, p FROM item WHERE bucket = 1",
			change: []string{
				"ALTER TABLE item ADD extra text DEFAULT 'x'" + touch,
				"ALTER TABLE item DROP q; UPDATE item SET p = 3 WHERE bucket = 1",
				"ALTER TABLE item ADD q int NOT NULL DEFAULT 1" + touch,
				"CREATE INDEX ON item (p)" + touch,
			},
			want: "SELECT bool_and(v.p = item.p) FROM v JOIN item USING (pk)",
		},
		{
			name:  "columns swap their names",
			query: "SELECT pk, p, q FROM item WHERE bucket = 1",
			change: []string{
				"BEGIN; UPDATE item SET p = 100 + pk; ALTER TABLE item RENAME p TO x; ALTER TABLE item RENAME q TO p; ALTER TABLE item RENAME x TO q; UPDATE item SET p = 200 + pk; COMMIT",
			},
			want: "SELECT bool_and(v.p = 200 + pk OR v.q = 200 + pk) FROM v",
		},
		{
			name:   "column type changed with the same result",
			query:  "SELECT pk, q::text AS q FROM item",
			change: []string{"ALTER TABLE item ALTER q TYPE bigint" + touch, "UPDATE item SET q = 5000000000 WHERE pk = 1"},
			want:   "SELECT q = '5000000000' FROM v WHERE pk = 1",
		},
		{
			name:   "rewritten by CLUSTER and VACUUM FULL",
			query:  "SELECT pk, p FROM item WHERE bucket = 1",
			change: []string{"CLUSTER item USING item_pkey", "VACUUM FULL item", "UPDATE item SET bucket = 1"},
			want:   "SELECT count(*) = 20 FROM v",
		},
		{
			name:   "constraint of a domain",
			before: "CREATE DOMAIN amount AS int CHECK (VALUE < 1000); CREATE TABLE paid (id int PRIMARY KEY, a amount); INSERT INTO paid VALUES (1, 1)",
			query:  "SELECT id, a FROM paid",
			change: []string{
				"ALTER DOMAIN amount DROP CONSTRAINT amount_check; INSERT INTO paid VALUES (2, 5000)",
				"UPDATE paid SET a = 6000",
			},
			want: "SELECT count(*) = 2 FROM v WHERE a = 6000",
		},
		{
			name: "partitions attached and detached",
			before: `CREATE TABLE part (id int, r text, v int NOT NULL, PRIMARY KEY (id, r)) PARTITION BY LIST (r);
				CREATE TABLE part_a PARTITION OF part FOR VALUES IN ('a'); INSERT INTO part VALUES (1, 'a', 1);
				CREATE TABLE loner (v int NOT NULL, r text NOT NULL, id int NOT NULL, PRIMARY KEY (id, r));
				INSERT INTO loner VALUES (7, 'b', 1), (8, 'b', 2)`,
			query: "SELECT id, r, v FROM part",
			change: []string{
				"ALTER TABLE part ATTACH PARTITION loner FOR VALUES IN ('b')",
				"UPDATE part SET v = v + 1; INSERT INTO part VALUES (3, 'b', 3)",
				"BEGIN; DELETE FROM part WHERE id = 2; ALTER TABLE part DETACH PARTITION loner; COMMIT",
				"INSERT INTO loner VALUES (9, 'b', 9); INSERT INTO part VALUES (4, 'a', 4)",
				"CREATE TABLE part_c PARTITION OF part FOR VALUES IN ('c'); INSERT INTO part VALUES (5, 'c', 5)",
				"TRUNCATE part_a",
				"ALTER TABLE part ATTACH PARTITION loner FOR VALUES IN ('b'); UPDATE part SET v = 0",
			},
			want: "SELECT count(*) = 4 AND bool_and(v.v = 0) FROM v",
		},
		{
			name: "inheritance children come and go",
			before: `CREATE TABLE parent (id int PRIMARY KEY, v int NOT NULL); INSERT INTO parent VALUES (1, 1);
				ALTER TABLE parent REPLICA IDENTITY FULL`,
			query: "SELECT v, count(*) AS n FROM parent GROUP BY v",
			change: []string{
				"CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent); ALTER TABLE child REPLICA IDENTITY FULL; INSERT INTO child VALUES (1, 1), (2, 2)",
				"UPDATE parent SET v = v + 1",
				"INSERT INTO child VALUES (3, 3); DELETE FROM child WHERE id = 1",
				"ALTER TABLE child NO INHERIT parent",
				"UPDATE child SET v = 50; UPDATE parent SET v = 9",
			},
			want: "SELECT count(*) = 1 AND bool_and(v.v = 9 AND n = 1) FROM v",
		},
		{
			name:  "publication tampered with and restored",
			query: "SELECT bucket, count(*) AS n, sum(p) AS s FROM item GROUP BY bucket",
			change: []string{
				"ALTER PUBLICATION mvsync DROP TABLE item; UPDATE item SET p = p + 10; ALTER PUBLICATION mvsync ADD TABLE item",
				"ALTER PUBLICATION mvsync SET (publish = 'insert'); UPDATE item SET p = p + 10; ALTER PUBLICATION mvsync SET (publish = 'insert, update, delete, truncate')",
				"UPDATE item SET p = p + 1",
			},
			want: "SELECT sum(s) = (SELECT sum(p) FROM item) FROM v",
		},
		{
			name:   "publication altered and left",
			query:  "SELECT bucket, count(*) AS n, sum(p) AS s FROM item GROUP BY bucket",
			change: []string{"ALTER PUBLICATION mvsync DROP TABLE item; UPDATE item SET p = p + 10", "UPDATE item SET p = p + 1"},
			want:   "SELECT sum(s) = (SELECT sum(p) FROM item) FROM v",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, items)
			if tc.before != "" {
				db.Exec(t, tc.before)
			}
			// The oracle knows the body by the names of the beginning.
			d := keepWith(t, db, daemon.Options{Views: []plans.Declaration{daemon.View("v", tc.query)}, Unchecked: tc.name == "columns swap their names"})
			d.Settle(db)
			for _, sql := range tc.change {
				for _, one := range statements(sql) {
					db.Exec(t, one)
				}
				becomes(t, d, "v", maintain.Live)
				d.Settle(db)
			}
			require.Equal(t, "t", db.Value(t, tc.want), db.Query(t, "TABLE v"))
			require.Empty(t, d.Tally.Gaps())
		})
	}
}

// statements splits at semicolons, except within a transaction block, which goes in one
// piece; CLUSTER and VACUUM must stand alone.
func statements(sql string) []string {
	var out []string
	start, block := 0, false
	for i := range sql {
		switch {
		case i == start || sql[i-1] == ' ':
			if len(sql) >= i+5 && sql[i:i+5] == "BEGIN" {
				block = true
			}
			if len(sql) >= i+6 && sql[i:i+6] == "COMMIT" {
				block = false
			}
		case sql[i] == ';' && !block:
			out = append(out, sql[start:i])
			start = i + 1
		}
	}
	return append(out, sql[start:])
}

// TestStaleAndMended: what breaks a body or what its strategy needs makes the view
// stale: it serves its last snapshot and says why; once mended it is right again.
func TestStaleAndMended(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, query, broken, says, mended string
	}{
		{
			"column dropped", "SELECT pk, p, q FROM item", "ALTER TABLE item DROP q", "q",
			"ALTER TABLE item ADD q int NOT NULL DEFAULT 4",
		},
		{
			"identity weakened", "SELECT bucket, count(*) AS n, sum(p) AS s FROM item GROUP BY bucket",
			"ALTER TABLE item REPLICA IDENTITY DEFAULT", "REPLICA IDENTITY FULL", "ALTER TABLE item REPLICA IDENTITY FULL",
		},
		{
			"made unlogged", "SELECT pk, p FROM item",
			"BEGIN; ALTER PUBLICATION mvsync DROP TABLE item; ALTER TABLE item SET UNLOGGED; COMMIT", "unlogged",
			"ALTER TABLE item SET LOGGED",
		},
		{
			"table renamed", "SELECT pk, p FROM item", "ALTER TABLE item RENAME TO thing; ALTER TABLE thing REPLICA IDENTITY FULL",
			"item", "ALTER TABLE thing RENAME TO item",
		},
		{
			"column renamed", "SELECT pk, p FROM item", "ALTER TABLE item RENAME p TO x; ALTER TABLE item ADD y int", "p",
			"ALTER TABLE item RENAME x TO p",
		},
		{
			"type changed", "SELECT pk, p FROM item", "ALTER TABLE item ALTER p TYPE bigint", "columns",
			"ALTER TABLE item ALTER p TYPE int",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, items)
			db.Exec(t, "CREATE TABLE other (id int PRIMARY KEY)")
			d := keep(t, db, daemon.View("v", tc.query), daemon.View("others", "SELECT id FROM other"))
			d.Settle(db)
			before := db.Query(t, "SELECT * FROM v ORDER BY 1")
			db.Exec(t, tc.broken)
			_, _ = db.Pool.Exec(t.Context(), "UPDATE item SET p = p + 1") // where it can still be written under that name
			v := becomes(t, d, "v", maintain.Stale)
			require.ErrorContains(t, v.Err, tc.says)
			db.Exec(t, "INSERT INTO other VALUES (1)")
			d.Settle(db)
			require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM others"))
			require.Equal(t, before, db.Query(t, "SELECT * FROM v ORDER BY 1"))
			db.Exec(t, tc.mended)
			pgtest.Eventually(t, limit, func() error {
				_, err := db.Pool.Exec(t.Context(), "SELECT mvsync.wait('10s', ARRAY['v'])")
				return err
			})
			d.Settle(db)
		})
	}
}

// TestPublicationDropped: without its publication the stream cannot be read, and what
// was written meanwhile is in none: the daemon ends and says so; a new slot is a gap,
// after which the views are right.
func TestPublicationDropped(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	if db.Server.Version() >= 180000 {
		return // there the server skips what it cannot publish; see TestSilentChanges
	}
	d := keepWith(t, db, daemon.Options{Views: []plans.Declaration{grouped}, Unchecked: true})
	d.Settle(db)
	db.Exec(t, "DROP PUBLICATION mvsync")
	db.Exec(t, "UPDATE item SET p = p + 10")
	require.ErrorContains(t, d.Err(), "publication")
	d.Quit()
	pgtest.Eventually(t, limit, func() error {
		_, err := db.Pool.Exec(t.Context(), "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", "s_"+db.Name)
		return err
	})
	d = keep(t, db, grouped)
	d.Settle(db)
	require.Equal(t, map[string]int{"lost": 1}, d.Tally.Gaps())
}
