package pgtest

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/internal/pgserver"
)

func TestMain(m *testing.M) { Main(m) }

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	a, b := New(t), New(t)
	require.NotEqual(t, a.Name, b.Name)
	require.Same(t, a.Server, b.Server)
	a.Exec(t, "CREATE TABLE t (n int, s text); INSERT INTO t VALUES (1, 'x'), (2, NULL)")
	b.Exec(t, "CREATE TABLE t (other text)")
	require.EqualValues(t, 1, a.Exec(t, "UPDATE t SET n = $1 WHERE n = 2", 3))
	require.Equal(t, [][]string{{"1", "x"}, {"3", "NULL"}}, a.Query(t, "SELECT n, s FROM t ORDER BY n"))
	require.Empty(t, b.Query(t, "SELECT * FROM t"))
	require.Equal(t, "3", a.Value(t, "SELECT max(n) FROM t WHERE n > $1", 1))
}

func TestConnIsTheTestsOwn(t *testing.T) {
	t.Parallel()
	db := New(t)
	a, b := db.Conn(t), db.Conn(t)
	require.NotEqual(t, a.PgConn().PID(), b.PgConn().PID())
	var name string
	require.NoError(t, a.QueryRow(t.Context(), "SELECT current_database()").Scan(&name))
	require.Equal(t, db.Name, name)
}

// A test may leave an idle slot, one in use, a prepared transaction and an open connection; all go with its database.
func TestDatabaseIsDroppedWithAllThatHoldsIt(t *testing.T) {
	t.Parallel()
	server := NewServer(t, pgserver.Options{})
	keep := NewOn(t, server)
	var name string
	t.Run("leaves things behind", func(t *testing.T) {
		db := NewOn(t, server)
		name = db.Name
		db.Exec(t, "CREATE TABLE t (n int)")
		db.Exec(t, "SELECT pg_create_logical_replication_slot('idle', 'pgoutput')")
		db.Exec(t, "SELECT pg_create_logical_replication_slot('busy', 'test_decoding')")
		stream, err := pgconn.Connect(t.Context(), db.URL+"&replication=database")
		require.NoError(t, err)
		t.Cleanup(func() { stream.Close(t.Context()) }) // dropped under it
		stream.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT busy LOGICAL 0/0"})
		require.NoError(t, stream.Frontend().Flush())
		Eventually(t, 10*time.Second, func() error {
			if db.Value(t, "SELECT active FROM pg_replication_slots WHERE slot_name = 'busy'") != "t" {
				return errors.New("slot is not in use yet")
			}
			return nil
		})
		db.Exec(t, "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'it''s'")
	})
	require.Equal(t, "0", keep.Value(t, "SELECT count(*) FROM pg_database WHERE datname = $1", name))
	require.Equal(t, "0", keep.Value(t, "SELECT count(*) FROM pg_replication_slots"))
	require.Equal(t, "0", keep.Value(t, "SELECT count(*) FROM pg_prepared_xacts"))
}

func TestOwnServerMayCrash(t *testing.T) {
	t.Parallel()
	db := NewOn(t, NewServer(t, pgserver.Options{}))
	db.Exec(t, "CREATE TABLE t AS SELECT 42 AS n")
	require.NoError(t, db.Server.Kill())
	_, err := pgx.Connect(t.Context(), db.URL)
	require.Error(t, err)
	require.NoError(t, db.Server.Restart(t.Context()))
	Eventually(t, 10*time.Second, func() error { return db.Pool.Ping(t.Context()) })
	require.Equal(t, "42", db.Value(t, "SELECT n FROM t"))
}

func TestServerIsOfTheVersionItSays(t *testing.T) {
	t.Parallel()
	db := New(t)
	require.Equal(t, strconv.Itoa(db.Server.Version()), db.Value(t, "SHOW server_version_num"))
}

func TestPoll(t *testing.T) {
	t.Parallel()
	calls := 0
	require.NoError(t, poll(t.Context(), time.Minute, func() error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	}))
	require.Equal(t, 3, calls)
	require.EqualError(t, poll(t.Context(), 20*time.Millisecond, func() error { return errors.New("never") }), "never")
}
