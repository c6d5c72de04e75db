package metrics

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLive(t *testing.T) {
	t.Parallel()
	m := New("test")
	m.ViewDeclared(byRegion, "delta-aggregate")
	for _, name := range []string{"mvsync_lag_seconds", "mvsync_pending_bytes", "mvsync_slot_retained_bytes"} {
		require.NotContains(t, own(t, m), name, "exported before it is known")
	}

	live := Live{
		Lag:                 1500 * time.Millisecond,
		LagBytes:            4096,
		SlotRetainedBytes:   16 << 20,
		PendingBytes:        1234,
		PendingTransactions: 7,
		ViewAge:             map[string]time.Duration{byRegion: 2 * time.Second, "public.forgotten": time.Hour},
	}
	m.SetLive(func() Live { return live })
	requireValue(t, m, 1.5, "mvsync_lag_seconds")
	requireValue(t, m, 4096, "mvsync_lag_bytes")
	requireValue(t, m, 16<<20, "mvsync_slot_retained_bytes")
	requireValue(t, m, 1234, "mvsync_pending_bytes")
	requireValue(t, m, 7, "mvsync_pending_transactions")
	requireValue(t, m, 2, "mvsync_view_age_seconds", "view", byRegion)
	require.Len(t, own(t, m)["mvsync_view_age_seconds"].GetMetric(), 1)

	// Asked at each scrape, not remembered.
	live = Live{LagBytes: -1, SlotRetainedBytes: -1, Lag: -time.Second, ViewAge: map[string]time.Duration{byRegion: -1}}
	requireValue(t, m, 0, "mvsync_lag_seconds")
	requireValue(t, m, 0, "mvsync_view_age_seconds", "view", byRegion)
	require.NotContains(t, own(t, m), "mvsync_lag_bytes", "not known is not 0")
	require.NotContains(t, own(t, m), "mvsync_slot_retained_bytes", "not known is not 0")
}

func TestLiveMayObserve(t *testing.T) {
	t.Parallel()
	m := New("test")
	m.SetLive(func() Live {
		m.ViewDeclared(byRegion, "full-rebuild") // would hang if a lock were held
		return Live{ViewAge: map[string]time.Duration{byRegion: 0}}
	})
	requireValue(t, m, 0, "mvsync_view_age_seconds", "view", byRegion)
}
