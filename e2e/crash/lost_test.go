package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/internal/pgserver"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
	"github.com/mvsync/mvsync/replication"
)

// TestServerLosesRounds crashes the server when rounds are committed and not flushed, which takes the WAL writer away:
// rows and progress go back together, and what those rounds took over must be taken over again, by the same process.
func TestServerLosesRounds(t *testing.T) {
	server := pgtest.NewServer(t, pgserver.Options{Fsync: true})
	db := pgtest.NewOn(t, server)
	db.Exec(t, "CREATE TABLE item (pk int PRIMARY KEY, p int NOT NULL); ALTER TABLE item REPLICA IDENTITY FULL; INSERT INTO item VALUES (1, 1)")
	tally := &daemon.Tally{}
	daemon.Start(t, db, daemon.Options{
		Engine: func(o *maintain.Options) { tally.Observe(o) },
		Views: []plans.Declaration{
			daemon.View("rows", "SELECT pk, p FROM item"),
			daemon.View("total", "SELECT count(*) AS n, sum(p) AS s FROM item"),
		},
	})
	settled := func(want string) {
		t.Helper()
		pgtest.Eventually(t, 30*time.Second, func() error {
			var got string
			err := db.Pool.QueryRow(t.Context(), `SELECT n || ' ' || s || ' ' || (SELECT count(*) || ' ' || sum(p) FROM "rows") FROM total`).Scan(&got)
			if err == nil && got != want {
				err = fmt.Errorf("the views say %s, want %s", got, want)
			}
			return err
		})
	}
	settled("1 1 1 1")
	for crash := range 3 {
		pid, err := strconv.Atoi(db.Value(t, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"))
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		rounds := tally.Rounds()
		db.Exec(t, "INSERT INTO item SELECT max(pk) + 1, 1 FROM item") // it flushes itself, the round does not
		want := fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", crash+2)
		settled(want)
		require.Greater(t, tally.Rounds(), rounds)
		require.NoError(t, server.Kill())
		require.NoError(t, server.Restart(t.Context()))
		settled(want)
	}
	require.Empty(t, tally.Rebuilt("gap"))
	require.Equal(t, 1, tally.Rebuilt("create")["public.rows"])
	// Nothing is counted twice by what comes later.
	db.Exec(t, "UPDATE item SET p = p + 1")
	settled("4 8 4 8")
}

// TestCommitWithoutAnswer breaks the connection between a round's COMMIT and its answer: what that round took over must
// not be taken over once more.
func TestCommitWithoutAnswer(t *testing.T) {
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE item (pk int PRIMARY KEY, p int NOT NULL); ALTER TABLE item REPLICA IDENTITY FULL; INSERT INTO item VALUES (1, 1)")
	var cut atomic.Bool
	d := daemon.Start(t, db, daemon.Options{
		Engine: func(o *maintain.Options) {
			o.Connect = func(ctx context.Context, _ string) (*pgx.Conn, error) {
				config, err := pgx.ParseConfig(db.URL)
				if err != nil {
					return nil, err
				}
				replication.Pin(&config.Config, replication.Session{})
				config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
					return &cuttable{Conn: conn, cut: &cut}, err
				}
				return pgx.ConnectConfig(ctx, config)
			}
		},
		Views: []plans.Declaration{daemon.View("total", "SELECT count(*) AS n, sum(p) AS s FROM item")},
	})
	pgtest.Eventually(t, 20*time.Second, func() error { return db.Pool.QueryRow(t.Context(), "SELECT FROM total").Scan() })
	for i := range 5 {
		cut.Store(true)
		db.Exec(t, "INSERT INTO item VALUES ($1, 1)", i+2)
		pgtest.Eventually(t, 20*time.Second, func() error {
			if cut.Load() {
				return errors.New("no round has committed yet")
			}
			return nil
		})
		d.Settle(db)
		require.Equal(t, [][]string{{strconv.Itoa(i + 2), strconv.Itoa(i + 2)}}, db.Query(t, "SELECT n, s FROM total"))
	}
	require.Empty(t, d.Mismatches())
	require.Equal(t, map[string]int{"create": 1}, d.Tally.Reasons("public.total"))
}

// cuttable is a connection that breaks once it has sent a COMMIT, if cut says so.
type cuttable struct {
	net.Conn
	cut *atomic.Bool
}

func (c *cuttable) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil && bytes.Contains(b, []byte("COMMIT\x00")) && c.cut.CompareAndSwap(true, false) {
		err = c.Close()
	}
	return n, err
}
