package wait

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/internal/pgserver"
	"github.com/mvsync/mvsync/plans"
)

var (
	cycles  = flag.Int("wait.cycles", 2000, "cycles of commit, wait and read, by all clients together")
	clients = flag.Int("wait.clients", 16, "sessions that write and read at once")
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// schema has a table that is written, and one that no view reads.
const schema = `CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, client int NOT NULL, n int NOT NULL);
	ALTER TABLE entry REPLICA IDENTITY FULL;
	CREATE TABLE noise (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, filler text)`

func views() []plans.Declaration {
	return []plans.Declaration{
		daemon.View("entries", "SELECT id, client, n FROM entry"),
		daemon.View("last_entry", "SELECT client, count(*) AS entries, max(n) AS n FROM entry GROUP BY client"),
	}
}

// start runs a daemon whose views are filled. The oracle is left out: what the clients read is the test.
func start(t *testing.T, db *pgtest.DB) *daemon.Daemon {
	t.Helper()
	db.Exec(t, schema)
	d := daemon.Start(t, db, daemon.Options{Views: views(), Unchecked: true})
	pgtest.Eventually(t, 30*time.Second, func() error {
		if !d.Engine.Status().Ready {
			return errors.New("the views are not filled")
		}
		return nil
	})
	return d
}

// client writes a row, waits, and reads it in both views. Every second commit is asynchronous.
func client(ctx context.Context, conn *pgx.Conn, number, cycles int, took func(time.Duration)) error {
	for n := range cycles {
		setting := []string{"on", "off"}[n%2]
		if _, err := conn.Exec(ctx, "SET synchronous_commit = "+setting); err != nil {
			return err
		}
		var id int64
		if err := conn.QueryRow(ctx, "INSERT INTO entry (client, n) VALUES ($1, $2) RETURNING id", number, n).Scan(&id); err != nil {
			return err
		}
		began := time.Now()
		var done bool
		if err := conn.QueryRow(ctx, "SELECT mvsync.wait('60s')").Scan(&done); err != nil || !done {
			return fmt.Errorf("cycle %d: waited %s: %v, %w", n, time.Since(began), done, err)
		}
		took(time.Since(began))
		var seen bool
		var entries, last int
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM entries WHERE id = $1 AND client = $2 AND n = $3), l.entries, l.n
			FROM last_entry l WHERE client = $2`, id, number, n).Scan(&seen, &entries, &last)
		if err != nil {
			return fmt.Errorf("cycle %d: read the own row: %w", n, err)
		}
		if !seen || entries != n+1 || last != n {
			return fmt.Errorf("cycle %d: the own row is seen %v, %d entries, the last %d", n, seen, entries, last)
		}
	}
	return nil
}

// TestReadYourWrites has every client find its own row in every cycle.
func TestReadYourWrites(t *testing.T) {
	db := pgtest.New(t)
	d := start(t, db)
	var mu sync.Mutex
	var times []time.Duration
	group, ctx := errgroup.WithContext(t.Context())
	began := time.Now()
	for number := range *clients {
		conn := db.Conn(t)
		group.Go(func() error {
			return client(ctx, conn, number, *cycles / *clients, func(d time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				times = append(times, d)
			})
		})
	}
	require.NoError(t, group.Wait())
	require.Len(t, times, *cycles / *clients * *clients)
	slices.Sort(times)
	t.Logf("%d cycles of %d clients in %s, none missed its row; waits: p50 %s, p99 %s; %d rounds",
		len(times), *clients, time.Since(began).Round(time.Millisecond), times[len(times)/2], times[len(times)*99/100], d.Tally.Rounds())
}

// TestIdleDaemonRetainsNoLog writes to a table that no view reads, and watches the slot: the log that it holds back must
// not grow with what others write. It also must not be busy: confirming goes by volume.
func TestIdleDaemonRetainsNoLog(t *testing.T) {
	// A server of its own: the slots of other tests would move with it.
	db := pgtest.NewOn(t, pgtest.NewServer(t, pgserver.Options{}))
	d := start(t, db)
	const batch, bytes = 8 << 20, 100 << 20
	retained := func() int64 {
		n, err := strconv.ParseInt(db.Value(t, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots"), 10, 64)
		require.NoError(t, err)
		return n
	}
	began, rounds := db.Value(t, "SELECT pg_current_wal_lsn()"), d.Tally.Rounds()
	for written := 0; written < bytes; written += batch {
		db.Exec(t, "INSERT INTO noise (filler) SELECT repeat(md5(g::text), 32) FROM generate_series(1, $1 / 1100) g", batch)
		// A checkpoint writes a record of the running transactions, from which the server computes what it may discard.
		pgtest.Eventually(t, 30*time.Second, func() error {
			db.Exec(t, "CHECKPOINT")
			if n := retained(); n > 2*batch {
				return fmt.Errorf("the slot retains %d MiB", n>>20)
			}
			return nil
		})
	}
	wrote := db.Value(t, "SELECT pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), '"+began+"'))")
	t.Logf("%s written by others, %d KiB retained, %d rounds", wrote, retained()>>10, d.Tally.Rounds()-rounds)
	require.Less(t, d.Tally.Rounds()-rounds, int64(bytes/(1<<20)), "an empty round for every heartbeat, no more")
}
