package round

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

// broken runs a daemon over a stream that does something wrong.
func broken(t *testing.T, db *pgtest.DB, wrap func(maintain.Stream) maintain.Stream) *daemon.Daemon {
	t.Helper()
	return keepWith(t, db, daemon.Options{Views: []plans.Declaration{filtered, grouped, top}, Wrap: wrap, Log: discard{}})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// flushBarrier passes the barrier at the flush position instead of the insert
// position: a transaction that committed asynchronously is visible in S with its
// record above it.
type flushBarrier struct {
	maintain.Stream
	pool *pgxpool.Pool
}

func (s flushBarrier) Barrier(ctx context.Context, lsn ingest.LSN) error {
	var text string
	if err := s.pool.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&text); err != nil {
		return err
	}
	var flushed ingest.LSN
	if err := flushed.Scan(text); err != nil {
		return err
	}
	return s.Stream.Barrier(ctx, min(lsn, flushed))
}

func TestTwinBarrierAtFlushPosition(t *testing.T) {
	t.Parallel()
	db := own(t, map[string]string{"wal_writer_delay": "10s"}) // nobody else flushes
	db.Exec(t, items)
	d := broken(t, db, func(s maintain.Stream) maintain.Stream { return flushBarrier{s, db.Pool} })
	w := write(t, db, "item", 2)
	mismatch(t, d)
	w.stop(t)
}

// foldEarly makes what is received between rounds look visible, whether it is or not:
// it gives those transactions an id that has ended. Folding them then is folding
// before S is known.
type foldEarly struct {
	maintain.Stream
	pool *pgxpool.Pool
	held atomic.Bool // the barrier was passed: what is taken now is split by S
}

func (s *foldEarly) Barrier(ctx context.Context, lsn ingest.LSN) error {
	s.held.Store(true)
	return s.Stream.Barrier(ctx, lsn)
}

func (s *foldEarly) Take() []*ingest.Transaction {
	taken := s.Stream.Take()
	if s.held.Swap(false) || len(taken) == 0 {
		return taken
	}
	var ended uint64
	if err := s.pool.QueryRow(context.Background(), "SELECT pg_current_xact_id()::text::bigint").Scan(&ended); err != nil {
		panic(err) // a test's own pool on a test's own server
	}
	for i, tx := range taken {
		early := *tx
		early.XID = uint32(ended)
		taken[i] = &early
	}
	return taken
}

func TestTwinFoldBeforeSnapshot(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, items)
	asyncPool := asyncPool(t, db)
	d := broken(t, db, func(s maintain.Stream) maintain.Stream { return &foldEarly{Stream: s, pool: asyncPool} })
	holdCommits(t, db)
	h := hold(t, db, "INSERT INTO item VALUES (100, 50, 1, 1)")
	mismatch(t, d)
	letGo(t, db)
	h.await(t)
}

// asyncPool connects with commits that wait for nobody.
func asyncPool(t *testing.T, db *pgtest.DB) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(db.URL)
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// forgetful holds transactions back until they are visible, so that the engine does
// not know of them when it says what may be confirmed: it then confirms L.
type forgetful struct {
	maintain.Stream
	pool *pgxpool.Pool

	mu   sync.Mutex
	back []*ingest.Transaction // guarded by mu
}

func (s *forgetful) Take() []*ingest.Transaction {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = append(s.back, s.Stream.Take()...)
	now := snapshot(s.pool)
	var out, kept []*ingest.Transaction
	for _, tx := range s.back {
		if now.Contains(now.Widen(tx.XID)) {
			out = append(out, tx)
		} else {
			kept = append(kept, tx)
		}
	}
	s.back = kept
	return out
}

func snapshot(pool *pgxpool.Pool) ingest.Snapshot {
	var text string
	if err := pool.QueryRow(context.Background(), "SELECT pg_current_snapshot()::text").Scan(&text); err != nil {
		panic(err) // a test's own pool on a test's own server
	}
	s, err := ingest.ParseSnapshot(text)
	if err != nil {
		panic(err)
	}
	return s
}

// TestTwinConfirmL is TestConfirmKeepsCarryOver with the fault: the transaction is
// never sent again.
func TestTwinConfirmL(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, items)
	async := asyncPool(t, db)
	d := broken(t, db, func(s maintain.Stream) maintain.Stream { return &forgetful{Stream: s, pool: async} })
	d.Settle(db)
	holdCommits(t, db)
	h := hold(t, db, "INSERT INTO item VALUES (100, 50, 1, 1)")
	after := position(t, db, "SELECT pg_current_wal_insert_lsn()")
	writer := session(t, db, "SET synchronous_commit = off")
	for i := range 3 {
		exec(t, writer, fmt.Sprintf("INSERT INTO item VALUES (%d, 9, 9, 1)", 200+i))
		d.Settle(db)
	}
	confirms(t, db, after)
	d.Stop()
	letGo(t, db)
	h.await(t)
	// Nothing is wrong with the daemon that goes on.
	again := keepWith(t, db, daemon.Options{Views: []plans.Declaration{filtered, grouped, top}, Log: discard{}})
	require.Empty(t, again.Tally.Gaps())
	db.Exec(t, "SELECT mvsync.wait('5s')")
	mismatch(t, again)
}

// resent delivers again, once it is told to, what the server would send again after a
// reconnection: everything from the confirmed position on. It drops the repeated ones
// by visibility in the last round's snapshot, which misses those that were received
// and not visible yet; the stream itself drops them by position.
type resent struct {
	maintain.Stream
	newest func() ingest.Snapshot

	mu        sync.Mutex
	confirmed ingest.LSN
	sent      []*ingest.Transaction
	again     bool
	byPlace   bool // the right rule
}

func (s *resent) Confirm(lsn ingest.LSN) {
	s.mu.Lock()
	s.confirmed = max(s.confirmed, lsn)
	s.mu.Unlock()
	s.Stream.Confirm(lsn)
}

func (s *resent) reconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.again = true
}

func (s *resent) Take() []*ingest.Transaction {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := s.Stream.Take()
	out := fresh
	if s.again {
		s.again = false
		last := s.newest()
		out = nil
		for _, tx := range s.sent {
			if tx.FinalLSN >= s.confirmed && !s.byPlace && !last.Contains(last.Widen(tx.XID)) {
				out = append(out, tx)
			}
		}
		out = append(out, fresh...)
	}
	s.sent = append(s.sent, fresh...)
	return out
}

func TestReconnectWithCarryOver(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		byPlace bool
	}{{"by position", true}, {"twin: by visibility", false}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := own(t, nil)
			db.Exec(t, items)
			var d *daemon.Daemon
			s := &resent{byPlace: tc.byPlace, newest: func() ingest.Snapshot { return d.Engine.Status().Newest }}
			wrapped := make(chan struct{})
			d = daemon.Start(t, db, daemon.Options{
				Views: []plans.Declaration{filtered, grouped}, Log: discard{},
				Wrap: func(inner maintain.Stream) maintain.Stream { s.Stream = inner; close(wrapped); return s },
			})
			<-wrapped
			becomes(t, d, "grouped", maintain.Live)
			d.Settle(db)
			holdCommits(t, db)
			h := hold(t, db, "INSERT INTO item VALUES (100, 50, 1, 1)")
			pending(t, d, 1)
			s.reconnect()
			exec(t, session(t, db, "SET synchronous_commit = off"), "INSERT INTO item VALUES (200, 9, 9, 1)")
			d.Settle(db)
			letGo(t, db)
			h.await(t)
			if !tc.byPlace {
				mismatch(t, d)
				return
			}
			d.Settle(db)
		})
	}
}

// TestTwinFenceByXmax: a table joins the publication while a transaction is about to
// write it. The snapshot taken then does not list that transaction as running, so
// waiting until everything below its xmax has ended waits for nothing, and the
// transaction's row is in no fill and in no stream.
func TestTwinFenceByXmax(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, items)
	db.Exec(t, "CREATE TABLE other (id int PRIMARY KEY)")
	d := keep(t, db, daemon.View("others", "SELECT id FROM other"))
	d.Settle(db)
	d.Stop()

	ddl, writer := session(t, db, "BEGIN"), session(t, db, "BEGIN")
	exec(t, ddl, "ALTER PUBLICATION mvsync ADD TABLE item")
	exec(t, writer, "INSERT INTO item VALUES (100, 50, 1, 1)")
	exec(t, ddl, "COMMIT")
	fenceByXmax(t, db.Conn(t))

	d = keepWith(t, db, daemon.Options{Views: []plans.Declaration{daemon.View("others", "SELECT id FROM other"), grouped}, Log: discard{}})
	exec(t, writer, "COMMIT")
	db.Exec(t, "SELECT mvsync.wait('5s')")
	mismatch(t, d)
}

// fenceByXmax is the wrong fence.
func fenceByXmax(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	var xmax uint64
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&xmax))
	pgtest.Eventually(t, limit, func() error {
		var xmin uint64
		if err := conn.QueryRow(t.Context(), "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint").Scan(&xmin); err != nil {
			return err
		}
		if xmin < xmax {
			return fmt.Errorf("transactions from %d on still run", xmin)
		}
		return nil
	})
}

// widenByEpoch widens transaction ids by the epoch of the newest snapshot instead of
// by signed distance: behind the end of an epoch a later transaction becomes one of
// long ago, visible everywhere.
type widenByEpoch struct {
	maintain.Stream
	pool *pgxpool.Pool
}

func (s widenByEpoch) Take() []*ingest.Transaction {
	taken := s.Stream.Take()
	if len(taken) == 0 {
		return taken
	}
	now := snapshot(s.pool)
	for i, tx := range taken {
		// Where the wrong widening says long ago, so does this id by the right one.
		if full := now.Xmax&^0xffffffff | uint64(tx.XID); full+1<<31 < now.Xmax {
			ancient := *tx
			ancient.XID = uint32(now.Xmax) - 1<<30
			taken[i] = &ancient
		}
	}
	return taken
}
