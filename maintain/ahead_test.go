package maintain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/ingest"
)

// TestLocksAhead: a view that read its sources in one round has them locked in the next,
// since what arrives while that is open may need them; after a moment it has not, and
// one that read nothing never has.
func TestLocksAhead(t *testing.T) {
	t.Parallel()
	e := fakeEngine(t, nil)
	v := e.views[0]
	at := time.Now()
	round := func(started time.Time) *round {
		return &round{e: e, started: started, opened: opened{snapshot: ingest.Snapshot{Xmin: 10, Xmax: 10}}}
	}
	round(at).settle(v, at)
	require.False(t, round(at).willRead(v), "it had nothing to do")
	v.work.demand(reasonRefresh)
	round(at).settle(v, at)
	require.False(t, v.due())
	require.True(t, round(at.Add(lockAhead/2)).willRead(v))
	require.False(t, round(at.Add(lockAhead)).willRead(v))
}
