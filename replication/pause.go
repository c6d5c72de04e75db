package replication

import (
	"context"
	"time"
)

// pause is a growing wait between polls.
type pause struct {
	next, limit time.Duration
}

func newPause(first, limit time.Duration) *pause { return &pause{next: first, limit: limit} }

// wait waits for the next interval, which doubles up to the limit. It returns the reason when ctx ends before.
func (p *pause) wait(ctx context.Context) error {
	timer := time.NewTimer(p.next)
	defer timer.Stop()
	p.next = min(2*p.next, p.limit)
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
