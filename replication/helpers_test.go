package replication

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds what a test waits for; it is no measure of speed.
const patience = 30 * time.Second

func sourceOf(t testing.TB, url string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	return cfg
}

func targetOf(t testing.TB, db *pgtest.DB) Target {
	t.Helper()
	return Target{Source: sourceOf(t, db.URL), Slot: db.Name, Publication: "My-Pub " + db.Name}
}

func oids(t testing.TB, db *pgtest.DB, tables ...string) []uint32 {
	t.Helper()
	list := make([]uint32, 0, len(tables))
	for _, table := range tables {
		var oid uint32
		require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT $1::text::regclass::oid", table).Scan(&oid))
		list = append(list, oid)
	}
	return list
}

func provisioned(t testing.TB, db *pgtest.DB, tables ...string) Target {
	t.Helper()
	target := targetOf(t, db)
	_, err := Provision(t.Context(), target, oids(t, db, tables...), quiet())
	require.NoError(t, err)
	return target
}

// running is a stream that runs until the test ends or stop is called.
type running struct {
	*Stream
	db   *pgtest.DB
	stop func() error
	done chan struct{}
}

// stream provisions and runs a stream over tables.
func stream(t testing.TB, db *pgtest.DB, change func(*Options), tables ...string) *running {
	t.Helper()
	return run(t, db, provisioned(t, db, tables...), change)
}

func optionsOf(target Target, change func(*Options)) Options {
	opts := Options{Source: target.Source, Slot: target.Slot, Publication: target.Publication}
	if change != nil {
		change(&opts)
	}
	return opts
}

func run(t testing.TB, db *pgtest.DB, target Target, change func(*Options)) *running {
	t.Helper()
	s := New(optionsOf(target, change), quiet())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{Stream: s, db: db, done: make(chan struct{})}
	var err error
	go func() {
		defer close(r.done)
		err = s.Run(ctx)
	}()
	r.stop = func() error {
		cancel()
		<-r.done
		return err
	}
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// ended waits until Run returns by itself, and returns its error.
func (r *running) ended(t testing.TB) error {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		t.Fatal("the stream goes on")
	}
	return r.stop()
}

func (r *running) connected(t testing.TB) State {
	t.Helper()
	pgtest.Eventually(t, patience, func() error {
		if state := r.State(); !state.Connected {
			return fmt.Errorf("not connected: %w", state.Err)
		}
		return nil
	})
	return r.State()
}

func walEnd(t testing.TB, db *pgtest.DB) ingest.LSN {
	t.Helper()
	lsn, err := pglogrepl.ParseLSN(db.Value(t, "SELECT pg_current_wal_insert_lsn()"))
	require.NoError(t, err)
	return lsn
}

// drain passes a barrier at the present and takes what has come.
func (r *running) drain(t testing.TB) []*ingest.Transaction {
	t.Helper()
	lsn := walEnd(t, r.db)
	var all []*ingest.Transaction
	for {
		err := r.Barrier(t.Context(), lsn)
		all = append(all, r.Take()...)
		if err == nil {
			return all
		}
		require.ErrorIs(t, err, ErrBacklog)
	}
}

// lines drains and prints the changes.
func (r *running) lines(t testing.TB) []string {
	t.Helper()
	return printed(t, r.drain(t))
}

func printed(t testing.TB, transactions []*ingest.Transaction) []string {
	t.Helper()
	lines := []string{}
	for _, tx := range transactions {
		for c, err := range tx.Changes.All() {
			require.NoError(t, err)
			lines = append(lines, line(c))
		}
		require.NoError(t, tx.Changes.Close())
	}
	return lines
}

// line prints a change as: update t id=1 v=? -> id=1 v=2. A question mark is a missing value.
func line(c *ingest.Change) string {
	s := c.Op.String() + " " + c.Table.Name
	if c.Old != nil {
		s += rowText(c.Table, c.Old)
	}
	if c.Op == ingest.Update {
		s += " ->"
	}
	if c.New != nil {
		s += rowText(c.Table, c.New)
	}
	return s
}

func rowText(table *ingest.Table, row ingest.Row) string {
	var s strings.Builder
	for i, v := range row {
		text := v.Text()
		switch {
		case v.IsNull():
			text = "NULL"
		case v.IsMissing():
			text = "?"
		case len(text) > 40:
			text = fmt.Sprintf("%s..%d", text[:3], len(text))
		}
		s.WriteString(" " + table.Columns[i].Name + "=" + text)
	}
	return s.String()
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
