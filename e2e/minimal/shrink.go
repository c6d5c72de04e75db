package minimal

import (
	"context"
	"time"
)

// Shrink replays the case against fresh databases with ever less in it, until nothing can be left out or the time is
// over, and returns the smallest that still fails. It returns nil where the case itself does not fail again.
func (r *Recorder) Shrink(c *Case, within time.Duration) *Case {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), within)
	defer cancel()
	s := &shrinking{r: r}
	for _, each := range []bool{false, true} {
		whole := *c
		whole.Each = each
		if s.fails(ctx, whole) {
			s.shrink(ctx)
			return s.best
		}
	}
	return nil
}

// Log writes the failure into the test's log, as small as it gets within the time.
func (r *Recorder) Log(within time.Duration) {
	r.t.Helper()
	c, err := r.Case()
	if err != nil {
		r.t.Logf("no minimal reproduction: %v", err)
		return
	}
	if small := r.Shrink(c, within); small != nil {
		r.t.Logf("a minimal reproduction:\n%s", small)
		return
	}
	r.t.Logf("what follows did not fail again in a database of its own:\n%s", c)
}

// shrinking is a case under the knife.
type shrinking struct {
	r    *Recorder
	best *Case // the smallest that failed
}

// fails replays a case, and keeps it if it fails.
func (s *shrinking) fails(ctx context.Context, c Case) bool {
	if ctx.Err() != nil {
		return false
	}
	if c.Found = s.r.replay(ctx, &c); c.Found == "" {
		return false
	}
	s.best = &c
	return true
}

// shrink drops transactions, then rows, then single statements.
func (s *shrinking) shrink(ctx context.Context) {
	without := func(change func(*Case)) bool {
		c := *s.best
		change(&c)
		return s.fails(ctx, c)
	}
	drop(s.best.Transactions, func(less [][]string) bool { return without(func(c *Case) { c.Transactions = less }) })
	drop(s.best.Rows, func(less []string) bool { return without(func(c *Case) { c.Rows = less }) })
	type statement struct {
		transaction int
		sql         string
	}
	var all []statement
	for i, tx := range s.best.Transactions {
		for _, sql := range tx {
			all = append(all, statement{i, sql})
		}
	}
	drop(all, func(less []statement) bool {
		var regrouped [][]string
		for i, st := range less {
			if i == 0 || less[i-1].transaction != st.transaction {
				regrouped = append(regrouped, nil)
			}
			last := len(regrouped) - 1
			regrouped[last] = append(regrouped[last], st.sql)
		}
		return without(func(c *Case) { c.Transactions = regrouped })
	})
	drop(s.best.Rows, func(less []string) bool { return without(func(c *Case) { c.Rows = less }) })
}

// drop removes what it can from a list that fails, such that it still fails: first large pieces, then small ones.
func drop[T any](list []T, fails func([]T) bool) []T {
	if len(list) > 0 && fails(nil) {
		return nil
	}
	for size := (len(list) + 1) / 2; size > 0; {
		removed := false
		for at := 0; at < len(list); {
			less := append(append([]T(nil), list[:at]...), list[min(at+size, len(list)):]...)
			if len(less) > 0 && fails(less) {
				list, removed = less, true
				continue
			}
			at += size
		}
		switch {
		case size > 1:
			size /= 2
		case !removed:
			return list
		}
	}
	return list
}
