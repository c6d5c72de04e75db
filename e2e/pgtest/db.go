package pgtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mvsync/mvsync/internal/pgserver"
)

// DB is a database for one test. Its methods fail the test on an error, and may be called by several goroutines; those
// that may outlive a failure should use connections of their own.
type DB struct {
	// Name is the database's name, unique within its server.
	Name string
	// URL connects to the database as superuser.
	URL string
	// Pool serves the convenience methods. It is opened at once but connects only when used.
	Pool *pgxpool.Pool
	// Server is where the database is; it may be shared with other tests.
	Server *pgserver.Server

	t testing.TB
}

// created numbers the databases of this process.
var created atomic.Int64

// New makes an empty database on the shared server, and drops it, replication slots included, when the test ends.
func New(t testing.TB) *DB {
	t.Helper()
	return NewOn(t, sharedServer(t))
}

// NewOn is New on a given server, such as one of [NewServer].
func NewOn(t testing.TB, server *pgserver.Server) *DB {
	t.Helper()
	name := fmt.Sprintf("test_%d_%d", os.Getpid(), created.Add(1))
	admin(t.Context(), t, server, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	pool, err := pgxpool.New(t.Context(), server.URL(name))
	if err != nil {
		t.Fatal(err)
	}
	db := &DB{Name: name, URL: server.URL(name), Pool: pool, Server: server, t: t}
	t.Cleanup(db.drop)
	return db
}

// dropSlots drops the slots of a database, whoever uses them. A walsender takes a moment to let go of its slot.
const dropSlots = `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = '%[1]s' AND active;
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '%[1]s' AND NOT active`

// drop removes the database with its slots and prepared transactions, which alone FORCE does not.
func (db *DB) drop() {
	db.Pool.Close()
	if !db.Server.Running() {
		return // a test's own server, which ends with its folder
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	db.rollbackPrepared(ctx)
	err := poll(ctx, 20*time.Second, func() error {
		// The slots and the database in one go: a client of the test may still be trying to reconnect.
		if err := adminExec(ctx, db.Server, fmt.Sprintf(dropSlots, db.Name)); err != nil {
			return err
		}
		return adminExec(ctx, db.Server, "DROP DATABASE "+pgx.Identifier{db.Name}.Sanitize()+" WITH (FORCE)")
	})
	if err != nil {
		db.t.Errorf("drop database %s: %v", db.Name, err)
	}
}

// rollbackPrepared ends the prepared transactions that a failed test left; they can be ended only from within the
// database. An error shows up as that of DROP DATABASE.
func (db *DB) rollbackPrepared(ctx context.Context) {
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return
	}
	defer conn.Close(ctx) // FORCE ends it otherwise
	rows, err := conn.Query(ctx, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
	if err != nil {
		return
	}
	gids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}
	for _, gid := range gids {
		_, _ = conn.Exec(ctx, "ROLLBACK PREPARED "+"'"+strings.ReplaceAll(gid, "'", "''")+"'") // see above
	}
}

// Conn returns a connection of its own to the database, closed when the test ends.
func (db *DB) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// It may be dead, since a test may have crashed the server.
		_ = conn.Close(context.Background())
	})
	return conn
}

// Exec runs SQL, several statements separated by semicolons if there are no arguments, and returns the number of rows
// affected by the last one.
func (db *DB) Exec(t testing.TB, sql string, args ...any) int64 {
	t.Helper()
	if len(args) == 0 {
		// The simple protocol takes several statements.
		args = []any{pgx.QueryExecModeSimpleProtocol}
	}
	tag, err := db.Pool.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

// Query returns the rows of a query as Postgres prints their values, NULL as "NULL".
func (db *DB) Query(t testing.TB, sql string, args ...any) [][]string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), sql, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	defer rows.Close()
	result := [][]string{}
	for rows.Next() {
		row := make([]string, 0, len(rows.RawValues()))
		for _, value := range rows.RawValues() {
			if value == nil {
				row = append(row, "NULL")
				continue
			}
			row = append(row, string(value))
		}
		result = append(result, row)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return result
}

// Value returns the only value of a query's only row, as Postgres prints it.
func (db *DB) Value(t testing.TB, sql string, args ...any) string {
	t.Helper()
	rows := db.Query(t, sql, args...)
	if len(rows) != 1 || len(rows[0]) != 1 {
		t.Fatalf("%s: want one row of one column, got %v", sql, rows)
	}
	return rows[0][0]
}

// admin runs one statement in the server's postgres database.
func admin(ctx context.Context, t testing.TB, server *pgserver.Server, sql string) {
	t.Helper()
	if err := adminExec(ctx, server, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func adminExec(ctx context.Context, server *pgserver.Server, sql string) error {
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx) // the statement's own error is what matters
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}
