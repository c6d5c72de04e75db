package maintain_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

// logged keeps what a daemon logs.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) holds(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.buf.Bytes(), []byte(text))
}

// TestLongFillGivesWay alters a table while a fill reads it: writers would queue behind
// the ALTER TABLE, so the fill is cancelled and begins anew.
func TestLongFillGivesWay(t *testing.T) {
	db := pgtest.New(t)
	db.Exec(t, itemTable)
	log := &logged{}
	d := daemon.Start(t, db, daemon.Options{
		Unchecked: true, Log: log,
		Views: []plans.Declaration{
			daemon.View("slow", "SELECT i.g, count(*) AS n FROM item i, generate_series(1, 2000000) x GROUP BY i.g"),
		},
	})
	conn := db.Conn(t)
	pgtest.Eventually(t, time.Minute, func() error {
		// As soon as the fill holds its lock, wait behind it.
		return conn.QueryRow(t.Context(), `SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%generate_series%' AND pid <> pg_backend_pid()`).Scan(new(int))
	})
	_, err := conn.Exec(t.Context(), "ALTER TABLE item ADD COLUMN note text")
	require.NoError(t, err)
	require.True(t, log.holds("gives way"), "the ALTER TABLE waited for the whole fill")
	pgtest.Eventually(t, 2*time.Minute, func() error {
		if s := d.Engine.Status().Views[0]; s.State != maintain.Live {
			return errors.New("not live yet")
		}
		return nil
	})
}
