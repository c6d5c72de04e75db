package ingest

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestParseSnapshot(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, in string
		want     Snapshot
		err      bool
	}{
		{name: "nothing running", in: "742:742:", want: Snapshot{Xmin: 742, Xmax: 742}},
		{name: "one running", in: "742:745:742", want: Snapshot{Xmin: 742, Xmax: 745, Xip: []uint64{742}}},
		{name: "several running", in: "10:20:10,14,15", want: Snapshot{Xmin: 10, Xmax: 20, Xip: []uint64{10, 14, 15}}},
		{name: "unordered list", in: "10:20:15,10", want: Snapshot{Xmin: 10, Xmax: 20, Xip: []uint64{10, 15}}},
		{name: "epoch 3", in: "17179869148:17179869152:17179869148", want: Snapshot{Xmin: 17179869148, Xmax: 17179869152, Xip: []uint64{17179869148}}},
		{name: "empty", in: "", err: true},
		{name: "no list", in: "10:20", err: true},
		{name: "too many parts", in: "10:20:11:12", err: true},
		{name: "no number first", in: "x:20:", err: true},
		{name: "no number second", in: "10::", err: true},
		{name: "no number in list", in: "10:20:11,", err: true},
		{name: "negative", in: "-1:20:", err: true},
		{name: "beyond 64 bits", in: "10:18446744073709551616:", err: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseSnapshot(tc.in)
			if tc.err {
				require.ErrorContains(t, err, fmt.Sprintf("parse snapshot %q", tc.in))
				return
			}
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(tc.want, got))
		})
	}
}

func TestZeroSnapshotContainsNothing(t *testing.T) {
	t.Parallel()
	var zero Snapshot
	require.True(t, zero.IsZero())
	require.False(t, zero.Contains(0))
	require.False(t, zero.Contains(3))
	some := Snapshot{Xmin: 5, Xmax: 5}
	require.False(t, some.IsZero())
	require.True(t, some.Covers(zero))
	require.False(t, zero.Covers(some))
}

// genSnapshot draws a snapshot as a server may show it: below a limit that lets a
// test look at every id.
func genSnapshot(limit uint64) *rapid.Generator[Snapshot] {
	return rapid.Custom(func(t *rapid.T) Snapshot {
		s := Snapshot{Xmin: rapid.Uint64Range(1, limit).Draw(t, "xmin")}
		s.Xmax = rapid.Uint64Range(s.Xmin, limit).Draw(t, "xmax")
		for x := s.Xmin; x < s.Xmax; x++ {
			if rapid.Bool().Draw(t, "running") {
				s.Xip = append(s.Xip, x)
			}
		}
		return s
	})
}

func TestSnapshotRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := genSnapshot(40).Draw(t, "snapshot")
		shift := rapid.SampledFrom([]uint64{0, 1 << 32, 3<<32 - 20}).Draw(t, "shift")
		want.Xmin, want.Xmax = want.Xmin+shift, want.Xmax+shift
		for i := range want.Xip {
			want.Xip[i] += shift
		}
		got, err := ParseSnapshot(want.String())
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(want, got))
	})
}

// A waiter with snapshot p may go on only where all that p sees is in the view.
// Where p ends first the answer is even exact.
func TestCoversAgainstEveryID(t *testing.T) {
	t.Parallel()
	const limit = 12
	rapid.Check(t, func(t *rapid.T) {
		s, p := genSnapshot(limit).Draw(t, "s"), genSnapshot(limit).Draw(t, "p")
		want := true
		for x := uint64(0); x <= limit+1; x++ {
			if p.Contains(x) && !s.Contains(x) {
				want = false
			}
		}
		got := s.Covers(p)
		if got && !want {
			t.Fatalf("%s does not cover %s", s, p)
		}
		if p.Xmax <= s.Xmax && got != want {
			t.Fatalf("%s covers %s: got %v, want %v", s, p, got, want)
		}
		if !s.Covers(s) {
			t.Fatalf("%s does not cover itself", s)
		}
	})
}

// A round may read its LSN after the caller's, and its snapshot still be older.
func TestCoversWhereLSNsWouldNot(t *testing.T) {
	t.Parallel()
	round := Snapshot{Xmin: 100, Xmax: 101, Xip: []uint64{100}}
	caller := Snapshot{Xmin: 101, Xmax: 101}
	require.False(t, round.Covers(caller))
	require.True(t, caller.Covers(round))
}

func TestContainsAsTheServerSays(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	check := func(text string) {
		s, err := ParseSnapshot(text)
		require.NoError(t, err)
		require.Equal(t, s.String(), db.Value(t, "SELECT $1::text::pg_snapshot::text", text))
		from := max(s.Xmin, 4) - 3
		for _, row := range db.Query(t, `SELECT x, pg_visible_in_snapshot(x::text::xid8, $1::text::pg_snapshot)
			FROM generate_series($2::int8, $3::int8) x`, text, int64(from), int64(s.Xmax+3)) {
			xid, err := strconv.ParseUint(row[0], 10, 64)
			require.NoError(t, err)
			require.Equal(t, row[1] == "t" || row[1] == "true", s.Contains(xid), "%d in %s", xid, text)
		}
	}
	check("10:10:")
	check("10:20:10,14,15,19")
	check("17179869148:17179869152:17179869150")

	// Transactions that overlap: what was running, committed, and began after each.
	var taken []Snapshot
	var invisible []uint64
	take := func() {
		text := db.Value(t, "SELECT pg_current_snapshot()::text")
		check(text)
		s, err := ParseSnapshot(text)
		require.NoError(t, err)
		taken = append(taken, s)
	}
	take()
	for range 3 {
		conn := db.Conn(t)
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		var text string
		require.NoError(t, tx.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text").Scan(&text))
		xid, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		invisible = append(invisible, xid)
		db.Value(t, "SELECT pg_current_xact_id()::text") // so that the open one lies below xmax
		take()
		require.False(t, taken[len(taken)-1].Contains(xid))
		if len(invisible) == 2 {
			require.NoError(t, tx.Commit(t.Context()))
			take()
			require.True(t, taken[len(taken)-1].Contains(xid))
			require.False(t, taken[len(taken)-2].Covers(taken[len(taken)-1]), "the commit lies between them")
		}
	}
	for i, later := range taken {
		for _, earlier := range taken[:i+1] {
			require.True(t, later.Covers(earlier), "%s covers %s", later, earlier)
		}
	}
}

func TestWidenNearTheEndOfAnEpoch(t *testing.T) {
	t.Parallel()
	const epoch = uint64(1) << 32
	for _, tc := range []struct {
		name string
		xmax uint64
		xid  uint32
		want uint64
	}{
		{name: "same", xmax: 1000, xid: 1000, want: 1000},
		{name: "just before", xmax: 1000, xid: 999, want: 999},
		{name: "just after", xmax: 1000, xid: 1001, want: 1001},
		{name: "epoch 3, later, past the end", xmax: 17179869152, xid: 30, want: 4*epoch + 30},
		{name: "epoch 3, later, before the end", xmax: 17179869152, xid: 1<<32 - 1, want: 4*epoch - 1},
		{name: "epoch 3, earlier", xmax: 17179869152, xid: 1<<32 - 96, want: 4*epoch - 96},
		{name: "epoch 4, earlier, before its start", xmax: 4*epoch + 30, xid: 1<<32 - 96, want: 4*epoch - 96},
		{name: "epoch 4, earlier, after its start", xmax: 4*epoch + 30, xid: 5, want: 4*epoch + 5},
		{name: "far behind", xmax: 4*epoch + 30, xid: 31 + 1<<31, want: 3*epoch + 31 + 1<<31},
		{name: "far ahead", xmax: 4*epoch + 30, xid: 29 + 1<<31, want: 4*epoch + 29 + 1<<31},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := Snapshot{Xmin: tc.xmax, Xmax: tc.xmax}
			require.Equal(t, tc.want, s.Widen(tc.xid))
			require.Equal(t, tc.want < tc.xmax, s.Contains(s.Widen(tc.xid)))
		})
	}
}

func TestWidenIsInverseOfTruncation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		xmax := rapid.Uint64Range(1<<32, 1<<40).Draw(t, "xmax")
		full := uint64(int64(xmax) + rapid.Int64Range(-1<<31, 1<<31-1).Draw(t, "distance"))
		if got := (Snapshot{Xmin: xmax, Xmax: xmax}).Widen(uint32(full)); got != full {
			t.Fatalf("widen: got %d, want %d", got, full)
		}
	})
}

// The negative twin: with the snapshot's own epoch, a transaction that began after
// the snapshot and after the end of the epoch becomes an ancient one, which counts
// as visible, and is folded before any snapshot saw it.
func TestWideningBySnapshotEpochIsWrong(t *testing.T) {
	t.Parallel()
	s, err := ParseSnapshot("17179869152:17179869152:")
	require.NoError(t, err)
	const xid = 30
	byEpoch := s.Xmax>>32<<32 | xid
	require.Equal(t, uint64(12884901918), byEpoch)
	require.True(t, s.Contains(byEpoch), "the twin must show the mistake")

	require.Greater(t, s.Widen(xid), s.Xmax)
	require.False(t, s.Contains(s.Widen(xid)))

	folder := &recorder{}
	b := NewBatch(1<<20, nil)
	b.Join(&Member{Folder: folder})
	b.Add(transaction(xid, insert(people, "1", "a")))
	n, err := b.Fold(s)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Empty(t, folder.seen)
	n, err = b.Fold(Snapshot{Xmin: s.Widen(xid) + 1, Xmax: s.Widen(xid) + 1})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.True(t, slices.Equal([]string{"insert 1 a"}, folder.seen))
}
