package scale

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
	"github.com/mvsync/mvsync/replication"
)

// TestRoundTrips: how often a small round waits for the server. Each time costs as much
// as the network and two schedulers take, whatever the statement does.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, body string
		// What opens the round and compares the catalog, the merge, progress, COMMIT; and
		// a query of touched keys in the residual family.
		want float64
	}{
		{"projection", "SELECT id, val FROM src", 4},
		{"sums", "SELECT grp, sum(val) AS s FROM src GROUP BY grp", 4},
		{"lists", "SELECT grp, string_agg(val::text, ',' ORDER BY id) AS s FROM src GROUP BY grp", 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, "CREATE TABLE src (id int PRIMARY KEY, grp int NOT NULL, val int NOT NULL); ALTER TABLE src REPLICA IDENTITY FULL; INSERT INTO src SELECT i, i % 5, i FROM generate_series(1, 1000) i")
			var trips atomic.Int64
			d := daemon.Start(t, db, daemon.Options{
				Views: []plans.Declaration{daemon.View("v", tc.body)}, Level: slog.LevelWarn, Unchecked: true,
				Engine: func(o *maintain.Options) { o.Connect = counted(db, &trips) },
			})
			pgtest.Eventually(t, time.Minute, func() error { return live(d) })
			change := func() {
				db.Exec(t, "UPDATE src SET val = val + 1 WHERE id = 7")
				d.Settle(db)
			}
			for range 3 {
				change() // prepares what is prepared once
			}
			const changes = 20
			before, rounds, arms := trips.Load(), d.Tally.Rounds(), d.Tally.Arms("public.v")
			for range changes {
				change()
			}
			require.Equal(t, changes, d.Tally.Arms("public.v")-arms)
			done := float64(d.Tally.Rounds() - rounds)
			// A round for who waits may find nothing: it sends no merge. One that has to lock
			// a table that it had not begins again.
			t.Logf("%d round trips in %.0f rounds", trips.Load()-before, done)
			require.LessOrEqual(t, float64(trips.Load()-before), tc.want*done+4)
		})
	}
}

// counted connects the session of the rounds so that its round trips are counted.
func counted(db *pgtest.DB, trips *atomic.Int64) func(context.Context, string) (*pgx.Conn, error) {
	return func(ctx context.Context, purpose string) (*pgx.Conn, error) {
		config, err := pgx.ParseConfig(db.URL)
		if err != nil {
			return nil, err
		}
		replication.Pin(&config.Config, replication.Session{})
		if purpose == "round" {
			dial := config.DialFunc
			config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				return &waits{Conn: conn, trips: trips}, err
			}
		}
		return pgx.ConnectConfig(ctx, config)
	}
}

// waits counts how often something is sent after something was received.
type waits struct {
	net.Conn

	trips *atomic.Int64
	reads atomic.Bool
}

func (w *waits) Write(p []byte) (int, error) {
	if w.reads.Swap(false) {
		w.trips.Add(1)
	}
	return w.Conn.Write(p)
}

func (w *waits) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.reads.Store(true)
	}
	return n, err
}
