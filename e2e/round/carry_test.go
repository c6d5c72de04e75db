package round

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
)

// TestCarryOver: a transaction whose commit is in the log and that is not visible yet
// is in no round, while others are; alone it opens none; it is taken over once it is
// visible.
func TestCarryOver(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, items)
	d := keep(t, db, filtered, grouped, top)
	d.Settle(db)
	async := session(t, db, "SET synchronous_commit = off")
	holdCommits(t, db)
	h := hold(t, db, "INSERT INTO item VALUES (100, 50, 1, 1); DELETE FROM item WHERE pk = 7")
	pending(t, d, 1)
	for i := range 5 {
		exec(t, async, fmt.Sprintf("INSERT INTO item VALUES (%d, 9, 9, 1)", 200+i))
		d.Settle(db)
	}
	require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM filtered WHERE pk = 100"))

	before := d.Tally.Rounds()
	window := time.After(time.Second) // in which nothing else happens
	<-window
	require.LessOrEqual(t, d.Tally.Rounds()-before, int64(2), "a carry-over alone opened rounds")
	require.Positive(t, d.Engine.Status().Lag)

	letGo(t, db)
	h.await(t)
	d.Settle(db)
	require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM filtered WHERE pk = 100"))
	require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM filtered WHERE pk = 7"))
}

// TestConfirmKeepsCarryOver: what is confirmed never passes the commit of a
// transaction that is still to be taken over, so that it is sent again after a restart.
func TestConfirmKeepsCarryOver(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, items)
	d := keep(t, db, filtered, grouped)
	d.Settle(db)
	async := session(t, db, "SET synchronous_commit = off")
	holdCommits(t, db)
	before := position(t, db, "SELECT pg_current_wal_insert_lsn()")
	h := hold(t, db, "INSERT INTO item VALUES (100, 50, 1, 1)")
	after := position(t, db, "SELECT pg_current_wal_insert_lsn()")
	pending(t, d, 1)
	for i := range 3 {
		exec(t, async, fmt.Sprintf("INSERT INTO item VALUES (%d, 9, 9, 1)", 200+i))
		d.Settle(db)
	}
	confirms(t, db, before)
	d.Stop()
	require.LessOrEqual(t, position(t, db, confirmedSQL), after)
	require.LessOrEqual(t, position(t, db, "SELECT lsn FROM mvsync.progress"), after)

	letGo(t, db)
	h.await(t)
	again := keep(t, db, filtered, grouped)
	again.Settle(db)
	require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM filtered WHERE pk = 100"))
	require.Empty(t, again.Tally.Gaps())
	require.Empty(t, again.Tally.Reasons("public.grouped"), "it was not to be evaluated anew")
}

const confirmedSQL = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name LIKE 's_%'"

func position(t *testing.T, db *pgtest.DB, sql string) ingest.LSN {
	t.Helper()
	var lsn ingest.LSN
	require.NoError(t, lsn.Scan(db.Value(t, sql)))
	return lsn
}

// confirms waits until the slot's confirmed position has passed one.
func confirms(t *testing.T, db *pgtest.DB, lsn ingest.LSN) {
	t.Helper()
	pgtest.Eventually(t, limit, func() error {
		if got := position(t, db, confirmedSQL); got <= lsn {
			return fmt.Errorf("the slot has confirmed %s, want more than %s", got, lsn)
		}
		return nil
	})
}

// TestBrokenStandby: rounds stay exact while a synchronous standby comes and goes.
func TestBrokenStandby(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, items)
	d := keep(t, db, filtered, grouped, top)
	w := write(t, db, "item", 1)
	t.Cleanup(func() { letGo(t, db) }) // before the writers are stopped, who may wait
	carried := 0
	for range 15 {
		reload(t, db, "ALTER SYSTEM SET synchronous_standby_names = 'gone'")
		pgtest.Eventually(t, limit, func() error {
			carried = max(carried, d.Engine.Status().PendingTransactions)
			if db.Value(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "0" {
				return errors.New("no commit waits yet")
			}
			return nil
		})
		letGo(t, db)
		require.NoError(t, d.Reach(d.Rounds()+5, limit))
	}
	w.stop(t)
	d.Settle(db)
	require.Positive(t, carried, "nothing was carried over")
}
