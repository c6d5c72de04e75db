package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Live is what can only be said at the moment somebody asks: ages and backlogs.
type Live struct {
	// Lag is the age of the oldest pending commit, 0 while nothing is pending.
	Lag time.Duration
	// LagBytes is how far what is applied is behind the server's WAL, in bytes;
	// negative if that is not known, and then not exported.
	LagBytes int64
	// SlotRetainedBytes is the WAL that the slot keeps on the server's disk;
	// negative if that is not known, and then not exported.
	SlotRetainedBytes int64
	// PendingBytes is the memory that received and not yet applied changes take.
	PendingBytes int64
	// PendingTransactions is how many transactions were received and not applied.
	PendingTransactions int64
	// ViewAge is how far each view is behind now, 0 while nothing is pending.
	// Views without an as-of are left out.
	ViewAge map[string]time.Duration
}

// SetLive sets the function that is asked at each scrape. It must be safe for
// concurrent use and answer from memory: a scrape must not wait for a database.
// Until it is set, the series of [Live] are not exported, since 0 would be a lie.
func (m *Metrics) SetLive(live func() Live) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live = live
}

var (
	lagBytesDesc = prometheus.NewDesc("mvsync_lag_bytes",
		"Distance in the WAL from the last applied position to the server's present one, in bytes.", nil, nil)
	lagSecondsDesc = prometheus.NewDesc("mvsync_lag_seconds",
		"Age of the oldest pending commit in seconds, which is 0 while nothing is pending.", nil, nil)
	slotRetainedDesc = prometheus.NewDesc("mvsync_slot_retained_bytes",
		"WAL that the replication slot keeps on the server's disk, in bytes.", nil, nil)
	pendingBytesDesc = prometheus.NewDesc("mvsync_pending_bytes",
		"Size of the changes that were received and not yet applied, in bytes.", nil, nil)
	pendingTransactionsDesc = prometheus.NewDesc("mvsync_pending_transactions",
		"Transactions that were received and not yet applied.", nil, nil)
	viewAgeDesc = prometheus.NewDesc("mvsync_view_age_seconds",
		"How far a view is behind now in seconds, which is 0 while nothing is pending.", []string{"view"}, nil)
)

// liveCollector asks for a [Live] at each scrape.
type liveCollector struct{ metrics *Metrics }

// Describe implements [prometheus.Collector].
func (c liveCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		lagBytesDesc, lagSecondsDesc, slotRetainedDesc, pendingBytesDesc, pendingTransactionsDesc, viewAgeDesc,
	} {
		descs <- desc
	}
}

// Collect implements [prometheus.Collector].
func (c liveCollector) Collect(out chan<- prometheus.Metric) {
	c.metrics.mu.RLock()
	source := c.metrics.live
	c.metrics.mu.RUnlock()
	if source == nil {
		return
	}
	live := source() // without the lock: it may observe something itself

	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge(lagSecondsDesc, seconds(live.Lag))
	gauge(pendingBytesDesc, float64(live.PendingBytes))
	gauge(pendingTransactionsDesc, float64(live.PendingTransactions))
	if live.LagBytes >= 0 {
		gauge(lagBytesDesc, float64(live.LagBytes))
	}
	if live.SlotRetainedBytes >= 0 {
		gauge(slotRetainedDesc, float64(live.SlotRetainedBytes))
	}
	for view, age := range c.metrics.declaredOnly(live.ViewAge) {
		gauge(viewAgeDesc, seconds(age), view)
	}
}

// declaredOnly drops what belongs to views that were forgotten after the
// snapshot was taken.
func (m *Metrics) declaredOnly(ages map[string]time.Duration) map[string]time.Duration {
	m.mu.RLock()
	defer m.mu.RUnlock()
	declared := make(map[string]time.Duration, len(ages))
	for view, age := range ages {
		if _, known := m.views[view]; known {
			declared[view] = age
		}
	}
	return declared
}

// seconds converts an age; a negative one comes from clocks that disagree and
// means 0.
func seconds(d time.Duration) float64 { return max(d, 0).Seconds() }
