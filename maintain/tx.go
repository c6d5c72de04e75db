package maintain

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// roundTx is the round's transaction on its session, which the round itself began
// (in one round trip with the locks and the snapshot) and ends.
type roundTx struct{ conn *pgx.Conn }

var errOwnEnd = errors.New("a round ends its own transaction")

// Conn implements [pgx.Tx].
func (t *roundTx) Conn() *pgx.Conn { return t.conn }

// Begin implements [pgx.Tx]: rounds use no savepoints.
func (*roundTx) Begin(context.Context) (pgx.Tx, error) { return nil, errOwnEnd }

// Commit implements [pgx.Tx].
func (*roundTx) Commit(context.Context) error { return errOwnEnd }

// Rollback implements [pgx.Tx].
func (*roundTx) Rollback(context.Context) error { return errOwnEnd }

// LargeObjects implements [pgx.Tx].
func (*roundTx) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

// Exec implements [pgx.Tx].
func (t *roundTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.conn.Exec(ctx, sql, args...)
}

// Query implements [pgx.Tx].
func (t *roundTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.conn.Query(ctx, sql, args...)
}

// QueryRow implements [pgx.Tx].
func (t *roundTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.conn.QueryRow(ctx, sql, args...)
}

// SendBatch implements [pgx.Tx].
func (t *roundTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.conn.SendBatch(ctx, b)
}

// CopyFrom implements [pgx.Tx].
func (t *roundTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	return t.conn.CopyFrom(ctx, table, columns, src)
}

// Prepare implements [pgx.Tx].
func (t *roundTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return t.conn.Prepare(ctx, name, sql)
}
