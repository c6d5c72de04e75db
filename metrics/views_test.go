package metrics

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestViewCounters(t *testing.T) {
	t.Parallel()
	m := populated()
	m.Maintained(byRegion, "delta-aggregate", 30*time.Millisecond)
	m.Maintained(byRegion, "full-rebuild", time.Second) // a degrade
	m.RowsWritten(byRegion, "insert", 3)
	m.RowsWritten(byRegion, "delete", 1)
	m.RowsWritten(byRegion, "truncate", 9) // no such write
	m.RowsWritten(byRegion, "update", -1)
	m.RowsSuppressed(byRegion, 11)
	m.ResidualKeys(byRegion, 4)
	m.Rebuilt(byRegion, "memory")
	m.Collisions(byRegion, 2)
	m.Verified(byRegion, 0)
	m.Verified(byRegion, 6)

	requireValue(t, m, 1, "mvsync_maintenance_seconds", "view", byRegion, "strategy", "delta-aggregate")
	requireValue(t, m, 1, "mvsync_maintenance_seconds", "view", byRegion, "strategy", "full-rebuild")
	requireValue(t, m, 3, "mvsync_rows_written_total", "view", byRegion, "op", "insert")
	requireValue(t, m, 0, "mvsync_rows_written_total", "view", byRegion, "op", "update")
	requireValue(t, m, 1, "mvsync_rows_written_total", "view", byRegion, "op", "delete")
	requireValue(t, m, 11, "mvsync_rows_suppressed_total", "view", byRegion)
	requireValue(t, m, 4, "mvsync_residual_keys_total", "view", byRegion)
	requireValue(t, m, 1, "mvsync_rebuilds_total", "view", byRegion, "reason", "memory")
	requireValue(t, m, 2, "mvsync_collisions_total", "view", byRegion)
	requireValue(t, m, 2, "mvsync_verify_runs_total", "view", byRegion)
	requireValue(t, m, 6, "mvsync_verify_differing_rows_total", "view", byRegion)

	got := m.ViewActivity(byRegion)
	require.Positive(t, got.RowsPerSecond)
	got.RowsPerSecond = 0
	require.Equal(t, ViewActivity{
		RowsWritten: 4, RowsSuppressed: 11, ResidualKeys: 4, Rebuilds: 1, Collisions: 2, VerifyRuns: 2, VerifyDifferingRows: 6,
	}, got)
}

func TestFillProgress(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		ratio float64
		want  float64
	}{
		{name: "some", ratio: 0.25, want: 0.25},
		{name: "an estimate that was too low", ratio: 1.3, want: 1},
		{name: "negative", ratio: -1, want: 0},
		{name: "of nothing", ratio: math.NaN(), want: 0},
		{name: "infinite", ratio: math.Inf(1), want: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := populated()
			m.FillProgress(byRegion, 1000, tc.ratio)
			m.FillProgress(byRegion, 500, tc.ratio)
			m.FillProgress(byRegion, -1, tc.ratio)
			requireValue(t, m, tc.want, "mvsync_fill_progress_ratio", "view", byRegion)
			requireValue(t, m, 1500, "mvsync_fill_rows_total", "view", byRegion)

			m.ViewState(byRegion, "live")
			requireValue(t, m, 1, "mvsync_fill_progress_ratio", "view", byRegion)
		})
	}
}

func TestViewStates(t *testing.T) {
	t.Parallel()
	m := populated()
	requireState := func(want string) {
		t.Helper()
		require.Equal(t, want, stateOf(t, m, byRegion))
	}
	requireState("filling")
	for _, state := range []string{"live", "paused", "stale", "failed", "filling", "live"} {
		m.ViewState(byRegion, state)
		requireState(state)
	}
	m.ViewState(byRegion, "refused") // not a state
	requireState("live")
	m.ViewState("public.unknown", "failed")
	require.Len(t, own(t, m)["mvsync_view_state"].GetMetric(), 5)
}

func TestDeclaringAgainKeepsWhatWasCounted(t *testing.T) {
	t.Parallel()
	m := populated()
	m.ViewState(byRegion, "live")
	m.RowsWritten(byRegion, "insert", 3)
	m.ViewDeclared(byRegion, "residual-recompute")

	requireValue(t, m, 3, "mvsync_rows_written_total", "view", byRegion, "op", "insert")
	requireValue(t, m, 0, "mvsync_maintenance_seconds", "view", byRegion, "strategy", "residual-recompute")
	require.Equal(t, "live", stateOf(t, m, byRegion))
}

func TestForgettingRemovesEverySeries(t *testing.T) {
	t.Parallel()
	m := populated()
	const kept = `public."Kept"`
	m.ViewDeclared(kept, "full-rebuild")
	m.Maintained(byRegion, "full-rebuild", time.Second)
	m.ViewForgotten(byRegion)
	observeAll(m, byRegion) // comes too late
	m.ViewForgotten(byRegion)

	series := seriesOf(t, m)
	require.Zero(t, series[byRegion])
	require.Positive(t, series[kept])
	require.Equal(t, ViewActivity{}, m.ViewActivity(byRegion))

	m.ViewDeclared(byRegion, "delta-aggregate")
	requireValue(t, m, 0, "mvsync_rows_written_total", "view", byRegion, "op", "insert")
}

func TestUndeclaredViewsMakeNoSeries(t *testing.T) {
	t.Parallel()
	m := New("test")
	observeAll(m, byRegion)
	require.Empty(t, seriesOf(t, m))
}

// TestViewSeriesFollowTheDeclarations lets any sequence of calls happen and
// compares with a model: a declared view has exactly one state, a forgotten one
// nothing, and the number of series depends on the declarations alone.
func TestViewSeriesFollowTheDeclarations(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := New("test")
		want := map[string]string{} // declared view to state
		view := rapid.SampledFrom([]string{"public.a", "public.b", `public."C"`})
		t.Repeat(map[string]func(*rapid.T){
			"declare": func(t *rapid.T) {
				v := view.Draw(t, "view")
				m.ViewDeclared(v, "full-rebuild")
				if _, known := want[v]; !known {
					want[v] = "filling"
				}
			},
			"forget": func(t *rapid.T) {
				v := view.Draw(t, "view")
				m.ViewForgotten(v)
				delete(want, v)
			},
			"state": func(t *rapid.T) {
				v := view.Draw(t, "view")
				state := rapid.SampledFrom(append([]string{"", "refused"}, states...)).Draw(t, "state")
				m.ViewState(v, state)
				if _, known := want[v]; known && slices.Contains(states, state) {
					want[v] = state
				}
			},
			"observe": func(t *rapid.T) { observeAll(m, view.Draw(t, "view")) },
			"": func(t *rapid.T) {
				series := seriesOf(t, m)
				require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(series)))
				for v, state := range want {
					require.Equal(t, state, stateOf(t, m, v))
					require.Equal(t, perView, series[v])
				}
			},
		})
	})
}

// perView is the number of series of a view that was maintained by one strategy:
// six counters without another label, the ratio of the fill, the histogram.
var perView = len(writeOps) + len(rebuildReasons) + len(states) + 6 + 1 + 1

func TestObservingWhileForgetting(t *testing.T) {
	t.Parallel()
	m := populated()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			v := fmt.Sprintf("public.v%d", i%2)
			for range 50 {
				m.ViewDeclared(v, "full-rebuild")
				observeAll(m, v)
				m.Changes(v, "insert", 1)
				m.TableForgotten(v)
				m.ViewForgotten(v)
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			own(t, m)
			m.ViewActivity("public.v0")
		}
	})
	wg.Wait()
	series := seriesOf(t, m)
	require.NotContains(t, series, "public.v0")
	require.NotContains(t, series, "public.v1")
}

// observeAll calls every observer of a view.
func observeAll(m *Metrics, view string) {
	m.Maintained(view, "full-rebuild", time.Second)
	m.RowsWritten(view, "insert", 1)
	m.RowsSuppressed(view, 1)
	m.ResidualKeys(view, 1)
	m.Rebuilt(view, "strategy")
	m.Collisions(view, 1)
	m.Verified(view, 1)
	m.FillProgress(view, 1, 0.5)
}

// seriesOf counts the series of each view.
func seriesOf(t require.TestingT, m *Metrics) map[string]int {
	count := map[string]int{}
	for _, family := range own(t, m) {
		for _, metric := range family.GetMetric() {
			if view, has := labelsOf(metric)["view"]; has {
				count[view]++
			}
		}
	}
	return count
}

// stateOf returns the state of a view, having checked that it has just one.
func stateOf(t require.TestingT, m *Metrics, view string) string {
	var present []string
	for _, metric := range own(t, m)["mvsync_view_state"].GetMetric() {
		labels := labelsOf(metric)
		if labels["view"] == view && metric.GetGauge().GetValue() == 1 {
			present = append(present, labels["state"])
		}
	}
	require.Len(t, present, 1, "states of %s", view)
	return present[0]
}
