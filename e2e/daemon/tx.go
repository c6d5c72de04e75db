package daemon

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// savepoint is a pgx.Tx over a session whose transaction somebody else has begun. At
// depth 0 it is that transaction; deeper ones are savepoints, which the round itself
// never uses.
type savepoint struct {
	conn *pgx.Conn
	deep bool
}

func (s savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	if _, err := s.conn.Exec(ctx, "SAVEPOINT oracle"); err != nil {
		return nil, err
	}
	return savepoint{conn: s.conn, deep: true}, nil
}

func (s savepoint) Commit(ctx context.Context) error {
	_, err := s.conn.Exec(ctx, "RELEASE SAVEPOINT oracle")
	return err
}

func (s savepoint) Rollback(ctx context.Context) error {
	if !s.deep {
		return pgx.ErrTxClosed
	}
	_, err := s.conn.Exec(ctx, "ROLLBACK TO SAVEPOINT oracle; RELEASE SAVEPOINT oracle")
	return err
}

func (s savepoint) Conn() *pgx.Conn { return s.conn }

func (s savepoint) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return s.conn.Exec(ctx, sql, args...)
}

func (s savepoint) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return s.conn.Query(ctx, sql, args...)
}

func (s savepoint) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.conn.QueryRow(ctx, sql, args...)
}

func (s savepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return s.conn.SendBatch(ctx, b)
}

func (s savepoint) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	return s.conn.CopyFrom(ctx, table, columns, src)
}

func (s savepoint) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return s.conn.Prepare(ctx, name, sql)
}

func (s savepoint) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }
