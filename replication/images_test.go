package replication

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// TestImages: each case is what one table's changes look like when they come out of the stream.
func TestImages(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, setup, do string
		tables          []string
		want            []string
		from18          []string // where it differs
	}{
		{
			name:   "default identity",
			setup:  `CREATE TABLE t(id int PRIMARY KEY, v text)`,
			tables: []string{"t"},
			do: `INSERT INTO t VALUES (1, 'a'), (2, NULL), (3, ''); UPDATE t SET v = 'b' WHERE id = 1;
			     UPDATE t SET id = 20 WHERE id = 2; DELETE FROM t WHERE id = 3`,
			want: []string{
				"insert t id=1 v=a", "insert t id=2 v=NULL", "insert t id=3 v=",
				"update t id=1 v=? -> id=1 v=b", "update t id=2 v=? -> id=20 v=NULL", "delete t id=3 v=?",
			},
		},
		{
			name:   "full identity",
			setup:  `CREATE TABLE t(id int, v text); ALTER TABLE t REPLICA IDENTITY FULL`,
			tables: []string{"t"},
			do:     `INSERT INTO t VALUES (1, NULL); UPDATE t SET v = 'b'; DELETE FROM t`,
			want:   []string{"insert t id=1 v=NULL", "update t id=1 v=NULL -> id=1 v=b", "delete t id=1 v=b"},
		},
		{
			name: "index identity",
			setup: `CREATE TABLE t(id int PRIMARY KEY, k int NOT NULL UNIQUE, v int);
			        ALTER TABLE t REPLICA IDENTITY USING INDEX t_k_key`,
			tables: []string{"t"},
			do:     `INSERT INTO t VALUES (1, 10, 5); UPDATE t SET v = 6; UPDATE t SET k = 11; DELETE FROM t`,
			want: []string{
				"insert t id=1 k=10 v=5", "update t id=? k=10 v=? -> id=1 k=10 v=6",
				"update t id=? k=10 v=? -> id=1 k=11 v=6", "delete t id=? k=11 v=?",
			},
		},
		{
			name: "unchanged TOAST",
			setup: `CREATE TABLE d(id int PRIMARY KEY, big text, n int); CREATE TABLE f(id int PRIMARY KEY, big text, n int);
			        ALTER TABLE d ALTER big SET STORAGE EXTERNAL; ALTER TABLE f ALTER big SET STORAGE EXTERNAL;
			        ALTER TABLE f REPLICA IDENTITY FULL;
			        INSERT INTO d VALUES (1, repeat('x', 9000), 1); INSERT INTO f VALUES (1, repeat('x', 9000), 1)`,
			tables: []string{"d", "f"},
			do:     `UPDATE d SET n = 2; UPDATE f SET n = 2; UPDATE d SET big = repeat('y', 9000)`,
			want: []string{
				"update d id=1 big=? n=? -> id=1 big=? n=2", "update f id=1 big=xxx..9000 n=1 -> id=1 big=xxx..9000 n=2",
				"update d id=1 big=? n=? -> id=1 big=yyy..9000 n=2",
			},
		},
		{
			name: "TOAST within the key",
			setup: `CREATE TABLE t(k text PRIMARY KEY, n int); ALTER TABLE t ALTER k SET STORAGE EXTERNAL;
			        INSERT INTO t VALUES (repeat('k', 2500), 1)`,
			tables: []string{"t"},
			do:     `UPDATE t SET n = 2`,
			want:   []string{"update t k=kkk..2500 n=? -> k=kkk..2500 n=2"},
		},
		{
			name:   "insert and update in one transaction",
			setup:  `CREATE TABLE t(id int PRIMARY KEY, big text, n int); ALTER TABLE t ALTER big SET STORAGE EXTERNAL`,
			tables: []string{"t"},
			do:     `BEGIN; INSERT INTO t VALUES (1, repeat('x', 9000), 1); UPDATE t SET n = 2; COMMIT`,
			want:   []string{"insert t id=1 big=xxx..9000 n=1", "update t id=1 big=? n=? -> id=1 big=? n=2"},
		},
		{
			name: "dropped and generated columns",
			setup: `CREATE TABLE t(id int PRIMARY KEY, gone int, a int, g int GENERATED ALWAYS AS (a * 2) STORED, z int);
			        ALTER TABLE t DROP COLUMN gone; ALTER TABLE t ADD COLUMN late int DEFAULT 7`,
			tables: []string{"t"},
			do:     `INSERT INTO t(id, a, z) VALUES (1, 2, 3)`,
			want:   []string{"insert t id=1 a=2 z=3 late=7"},
			from18: []string{"insert t id=1 a=2 g=4 z=3 late=7"},
		},
		{
			name: "partitions with another column order and identity",
			setup: `CREATE TABLE p(id int, d int, v text, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
			        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
			        CREATE TABLE p2(v text, junk int, d int NOT NULL, id int NOT NULL); ALTER TABLE p2 DROP COLUMN junk;
			        ALTER TABLE p2 ADD PRIMARY KEY (id, d); ALTER TABLE p2 REPLICA IDENTITY FULL;
			        ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)`,
			tables: []string{"p"},
			do: `INSERT INTO p VALUES (1, 1, 'a'), (2, 11, 'b'); UPDATE p SET v = 'c'; UPDATE p SET d = 12 WHERE id = 1;
			     DELETE FROM p WHERE id = 2; TRUNCATE p1`,
			want: []string{
				"insert p1 id=1 d=1 v=a", "insert p2 v=b d=11 id=2", "update p1 id=1 d=1 v=? -> id=1 d=1 v=c",
				"update p2 v=b d=11 id=2 -> v=c d=11 id=2", "delete p1 id=1 d=1 v=?", "insert p2 v=c d=12 id=1",
				"delete p2 v=c d=11 id=2", "truncate p1",
			},
		},
		{
			name:   "inheritance",
			setup:  `CREATE TABLE par(id int PRIMARY KEY, n int); CREATE TABLE ch(extra text, PRIMARY KEY (id)) INHERITS (par)`,
			tables: []string{"par"},
			do:     `INSERT INTO par VALUES (1, 1); INSERT INTO ch VALUES (2, 2, 'x'); UPDATE par SET n = 9; TRUNCATE ONLY par`,
			want: []string{
				"insert par id=1 n=1", "insert ch id=2 n=2 extra=x", "update par id=1 n=? -> id=1 n=9",
				"update ch id=2 n=? extra=? -> id=2 n=9 extra=x", "truncate par",
			},
		},
		{
			name:   "truncate in order",
			setup:  `CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY REFERENCES a); CREATE TABLE other(id int)`,
			tables: []string{"a", "b"},
			do:     `BEGIN; INSERT INTO a VALUES (3); TRUNCATE a, b, other; INSERT INTO a VALUES (9); COMMIT; TRUNCATE a CASCADE`,
			want: []string{
				"insert a id=3", "truncate a", "truncate b", "insert a id=9", "truncate a", "truncate b",
			},
		},
		{
			name:   "names",
			setup:  `CREATE SCHEMA "S-1"; CREATE TABLE "S-1"."Order Items"("user" int PRIMARY KEY, "a.b" int, "q""q" int)`,
			tables: []string{`"S-1"."Order Items"`},
			do:     `INSERT INTO "S-1"."Order Items" VALUES (1, 2, 3)`,
			want:   []string{`insert Order Items user=1 a.b=2 q"q=3`},
		},
		{
			name: "types of the user's own, and messages",
			setup: `CREATE TYPE mood AS ENUM ('a', 'b'); CREATE DOMAIN pos AS int CHECK (value > 0); CREATE TYPE pair AS (x int, y text);
			        CREATE TABLE t(id int PRIMARY KEY, m mood, ms mood[], d pos, p pair, r int4range)`,
			tables: []string{"t"},
			do: `INSERT INTO t VALUES (1, 'a', '{a,NULL}', 1, '(1,"x y")', '[1,5)');
			     SELECT pg_logical_emit_message(true, 'x', 'y'), pg_logical_emit_message(false, 'x', 'y');
			     ALTER TYPE mood RENAME VALUE 'b' TO 'c'; UPDATE t SET m = 'c'`,
			want: []string{
				`insert t id=1 m=a ms={a,NULL} d=1 p=(1,"x y") r=[1,5)`,
				`update t id=1 m=? ms=? d=? p=? r=? -> id=1 m=c ms={a,NULL} d=1 p=(1,"x y") r=[1,5)`,
			},
		},
		{
			name:  "schema changes in between",
			setup: `CREATE TABLE t(id int PRIMARY KEY, a int, b int)`, tables: []string{"t"},
			do: `INSERT INTO t VALUES (1, 2, 3); ALTER TABLE t RENAME a TO z; INSERT INTO t VALUES (2, 2, 3);
			     ALTER TABLE t DROP COLUMN b; ALTER TABLE t REPLICA IDENTITY FULL; UPDATE t SET z = 9 WHERE id = 1;
			     ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (3, 3)`,
			want: []string{"insert t id=1 a=2 b=3", "insert t id=2 z=2 b=3", "update t id=1 z=2 -> id=1 z=9", "insert u id=3 z=3"},
		},
		{
			name:   "savepoints and rollback",
			setup:  `CREATE TABLE t(id int PRIMARY KEY)`,
			tables: []string{"t"},
			do: `BEGIN; INSERT INTO t VALUES (1); SAVEPOINT a; INSERT INTO t VALUES (2); ROLLBACK TO a; INSERT INTO t VALUES (3);
			     SAVEPOINT b; INSERT INTO t VALUES (4); COMMIT; BEGIN; INSERT INTO t VALUES (5); ROLLBACK`,
			want: []string{"insert t id=1", "insert t id=3", "insert t id=4"},
		},
		{
			name:   "prepared transactions come when they commit",
			setup:  `CREATE TABLE t(id int PRIMARY KEY)`,
			tables: []string{"t"},
			do: `BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'images one'; INSERT INTO t VALUES (2);
			     COMMIT PREPARED 'images one'; BEGIN; INSERT INTO t VALUES (3); PREPARE TRANSACTION 'images two';
			     ROLLBACK PREPARED 'images two'`,
			want: []string{"insert t id=2", "insert t id=1"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, tc.setup)
			r := stream(t, db, nil, tc.tables...)
			conn := db.Conn(t)
			for statement := range strings.SplitSeq(tc.do, ";") {
				_, err := conn.Exec(t.Context(), statement)
				require.NoError(t, err)
			}
			want := tc.want
			if db.Server.Version() >= 180000 && tc.from18 != nil {
				want = tc.from18
			}
			require.Equal(t, want, r.lines(t))
		})
	}
}
