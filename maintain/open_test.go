package maintain

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// openTables lists three tables of the database in oid order.
func openTables(t *testing.T, db *pgtest.DB, names ...string) []table {
	t.Helper()
	set := map[uint32]table{}
	for _, name := range names {
		var oid uint32
		require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT $1::regclass::oid", pgx.Identifier{"public", name}.Sanitize()).Scan(&oid))
		set[oid] = table{oid: oid, name: pgx.Identifier{"public", name}}
	}
	return sortedTables(set)
}

func rollbackConn(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	_, err := conn.Exec(t.Context(), "ROLLBACK")
	require.NoError(t, err)
}

// TestOpenNamesTheTable takes the middle one of three tables away in each way that
// there is: the error names that table, and the session is good for another try.
func TestOpenNamesTheTable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, take string // take is a transaction left open, or done at once with done
		done       bool
		code       string
	}{
		{name: "held", take: `LOCK TABLE "b B" IN ACCESS EXCLUSIVE MODE`, code: "55P03"},
		{name: "dropped", take: `DROP TABLE "b B"`, done: true, code: "42P01"},
		{name: "renamed", take: `ALTER TABLE "b B" RENAME TO other`, done: true, code: "42P01"},
		{name: "schema renamed away", take: `CREATE SCHEMA elsewhere; ALTER TABLE "b B" SET SCHEMA elsewhere`, done: true, code: "42P01"},
		{name: "not readable", take: `REVOKE SELECT ON "b B" FROM PUBLIC`, done: true, code: "42501"},
		{name: "now a materialized view", take: `DROP TABLE "b B"; CREATE MATERIALIZED VIEW "b B" AS SELECT 1; GRANT SELECT ON "b B" TO PUBLIC`, done: true, code: "42809"},
	} {
		for _, imported := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, imported %v", tc.name, imported), func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t)
				role := "r" + db.Name
				db.Exec(t, `CREATE TABLE a (i int); CREATE TABLE "b B" (i int); CREATE TABLE c (i int);
					GRANT SELECT ON a, "b B", c TO PUBLIC; CREATE ROLE `+role)
				t.Cleanup(func() {
					_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role, pgx.QueryExecModeSimpleProtocol)
					require.NoError(t, err)
				})
				tables := openTables(t, db, "a", "b B", "c")
				exporter, conn, other := db.Conn(t), db.Conn(t), db.Conn(t)
				if !tc.done {
					_, err := other.Exec(t.Context(), "BEGIN")
					require.NoError(t, err)
				}
				_, err := other.Exec(t.Context(), tc.take)
				require.NoError(t, err)
				snapshot := ""
				if imported {
					_, err = exporter.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ")
					require.NoError(t, err)
					require.NoError(t, exporter.QueryRow(t.Context(), "SELECT pg_export_snapshot()").Scan(&snapshot))
				}
				_, err = conn.Exec(t.Context(), "SET ROLE "+role)
				require.NoError(t, err)

				_, err = open(t.Context(), conn.PgConn(), 20*time.Millisecond, snapshot, tables)
				var out *lockedOut
				require.ErrorAs(t, err, &out)
				require.Equal(t, tables[1], out.table)
				require.Equal(t, tc.code, code(err))
				require.ErrorContains(t, err, `lock "public"."b B"`)

				rollbackConn(t, conn)
				o, err := open(t.Context(), conn.PgConn(), 20*time.Millisecond, snapshot, []table{tables[0], tables[2]})
				require.NoError(t, err)
				require.NotZero(t, o.lsn)
				rollbackConn(t, conn)
			})
		}
	}
}

// TestOpenSnapshotAfterLocks has a writer commit while open waits for a lock: the
// snapshot must be the one after, or the lock would not keep out what it is for.
func TestOpenSnapshotAfterLocks(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE a (i int); CREATE TABLE b (i int); INSERT INTO b VALUES (1)")
	tables := openTables(t, db, "a", "b")
	holder, conn := db.Conn(t), db.Conn(t)
	_, err := holder.Exec(t.Context(), "BEGIN; TRUNCATE b; INSERT INTO b VALUES (2), (3)")
	require.NoError(t, err)
	var xid uint64
	require.NoError(t, holder.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&xid))

	type result struct {
		opened
		err error
	}
	done := make(chan result, 1)
	go func() {
		o, err := open(t.Context(), conn.PgConn(), time.Minute, "", tables)
		done <- result{o, err}
	}()
	pgtest.Eventually(t, 10*time.Second, func() error {
		if db.Value(t, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'b'::regclass") == "0" {
			return errors.New("open does not wait yet")
		}
		return nil
	})
	_, err = holder.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	got := <-done
	require.NoError(t, got.err)
	require.True(t, got.snapshot.Contains(xid))
	var n int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM b").Scan(&n))
	require.Equal(t, 2, n)
	rollbackConn(t, conn)
}

// TestOpenIsTheRoundsTransaction checks what holds in the transaction that open
// leaves: the snapshot that it says, which stays, its settings, and no more than
// ACCESS SHARE (INV-10).
func TestOpenIsTheRoundsTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE a (i int); CREATE TABLE b (i int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	conn := db.Conn(t)
	_, err := conn.Exec(t.Context(), "SET default_transaction_read_only = on") // as ALTER ROLE might
	require.NoError(t, err)
	o, err := open(t.Context(), conn.PgConn(), 123*time.Millisecond, "", openTables(t, db, "a", "b"))
	require.NoError(t, err)
	db.Exec(t, "INSERT INTO a VALUES (1)")

	var snapshot, isolation, readOnly, timeout, commit, modes string
	var after bool
	var rows int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT pg_current_snapshot()::text, current_setting('transaction_isolation'),
		current_setting('transaction_read_only'), current_setting('lock_timeout'), current_setting('synchronous_commit'),
		(SELECT string_agg(DISTINCT mode, ',') FROM pg_locks WHERE pid = pg_backend_pid() AND relation IN ('a'::regclass, 'b'::regclass)),
		pg_current_wal_insert_lsn() > $1::text::pg_lsn, (SELECT count(*) FROM a)`, o.lsn.String()).
		Scan(&snapshot, &isolation, &readOnly, &timeout, &commit, &modes, &after, &rows))
	require.Equal(t, o.snapshot.String(), snapshot)
	require.Equal(t, []string{"repeatable read", "off", "123ms", "off", "AccessShareLock"}, []string{isolation, readOnly, timeout, commit, modes})
	require.True(t, after, "the insert stands above L")
	require.Zero(t, rows)
	_, err = conn.Exec(t.Context(), "INSERT INTO b VALUES (1); INSERT INTO b VALUES (1)")
	require.ErrorContains(t, err, "b_i_key", "constraints fail at their statement")
	rollbackConn(t, conn)
}

// TestOpenImports takes over a snapshot that another session exported, and says so
// where that session is gone.
func TestOpenImports(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE a (i int)")
	tables := openTables(t, db, "a")
	exporter, conn := db.Conn(t), db.Conn(t)
	_, err := exporter.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE a IN ACCESS SHARE MODE")
	require.NoError(t, err)
	var name, snapshot string
	require.NoError(t, exporter.QueryRow(t.Context(), "SELECT pg_export_snapshot(), pg_current_snapshot()::text").Scan(&name, &snapshot))
	db.Exec(t, "INSERT INTO a VALUES (1)")

	o, err := open(t.Context(), conn.PgConn(), time.Second, name, tables)
	require.NoError(t, err)
	require.Equal(t, snapshot, o.snapshot.String())
	var rows int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM a").Scan(&rows))
	require.Zero(t, rows)
	rollbackConn(t, conn)

	rollbackConn(t, exporter)
	_, err = open(t.Context(), conn.PgConn(), time.Second, name, tables)
	require.ErrorIs(t, err, errImport)
	var out *lockedOut
	require.NotErrorAs(t, err, &out)
	rollbackConn(t, conn)
	_, err = open(t.Context(), conn.PgConn(), time.Second, "", tables)
	require.NoError(t, err)
	rollbackConn(t, conn)
}
