package metrics

import (
	"maps"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// contract is the table of metrics that dashboards, alerts and users' tools
// rely on. Rows may be added here and never changed.
var contract = []described{
	{"mvsync_rounds_total", "counter", ""},
	{"mvsync_round_seconds", "histogram", ""},
	{"mvsync_round_retries_total", "counter", "reason"},
	{"mvsync_barrier_seconds", "histogram", ""},
	{"mvsync_transactions_total", "counter", ""},
	{"mvsync_changes_total", "counter", "op, table"},
	{"mvsync_maintenance_seconds", "histogram", "strategy, view"},
	{"mvsync_rows_written_total", "counter", "op, view"},
	{"mvsync_rows_suppressed_total", "counter", "view"},
	{"mvsync_residual_keys_total", "counter", "view"},
	{"mvsync_rebuilds_total", "counter", "reason, view"},
	{"mvsync_collisions_total", "counter", "view"},
	{"mvsync_view_state", "gauge", "state, view"},
	{"mvsync_view_age_seconds", "gauge", "view"},
	{"mvsync_lag_bytes", "gauge", ""},
	{"mvsync_lag_seconds", "gauge", ""},
	{"mvsync_slot_retained_bytes", "gauge", ""},
	{"mvsync_pending_bytes", "gauge", ""},
	{"mvsync_pending_transactions", "gauge", ""},
	{"mvsync_fill_rows_total", "counter", "view"},
	{"mvsync_fill_progress_ratio", "gauge", "view"},
	{"mvsync_verify_runs_total", "counter", "view"},
	{"mvsync_verify_differing_rows_total", "counter", "view"},
	{"mvsync_gaps_total", "counter", "reason"},
	{"mvsync_build_info", "gauge", "goversion, version"},
}

// described is a metric as its users see it; the labels are sorted.
type described struct{ Name, Type, Labels string }

const (
	orders   = "public.orders"
	byRegion = "public.by_region"
)

// populated returns collectors in which every metric has a series.
func populated() *Metrics {
	m := New("1.2.3")
	m.TableDeclared(orders)
	m.ViewDeclared(byRegion, "delta-aggregate")
	m.SetLive(func() Live { return Live{ViewAge: map[string]time.Duration{byRegion: 0}} })
	return m
}

// own gathers the metrics of mvsync, without those of the runtime.
func own(t require.TestingT, m *Metrics) map[string]*dto.MetricFamily {
	families, err := m.Registry().Gather()
	require.NoError(t, err)
	result := map[string]*dto.MetricFamily{}
	for _, family := range families {
		if strings.HasPrefix(family.GetName(), "mvsync_") {
			result[family.GetName()] = family
		}
	}
	return result
}

// labelsOf returns the labels of a series.
func labelsOf(metric *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, pair := range metric.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}

// describe returns a family as its users see it, once all its series agree on
// their labels.
func describe(t *testing.T, family *dto.MetricFamily) described {
	t.Helper()
	var names []string
	for i, metric := range family.GetMetric() {
		these := slices.Sorted(maps.Keys(labelsOf(metric)))
		if i > 0 {
			require.Equal(t, names, these, "labels of %s", family.GetName())
		}
		names = these
	}
	return described{family.GetName(), strings.ToLower(family.GetType().String()), strings.Join(names, ", ")}
}

// value returns the value of one series, and whether it exists.
func value(t require.TestingT, m *Metrics, name string, labels map[string]string) (float64, bool) {
	for _, metric := range own(t, m)[name].GetMetric() {
		if !maps.Equal(labelsOf(metric), labels) {
			continue
		}
		switch {
		case metric.Counter != nil:
			return metric.GetCounter().GetValue(), true
		case metric.Gauge != nil:
			return metric.GetGauge().GetValue(), true
		default:
			return float64(metric.GetHistogram().GetSampleCount()), true
		}
	}
	return 0, false
}

// requireValue asserts on one series, its labels given as name, value pairs.
func requireValue(t *testing.T, m *Metrics, want float64, name string, labels ...string) {
	t.Helper()
	pairs := map[string]string{}
	for i := 0; i < len(labels); i += 2 {
		pairs[labels[i]] = labels[i+1]
	}
	got, exists := value(t, m, name, pairs)
	require.True(t, exists, "no series %s%v", name, pairs)
	require.InDelta(t, want, got, 1e-9, "%s%v", name, pairs)
}

func TestMetricsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	var got []described
	for _, family := range own(t, populated()) {
		got = append(got, describe(t, family))
	}
	byName := func(a, b described) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(got, byName)
	require.Empty(t, cmp.Diff(slices.SortedFunc(slices.Values(contract), byName), got))
}

func TestMetricsPassTheLinter(t *testing.T) {
	t.Parallel()
	problems, err := testutil.GatherAndLint(populated().Registry())
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestHelpIsASentence(t *testing.T) {
	t.Parallel()
	sentence := regexp.MustCompile(`^[A-Z][^\n]{15,}[^.]\.$`)
	for name, family := range own(t, populated()) {
		require.Regexp(t, sentence, family.GetHelp(), name)
	}
}

func TestFixedLabelValuesStartAtZero(t *testing.T) {
	t.Parallel()
	m := populated()
	for _, tc := range []struct {
		metric, label string
		values        []string
		rest          []string
	}{
		{metric: "mvsync_round_retries_total", label: "reason", values: RetryReasons()},
		{metric: "mvsync_gaps_total", label: "reason", values: GapReasons()},
		{metric: "mvsync_rebuilds_total", label: "reason", values: RebuildReasons(), rest: []string{"view", byRegion}},
		{
			metric: "mvsync_rows_written_total", label: "op",
			values: []string{"insert", "update", "delete"}, rest: []string{"view", byRegion},
		},
		{
			metric: "mvsync_changes_total", label: "op",
			values: []string{"insert", "update", "delete", "truncate"}, rest: []string{"table", orders},
		},
		{metric: "mvsync_maintenance_seconds", label: "strategy", values: []string{"delta-aggregate"}, rest: []string{"view", byRegion}},
	} {
		require.Len(t, own(t, m)[tc.metric].GetMetric(), len(tc.values), tc.metric)
		for _, v := range tc.values {
			requireValue(t, m, 0, tc.metric, append([]string{tc.label, v}, tc.rest...)...)
		}
	}
	for _, name := range []string{"mvsync_rounds_total", "mvsync_transactions_total", "mvsync_round_seconds", "mvsync_barrier_seconds"} {
		requireValue(t, m, 0, name)
	}
	for _, name := range []string{
		"mvsync_rows_suppressed_total", "mvsync_residual_keys_total", "mvsync_collisions_total",
		"mvsync_fill_rows_total", "mvsync_verify_runs_total", "mvsync_verify_differing_rows_total",
	} {
		requireValue(t, m, 0, name, "view", byRegion)
	}
	requireValue(t, m, 1, "mvsync_build_info", "version", "1.2.3", "goversion", runtime.Version())
}

func TestRounds(t *testing.T) {
	t.Parallel()
	m := New("test")
	m.RoundCommitted(20 * time.Millisecond)
	m.RoundCommitted(3 * time.Second)
	m.BarrierPassed(time.Millisecond)
	m.RoundRetried("serialization")
	m.TransactionReceived(7)
	m.TransactionReceived(0)
	m.TransactionReceived(-3)

	requireValue(t, m, 2, "mvsync_rounds_total")
	requireValue(t, m, 2, "mvsync_round_seconds")
	requireValue(t, m, 1, "mvsync_barrier_seconds")
	requireValue(t, m, 1, "mvsync_round_retries_total", "reason", "serialization")
	requireValue(t, m, 7, "mvsync_transactions_total")
	sum := own(t, m)["mvsync_round_seconds"].GetMetric()[0].GetHistogram().GetSampleSum()
	require.InDelta(t, 3.02, sum, 1e-9, "histograms are in seconds")
}

func TestReasonsAreBounded(t *testing.T) {
	t.Parallel()
	m := populated()
	before := testutil.CollectAndCount(m.registry)
	for _, reason := range []string{"", "Serialization", `duplicate key value (id)=(4711)`} {
		m.RoundRetried(reason)
		m.Gap(reason)
		m.Rebuilt(byRegion, reason)
	}
	require.Equal(t, before, testutil.CollectAndCount(m.registry), "a reason outside its list made a series")
	requireValue(t, m, 3, "mvsync_round_retries_total", "reason", "other")
	requireValue(t, m, 3, "mvsync_gaps_total", "reason", "other")
	requireValue(t, m, 3, "mvsync_rebuilds_total", "view", byRegion, "reason", "other")
}

func TestReasonListsAreCopies(t *testing.T) {
	t.Parallel()
	for _, list := range []func() []string{RetryReasons, RebuildReasons, GapReasons} {
		require.True(t, slices.IsSorted(slices.DeleteFunc(list(), func(s string) bool { return s == other })))
		list()[0] = "spoilt"
		require.NotContains(t, list(), "spoilt")
		require.Contains(t, list(), other)
	}
}

func TestGaps(t *testing.T) {
	t.Parallel()
	m := New("test")
	m.Gap("timeline")
	requireValue(t, m, 1, "mvsync_gaps_total", "reason", "timeline")
	requireValue(t, m, 0, "mvsync_gaps_total", "reason", "lost")
}

func TestChanges(t *testing.T) {
	t.Parallel()
	m := New("test")
	m.Changes(orders, "insert", 5)
	m.Changes(orders, "insert", 2)
	m.Changes(orders, "truncate", 1)
	m.Changes(orders, "update", -1)
	m.Changes(orders, "merge", 1)

	requireValue(t, m, 7, "mvsync_changes_total", "table", orders, "op", "insert")
	requireValue(t, m, 0, "mvsync_changes_total", "table", orders, "op", "update")
	requireValue(t, m, 1, "mvsync_changes_total", "table", orders, "op", "truncate")
	require.Len(t, own(t, m)["mvsync_changes_total"].GetMetric(), len(changeOps))
	require.EqualValues(t, 8, m.StreamActivity().Changes)

	m.TableForgotten(orders)
	require.NotContains(t, own(t, m), "mvsync_changes_total")
	m.TableForgotten(orders) // once more does nothing
	m.TableDeclared(orders)
	requireValue(t, m, 0, "mvsync_changes_total", "table", orders, "op", "insert")
}

func TestEachInstanceHasItsOwnRegistry(t *testing.T) {
	t.Parallel()
	a, b := New("a"), New("b")
	a.RoundCommitted(time.Second)
	requireValue(t, b, 0, "mvsync_rounds_total")
	families, err := prometheus.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, family := range families {
		require.False(t, strings.HasPrefix(family.GetName(), "mvsync_"), family.GetName())
	}
}

func TestRuntimeMetricsAreServed(t *testing.T) {
	t.Parallel()
	count, err := testutil.GatherAndCount(New("test").Registry(), "go_goroutines", "process_start_time_seconds")
	require.NoError(t, err)
	want := 1
	if runtime.GOOS == "linux" || runtime.GOOS == "windows" {
		want = 2 // the process collector needs procfs
	}
	require.GreaterOrEqual(t, count, want)
}

func TestBucketsRise(t *testing.T) {
	t.Parallel()
	for _, buckets := range [][]float64{roundBuckets, barrierBuckets, maintenanceBuckets} {
		require.True(t, slices.IsSorted(buckets))
		require.False(t, slices.ContainsFunc(buckets, func(b float64) bool { return b <= 0 || math.IsInf(b, 0) }))
	}
}
