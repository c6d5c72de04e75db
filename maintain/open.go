package maintain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mvsync/mvsync/ingest"
)

// table is a source that a round may read.
type table struct {
	oid  uint32
	name pgx.Identifier
}

// opened is a round's transaction with what its first query fixed.
type opened struct {
	snapshot ingest.Snapshot // S
	lsn      ingest.LSN      // L, the WAL insert position just after S was taken
	then     [][][]byte      // rows of the statement that was sent along
}

// lockedOut says which table's lock was not to be had.
type lockedOut struct {
	table table
	err   error
}

func (e *lockedOut) Error() string {
	return fmt.Sprintf("lock %s: %v", e.table.name.Sanitize(), e.err)
}

func (e *lockedOut) Unwrap() error { return e.err }

// errImport says that the exported snapshot is gone: the session that holds it ended.
var errImport = errors.New("the snapshot to compare views at is gone")

// open begins a round's transaction on conn, in one round trip of the simple
// protocol. Only BEGIN, SET LOCAL, SET TRANSACTION SNAPSHOT and LOCK stand before
// the query that fixes S: they take no snapshot, while preparing a statement or
// set_config does. TRUNCATE and rewrites are not MVCC-safe, the locks keep them
// out; tables come in oid order, so that two lockers cannot deadlock.
//
// Constraints are immediate from the start, so that a violation fails at a statement with
// a view to blame. What else the round asks for first, in S, is sent along as then.
//
// The position must be the insert position: a transaction visible in S may have its
// commit record above the write and the flush position.
func open(ctx context.Context, conn *pgconn.PgConn, lockTimeout time.Duration, imported string, tables []table, then ...string) (opened, error) {
	var sql strings.Builder
	sql.WriteString("BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE;")
	before := 1
	if imported != "" {
		fmt.Fprintf(&sql, "SET TRANSACTION SNAPSHOT %s;", quoteLiteral(imported))
		before++
	}
	// The progress row travels with the rows, so a crash loses both or neither.
	fmt.Fprintf(&sql, "SET LOCAL synchronous_commit = off; SET LOCAL lock_timeout = %d;", lockTimeout.Milliseconds())
	before += 2
	for _, t := range tables {
		fmt.Fprintf(&sql, "LOCK TABLE %s IN ACCESS SHARE MODE;", t.name.Sanitize())
	}
	sql.WriteString("SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text; SET CONSTRAINTS ALL IMMEDIATE")
	for _, s := range then {
		sql.WriteString("; " + s)
	}

	results, err := conn.Exec(ctx, sql.String()).ReadAll()
	if err != nil {
		var pg *pgconn.PgError
		if imported != "" && len(results) == 1 && errors.As(err, &pg) {
			return opened{}, fmt.Errorf("open a round: %w: %w", errImport, err)
		}
		failed := len(results) - before // a statement that fails gives no result
		if errors.As(err, &pg) && failed >= 0 && failed < len(tables) && lockFailure(pg.Code) {
			return opened{}, &lockedOut{table: tables[failed], err: err}
		}
		return opened{}, fmt.Errorf("open a round: %w", err)
	}
	at := before + len(tables)
	if len(results) != at+2+len(then) || len(results[at].Rows) != 1 || len(results[at].Rows[0]) != 2 {
		return opened{}, errors.New("open a round: the server sent no snapshot")
	}
	var o opened
	for _, r := range results[at+2:] {
		o.then = append(o.then, r.Rows...)
	}
	fixed := results[at].Rows[0]
	if o.snapshot, err = ingest.ParseSnapshot(string(fixed[0])); err != nil {
		return opened{}, err
	}
	if err := o.lsn.Scan(string(fixed[1])); err != nil {
		return opened{}, fmt.Errorf("open a round: %w", err)
	}
	return o, nil
}

// lockFailure reports whether a LOCK TABLE failed in a way that concerns only the
// views over that table: it is held, gone, or not readable.
func lockFailure(code string) bool {
	switch code {
	case pgerrcode.LockNotAvailable, pgerrcode.QueryCanceled, pgerrcode.UndefinedTable,
		pgerrcode.InvalidSchemaName, pgerrcode.InsufficientPrivilege, pgerrcode.WrongObjectType,
		pgerrcode.DeadlockDetected:
		return true
	}
	return false
}

func quoteLiteral(s string) string {
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}
