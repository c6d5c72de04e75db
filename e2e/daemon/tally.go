package daemon

import (
	"maps"
	"sync"
	"time"

	"github.com/mvsync/mvsync/maintain"
)

// Tally is an observer that counts what tests judge a daemon by: how its views were brought to where they are, since
// a reconcile hides what maintenance got wrong. The zero value is ready.
type Tally struct {
	// OnRebuilt, which may be nil, is called for each reconcile.
	OnRebuilt func(view, reason string)

	mu      sync.Mutex
	rounds  int64
	written int64
	rebuilt map[string]map[string]int // by reason and view
	retried map[string]int
	kept    map[string]int // by view: how often it was maintained
	rows    map[string]int // by view: what of written was its
	gaps    map[string]int
}

// Rounds is how many rounds were committed.
func (t *Tally) Rounds() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rounds
}

// Written is how many rows of backing tables were inserted, updated or deleted.
func (t *Tally) Written() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.written
}

// Rebuilt is how often each view was reconciled for a reason.
func (t *Tally) Rebuilt(reason string) map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.rebuilt[reason])
}

// Retried is how often rounds were redone, by reason.
func (t *Tally) Retried() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.retried)
}

// Maintained is how often a view's statements ran, by its arm or a reconcile, rounds that were taken back included.
// Views are named as [maintain.ViewStatus] names them.
func (t *Tally) Maintained(view string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept[view]
}

// Arms is how often the view was maintained by the arm of its strategy.
func (t *Tally) Arms(view string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.kept[view]
	for _, views := range t.rebuilt {
		n -= views[view]
	}
	return n
}

// Reasons is how often the view was reconciled, by reason.
func (t *Tally) Reasons(view string) map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	reasons := map[string]int{}
	for reason, views := range t.rebuilt {
		if views[view] > 0 {
			reasons[reason] = views[view]
		}
	}
	return reasons
}

// WrittenTo is how many rows of one view were inserted, updated or deleted.
func (t *Tally) WrittenTo(view string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rows[view]
}

// Gaps is how often the stream was found to have a hole, by reason.
func (t *Tally) Gaps() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.gaps)
}

// observer is the [maintain.Observer] that a Tally is. The methods that tests ask by have other names.
type observer struct{ *Tally }

// Observe makes the engine tell t what happens.
func (t *Tally) Observe(o *maintain.Options) { o.Observer = observer{t} }

func (o observer) RoundCommitted(time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rounds++
}

func (o observer) RoundRetried(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.retried == nil {
		o.retried = map[string]int{}
	}
	o.retried[reason]++
}

func (o observer) RowsWritten(view, _ string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written += int64(n)
	if o.rows == nil {
		o.rows = map[string]int{}
	}
	o.rows[view] += n
}

func (o observer) Maintained(view, _ string, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept == nil {
		o.kept = map[string]int{}
	}
	o.kept[view]++
}

func (o observer) Gap(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gaps == nil {
		o.gaps = map[string]int{}
	}
	o.gaps[reason]++
}

func (o observer) Rebuilt(view, reason string) {
	o.count(view, reason)
	if o.OnRebuilt != nil {
		o.OnRebuilt(view, reason)
	}
}

func (o observer) count(view, reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rebuilt == nil {
		o.rebuilt = map[string]map[string]int{}
	}
	if o.rebuilt[reason] == nil {
		o.rebuilt[reason] = map[string]int{}
	}
	o.rebuilt[reason][view]++
}

func (observer) RowsSuppressed(string, int)  {}
func (observer) ResidualKeys(string, int)    {}
func (observer) Collisions(string, int)      {}
func (observer) ViewDeclared(string, string) {}
func (observer) ViewForgotten(string)        {}
func (observer) ViewState(string, string)    {}
func (observer) Verified(string, int)        {}
