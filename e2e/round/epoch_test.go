package round

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/internal/pgserver"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

const (
	// epochEnd is the first id of the fifth epoch; the servers below start a bit before.
	epochEnd = uint64(4) << 32
	margin   = 600
)

// nearEpochEnd makes a database whose next transaction ids are the last of their epoch.
func nearEpochEnd(t *testing.T) *pgtest.DB {
	t.Helper()
	server := pgtest.NewServer(t, pgserver.Options{Settings: map[string]string{"autovacuum": "off"}})
	if _, err := os.Stat(filepath.Join(server.BinDir(), "pg_resetwal")); err != nil {
		t.Skip("this Postgres comes without pg_resetwal, and that of another major does not do")
	}
	// What initdb wrote would be in the future of the new ids.
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	exec(t, admin, "VACUUM (FREEZE)")
	require.NoError(t, admin.Close(t.Context()))
	require.NoError(t, server.Stop(t.Context()))
	data := filepath.Join(server.Dir(), "data")
	info, err := os.Stat(data)
	require.NoError(t, err)
	owner := info.Sys().(*syscall.Stat_t)
	// The status of the transactions from there on needs a page to stand on.
	segment := filepath.Join(data, "pg_xact", "0FFF")
	require.NoError(t, os.WriteFile(segment, make([]byte, 256<<10), 0o600))
	require.NoError(t, os.Chown(segment, int(owner.Uid), int(owner.Gid)))
	// Without -u the server would take everything for older than its oldest id, and
	// prune row versions that are still visible.
	next := (epochEnd - margin) & 0xffffffff
	cmd := server.Command(t.Context(), "pg_resetwal", "-f", "-e", "3", "-x", fmt.Sprint(next), "-u", fmt.Sprint(next-1), "-D", data)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, server.Restart(t.Context()))
	return pgtest.NewOn(t, server)
}

// burn uses up ids until so many are left of the epoch.
func burn(t *testing.T, db *pgtest.DB, left uint64) {
	t.Helper()
	db.Exec(t, fmt.Sprintf(`DO $$ BEGIN
		WHILE pg_current_xact_id()::text::numeric < %d LOOP COMMIT; END LOOP; END $$`, epochEnd-left))
}

// TestEpochEnd: a transaction behind the end of an epoch of transaction ids is later
// than a snapshot before it.
func TestEpochEnd(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		twin bool
	}{{name: "signed distance"}, {name: "twin: epoch of the snapshot", twin: true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := nearEpochEnd(t)
			db.Exec(t, items)
			o := daemon.Options{Views: []plans.Declaration{filtered, grouped}}
			if tc.twin {
				pool := asyncPool(t, db)
				o.Log = discard{}
				o.Wrap = func(s maintain.Stream) maintain.Stream { return widenByEpoch{s, pool} }
			}
			d := keepWith(t, db, o)
			d.Settle(db)
			acrossEpochEnd(t, db, d)
			d.Settle(db)
			if tc.twin {
				mismatch(t, d)
				return
			}
			require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM filtered WHERE pk = 100"))
			db.Exec(t, "UPDATE item SET p = p + 1")
			d.Settle(db)
			require.Empty(t, d.Tally.Gaps())
		})
	}
}

// acrossEpochEnd commits a transaction of the new epoch which stays invisible while
// the snapshots are still of the old one, and a visible one of the old epoch.
func acrossEpochEnd(t *testing.T, db *pgtest.DB, d *daemon.Daemon) {
	t.Helper()
	holdCommits(t, db)
	burn(t, db, 100)
	before := session(t, db, "SET synchronous_commit = off; BEGIN")
	exec(t, before, "INSERT INTO item VALUES (200, 9, 9, 1)")
	// Ids taken by subtransactions that go on running do not move the snapshots.
	between := session(t, db, "BEGIN")
	for i := range 200 {
		exec(t, between, fmt.Sprintf("SAVEPOINT s%d; SELECT pg_logical_emit_message(true, '', ''); INSERT INTO item VALUES (%d, 1, 1, 1)", i, 1000+i))
	}
	h := hold(t, db, "INSERT INTO item VALUES (100, 50, 1, 1)")
	require.Less(t, h.xid, uint32(1000), "the transaction is of the new epoch")
	// In the twin nothing is pending then: the fault has dropped it.
	committed := position(t, db, "SELECT pg_current_wal_flush_lsn()")
	pgtest.Eventually(t, limit, func() error {
		if got := d.Stream.Position(); got < committed {
			return fmt.Errorf("the stream is at %s, want %s", got, committed)
		}
		return nil
	})
	exec(t, before, "COMMIT")
	d.Settle(db)
	letGo(t, db)
	h.await(t)
	exec(t, between, "ROLLBACK")
}
