package workload

import (
	"fmt"
	"slices"
	"strings"
)

// Entry is a transaction as it was executed.
type Entry struct {
	Transaction

	// Order numbers the transactions of all writers as their ends were seen, which is about the order of their commits.
	Order int64
	// Outcome is "committed", "rolled back", "failed" or "broken".
	Outcome string
	// Err is why it failed or broke.
	Err error
}

// String returns the transaction as a script for psql, with its outcome in front.
func (e Entry) String() string {
	outcome := e.Outcome
	if e.Err != nil {
		outcome += ": " + strings.ReplaceAll(e.Err.Error(), "\n", " ")
	}
	return fmt.Sprintf("-- %d: %s\n%s", e.Order, outcome, e.Transaction)
}

// ring keeps the last entries of one writer.
type ring struct {
	entries []Entry
	next    int
	size    int
}

func (r *ring) add(e Entry) {
	if r.size == 0 {
		return
	}
	if len(r.entries) < r.size {
		r.entries = append(r.entries, e)
		return
	}
	r.entries[r.next] = e
	r.next = (r.next + 1) % r.size
}

// Journal returns the last transactions of each writer, as many as the options say, in the order in which they ended.
func (w *Workload) Journal() []Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []Entry
	for i := range w.journals {
		all = append(all, w.journals[i].entries...)
	}
	slices.SortFunc(all, func(a, b Entry) int { return int(a.Order - b.Order) })
	return all
}
