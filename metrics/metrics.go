package metrics

import (
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Buckets in seconds. Rounds and maintenance reach from a round over a handful
// of rows to the rebuild of a large view; the barrier is bounded and much
// shorter.
var (
	roundBuckets       = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	barrierBuckets     = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	maintenanceBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30, 300}
)

// Metrics holds every collector of the daemon in a registry of its own. Its
// methods are the observer sides of the interfaces that the other packages
// declare. Create it with [New].
type Metrics struct {
	registry *prometheus.Registry
	version  string

	rounds       *tally
	roundSeconds prometheus.Histogram
	retries      *prometheus.CounterVec
	barrier      prometheus.Histogram
	transactions *tally
	changes      *prometheus.CounterVec
	changesAll   *tally // all tables and ops together; for the pages alone
	gaps         *prometheus.CounterVec
	perView      viewCollectors

	mu     sync.RWMutex // guards the fields below
	views  map[string]*viewSeries
	tables map[string]*tableSeries
	live   func() Live
}

// New returns the collectors, registered together with those of the Go runtime
// and the process. The version goes into mvsync_build_info and the status page.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		version:  version,
		views:    map[string]*viewSeries{},
		tables:   map[string]*tableSeries{},
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		liveCollector{m},
	)
	b := builder{m.registry}
	b.gauge("mvsync_build_info", "A constant 1 that carries the version of mvsync and of the Go release that built it.",
		"version", "goversion").WithLabelValues(version, runtime.Version()).Set(1)
	m.registerRounds(b)
	m.perView = newViewCollectors(b)
	return m
}

// registerRounds creates the collectors that belong to no view, and starts
// those over a fixed list at 0.
func (m *Metrics) registerRounds(b builder) {
	m.rounds = newTally(b.counter("mvsync_rounds_total",
		"Rounds that committed.").WithLabelValues())
	m.roundSeconds = b.histogram("mvsync_round_seconds",
		"Time from opening a round to its commit, in seconds.", roundBuckets).WithLabelValues().(prometheus.Histogram)
	m.retries = b.counter("mvsync_round_retries_total",
		"Rounds that were rolled back and are tried again, by reason.", "reason")
	m.barrier = b.histogram("mvsync_barrier_seconds",
		"Time that a round waited for the stream to reach its snapshot, in seconds.",
		barrierBuckets).WithLabelValues().(prometheus.Histogram)
	m.transactions = newTally(b.counter("mvsync_transactions_total",
		"Upstream transactions received from the stream.").WithLabelValues())
	m.changes = b.counter("mvsync_changes_total",
		"Row changes and truncations received from the stream, by source table and operation.", "table", "op")
	m.gaps = b.counter("mvsync_gaps_total",
		"Gaps in the stream after which every view has to be reconciled, by reason.", "reason")
	m.changesAll = newTally(prometheus.NewCounter(prometheus.CounterOpts{Name: "unregistered"}))

	for _, reason := range retryReasons {
		m.retries.WithLabelValues(reason)
	}
	for _, reason := range gapReasons {
		m.gaps.WithLabelValues(reason)
	}
}

// Registry returns the registry that /metrics serves, so that the daemon can
// add collectors of its own and tests can gather.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// RoundCommitted counts a round that committed, and the time since it was
// opened.
func (m *Metrics) RoundCommitted(took time.Duration) {
	m.rounds.add(1)
	m.roundSeconds.Observe(took.Seconds())
}

// RoundRetried counts a round that was rolled back to be tried again. The
// reason is one of [RetryReasons].
func (m *Metrics) RoundRetried(reason string) {
	m.retries.WithLabelValues(bounded(retryReasons, reason)).Inc()
}

// BarrierPassed records how long a round waited for the stream to reach its
// snapshot.
func (m *Metrics) BarrierPassed(took time.Duration) { m.barrier.Observe(took.Seconds()) }

// TransactionReceived counts n complete upstream transactions.
func (m *Metrics) TransactionReceived(n int) { m.transactions.add(n) }

// Gap counts a gap in the stream. The reason is one of [GapReasons].
func (m *Metrics) Gap(reason string) {
	m.gaps.WithLabelValues(bounded(gapReasons, reason)).Inc()
}

// tableSeries are the counters of one source table, by operation.
type tableSeries struct {
	changes map[string]prometheus.Counter
}

// TableDeclared starts the counters of a source table at 0. The table is named
// as everywhere on the pages: quote_ident(schema).quote_ident(name).
func (m *Metrics) TableDeclared(table string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.declareTable(table)
}

// TableForgotten removes the series of a table that is no longer a source.
func (m *Metrics) TableForgotten(table string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tables, table)
	m.changes.DeletePartialMatch(prometheus.Labels{"table": table})
}

// Changes counts n changes of a source table; op is insert, update, delete or
// truncate, anything else is not counted. A table not declared before is
// declared by its first change: the publication bounds what can come.
func (m *Metrics) Changes(table, op string, n int) {
	counter, known := m.table(table).changes[op]
	if !known || n <= 0 {
		return
	}
	counter.Add(float64(n))
	m.changesAll.add(n)
}

// table returns the series of a table, and declares it if need be. Looking
// first under the shared lock keeps the hot path free of contention.
func (m *Metrics) table(name string) *tableSeries {
	m.mu.RLock()
	series, known := m.tables[name]
	m.mu.RUnlock()
	if known {
		return series
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.declareTable(name)
}

// declareTable requires the exclusive lock.
func (m *Metrics) declareTable(name string) *tableSeries {
	if series, known := m.tables[name]; known {
		return series
	}
	series := &tableSeries{changes: make(map[string]prometheus.Counter, len(changeOps))}
	for _, op := range changeOps {
		series.changes[op] = m.changes.WithLabelValues(name, op)
	}
	m.tables[name] = series
	return series
}

// builder registers collectors as it creates them, so that none can be created
// and then not served.
type builder struct{ registry *prometheus.Registry }

func (b builder) counter(name, help string, labels ...string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	b.registry.MustRegister(vec)
	return vec
}

func (b builder) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	b.registry.MustRegister(vec)
	return vec
}

func (b builder) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	b.registry.MustRegister(vec)
	return vec
}
