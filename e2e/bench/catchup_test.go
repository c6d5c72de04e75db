package bench

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
	"github.com/mvsync/mvsync/replication"
)

// heap watches the memory that is alive: what the last collection found, at its most.
type heap struct {
	most uint64
	stop chan struct{}
	done sync.WaitGroup
}

func watchHeap() *heap {
	h := &heap{stop: make(chan struct{})}
	runtime.GC()
	h.done.Go(func() {
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				metrics.Read(sample)
				h.most = max(h.most, sample[0].Value.Uint64())
			case <-h.stop:
				return
			}
		}
	})
	return h
}

func (h *heap) end() uint64 {
	close(h.stop)
	h.done.Wait()
	return h.most
}

// TestCatchUp stops a daemon, changes many rows, and has it catch up under a budget that is too small for what a
// projection must remember, and under one that is not. The budget is shared out as the command does it. Beside it the
// program has a few megabytes of its own.
func TestCatchUp(t *testing.T) {
	const own = 16 << 20
	rows := *changes
	for _, tc := range []struct {
		name   string
		budget int64
		fits   bool
	}{
		{"details are dropped", max(int64(rows)*64, 2<<20), false},
		{"details are kept", int64(rows) * 1024, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := pgtest.NewOn(t, newServer(t))
			db.Exec(t, schema)
			options := daemon.Options{
				Views: []plans.Declaration{aggregate(), projection()}, Unchecked: true, Once: true, Log: &bytes.Buffer{},
				Engine: func(o *maintain.Options) { o.Memory = tc.budget / 2 },
				Stream: func(o *replication.Options) { o.Budget = tc.budget / 4 },
			}
			run := func() *daemon.Daemon {
				d, err := daemon.Launch(t, db, options)
				require.NoError(t, err)
				<-d.Done()
				require.NoError(t, d.Err())
				return d
			}
			run()
			backlogs[0].write(t, db)
			watch := watchHeap()
			d := run()
			most := watch.end()
			(&rig{db: db, views: options.Views}).compare(t)
			t.Logf("%d rows, budget %d MiB: %d MiB of heap alive at the most; reconciled %v", rows, tc.budget>>20, most>>20, d.Tally.Rebuilt("memory"))
			require.Less(t, int64(most), tc.budget+own)
			require.Empty(t, d.Tally.Reasons("public.by_country"), "groups are few")
			require.Equal(t, tc.fits, len(d.Tally.Reasons("public.requests")) == 0, fmt.Sprint(d.Tally.Reasons("public.requests")))
		})
	}
}
