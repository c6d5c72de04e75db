package replication

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/internal/pgserver"
)

// own starts a server of the test's own, for tests that change it or hold transactions open.
func own(t testing.TB, settings map[string]string, initArgs ...string) *pgtest.DB {
	t.Helper()
	return pgtest.NewOn(t, pgtest.NewServer(t, pgserver.Options{Settings: settings, InitArgs: initArgs}))
}

// alter changes a setting of the whole server.
func alter(t testing.TB, db *pgtest.DB, setting, value string) {
	t.Helper()
	conn := db.Conn(t)
	_, err := conn.Exec(t.Context(), fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", setting, value))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT pg_reload_conf()")
	require.NoError(t, err)
	pgtest.Eventually(t, patience, func() error {
		if now := db.Value(t, "SELECT setting FROM pg_settings WHERE name = $1", setting); now != value {
			return fmt.Errorf("%s is %s", setting, now)
		}
		return nil
	})
}

func confirmedFlush(t testing.TB, db *pgtest.DB) ingest.LSN {
	t.Helper()
	lsn, err := pglogrepl.ParseLSN(db.Value(t, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1", db.Name))
	require.NoError(t, err)
	return lsn
}

// TestReconnect: the walsender is killed again and again under a writer; every transaction comes once, and in order.
func TestReconnect(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY, pad text)")
	r := stream(t, db, nil, "t")
	const kills = 5
	enough := make(chan struct{})
	rows, wrote := 0, make(chan error, 1)
	writer := db.Conn(t)
	go func() {
		for {
			select {
			case <-enough:
				wrote <- nil
				return
			default:
			}
			if _, err := writer.Exec(context.Background(), "INSERT INTO t VALUES ($1, repeat('x', 100))", rows); err != nil {
				wrote <- err
				return
			}
			rows++
		}
	}()
	var all []*ingest.Transaction
	for kill := range kills {
		before := len(all)
		pgtest.Eventually(t, patience, func() error {
			all = append(all, r.Take()...)
			if len(all) < before+20 || r.State().Reconnections < kill {
				return errors.New("too little has come")
			}
			return nil
		})
		db.Exec(t, fmt.Sprintf("SELECT pg_terminate_backend(%d)", r.State().PID))
	}
	close(enough)
	require.NoError(t, <-wrote)
	pgtest.Eventually(t, patience, func() error {
		if r.State().Reconnections < kills {
			return errors.New("not connected again")
		}
		return nil
	})
	all = append(all, r.drain(t)...)
	require.Len(t, all, rows)
	for i, tx := range all {
		for c, err := range tx.Changes.All() {
			require.NoError(t, err)
			require.Equal(t, strconv.Itoa(i), c.New[0].Text())
		}
		if i > 0 {
			require.Greater(t, tx.FinalLSN, all[i-1].FinalLSN)
		}
	}
}

// TestConfirm: the slot moves to what was confirmed and no further, whatever was received, and a new process gets
// exactly what was not confirmed.
func TestConfirm(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	fast := func(o *Options) { o.StatusInterval = 10 * time.Millisecond }
	target := provisioned(t, db, "t")
	r := run(t, db, target, fast)
	began := confirmedFlush(t, db)
	for i := range 3 {
		db.Exec(t, "INSERT INTO t VALUES ("+strconv.Itoa(i)+")")
	}
	all := r.drain(t)
	require.Len(t, all, 3)
	require.NoError(t, r.Barrier(t.Context(), walEnd(t, db)))
	require.Equal(t, began, confirmedFlush(t, db), "what was only received is not confirmed")

	r.Confirm(all[1].FinalLSN)
	r.Confirm(all[0].FinalLSN) // never back
	require.Equal(t, all[1].FinalLSN, r.Confirmed())
	pgtest.Eventually(t, patience, func() error {
		if at := confirmedFlush(t, db); at != all[1].FinalLSN {
			return fmt.Errorf("the slot is at %s", at)
		}
		return nil
	})
	require.NoError(t, r.stop())
	require.Equal(t, all[1].FinalLSN, confirmedFlush(t, db))

	again := run(t, db, target, fast)
	require.Equal(t, []string{"insert t id=1", "insert t id=2"}, again.lines(t))
	again.Confirm(all[2].EndLSN)
	require.NoError(t, again.stop())
	require.Equal(t, all[2].EndLSN, confirmedFlush(t, db), "the last word is confirmed at the end")

	again = run(t, db, target, fast)
	again.Confirm(again.Position() + 1<<40)
	require.Equal(t, again.Position(), again.Confirmed(), "never beyond what was received")
	require.Empty(t, again.lines(t))
}

// TestStalledConsumer: the server hears of us however long nobody takes what was received.
func TestStalledConsumer(t *testing.T) {
	t.Parallel()
	db := own(t, map[string]string{"wal_sender_timeout": "1s"})
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY, pad text)")
	r := stream(t, db, func(o *Options) { o.Budget = 256 << 10 }, "t")
	pid := r.connected(t).PID
	for i := range 100 {
		db.Exec(t, fmt.Sprintf("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(%d, %d) g", 100*i, 100*i+99))
	}
	began := db.Value(t, "SELECT clock_timestamp()")
	pgtest.Eventually(t, patience, func() error {
		if db.Value(t, "SELECT clock_timestamp() > $1::timestamptz + interval '3.5 s'", began) != "t" {
			return errors.New("too early")
		}
		return nil
	})
	state := r.State()
	require.True(t, state.Paused)
	require.True(t, state.Connected)
	require.Equal(t, pid, state.PID)
	require.Positive(t, state.PendingBytes)
	require.LessOrEqual(t, state.PendingBytes, int64(256<<10))
	require.ErrorIs(t, r.Barrier(t.Context(), walEnd(t, db)), ErrBacklog)
	n := 0
	for _, tx := range r.drain(t) {
		n += tx.Changes.Len()
	}
	require.Equal(t, 10000, n)
	require.Zero(t, r.State().Reconnections)
}

// TestLargeTransaction: a transaction many times the budget stays out of memory, comes out whole, and leaves no file.
func TestLargeTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY FULL")
	dir := t.TempDir()
	r := stream(t, db, func(o *Options) { o.Budget, o.SpoolDir = 256<<10, dir }, "t")
	const rows = 20000
	db.Exec(t, fmt.Sprintf(`INSERT INTO t SELECT g, CASE WHEN g %% 7 > 0 THEN repeat('x', 100) END FROM generate_series(1, %d) g;
		UPDATE t SET v = 'y'; DELETE FROM t`, rows))
	all := r.drain(t)
	require.Len(t, all, 1)
	require.Equal(t, 3*rows, all[0].Changes.Len())
	require.Zero(t, all[0].Changes.Bytes())
	for range 2 { // as often as wanted
		n := 0
		for c, err := range all[0].Changes.All() {
			require.NoError(t, err)
			row := n % rows
			switch n / rows {
			case 0:
				require.Equal(t, ingest.Insert, c.Op)
				require.Nil(t, c.Old)
				require.Equal(t, (row+1)%7 == 0, c.New[1].IsNull())
			case 1:
				require.Equal(t, ingest.Update, c.Op)
				require.Equal(t, c.Old[0], c.New[0])
				require.Equal(t, "y", c.New[1].Text())
			default:
				require.Equal(t, ingest.Delete, c.Op)
				require.Nil(t, c.New)
			}
			n++
		}
		require.Equal(t, 3*rows, n)
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files, "the file has no name from the start")
	require.NoError(t, all[0].Changes.Close())
	require.NoError(t, all[0].Changes.Close(), "closing twice is harmless")
}

// TestRelearn: a change high up in a partition tree is known once the stream was told of it.
func TestRelearn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE top(id int PRIMARY KEY) PARTITION BY RANGE (id);
		CREATE TABLE mid(id int PRIMARY KEY) PARTITION BY RANGE (id);
		CREATE TABLE leaf PARTITION OF mid FOR VALUES FROM (0) TO (10)`)
	r := stream(t, db, nil, "mid")
	ids := oids(t, db, "top", "mid", "leaf")
	db.Exec(t, "INSERT INTO leaf VALUES (1)")
	table := changeTable(t, r.drain(t))
	require.True(t, table.Partition)
	require.Equal(t, []uint32{ids[1]}, table.Ancestors)
	db.Exec(t, "ALTER TABLE top ATTACH PARTITION mid FOR VALUES FROM (0) TO (10)")
	r.Relearn()
	db.Exec(t, "INSERT INTO leaf VALUES (2)")
	renewed := changeTable(t, r.drain(t))
	require.ElementsMatch(t, []uint32{ids[0], ids[1]}, renewed.Ancestors)
	require.NotSame(t, table, renewed)
	require.True(t, renewed.Reads(ids[0]))
	require.False(t, table.Reads(ids[0]))
}

func changeTable(t testing.TB, transactions []*ingest.Transaction) *ingest.Table {
	t.Helper()
	var table *ingest.Table
	for _, tx := range transactions {
		for c, err := range tx.Changes.All() {
			require.NoError(t, err)
			table = c.Table
		}
	}
	require.NotNil(t, table)
	return table
}

// TestTransaction: what a transaction says of itself.
func TestTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY); CREATE TABLE unread(id int)")
	r := stream(t, db, nil, "t")
	db.Exec(t, "INSERT INTO unread VALUES (1)")
	xid := db.Value(t, "WITH w AS (INSERT INTO t VALUES (1)) SELECT pg_current_xact_id()::xid")
	all := r.drain(t)
	require.Len(t, all, 1, "a transaction that touches no member does not appear")
	require.Equal(t, xid, strconv.FormatUint(uint64(all[0].XID), 10))
	require.Less(t, all[0].FinalLSN, all[0].EndLSN)
	require.LessOrEqual(t, all[0].EndLSN, r.Position())
	require.WithinDuration(t, time.Now(), all[0].CommitTime, time.Minute)
	require.Positive(t, all[0].Changes.Bytes())
}

// TestEnds: what ends a stream for good, and the words for it.
func TestEnds(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(o *Options)
		break_ func(t *testing.T, db *pgtest.DB, r func() *running)
		want   error
		text   string
	}{
		{
			name: "the slot was dropped", want: ErrSlotLost, text: "does not exist",
			break_: func(t *testing.T, db *pgtest.DB, r func() *running) {
				r().connected(t)
				_, err := Slot{Name: db.Name}.Drop(t.Context(), db.Pool)
				require.NoError(t, err)
			},
		},
		{
			name: "the publication was dropped", want: ErrPublicationLost, text: "does not exist",
			break_: func(t *testing.T, db *pgtest.DB, r func() *running) {
				r().connected(t)
				db.Exec(t, `DROP PUBLICATION "My-Pub `+db.Name+`"; INSERT INTO t VALUES (1)`)
			},
		},
		{
			name: "another reader", want: ErrSlotInUse, text: "pg_terminate_backend(",
			change: func(o *Options) { o.SlotWait = 200 * time.Millisecond },
			break_: func(t *testing.T, db *pgtest.DB, r func() *running) {
				run(t, db, targetOf(t, db), nil).connected(t)
				r()
			},
		},
		{
			name: "another server", want: ErrIdentityChanged, text: "was system 1 timeline 1",
			change: func(o *Options) { o.Identity = Identity{SystemID: "1", Timeline: 1} },
		},
		{
			name: "a role that may not", want: ErrDenied, text: "REPLICATION",
			change: func(o *Options) { o.Replication = o.Source.Config.Copy(); o.Replication.User = "plain" },
			break_: func(t *testing.T, db *pgtest.DB, r func() *running) {
				db.Exec(t, "DO $$ BEGIN CREATE ROLE plain LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
				r()
			},
		},
		{
			name: "no such database", want: ErrDenied, text: "database name",
			change: func(o *Options) { o.Replication = o.Source.Config.Copy(); o.Replication.Database = "nowhere" },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
			target := provisioned(t, db, "t")
			var started *running
			start := func() *running {
				if started == nil {
					started = run(t, db, target, tc.change)
				}
				return started
			}
			if tc.break_ != nil {
				tc.break_(t, db, start)
			}
			r := start()
			err := r.ended(t)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, tc.text)
			require.ErrorIs(t, r.Barrier(t.Context(), 1<<60), tc.want)
			state := r.State()
			require.False(t, state.Connected)
			require.ErrorIs(t, state.Err, tc.want)
		})
	}
}

// TestSlotInvalidated: a slot whose WAL the server removed is lost, before and while it is read.
func TestSlotInvalidated(t *testing.T) {
	t.Parallel()
	db := own(t, map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "2MB", "max_wal_size": "2MB"}, "--wal-segsize=1")
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	target := provisioned(t, db, "t")
	for range 5 {
		db.Exec(t, "SELECT pg_logical_emit_message(false, 'fill', 'x'), pg_switch_wal()")
	}
	db.Exec(t, "CHECKPOINT")
	state, err := Slot{Name: target.Slot}.State(t.Context(), db.Pool)
	require.NoError(t, err)
	require.Equal(t, "lost", state.WALStatus)
	require.ErrorIs(t, state.Check(target.Slot), ErrSlotLost)
	require.ErrorIs(t, run(t, db, target, nil).ended(t), ErrSlotLost)
	_, err = Provision(t.Context(), target, nil, quiet())
	require.ErrorIs(t, err, ErrSlotLost)
}

// TestSyncStandby: a server that counts us among its synchronous standbys is left at once, so that its writers go on.
func TestSyncStandby(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	target := provisioned(t, db, "t")
	r := run(t, db, target, func(o *Options) { o.StatusInterval = 20 * time.Millisecond })
	r.connected(t)
	pgtest.Eventually(t, patience, func() error {
		if state := r.State().SyncState; state != "async" {
			return fmt.Errorf("sync state %q", state)
		}
		return nil
	})
	alter(t, db, "synchronous_standby_names", "*")
	err := r.ended(t)
	require.ErrorIs(t, err, ErrSyncStandby)
	require.ErrorContains(t, err, "synchronous_standby_names = '*'")
	again := run(t, db, target, nil)
	require.ErrorIs(t, again.ended(t), ErrSyncStandby, "it is not even begun")
	alter(t, db, "synchronous_standby_names", "")
	require.NoError(t, run(t, db, target, nil).Barrier(t.Context(), walEnd(t, db)))
}

// TestStandby: a server in recovery is refused.
func TestStandby(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	target := provisioned(t, db, "t")
	// A server that recovers for ever is a standby of nobody.
	require.NoError(t, db.Server.Stop(t.Context()))
	signal, err := os.OpenFile(db.Server.Dir()+"/data/standby.signal", os.O_CREATE, 0o644)
	require.NoError(t, err)
	require.NoError(t, signal.Close())
	require.NoError(t, db.Server.Restart(t.Context()))
	target.Source = sourceOf(t, db.Server.URL(db.Name))
	r := run(t, db, target, nil)
	require.ErrorIs(t, r.ended(t), ErrInRecovery)
	findings, err := Preflight(t.Context(), target, nil)
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(findings), "standby, source.url")
	require.NoError(t, db.Server.Stop(t.Context())) // nothing is dropped on a standby
}

// TestObserver: what is counted.
func TestObserver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	seen := &recorder{changes: map[string]int{}}
	r := stream(t, db, func(o *Options) { o.Observer = seen }, "t")
	db.Exec(t, "INSERT INTO t SELECT generate_series(1, 5)")
	db.Exec(t, "DELETE FROM t WHERE id < 3")
	r.drain(t)
	require.NoError(t, r.stop())
	require.Equal(t, 2, seen.transactions)
	require.Equal(t, map[string]int{"insert t": 5, "delete t": 2}, seen.changes)
	require.Equal(t, 1, seen.barriers)
}

type recorder struct {
	transactions, barriers int
	changes                map[string]int
}

func (r *recorder) TransactionReceived(n int) { r.transactions += n }
func (r *recorder) Changes(table *ingest.Table, op ingest.Op, n int) {
	r.changes[op.String()+" "+table.Name] += n
}
func (r *recorder) BarrierPassed(time.Duration) { r.barriers++ }

// TestRestartedServer: the stream finds the server again after a crash.
func TestRestartedServer(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	r := stream(t, db, nil, "t")
	db.Exec(t, "INSERT INTO t VALUES (1)")
	require.Equal(t, []string{"insert t id=1"}, r.lines(t))
	require.NoError(t, db.Server.Kill())
	require.NoError(t, db.Server.Restart(t.Context()))
	pgtest.Eventually(t, patience, func() error {
		conn, err := pgx.Connect(t.Context(), db.URL)
		if err != nil {
			return err
		}
		return conn.Close(t.Context())
	})
	db.Pool.Reset()
	db.Exec(t, "INSERT INTO t VALUES (2)")
	require.Equal(t, []string{"insert t id=2"}, r.lines(t))
}

// TestRewind: what was received, taken or not, is received again from the confirmed position on, and nothing else is.
func TestRewind(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	r := stream(t, db, nil, "t")
	r.connected(t)
	r.Rewind() // of nothing
	for i := range 2 {
		db.Exec(t, "INSERT INTO t VALUES ("+strconv.Itoa(i)+")")
	}
	all := r.drain(t)
	require.Len(t, all, 2)
	r.Confirm(all[0].EndLSN)
	db.Exec(t, "INSERT INTO t VALUES (2)")
	require.NoError(t, r.Barrier(t.Context(), walEnd(t, db))) // received and not taken
	r.Rewind()
	require.Empty(t, r.Take())
	again := r.lines(t)
	require.Contains(t, again, "insert t id=1")
	// The server may not have heard of the confirmation before the connection ended.
	require.Equal(t, []string{"insert t id=1", "insert t id=2"}, again[len(again)-2:])
	require.LessOrEqual(t, len(again), 3)
	db.Exec(t, "INSERT INTO t VALUES (3)")
	require.Equal(t, []string{"insert t id=3"}, r.lines(t))
}
