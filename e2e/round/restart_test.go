package round

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/plans"
)

// TestRestart: across restarts under writers each transaction takes effect once, with
// no view evaluated anew (INV-3).
func TestRestart(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	keep(t, db, filtered, grouped).Stop()
	w := write(t, db, "item", 5)
	for range 6 {
		d := keep(t, db, filtered, grouped)
		require.NoError(t, d.Reach(8, limit))
		require.Empty(t, d.Tally.Gaps())
		require.Empty(t, d.Tally.Reasons("public.grouped"))
		d.Stop()
	}
	w.stop(t)
	d := keep(t, db, filtered, grouped)
	d.Settle(db)
	require.Empty(t, d.Tally.Gaps())
}

// TestStreamDrops: the walsender is killed again and again under writers; what is sent
// twice counts once.
func TestStreamDrops(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	d := keepWith(t, db, daemon.Options{Views: []plans.Declaration{filtered, grouped, top}, Log: discard{}})
	w := write(t, db, "item", 6)
	for range 12 {
		require.NoError(t, d.Reach(d.Rounds()+6, limit))
		before := d.Stream.State().Reconnections
		db.Exec(t, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1", "s_"+db.Name)
		pgtest.Eventually(t, limit, func() error {
			if s := d.Stream.State(); s.Reconnections == before || !s.Connected {
				return fmt.Errorf("not connected again: %w", s.Err)
			}
			return nil
		})
	}
	w.stop(t)
	d.Settle(db)
	require.Empty(t, d.Tally.Gaps())
	require.Empty(t, d.Tally.Rebuilt("gap"))
}

// TestSessionsDrop: the sessions of the rounds are killed under writers; the batch is
// kept and a new round opened.
func TestSessionsDrop(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	d := keepWith(t, db, daemon.Options{Views: []plans.Declaration{filtered, grouped, top}, Log: discard{}})
	w := write(t, db, "item", 7)
	for range 8 {
		require.NoError(t, d.Reach(d.Rounds()+4, limit))
		db.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'mvsync%' AND backend_type = 'client backend'")
	}
	w.stop(t)
	d.Settle(db)
	require.Empty(t, d.Tally.Gaps())
}

// TestServerCrash: progress and rows are written asynchronously and go back together
// when the server crashes; the stream is replayed, nothing is counted twice, and the
// slot was not confirmed past what came back (INV-4).
func TestServerCrash(t *testing.T) {
	t.Parallel()
	db := own(t, map[string]string{"wal_writer_delay": "10s"})
	db.Exec(t, items)
	d := keepWith(t, db, daemon.Options{Views: []plans.Declaration{filtered, grouped}, Log: discard{}})
	w := write(t, db, "item", 8)
	for range 3 {
		require.NoError(t, d.Reach(d.Rounds()+10, limit))
		require.NoError(t, db.Server.Kill())
		require.NoError(t, db.Server.Restart(t.Context()))
		pgtest.Eventually(t, limit, func() error { return db.Pool.Ping(t.Context()) })
	}
	require.NoError(t, d.Reach(d.Rounds()+10, 2*limit))
	w.stop(t)
	d.Settle(db)
	require.Empty(t, d.Tally.Gaps())
	d.Stop()
	d = keep(t, db, filtered, grouped)
	d.Settle(db)
	require.Empty(t, d.Tally.Gaps())
}

// TestGap: a slot that somebody dropped, moved or made anew is a gap, after which every
// view is compared with its body and only rows that differ are written.
func TestGap(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, damage, gap string
	}{
		{"dropped", "SELECT pg_drop_replication_slot('%[1]s')", "lost"},
		{"advanced", "SELECT pg_replication_slot_advance('%[1]s', pg_current_wal_lsn())", "ahead"},
		{"other server", "UPDATE mvsync.progress SET system_identifier = '1'", "identity"},
		{"other timeline", "UPDATE mvsync.progress SET timeline = 77", "timeline"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, items)
			d := keep(t, db, filtered, grouped)
			d.Settle(db)
			d.Stop()
			db.Exec(t, "UPDATE item SET p = p + 1 WHERE pk = 2")
			pgtest.Eventually(t, limit, func() error {
				damage := tc.damage
				if tc.gap == "lost" || tc.gap == "ahead" {
					damage = fmt.Sprintf(damage, "s_"+db.Name)
				}
				_, err := db.Pool.Exec(t.Context(), damage)
				return err
			})
			d = keep(t, db, filtered, grouped)
			d.Settle(db)
			require.Equal(t, map[string]int{tc.gap: 1}, d.Tally.Gaps())
			require.LessOrEqual(t, d.Tally.Written(), int64(2), "rows that did not differ were written")
		})
	}
}

// TestSettingsOfTheRole: what ALTER ROLE and ALTER DATABASE set changes neither the
// text of images nor the life of our sessions.
func TestSettingsOfTheRole(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE v (id int PRIMARY KEY, f float8, d timestamptz, i interval, b bytea, m money, n numeric, x xml);
		ALTER TABLE v REPLICA IDENTITY FULL`)
	for _, set := range []string{
		"extra_float_digits = 0", "DateStyle = 'German'", "IntervalStyle = sql_standard", "bytea_output = escape", "TimeZone = 'Asia/Tokyo'",
		"default_transaction_isolation = serializable", "statement_timeout = '1ms'", "idle_in_transaction_session_timeout = '1ms'",
		"lock_timeout = '1ms'", "search_path = pg_catalog", "synchronous_commit = off", "default_transaction_read_only = on",
	} {
		db.Exec(t, fmt.Sprintf("DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET %s', current_database()); END $$", quoted(set)))
	}
	// The test's own pool connected before; the daemon's sessions see the settings.
	d := keepWith(t, db, daemon.Options{Views: []plans.Declaration{
		daemon.View("copied", "SELECT id, f, d, i, b, m, n, f::text AS ft, d::text AS dt, i::text AS it, b::text AS bt FROM public.v"),
		daemon.View("summed", "SELECT b, count(*) AS c, max(d) AS d, min(i) AS i, sum(m) AS m FROM public.v GROUP BY b"),
	}})
	db.Exec(t, `INSERT INTO v SELECT g, 0.1 * g + 0.2, '2024-03-31 01:30+00'::timestamptz + g * interval '1 hour', g * interval '1 mon 25:00', decode('00ff', 'hex'), g * 1.5::numeric::money, g / 7.0 FROM generate_series(1, 20) g`)
	d.Settle(db)
	for range 5 {
		db.Exec(t, "UPDATE v SET f = f * 3, d = d + interval '1 day', i = i * 1.5, b = b || '\\x01', m = m * 2, n = n / 3")
		d.Settle(db)
	}
	require.Positive(t, d.Tally.Arms("public.copied"))
}

// quoted doubles quotes for a string within a string.
func quoted(s string) string {
	out := ""
	for _, r := range s {
		if r == '\'' {
			out += "''"
			continue
		}
		out += string(r)
	}
	return out
}

// TestOnce: a daemon that is to run once brings every view to now and ends.
func TestOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	for i := range 3 {
		db.Exec(t, "UPDATE item SET p = p + 1")
		db.Exec(t, "INSERT INTO item VALUES ($1, 1, 1, 1)", 100+i)
		d, err := daemon.Launch(t, db, daemon.Options{Views: []plans.Declaration{filtered, grouped}, Once: true})
		require.NoError(t, err)
		d.Join()
		require.Equal(t, db.Value(t, "SELECT sum(p) FROM item"), db.Value(t, "SELECT sum(s) FROM grouped"))
	}
}

// TestOnceCatchesUp: a daemon that is to run once and is far behind holds no snapshot until the stream is near, either.
func TestOnceCatchesUp(t *testing.T) {
	t.Parallel()
	db := own(t, nil) // others' log would be read as well
	db.Exec(t, items)
	var log bytes.Buffer
	listed := daemon.View("listed", "SELECT bucket, string_agg(p::text, ',' ORDER BY pk) AS l FROM item WHERE pk < 100 GROUP BY bucket")
	once := func() {
		log.Reset()
		d, err := daemon.Launch(t, db, daemon.Options{Views: []plans.Declaration{listed}, Once: true, Log: &log})
		require.NoError(t, err)
		d.Join()
	}
	once()
	db.Exec(t, "INSERT INTO item SELECT 1000 + g, 1, 1, 1 FROM generate_series(1, 60000) g")
	db.Exec(t, "UPDATE item SET p = p + 1 WHERE pk < 100")
	once()
	require.Contains(t, log.String(), "catching up")
}

// TestStopsSoon: a daemon ends at once, also while nothing happens.
func TestStopsSoon(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	d := keep(t, db, filtered)
	began := time.Now()
	d.Stop()
	require.Less(t, time.Since(began), 15*time.Second)
}
