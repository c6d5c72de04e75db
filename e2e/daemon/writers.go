package daemon

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
)

// Writers is a workload in the background.
type Writers struct {
	*workload.Workload

	t    testing.TB
	pool *pgxpool.Pool
	done chan error
}

// Write starts a workload, which goes on until [Writers.Stop] or the end of the test.
func Write(t testing.TB, db *pgtest.DB, o workload.Options) *Writers {
	t.Helper()
	config, err := pgxpool.ParseConfig(db.URL)
	require.NoError(t, err)
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	w := &Writers{t: t, pool: pool, done: make(chan error, 1)}
	w.Workload, err = workload.New(pool, o)
	require.NoError(t, err)
	ctx := context.WithoutCancel(t.Context()) // Stop ends it, also after a failure
	go func() { w.done <- w.Run(ctx) }()
	t.Cleanup(w.Stop)
	return w
}

// Stop lets the writers finish their transactions, and fails the test where they failed. It may be called again.
func (w *Writers) Stop() {
	w.t.Helper()
	w.Workload.Stop()
	err, ok := <-w.done
	if !ok {
		return
	}
	close(w.done)
	w.pool.Close()
	if err != nil {
		w.t.Errorf("the workload failed: %v", err)
	}
}
