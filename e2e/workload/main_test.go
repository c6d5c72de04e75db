package workload

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// seededDB returns a database with the fixtures and their rows, and a pool with a connection for each of ten writers.
func seededDB(t *testing.T, identities map[string]Identity) (*pgtest.DB, *pgxpool.Pool) {
	t.Helper()
	db := pgtest.New(t)
	require.NoError(t, Create(t.Context(), db.Pool, identities))
	require.NoError(t, Seed(t.Context(), db.Pool, Fixtures(), rand.New(rand.NewPCG(1, 1))))
	return db, widePool(t, db)
}

func widePool(t *testing.T, db *pgtest.DB) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(db.URL)
	require.NoError(t, err)
	config.MaxConns = 10
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// cancelable returns a context that the test ends with a reason of its own.
func cancelable(t *testing.T) (context.Context, context.CancelCauseFunc) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	t.Cleanup(func() { cancel(nil) })
	return ctx, cancel
}
