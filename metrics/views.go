package metrics

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// viewCollectors are the collectors with a label view.
type viewCollectors struct {
	maintenance *prometheus.HistogramVec
	written     *prometheus.CounterVec
	suppressed  *prometheus.CounterVec
	residual    *prometheus.CounterVec
	rebuilds    *prometheus.CounterVec
	collisions  *prometheus.CounterVec
	state       *prometheus.GaugeVec
	fillRows    *prometheus.CounterVec
	fillRatio   *prometheus.GaugeVec
	verifyRuns  *prometheus.CounterVec
	verifyRows  *prometheus.CounterVec
}

func newViewCollectors(b builder) viewCollectors {
	return viewCollectors{
		maintenance: b.histogram("mvsync_maintenance_seconds",
			"Time that maintaining a view took within one round, in seconds, by the strategy that was used.",
			maintenanceBuckets, "view", "strategy"),
		written: b.counter("mvsync_rows_written_total",
			"Rows that maintenance inserted, updated or deleted in a view's backing table.", "view", "op"),
		suppressed: b.counter("mvsync_rows_suppressed_total",
			"Derived rows that were not written because the backing table holds the same bytes already.", "view"),
		residual: b.counter("mvsync_residual_keys_total",
			"Slice keys for which the view's body was evaluated again.", "view"),
		rebuilds: b.counter("mvsync_rebuilds_total",
			"Evaluations of a view's whole body, by reason.", "view", "reason"),
		collisions: b.counter("mvsync_collisions_total",
			"Source row changes that replaced another source row's image under a coarsened key.", "view"),
		state: b.gauge("mvsync_view_state",
			"The state of a view, which is 1 for the present state and 0 for the others.", "view", "state"),
		fillRows: b.counter("mvsync_fill_rows_total",
			"Rows written by fills of a view.", "view"),
		fillRatio: b.gauge("mvsync_fill_progress_ratio",
			"The estimated part of a view's fill that is done, from 0 to 1.", "view"),
		verifyRuns: b.counter("mvsync_verify_runs_total",
			"Comparisons of a view with its body that were completed.", "view"),
		verifyRows: b.counter("mvsync_verify_differing_rows_total",
			"Rows in which a comparison found a view to differ from its body, which must stay 0.", "view"),
	}
}

// forget removes every series of a view.
func (c viewCollectors) forget(view string) {
	labels := prometheus.Labels{"view": view}
	c.maintenance.DeletePartialMatch(labels)
	c.state.DeletePartialMatch(labels)
	c.fillRatio.DeletePartialMatch(labels)
	for _, vec := range []*prometheus.CounterVec{
		c.written, c.suppressed, c.residual, c.rebuilds, c.collisions, c.fillRows, c.verifyRuns, c.verifyRows,
	} {
		vec.DeletePartialMatch(labels)
	}
}

// viewSeries are the series of one view, looked up once. Totals that the pages
// show as well are tallies.
type viewSeries struct {
	written    map[string]prometheus.Counter
	writtenAll *tally // all ops together; for the pages alone
	suppressed *tally
	residual   *tally
	rebuilds   map[string]prometheus.Counter
	rebuilt    *tally // all reasons together; for the pages alone
	collisions *tally
	state      map[string]prometheus.Gauge
	fillRows   prometheus.Counter
	fillRatio  prometheus.Gauge
	verifyRuns *tally
	verifyRows *tally
}

// series creates the series of a view, so that all of them are there with 0.
func (c viewCollectors) series(view string) *viewSeries {
	v := &viewSeries{
		written:    map[string]prometheus.Counter{},
		writtenAll: newTally(prometheus.NewCounter(prometheus.CounterOpts{Name: "unregistered"})),
		suppressed: newTally(c.suppressed.WithLabelValues(view)),
		residual:   newTally(c.residual.WithLabelValues(view)),
		rebuilds:   map[string]prometheus.Counter{},
		rebuilt:    newTally(prometheus.NewCounter(prometheus.CounterOpts{Name: "unregistered"})),
		collisions: newTally(c.collisions.WithLabelValues(view)),
		state:      map[string]prometheus.Gauge{},
		fillRows:   c.fillRows.WithLabelValues(view),
		fillRatio:  c.fillRatio.WithLabelValues(view),
		verifyRuns: newTally(c.verifyRuns.WithLabelValues(view)),
		verifyRows: newTally(c.verifyRows.WithLabelValues(view)),
	}
	for _, op := range writeOps {
		v.written[op] = c.written.WithLabelValues(view, op)
	}
	for _, reason := range rebuildReasons {
		v.rebuilds[reason] = c.rebuilds.WithLabelValues(view, reason)
	}
	for _, state := range states {
		v.state[state] = c.state.WithLabelValues(view, state)
	}
	v.enter(states[0])
	return v
}

// enter makes state the one that is 1.
func (v *viewSeries) enter(state string) {
	for name, gauge := range v.state {
		if name == state {
			gauge.Set(1)
		} else {
			gauge.Set(0)
		}
	}
}

// ViewDeclared starts the series of a view at 0, in state filling. Declaring it
// again, say with another strategy, keeps what was counted. The view is named
// quote_ident(schema).quote_ident(name).
func (m *Metrics) ViewDeclared(view, strategy string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.views[view]; !known {
		m.views[view] = m.perView.series(view)
	}
	m.perView.maintenance.WithLabelValues(view, strategy)
}

// ViewForgotten removes the series of a view that is no longer maintained. What
// is observed of it later is dropped.
func (m *Metrics) ViewForgotten(view string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.views, view)
	m.perView.forget(view)
}

// ViewState records that a view entered a state: filling, live, paused, stale
// or failed. Any other word is ignored, so that always exactly one state is 1.
// A live view counts as filled.
func (m *Metrics) ViewState(view, state string) {
	if !slices.Contains(states, state) {
		return
	}
	// The exclusive lock keeps two changes of state from interleaving.
	m.mu.Lock()
	defer m.mu.Unlock()
	series, known := m.views[view]
	if !known {
		return
	}
	series.enter(state)
	if state == "live" {
		series.fillRatio.Set(1)
	}
}

// Maintained records the time that maintaining a view took within one round,
// and the strategy that was used, which a degrade may have changed.
func (m *Metrics) Maintained(view, strategy string, took time.Duration) {
	m.observe(view, func(*viewSeries) {
		m.perView.maintenance.WithLabelValues(view, strategy).Observe(took.Seconds())
	})
}

// RowsWritten counts n rows that maintenance wrote to a backing table; op is
// insert, update or delete, anything else is not counted.
func (m *Metrics) RowsWritten(view, op string, n int) {
	m.observe(view, func(v *viewSeries) {
		counter, known := v.written[op]
		if !known || n <= 0 {
			return
		}
		counter.Add(float64(n))
		v.writtenAll.add(n)
	})
}

// RowsSuppressed counts n derived rows that were not written because the
// backing table held the same bytes.
func (m *Metrics) RowsSuppressed(view string, n int) {
	m.observe(view, func(v *viewSeries) { v.suppressed.add(n) })
}

// ResidualKeys counts n slice keys for which the body was evaluated again.
func (m *Metrics) ResidualKeys(view string, n int) {
	m.observe(view, func(v *viewSeries) { v.residual.add(n) })
}

// Rebuilt counts an evaluation of a view's whole body. The reason is one of
// [RebuildReasons].
func (m *Metrics) Rebuilt(view, reason string) {
	m.observe(view, func(v *viewSeries) {
		v.rebuilds[bounded(rebuildReasons, reason)].Inc()
		v.rebuilt.add(1)
	})
}

// Collisions counts n merges under a coarsened key, once their round has
// committed.
func (m *Metrics) Collisions(view string, n int) {
	m.observe(view, func(v *viewSeries) { v.collisions.add(n) })
}

// Verified counts a completed comparison of a view with its body, and the rows
// that differed.
func (m *Metrics) Verified(view string, differingRows int) {
	m.observe(view, func(v *viewSeries) {
		v.verifyRuns.add(1)
		v.verifyRows.add(differingRows)
	})
}

// FillProgress counts rows that a fill wrote since it last reported, and
// records the estimated part that is done, from 0 to 1. A ratio that is not a
// number, as of an empty table, counts as 0.
func (m *Metrics) FillProgress(view string, rows int64, ratio float64) {
	if math.IsNaN(ratio) {
		ratio = 0
	}
	m.observe(view, func(v *viewSeries) {
		v.fillRows.Add(float64(max(rows, 0)))
		v.fillRatio.Set(min(max(ratio, 0), 1))
	})
}

// observe calls f with the series of a declared view, and does nothing for any
// other. Holding the lock meanwhile keeps ViewForgotten from running in between,
// after which f would bring a series back.
func (m *Metrics) observe(view string, f func(*viewSeries)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if series, known := m.views[view]; known {
		f(series)
	}
}
