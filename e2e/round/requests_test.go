package round

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

// answered waits until the newest request was dealt with, and returns its error.
func answered(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	pgtest.Eventually(t, limit, func() error {
		if db.Value(t, "SELECT count(*) FROM mvsync.request WHERE done_at IS NULL") != "0" {
			return errors.New("a request is not done")
		}
		return nil
	})
	return db.Value(t, "SELECT coalesce(error, '') FROM mvsync.request ORDER BY id DESC LIMIT 1")
}

// TestRequests: refresh, pause, resume and verify, asked for through the catalog.
func TestRequests(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	d := keep(t, db, filtered, grouped, daemon.View("over", "SELECT n, count(*) AS groups FROM grouped GROUP BY n"))

	db.Exec(t, "SELECT mvsync.refresh('grouped')")
	require.Empty(t, answered(t, db))
	soon(t, "refreshed", func() bool { return d.Tally.Rebuilt("refresh")["public.grouped"] > 0 })

	db.Exec(t, "SELECT mvsync.pause('grouped')")
	require.Empty(t, answered(t, db))
	becomes(t, d, "grouped", maintain.Paused)
	db.Exec(t, "UPDATE item SET bucket = 7 WHERE pk < 5")
	d.Settle(db)
	require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM grouped WHERE bucket = 7"), "a paused view stands still")
	soon(t, "the consumer waits", func() bool { return strings.Contains(d.View("over").Problem, "public.grouped") })
	_, err := db.Pool.Exec(t.Context(), "SELECT mvsync.wait('5s', ARRAY['grouped'])")
	require.ErrorContains(t, err, "paused")

	db.Exec(t, "SELECT mvsync.resume('grouped')")
	becomes(t, d, "grouped", maintain.Live)
	d.Settle(db)
	require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM grouped WHERE bucket = 7"))

	db.Exec(t, "SELECT mvsync.enqueue('filtered', 'verify')")
	require.Empty(t, answered(t, db))
	require.Equal(t, "0", db.Value(t, "SELECT rows FROM mvsync.request ORDER BY id DESC LIMIT 1"))
}

// TestVerifyUnderWriters: a comparison while writers run and rounds go on has no false
// alarm, and finds what somebody spoilt.
func TestVerifyUnderWriters(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	d := keep(t, db, filtered, grouped)
	w := write(t, db, "item", 4)
	verify := func() string {
		db.Exec(t, "SELECT mvsync.enqueue('grouped', 'verify')")
		require.Empty(t, answered(t, db))
		return db.Value(t, "SELECT rows FROM mvsync.request ORDER BY id DESC LIMIT 1")
	}
	for range 10 {
		require.Equal(t, "0", verify())
	}
	w.stop(t)
	d.Settle(db)
	rounds := d.Rounds()
	db.Exec(t, "ALTER TABLE grouped DISABLE TRIGGER USER; UPDATE grouped SET n = n + 1")
	require.NotEqual(t, "0", verify())
	require.GreaterOrEqual(t, d.Rounds(), rounds)
	d.Quit() // the oracle has found it, too
}

// TestGuard: nobody else writes a backing table, by whatever setting.
func TestGuard(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	d := keep(t, db, filtered)
	for _, set := range []string{"", "SET session_replication_role = replica;"} {
		for _, sql := range []string{"DELETE FROM filtered", "UPDATE filtered SET p = 0", "INSERT INTO filtered VALUES (0, 0, 0)", "TRUNCATE filtered"} {
			_, err := db.Conn(t).PgConn().Exec(t.Context(), set+sql).ReadAll()
			require.ErrorContains(t, err, "maintained by mvsync", set+sql)
		}
	}
	d.Settle(db)
}

// TestEvery: a slow view moves less often than the rounds, its consumers with it, and
// each is exact at its own as-of.
func TestEvery(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	slow := daemon.View("slow", "SELECT bucket, count(*) AS n, sum(p) AS s FROM item GROUP BY bucket")
	slow.Every = 2 * time.Second
	d := keep(t, db, slow, filtered, daemon.View("over", "SELECT n, count(*) AS groups FROM slow GROUP BY n"))
	start := d.View("slow").AsOfTime
	moved := map[time.Time]bool{}
	pgtest.Eventually(t, limit, func() error {
		db.Exec(t, "UPDATE item SET p = p + 1, bucket = (bucket + 1) % 4 WHERE pk % 3 = 0")
		require.Equal(t, "t", db.Value(t, "SELECT mvsync.wait('30s', ARRAY['filtered'])"))
		at := d.View("slow").AsOfTime
		moved[at] = true
		require.LessOrEqual(t, float64(len(moved)-2), at.Sub(start).Seconds()/2, "it moves more often than it should")
		if len(moved) < 3 {
			return fmt.Errorf("the slow view has moved %d times", len(moved)-1)
		}
		return nil
	})
	require.Greater(t, d.Rounds(), int64(3*len(moved)))
	d.Settle(db) // waits for it, too
}

// TestSlowViewHoldsConfirmation: what a slow view has not taken over is sent again
// after a restart, and counted once by it and by no other.
func TestSlowViewHoldsConfirmation(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	slow := daemon.View("slow", "SELECT bucket, count(*) AS n, sum(p) AS s FROM item GROUP BY bucket")
	slow.Every = time.Hour
	d := keep(t, db, slow, grouped)
	db.Exec(t, "UPDATE item SET p = p + 1")
	require.Equal(t, "t", db.Value(t, "SELECT mvsync.wait('30s', ARRAY['grouped'])"))
	d.Stop()
	slow.Every = 0
	d = keep(t, db, slow, grouped)
	d.Settle(db)
	require.Equal(t, db.Query(t, "SELECT * FROM grouped ORDER BY 1"), db.Query(t, "SELECT * FROM slow ORDER BY 1"))
	require.Empty(t, d.Tally.Reasons("public.slow"))
	require.Empty(t, d.Tally.Gaps())
}

// TestIdleSlotGoesOn: traffic on tables that no view reads does not make the slot hold
// the log back, and no round runs for less.
func TestIdleSlotGoesOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	db.Exec(t, "CREATE TABLE noise (t text)")
	d := keep(t, db, filtered)
	d.Settle(db)
	rounds := d.Tally.Rounds()
	for range 12 { // about 3 MB each
		db.Exec(t, "INSERT INTO noise SELECT repeat(md5(g::text), 20) FROM generate_series(1, 4000) g")
		require.Empty(t, d.View("filtered").Problem)
	}
	end := position(t, db, "SELECT pg_current_wal_insert_lsn()")
	pgtest.Eventually(t, limit, func() error {
		db.Exec(t, "INSERT INTO noise VALUES ('x')") // keepalives come with traffic
		got := position(t, db, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 's_"+db.Name+"'")
		if got+(8<<20) < end {
			return fmt.Errorf("the slot has confirmed %s of %s", got, end)
		}
		return nil
	})
	soon(t, "a heartbeat", func() bool { return d.Tally.Rounds() > rounds })
	require.Less(t, d.Tally.Rounds()-rounds, int64(30), "a round a transaction of no interest")
}

// TestLeader: a second daemon over the same catalog is refused, and may take over once
// the first has ended.
func TestLeader(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	d := keep(t, db, filtered)
	_, err := daemon.Launch(t, db, daemon.Options{Views: []plans.Declaration{filtered}})
	require.Error(t, err)
	db.Exec(t, "UPDATE item SET p = p + 1")
	d.Settle(db)
	d.Stop()
	d = keep(t, db, filtered)
	d.Settle(db)
	require.Empty(t, d.Tally.Reasons("public.filtered"))
}
