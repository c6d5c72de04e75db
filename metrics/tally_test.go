package metrics

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

func TestTally(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "c"})
		tally := newTally(counter)
		requireRate := func(want, within float64) {
			t.Helper()
			_, rate := tally.read()
			require.InDelta(t, want, rate, within)
		}
		requireRate(0, 0)

		// 60 a second, for as long as a rate takes to settle.
		for range 20 * 60 {
			pass(50 * time.Millisecond)
			tally.add(2)
			tally.add(1)
			tally.add(-4)
		}
		total, _ := tally.read()
		require.EqualValues(t, 3600, total)
		require.InDelta(t, 3600, testutil.ToFloat64(counter), 0)
		requireRate(60, 0.5)

		// Nothing more happens: the rate fades, whether anybody looks or not.
		pass(rateWindow)
		requireRate(22, 0.5)
		pass(rateWindow)
		requireRate(8, 0.5)
		pass(time.Hour)
		requireRate(0, 1e-9)
		total, _ = tally.read()
		require.EqualValues(t, 3600, total)
	})
}

// pass lets virtual time pass, inside a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }
