package plans

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Querier opens a transaction: a connection, a pool, or a transaction, in which
// it is a savepoint.
type Querier interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Compile plans the view. It asks Postgres inside a transaction of its own,
// which it rolls back. The error is a [*Refusal] where the view is refused; any
// other says that Postgres could not be asked.
func Compile(ctx context.Context, q Querier, d Declaration, o Options) (*Plan, error) {
	tx, err := q.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return nil, tx.Rollback(ctx)
}
