package replication

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
)

func TestRoundDown(t *testing.T) {
	t.Parallel()
	layout := walLayout{block: 8192, segment: 16 << 20}
	for _, tc := range []struct {
		name     string
		in, want ingest.LSN
	}{
		{"behind a page header", 0x2002018, 0x2002000},
		{"behind the header of a segment", 0x2000028, 0x2000000},
		{"within a segment's first header is no position", 0x2000018, 0x2000018},
		{"40 bytes into another page", 0x2002028, 0x2002028},
		{"a page's beginning", 0x2002000, 0x2002000},
		{"elsewhere", 0x2002020, 0x2002020},
		{"zero", 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, layout.roundDown(tc.in))
			require.Equal(t, tc.in, walLayout{}.roundDown(tc.in), "nothing is known of the layout")
		})
	}
}

// TestBarrierAfterSegmentSwitch: the insert position of an idle server counts a page header that is not written yet.
func TestBarrierAfterSegmentSwitch(t *testing.T) {
	t.Parallel()
	db := own(t, map[string]string{"autovacuum": "off", "wal_writer_delay": "10s", "bgwriter_delay": "10s"})
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	r := stream(t, db, func(o *Options) { o.NudgeAfter = time.Hour }, "t")
	r.connected(t)
	db.Exec(t, "SELECT pg_switch_wal()")
	lsn := walEnd(t, db)
	require.EqualValues(t, segmentHeader, lsn%(16<<20))
	require.NoError(t, r.Barrier(t.Context(), lsn), "no nudge is needed")
}

// TestBarrierNudges: commits that nobody flushes are received all the same, whatever the role's or the server's settings.
func TestBarrierNudges(t *testing.T) {
	t.Parallel()
	db := own(t, map[string]string{"wal_writer_delay": "10s", "synchronous_commit": "off"})
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY); ALTER ROLE postgres SET synchronous_commit = off")
	r := stream(t, db, func(o *Options) { o.BarrierTimeout = 4 * time.Second }, "t")
	r.connected(t)
	for i := range 5 {
		db.Exec(t, "INSERT INTO t VALUES ("+strconv.Itoa(i)+")")
		require.Equal(t, []string{"insert t id=" + strconv.Itoa(i)}, r.lines(t))
	}
	// With a synchronous standby that is away commits hang, but a nudge must not.
	alter(t, db, "synchronous_standby_names", "away")
	db.Exec(t, "SET synchronous_commit = off; INSERT INTO t VALUES (5)")
	require.Equal(t, []string{"insert t id=5"}, r.lines(t))
	alter(t, db, "synchronous_standby_names", "")
}

func TestBarrierIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	r := stream(t, db, func(o *Options) { o.BarrierTimeout = 50 * time.Millisecond }, "t")
	r.connected(t)
	require.ErrorIs(t, r.Barrier(t.Context(), r.Position()+1<<40), ErrBarrierTimeout)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.Barrier(ctx, r.Position()+1<<40), context.Canceled)
	require.NoError(t, r.Barrier(ctx, r.Position()), "what is reached needs no wait")
	require.NoError(t, r.stop())
	require.ErrorIs(t, r.Barrier(t.Context(), r.Position()+1<<40), errEnded)
}

// BenchmarkBarrier is the latency of a barrier at the present insert position, with and without writers.
func BenchmarkBarrier(b *testing.B) {
	for _, writers := range []int{0, 1, 4} {
		b.Run(strconv.Itoa(writers)+" writers", func(b *testing.B) {
			db := pgtest.New(b)
			db.Exec(b, "CREATE TABLE t(id bigserial PRIMARY KEY)")
			r := stream(b, db, nil, "t")
			r.connected(b)
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan struct{})
			for range writers {
				conn := db.Conn(b)
				go func() {
					defer func() { done <- struct{}{} }()
					for ctx.Err() == nil {
						_, _ = conn.Exec(ctx, "INSERT INTO t DEFAULT VALUES") // ends with ctx
					}
				}()
			}
			var worst, sum time.Duration
			for b.Loop() {
				lsn := walEnd(b, db)
				began := time.Now()
				require.NoError(b, r.Barrier(b.Context(), lsn))
				took := time.Since(began)
				worst, sum = max(worst, took), sum+took
				r.Take()
			}
			b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
			b.ReportMetric(float64(sum.Microseconds())/float64(b.N), "barrier-µs")
			cancel()
			for range writers {
				<-done
			}
		})
	}
}
