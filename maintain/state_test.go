package maintain

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// fakeEngine has views that read each other and no database: "a", "b reads a",
// "c reads a and b", each after what it reads, every one live.
func fakeEngine(t *testing.T, reads ...[]int) *Engine {
	t.Helper()
	e := New(Options{Memory: 1 << 20})
	for i, producers := range reads {
		name := string(rune('a' + i))
		p := &plans.Plan{
			Name: plans.Name{Schema: "public", Name: name}, Strategy: plans.FullRebuild,
			Columns: []plans.Column{{Name: "id", Type: "integer"}}, Key: []int{0},
		}
		for _, at := range producers {
			p.Sources = append(p.Sources, plans.Source{
				OID: e.views[at].oid, Schema: "public", Name: e.views[at].decl.Name.Name, Producer: true, Columns: []plans.SourceColumn{{Name: "id"}}, Key: []int{0},
			})
		}
		if len(producers) == 0 {
			p.Sources = []plans.Source{{OID: 1000 + uint32(i), Schema: "public", Name: "t" + name, Columns: []plans.SourceColumn{{Name: "id"}}, Key: []int{0}}}
		}
		v := &view{name: "public." + name, decl: plans.Declaration{Name: p.Name}, state: Live, exists: true, oid: 100 + uint32(i)}
		e.take(v, p)
		v.member = &ingest.Member{Folder: v.work}
		e.views = append(e.views, v)
	}
	effective(e.views)
	return e
}

func (e *Engine) states() string {
	out := ""
	for _, v := range e.views {
		out += fmt.Sprintf("%s=%s ", v.decl.Name.Name, v.shown())
	}
	return out[:len(out)-1]
}

// TestConsumersTakeOver checks that a view stands still with what it reads, says so in
// its producer's word, and holds nothing back meanwhile.
func TestConsumersTakeOver(t *testing.T) {
	t.Parallel()
	for _, state := range []State{Filling, Paused, Stale, Failed} {
		e := fakeEngine(t, nil, []int{0}, []int{1}, nil)
		a, b, c, d := e.views[0], e.views[1], e.views[2], e.views[3]
		a.work.demand(reasonRetry)
		e.setState(a, state)
		require.Equal(t, fmt.Sprintf("a=%[1]s b=%[1]s c=%[1]s d=live", state), e.states())
		require.Equal(t, "waits for public.a", b.problem())
		require.Equal(t, "waits for public.b", c.problem())
		require.NotEmpty(t, c.work.reconcile, "what it missed is in no stream")
		now := time.Now()
		require.Equal(t, state == Filling || state == Failed, a.moves(now))
		require.Equal(t, a.moves(now), c.moves(now), "a round that brings the producer back brings its consumers")
		if state != Filling && state != Failed {
			require.False(t, e.anyDue(now), "no round is opened for a view that cannot move")
			require.False(t, e.unsettled())
		}
		require.True(t, d.moves(now))
		for _, v := range []*view{b, c} {
			row := e.row(v)
			require.Equal(t, backing.State(state), row.State)
			require.Contains(t, row.Error, "waits for public.")
			require.Empty(t, row.Fingerprint)
			require.Zero(t, row.Confirm)
		}

		// A round that moved the producer and not its consumer.
		a.work.reset()
		e.setState(a, Live)
		require.Equal(t, "a=live b=filling c=filling d=live", e.states())
		b.work.reset()
		e.setState(b, Live)
		require.Equal(t, "a=live b=live c=filling d=live", e.states())
	}
}

// TestOwnStateStays checks that a state of its own is not replaced by a producer's.
func TestOwnStateStays(t *testing.T) {
	t.Parallel()
	for _, own := range []State{Paused, Stale, Failed} {
		e := fakeEngine(t, nil, []int{0})
		a, b := e.views[0], e.views[1]
		b.err = errors.New("own reason")
		e.setState(b, own)
		e.setState(a, Paused)
		require.Equal(t, own, b.shown())
		require.Equal(t, "own reason", e.row(b).Error)
		e.setState(a, Live)
		require.Equal(t, own, b.shown())
	}
}

// TestPausedByRequest: only a row without an error was paused by somebody; others are
// paused for a reason that may be gone.
func TestPausedByRequest(t *testing.T) {
	t.Parallel()
	e := fakeEngine(t, nil, []int{0})
	e.setState(e.views[1], Paused)
	require.Empty(t, e.row(e.views[1]).Error)
	e.setState(e.views[0], Failed)
	require.Empty(t, e.row(e.views[1]).Error, "waiting is not why it is paused")
}

// TestRowFingerprint: a view whose rows are of an older catalog must not be resumed
// under the present one.
func TestRowFingerprint(t *testing.T) {
	t.Parallel()
	e := fakeEngine(t, nil)
	v := e.views[0]
	e.known = fingerprint{{"table", 1000}: "x"}
	settled := e.row(v).Fingerprint
	require.NotEmpty(t, settled)
	e.rewritten(object{"storage", 1000}, "y")
	require.Equal(t, reasonTruncate, v.work.reconcile)
	require.True(t, v.unsaved && e.persist)
	require.Empty(t, e.row(v).Fingerprint)
	v.work.reset()
	require.NotEmpty(t, e.row(v).Fingerprint)
	require.NotEqual(t, settled, e.row(v).Fingerprint)
}

// TestTogether: a view goes on from its as-of only where its producers stand there.
func TestTogether(t *testing.T) {
	t.Parallel()
	at := func(xmax uint64) ingest.Snapshot { return ingest.Snapshot{Xmin: 5, Xmax: xmax} }
	own := &backing.AsOf{Snapshot: at(10)}
	for _, tc := range []struct {
		name     string
		producer ingest.Snapshot
		state    State
		row      backing.View
		want     bool
	}{
		{"both follow the progress", at(20), Live, backing.View{}, true},
		{"consumer behind", at(20), Live, backing.View{AsOf: own}, false},
		{"producer behind", at(10), Live, backing.View{}, false},
		{"both behind at one snapshot", at(10), Live, backing.View{AsOf: own}, true},
		{"producer to be reconciled", at(20), Filling, backing.View{}, false},
		{"producer paused", at(20), Paused, backing.View{}, false},
	} {
		e := fakeEngine(t, nil, []int{0})
		e.newest.snapshot = at(20)
		a, b := e.views[0], e.views[1]
		a.state, a.asOf.snapshot = tc.state, tc.producer
		require.Equal(t, tc.want, e.together(b, tc.row), tc.name)
		require.True(t, e.together(a, tc.row), "a view over tables only: %s", tc.name)
	}
}

func TestGapOf(t *testing.T) {
	t.Parallel()
	p := backing.Progress{SystemIdentifier: "s", Timeline: 2, LSN: 100}
	good := Origin{SystemID: "s", Timeline: 2, Confirmed: 100}
	with := func(change func(*Origin)) Origin {
		o := good
		change(&o)
		return o
	}
	for _, tc := range []struct {
		name   string
		origin Origin
		none   bool // nothing is recorded
		want   string
	}{
		{name: "the slot where it was confirmed", origin: good},
		{name: "the slot behind: the confirmation did not arrive", origin: with(func(o *Origin) { o.Confirmed = 1 })},
		{name: "the slot ahead", origin: with(func(o *Origin) { o.Confirmed = 101 }), want: "ahead"},
		{name: "another server", origin: with(func(o *Origin) { o.SystemID = "x" }), want: "identity"},
		{name: "another timeline", origin: with(func(o *Origin) { o.Timeline = 3 }), want: "timeline"},
		{name: "a timeline that went back", origin: with(func(o *Origin) { o.Timeline = 1 }), want: "timeline"},
		{name: "a new slot", origin: with(func(o *Origin) { o.New, o.Confirmed = true, 0 }), want: "lost"},
		{name: "found by the caller", origin: with(func(o *Origin) { o.Gap = "invalidated" }), want: "invalidated"},
		{name: "another server wins over its slot", origin: with(func(o *Origin) { o.SystemID, o.New = "x", true }), want: "identity"},
		{name: "the first start", origin: with(func(o *Origin) { o.New, o.Gap = true, "lost" }), none: true},
	} {
		require.Equal(t, tc.want, gapOf(tc.origin, p, !tc.none), tc.name)
	}
}

func TestReconcileReason(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		state  backing.State
		resume bool
		want   string
	}{
		{backing.Live, true, reasonSchema},
		{backing.Live, false, reasonGap},
		{backing.Failed, true, reasonRetry},
		{backing.Stale, false, reasonRetry},
		{backing.Paused, true, reasonResume},
		{backing.Filling, true, reasonCreate},
		{backing.Refused, false, reasonCreate},
	} {
		require.Equal(t, tc.want, reconcileReason(tc.state, tc.resume), "%s %v", tc.state, tc.resume)
	}
}

// TestSitBacksOff: a view that waits for a lock tries again, less and less often, and
// its consumers with it.
func TestSitBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := fakeEngine(t, nil, []int{0})
		a, b := e.views[0], e.views[1]
		var last time.Duration
		for i := range 20 {
			now := time.Now()
			a.sit(now, &lockedOut{table: table{name: []string{"public", "ta"}}, err: errors.New("held")})
			require.False(t, a.moves(now))
			require.False(t, b.moves(now))
			wait := a.next.Sub(now)
			require.GreaterOrEqual(t, wait, last)
			require.LessOrEqual(t, wait, 5*time.Second)
			require.Equal(t, `lock "public"."ta": held`, a.problem())
			require.Equal(t, Live, a.state, "attempt %d: it keeps its state and its pending work", i)
			<-time.After(wait - 1)
			require.False(t, a.moves(time.Now()))
			<-time.After(1)
			require.True(t, a.moves(time.Now()))
			require.True(t, b.moves(time.Now()))
			last = wait
		}
		require.Equal(t, 5*time.Second, last)
	})
}

// TestIntervalsComeTogether: two views of one interval of which one sat out move
// together again, or a view over both would never move.
func TestIntervalsComeTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := fakeEngine(t, nil, nil, []int{0, 1})
		for _, v := range e.views[:2] {
			v.decl.Every = 10 * time.Second
		}
		effective(e.views)
		a, b, c := e.views[0], e.views[1], e.views[2]
		require.Equal(t, 10*time.Second, c.every, "the largest of its producers'")
		// round moves the views that may move, as choose and settle do; those that sit
		// out keep their consumers.
		round := func(sits *view) (moved []*view) {
			now := time.Now()
			if sits != nil && sits.moves(now) {
				sits.sit(now, errors.New("held"))
			}
			for _, v := range e.views {
				if v.moves(now) {
					moved = append(moved, v)
				}
			}
			for _, v := range moved {
				v.sits, v.next = 0, after(now, v.every)
			}
			return moved
		}
		require.Equal(t, []*view{a, b, c}, round(nil))
		<-time.After(time.Until(b.next))
		require.Equal(t, []*view{a}, round(b))
		<-time.After(time.Until(b.next))
		require.Equal(t, []*view{b}, round(nil), "it catches up alone")
		<-time.After(time.Until(b.next))
		require.Equal(t, []*view{a, b, c}, round(nil))
	})
}

func TestAfter(t *testing.T) {
	t.Parallel()
	at := func(s string) time.Time {
		out, err := time.Parse(time.RFC3339Nano, "2030-01-01T"+s+"Z")
		require.NoError(t, err)
		return out
	}
	require.True(t, after(at("00:00:00"), 0).IsZero())
	require.Equal(t, at("00:00:10"), after(at("00:00:00"), 10*time.Second))
	require.Equal(t, at("00:00:10"), after(at("00:00:09.999"), 10*time.Second))
	require.Equal(t, at("00:00:20"), after(at("00:00:10"), 10*time.Second))
	require.Equal(t, at("00:00:10.02"), after(at("00:00:10.01"), 20*time.Millisecond))
}

// TestSetAside: a statement that failed for a lock sits out, all else fails and is
// tried again, later each time, with no row value in what is shown.
func TestSetAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := fakeEngine(t, nil)
		v := e.views[0]
		v.work.touched = true
		e.setAside(&viewError{v: v, err: &pgconn.PgError{Code: "55P03", Message: "canceling statement due to lock timeout"}})
		require.Equal(t, Live, v.state)
		require.True(t, v.work.touched, "its pending work stays")
		require.False(t, v.moves(time.Now()))

		secret := &pgconn.PgError{Code: "22P02", Message: `invalid input syntax for type integer: "secret"`}
		var last time.Duration
		for range 12 {
			now := time.Now()
			e.setAside(&viewError{v: v, err: fmt.Errorf("write: %w", secret)})
			require.Equal(t, Failed, v.state)
			require.Equal(t, reasonRetry, v.work.reconcile)
			wait := v.retry.Sub(now)
			require.GreaterOrEqual(t, wait, last)
			require.LessOrEqual(t, wait, 5*time.Minute)
			last = wait
			require.False(t, v.moves(now))
			require.True(t, v.moves(now.Add(wait)))
			require.Contains(t, v.problem(), "22P02")
			require.NotContains(t, v.problem(), "secret")
			require.Contains(t, e.row(v).Error, "secret", "the whole error stands in mvsync.views")
			<-time.After(wait)
		}
		require.Equal(t, 256*time.Second, last)
	})
}

func TestProblem(t *testing.T) {
	t.Parallel()
	e := fakeEngine(t, nil)
	v := e.views[0]
	require.Empty(t, v.problem())
	v.err = errors.New("value 42 is odd")
	require.Equal(t, "the error stands in mvsync.views", v.problem())
	v.err = fmt.Errorf("plan: %w", &plans.Refusal{Code: plans.Invalid, Construct: "x", Reason: "it is broken", Suggestion: "mend it", Position: -1})
	require.Contains(t, v.problem(), "it is broken")
	require.Equal(t, "SQLSTATE 23505 (UniqueViolation)", redact(&pgconn.PgError{Code: "23505", Message: "k=secret", Detail: "Key (k)=(secret)"}))
	require.Equal(t, "plain", redact(errors.New("plain")))
}

// TestStatus: a status says when all is ready, and its age is 0 while nothing is
// pending.
func TestStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := fakeEngine(t, nil, []int{0}, nil)
		a, b := e.views[0], e.views[1]
		for _, v := range e.views {
			v.asOf.at = time.Now()
		}
		<-time.After(time.Minute)
		e.publish()
		s := e.Status()
		require.True(t, s.Ready)
		require.Zero(t, s.Views[0].Age)
		require.Zero(t, s.Lag)
		a.work.touched = true
		e.publish()
		require.Equal(t, time.Minute, e.Status().Views[0].Age)
		require.Equal(t, time.Minute, e.Status().Lag)
		require.Equal(t, time.Minute, e.Status().Views[1].Age, "what it reads is behind")
		require.Zero(t, e.Status().Views[2].Age, "it reads nothing of that")

		e.setState(a, Paused)
		e.publish()
		s = e.Status()
		require.True(t, s.Ready, "somebody paused it: it is not on its way")
		require.Equal(t, Paused, s.Views[1].State)
		require.Equal(t, time.Minute, s.Views[1].Age)
		e.setState(a, Filling)
		e.publish()
		require.False(t, e.Status().Ready)
		require.Equal(t, Filling, b.shown())
	})
}

// TestHeartbeat: a view that holds the confirmed position back opens no rounds.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	e := fakeEngine(t, nil)
	s := &fakeStream{position: 100}
	e.stream = s
	e.newest.lsn, e.reached = 100, 100
	require.False(t, e.roundDue(time.Now()))
	s.position = 101 + heartbeat
	require.True(t, e.roundDue(time.Now()))
	e.reached = s.position // a round went by; a slow view or a carry-over keeps its position
	require.False(t, e.roundDue(time.Now()))
	e.views[0].work.touched = true
	require.True(t, e.roundDue(time.Now()))
	e.drain.target = 1
	require.False(t, e.roundDue(time.Now()), "not while far behind")
	e.waiters = true
	require.True(t, e.roundDue(time.Now()), "but for somebody who waits")
}

// TestConfirmDurable: a position is confirmed once the stream has passed the commit of
// the round that recorded it, and once only.
func TestConfirmDurable(t *testing.T) {
	t.Parallel()
	e := fakeEngine(t)
	s := &fakeStream{position: 50}
	e.stream = s
	e.confirm = confirmation{position: 40}
	e.confirmDurable()
	require.Empty(t, s.confirmed, "it is not known where the commit stands")
	e.confirm.after = 60
	e.confirmDurable()
	require.Empty(t, s.confirmed, "the commit may not be flushed")
	s.position = 60
	e.confirmDurable()
	e.confirmDurable()
	require.Equal(t, []ingest.LSN{40}, s.confirmed)
}

func TestCatchUp(t *testing.T) {
	t.Parallel()
	e := fakeEngine(t)
	s := &fakeStream{position: 1}
	e.stream = s
	e.walEnd = behind
	e.catchUp()
	require.Zero(t, e.drain.target)
	e.walEnd = 2*behind + 2
	e.catchUp()
	require.Equal(t, e.walEnd, e.drain.target)
	passes := 0
	for ; e.drain.target != 0; passes++ { // writers are as fast as we are
		s.position = e.drain.target
		e.walEnd += 2 * behind
		e.catchUp()
		require.Less(t, passes, 10, "a round must be opened some day")
	}
	require.Equal(t, 3, passes)
}

// TestAgain: pauses grow to five seconds, and a round redone without a view waits for
// nothing.
func TestAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := fakeEngine(t)
		for n := range 20 {
			started := time.Now()
			require.NoError(t, e.again(t.Context(), retryBarrier))
			took := time.Since(started)
			limit := min(5*time.Millisecond<<min(n, 12), 5*time.Second)
			require.LessOrEqual(t, took, limit)
			require.GreaterOrEqual(t, took, limit/2)
		}
		started := time.Now()
		require.NoError(t, e.again(t.Context(), retryView))
		require.Zero(t, time.Since(started))
	})
}

// fakeStream is a stream that stands where a test puts it.
type fakeStream struct {
	Stream
	position  ingest.LSN
	confirmed []ingest.LSN
}

func (s *fakeStream) Position() ingest.LSN   { return s.position }
func (s *fakeStream) Confirm(lsn ingest.LSN) { s.confirmed = append(s.confirmed, lsn) }
