package bench

import (
	"context"
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/plans"
)

var (
	seconds = flag.Int("bench.seconds", 2, "how long latency is measured")
	rate    = flag.Int("bench.rate", 200, "commits a second while latency is measured")
)

// commits remembers when each row was committed.
type commits struct {
	mu sync.Mutex
	at []time.Time // by id
}

func (c *commits) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = append(c.at, time.Now())
}

// since returns the ages of the commits from one number up to another.
func (c *commits) since(from, to int, now time.Time) (ages []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.at[from:min(to, len(c.at))] {
		ages = append(ages, now.Sub(at))
	}
	return ages
}

// TestLatency commits single rows at a steady rate, and looks as often as it can for how many of them the views show.
func TestLatency(t *testing.T) {
	db := pgtest.NewOn(t, newServer(t))
	db.Exec(t, schema)
	d := daemon.Start(t, db, daemon.Options{Views: []plans.Declaration{aggregate(), projection()}, Unchecked: true})
	require.Eventually(t, func() bool { return d.Engine.Status().Ready }, 30*time.Second, 5*time.Millisecond)
	writer, reader := db.Conn(t), db.Conn(t)
	// As servers have it by default. What commits asynchronously is not in the stream before somebody flushes it, which
	// takes the server's WAL writer up to 200 ms.
	_, err := writer.Exec(t.Context(), "SET synchronous_commit = on")
	require.NoError(t, err)
	total := *seconds * *rate
	before, watch, stop := d.Tally.Rounds(), watchCPU(db.Server), profiled(t, "latency")
	var written commits
	ended := make(chan error, 1)
	go func() {
		tick := time.NewTicker(time.Second / time.Duration(*rate))
		defer tick.Stop()
		ended <- func() error {
			for id := range total {
				<-tick.C
				_, err := writer.Exec(context.WithoutCancel(t.Context()), "INSERT INTO request VALUES ($1, $2, 200, 5, now(), '/')", id, id%20)
				if err != nil {
					return err
				}
				written.add()
			}
			return nil
		}()
	}()
	var ages []time.Duration
	deadline := time.Now().Add(time.Duration(*seconds)*time.Second + time.Minute)
	for seen := 0; seen < total; {
		select {
		case err := <-ended:
			require.NoError(t, err)
			ended <- nil
		default:
		}
		require.True(t, time.Now().Before(deadline), "%d of %d rows are visible", seen, total)
		var n int
		require.NoError(t, reader.QueryRow(t.Context(), "SELECT coalesce(sum(n), 0)::int FROM by_country").Scan(&n))
		ages = append(ages, written.since(seen, n, time.Now())...)
		seen = max(seen, n)
	}
	require.NoError(t, <-ended)
	slices.Sort(ages)
	p50, p99 := ages[len(ages)/2], ages[len(ages)*99/100]
	stop()
	t.Logf("commit to visible at %d a second: p50 %s, p99 %s, most %s; %d rounds; CPU %s",
		*rate, p50, p99, ages[len(ages)-1], d.Tally.Rounds()-before, describe(watch.end()))
	if *goals {
		require.Less(t, p50, 10*time.Millisecond)
		require.Less(t, p99, 50*time.Millisecond)
	}
}
