package round

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
)

// writers is a workload over one table in the background.
type writers struct {
	*workload.Workload
	pool *pgxpool.Pool
	done chan error
}

// write starts four writers, half of which commit asynchronously.
func write(t *testing.T, db *pgtest.DB, table string, seed uint64) *writers {
	t.Helper()
	spec, err := workload.Fixtures().Only(table)
	require.NoError(t, err)
	config, err := pgxpool.ParseConfig(db.URL)
	require.NoError(t, err)
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	w := &writers{pool: pool, done: make(chan error, 1)}
	w.Workload, err = workload.New(pool, workload.Options{
		Spec: spec, Seed: seed, AsyncHalf: true, TwoPhase: true, Reconnect: true, Pause: 2 * time.Millisecond,
	})
	require.NoError(t, err)
	ctx := context.WithoutCancel(t.Context()) // stop ends it, also after a failure
	go func() { w.done <- w.Run(ctx) }()
	t.Cleanup(func() { w.stop(t) })
	return w
}

// stop ends the writers; it may be called again.
func (w *writers) stop(t *testing.T) {
	t.Helper()
	w.Stop()
	if err, ok := <-w.done; ok {
		close(w.done)
		w.pool.Close()
		if err != nil {
			t.Errorf("the workload failed: %v", err)
		}
	}
}
