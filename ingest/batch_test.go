package ingest

import (
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// people and places are the tables of the tests: a key and a text.
var (
	people = textTable(1, "people")
	places = textTable(2, "places")
)

func textTable(oid uint32, name string) *Table {
	return &Table{OID: oid, Schema: "public", Name: name, Full: true, Columns: []Column{{Name: "id", TypeOID: 23, Identity: true}, {Name: "name", TypeOID: 25, Identity: true}}}
}

func insert(t *Table, id, name string) *Change {
	return &Change{Table: t, Op: Insert, New: Row{Text(id), Text(name)}}
}

func transaction(xid uint32, changes ...*Change) *Transaction {
	return &Transaction{XID: xid, FinalLSN: LSN(xid) * 100, Changes: List(changes)}
}

// upTo sees every transaction below xid that is not listed.
func upTo(xid uint64, running ...uint64) Snapshot {
	return Snapshot{Xmin: min(xid, append(running, xid)[0]), Xmax: xid, Xip: running}
}

// recorder is a folder that notes what it is given. Each change weighs a byte.
type recorder struct {
	tables []*Table // read; nil: all
	asked  int
	seen   []string
	bytes  int64
	forgot int
	stuck  bool // does not forget
	onFold func()
}

func (r *recorder) Reads(t *Table) bool {
	r.asked++
	if r.tables == nil {
		return true
	}
	for _, x := range r.tables {
		if t.Reads(x.OID) {
			return true
		}
	}
	return false
}

func (r *recorder) Fold(c *Change) {
	words := []string{c.Op.String()}
	for _, v := range append(c.Old, c.New...) {
		words = append(words, v.Text())
	}
	r.seen = append(r.seen, strings.Join(words, " "))
	if r.forgot == 0 {
		r.bytes++
	}
	if r.onFold != nil {
		r.onFold()
	}
}

func (r *recorder) Bytes() int64 { return r.bytes }

func (r *recorder) Forget() {
	r.forgot++
	if !r.stuck {
		r.bytes = 0
	}
}

// onDisk is a Changes that counts its releases and may break.
type onDisk struct {
	List
	readErr, closeErr error
	closed            int
}

func (d *onDisk) Bytes() int64 { return 0 }

func (d *onDisk) Close() error {
	d.closed++
	return d.closeErr
}

func (d *onDisk) All() iter.Seq2[*Change, error] {
	return func(yield func(*Change, error) bool) {
		for _, c := range d.List {
			if !yield(c, nil) {
				return
			}
		}
		if d.readErr != nil {
			yield(nil, d.readErr)
		}
	}
}

func fold(t require.TestingT, b *Batch, s Snapshot) int {
	n, err := b.Fold(s)
	require.NoError(t, err)
	return n
}

func TestFoldSplitsByVisibility(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	b := NewBatch(1<<20, nil)
	b.Join(&Member{Folder: r})
	_, ok := b.Oldest()
	require.False(t, ok)
	for _, xid := range []uint32{103, 101, 102, 100} { // commit order is not id order
		b.Add(transaction(xid, insert(people, "1", string(rune('a'+xid-100)))))
	}
	require.Equal(t, 4, b.Len())
	require.Empty(t, r.seen, "nothing may be folded before a snapshot is known")
	require.False(t, b.AnyVisible(upTo(100)))
	require.True(t, b.AnyVisible(upTo(104, 100, 101, 102)))

	require.Equal(t, 2, fold(t, b, upTo(103, 101)))
	require.Equal(t, []string{"insert 1 c", "insert 1 a"}, r.seen)
	require.Equal(t, 2, b.Len())
	oldest, ok := b.Oldest()
	require.True(t, ok)
	require.EqualValues(t, 103, oldest.XID, "oldest by commit")

	require.Zero(t, fold(t, b, upTo(103, 101)), "carried over as long as it is invisible")
	require.Equal(t, 1, fold(t, b, upTo(104, 101)))
	oldest, _ = b.Oldest()
	require.EqualValues(t, 101, oldest.XID)
	require.Equal(t, 1, fold(t, b, upTo(104)))
	require.Equal(t, []string{"insert 1 c", "insert 1 a", "insert 1 d", "insert 1 b"}, r.seen)
	require.Zero(t, b.PendingBytes())
	require.EqualValues(t, 4, b.Bytes(), "the folder's own")
}

func TestCarriedOverTransactionsStayInCommitOrder(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	b := NewBatch(1<<20, nil)
	b.Join(&Member{Folder: r})
	b.Add(transaction(100, insert(people, "1", "a")))
	b.Add(transaction(101, insert(people, "1", "b")))
	fold(t, b, upTo(101, 100))
	b.Add(transaction(102, insert(people, "1", "c")))
	fold(t, b, upTo(103))
	require.Equal(t, []string{"insert 1 a", "insert 1 b", "insert 1 c"}, r.seen)
}

// Exactly once: each member gets a transaction if, and only if, its own as-of does
// not contain it, however the folding snapshots fall.
func TestEachMemberGetsEachTransactionOnce(t *testing.T) {
	t.Parallel()
	const limit = 30
	rapid.Check(t, func(t *rapid.T) {
		b := NewBatch(1<<20, nil)
		recorders := make([]*recorder, 3)
		members := make([]*Member, len(recorders))
		for i := range recorders {
			recorders[i] = &recorder{}
			members[i] = &Member{Folder: recorders[i], AsOf: genSnapshot(limit).Draw(t, "as-of")}
			b.Join(members[i])
		}
		xids := rapid.Permutation([]uint32{1, 3, 4, 9, 15, 16, 17, 22, 28, 29}).Draw(t, "commit order")
		want := make([][]string, len(members))
		folded := map[uint32]bool{}
		for len(folded) < len(xids) {
			if len(xids) > b.Len()+len(folded) {
				xid := xids[b.Len()+len(folded)]
				b.Add(transaction(xid, insert(people, string(rune('A'+xid)), "x")))
			}
			s := genSnapshot(limit).Draw(t, "snapshot")
			if rapid.IntRange(0, 9).Draw(t, "last") == 0 {
				s = upTo(limit + 1)
			}
			arrived := xids[:b.Len()+len(folded)]
			for _, xid := range arrived {
				if folded[xid] || !s.Contains(uint64(xid)) {
					continue
				}
				folded[xid] = true
				for i, m := range members {
					if !m.AsOf.Contains(uint64(xid)) {
						want[i] = append(want[i], "insert "+string(rune('A'+xid))+" x")
					}
				}
			}
			fold(t, b, s)
		}
		for i := range recorders {
			require.Equal(t, want[i], recorders[i].seen)
		}
	})
}

func TestDispatchFollowsJoinAndLeave(t *testing.T) {
	t.Parallel()
	leaf := &Table{OID: 3, Name: "places_eu", Partition: true, Ancestors: []uint32{places.OID}, Columns: places.Columns}
	first, second := &recorder{tables: []*Table{people}}, &recorder{tables: []*Table{places}}
	one, two := &Member{Folder: first}, &Member{Folder: second}
	b := NewBatch(1<<20, nil)
	xid := uint32(10)
	commit := func(names ...string) {
		b.Add(transaction(xid, insert(people, "1", names[0]), insert(leaf, "2", names[1])))
		xid++
		require.Equal(t, 1, fold(t, b, upTo(uint64(xid))))
	}
	b.Join(one)
	commit("a", "b")
	asked := first.asked
	commit("c", "d")
	require.Equal(t, asked, first.asked, "asked once a table")
	b.Join(two)
	commit("e", "f")
	b.Leave(one)
	commit("g", "h")
	b.Leave(one) // again
	b.Leave(two)
	commit("i", "j")
	require.Equal(t, []string{"insert 1 a", "insert 1 c", "insert 1 e"}, first.seen)
	require.Equal(t, []string{"insert 2 f", "insert 2 h"}, second.seen)
}

func TestDispatchSurvivesManyRedefinitions(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	b := NewBatch(1<<20, nil)
	b.Join(&Member{Folder: r})
	for range 10_100 {
		again := *people
		b.Add(transaction(5, insert(&again, "1", "a")))
	}
	require.Equal(t, 10_100, fold(t, b, upTo(6)))
	require.Len(t, r.seen, 10_100)
	require.LessOrEqual(t, len(b.dispatch), 10_001)
}

func TestBudgetMakesTheLargestForget(t *testing.T) {
	t.Parallel()
	small, large := &recorder{tables: []*Table{people}}, &recorder{tables: []*Table{places}}
	members := []*Member{{Folder: small}, {Folder: large}}
	var told []*Member
	b := NewBatch(10, func(m *Member) { told = append(told, m) })
	b.Join(members[0])
	b.Join(members[1])
	add := func(table *Table, n int) {
		for range n {
			b.Add(transaction(5, insert(table, "1", "a")))
		}
		fold(t, b, upTo(6))
	}
	add(people, 4)
	add(places, 6)
	require.Empty(t, told, "the budget is just met")
	add(people, 1)
	require.Equal(t, members[1:], told)
	require.Zero(t, small.forgot)
	require.EqualValues(t, 5, b.Bytes())
	add(people, 6)
	require.Equal(t, []*Member{members[1], members[0]}, told)
	require.Zero(t, b.Bytes())
}

func TestBudgetHoldsWithinOneTransaction(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	var most int64
	r.onFold = func() { most = max(most, r.bytes) }
	b := NewBatch(100, nil)
	b.Join(&Member{Folder: r})
	changes := make(List, 10_000)
	for i := range changes {
		changes[i] = insert(people, "1", "a")
	}
	b.Add(&Transaction{XID: 5, Changes: changes})
	require.Positive(t, b.PendingBytes())
	fold(t, b, upTo(6))
	require.Equal(t, 1, r.forgot)
	require.Less(t, most, int64(2000))
}

func TestFolderThatCannotForgetDoesNotHang(t *testing.T) {
	t.Parallel()
	r := &recorder{stuck: true}
	b := NewBatch(0, nil)
	b.Join(&Member{Folder: r})
	b.Add(transaction(5, insert(people, "1", "a")))
	require.Equal(t, 1, fold(t, b, upTo(6)))
	require.Equal(t, 1, r.forgot)
}

func TestUnreadableChanges(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk on fire")
	ok := &onDisk{List: List{insert(people, "1", "a")}}
	bad := &onDisk{List: List{insert(people, "1", "b")}, readErr: broken}
	early, late := &onDisk{}, &onDisk{closeErr: broken}
	b := NewBatch(1<<20, nil)
	b.Join(&Member{Folder: &recorder{}})
	for i, c := range []*onDisk{early, ok, bad, late} {
		b.Add(&Transaction{XID: uint32(7 + i), Changes: c})
	}
	n, err := b.Fold(upTo(20, 7))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "read the changes of transaction 9: ")
	require.Equal(t, 1, n)
	require.ErrorIs(t, b.Close(), broken, "of the last one")
	require.Empty(t, cmp.Diff([]int{1, 1, 1, 1}, []int{early.closed, ok.closed, bad.closed, late.closed}), "each is released once")
	require.Zero(t, b.Len())
	require.NoError(t, b.Close())
}

func TestUnreleasableChanges(t *testing.T) {
	t.Parallel()
	broken := errors.New("file is busy")
	b := NewBatch(1<<20, nil)
	b.Add(&Transaction{XID: 9, Changes: &onDisk{closeErr: broken}})
	_, err := b.Fold(upTo(10))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "release the changes of transaction 9: ")
}

func TestFoldReleasesWhatIsOnDisk(t *testing.T) {
	t.Parallel()
	seen, kept := &onDisk{}, &onDisk{}
	b := NewBatch(1<<20, nil)
	b.Add(&Transaction{XID: 5, Changes: seen})
	b.Add(&Transaction{XID: 6, Changes: kept})
	require.Zero(t, b.PendingBytes())
	require.Equal(t, 1, fold(t, b, upTo(6)))
	require.Equal(t, 1, seen.closed)
	require.Zero(t, kept.closed)
	require.NoError(t, b.Close())
	require.Equal(t, 1, kept.closed)
}
