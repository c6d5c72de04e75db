package metrics

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// rateWindow is the time constant of the rates on the pages: long enough for a
// steady figure, short enough to follow a change while somebody looks.
const rateWindow = 10 * time.Second

// tally is a Prometheus counter whose total and present rate can be read back,
// for the pages.
type tally struct {
	counter prometheus.Counter

	mu    sync.Mutex // guards the fields below
	total int64
	rate  float64   // per second, as of at
	at    time.Time // when rate was last brought up to date
}

func newTally(counter prometheus.Counter) *tally {
	return &tally{counter: counter}
}

// add counts n more events; a negative n counts as none, since a counter never
// falls.
func (t *tally) add(n int) {
	if n <= 0 {
		return
	}
	t.counter.Add(float64(n))

	t.mu.Lock()
	defer t.mu.Unlock()
	t.total += int64(n)
	t.rate = t.decayed(time.Now()) + float64(n)/rateWindow.Seconds()
}

// read returns the total and the rate per second, averaged with weights that
// fade over rateWindow.
func (t *tally) read() (total int64, perSecond float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total, t.decayed(time.Now())
}

// decayed brings the rate up to now. Fading as time passes, instead of sampling
// by a ticker, costs nothing while nobody looks.
func (t *tally) decayed(now time.Time) float64 {
	if elapsed := now.Sub(t.at); elapsed > 0 {
		t.rate *= math.Exp(-elapsed.Seconds() / rateWindow.Seconds())
		t.at = now
	}
	return t.rate
}
