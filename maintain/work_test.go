package maintain

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// The tables of a view that reads a base table and a view.
var (
	baseTable     = &ingest.Table{OID: 1, Name: "base", Columns: []ingest.Column{{Name: "id", Identity: true}, {Name: "v"}}, Full: true}
	producerTable = &ingest.Table{OID: 2, Name: "view", Columns: []ingest.Column{{Name: "id", Identity: true}, {Name: "v"}}, Full: true}
	unreadTable   = &ingest.Table{OID: 3, Name: "other", Columns: baseTable.Columns, Full: true}
)

func mixedPlan() *plans.Plan {
	columns := []plans.SourceColumn{{Name: "id"}, {Name: "v"}}
	return &plans.Plan{Strategy: plans.JoinResidual, Residual: &plans.Residual{}, Sources: []plans.Source{
		{OID: 1, Columns: columns, Key: []int{0}}, {OID: 2, Producer: true, Columns: columns, Key: []int{0}},
	}}
}

func foldPlan(producer bool) *plans.Plan {
	return &plans.Plan{
		Strategy:  plans.DeltaAggregate,
		Aggregate: &plans.Aggregate{Fold: &plans.Fold{Groups: []int{0}, Cells: []plans.FoldCell{{Op: plans.FoldSum, Argument: 1, Integer: true}}}},
		Sources:   []plans.Source{{OID: 2, Producer: producer, Columns: []plans.SourceColumn{{Name: "id"}, {Name: "v"}}, Key: []int{0}}},
	}
}

func row(id, v int) ingest.Row {
	return ingest.Row{ingest.Text(fmt.Sprint(id)), ingest.Text(fmt.Sprint(v))}
}

func change(t *ingest.Table, old, fresh ingest.Row) *ingest.Change {
	c := &ingest.Change{Table: t, Op: ingest.Update, Old: old, New: fresh}
	switch {
	case old == nil:
		c.Op = ingest.Insert
	case fresh == nil:
		c.Op = ingest.Delete
	}
	return c
}

func TestWorkFolds(t *testing.T) {
	t.Parallel()
	w := newWork(mixedPlan())
	require.True(t, w.Reads(baseTable))
	require.True(t, w.Reads(producerTable))
	require.False(t, w.Reads(unreadTable))
	require.False(t, w.pending())
	w.Fold(change(baseTable, row(1, 1), row(1, 1)))
	require.False(t, w.pending(), "an update that changes nothing that is read (INV-5)")
	w.Fold(change(baseTable, nil, row(1, 1)))
	require.True(t, w.pending())
	require.False(t, w.retracts)
	w.Fold(change(producerTable, row(1, 1), row(1, 2)))
	require.True(t, w.retracts)
	require.Equal(t, []int{1, 1}, []int{w.images[0].Len(), w.images[1].Len()})
	require.NotZero(t, w.Bytes())

	w.Forget()
	require.Equal(t, reasonMemory, w.reconcile)
	require.Zero(t, w.Bytes(), "what is forgotten holds no memory (INV-8)")
	w.Fold(change(baseTable, nil, row(2, 2)))
	require.Zero(t, w.Bytes(), "nor does what comes later")
	w.demand(reasonSchema)
	require.Equal(t, reasonMemory, w.reconcile, "the first reason is the cause")
	w.reset()
	require.False(t, w.pending())

	w.Fold(&ingest.Change{Table: baseTable, Op: ingest.Truncate})
	require.Equal(t, reasonTruncate, w.reconcile)
	w.reset()
	w.Fold(change(baseTable, ingest.Row{ingest.Missing, ingest.Missing}, row(1, 1)))
	require.Equal(t, reasonImage, w.reconcile, "an old image without its key")
}

// TestWorkReadsChildren: rows of children are a parent's where it is read with them.
func TestWorkReadsChildren(t *testing.T) {
	t.Parallel()
	leaf := &ingest.Table{OID: 7, Ancestors: []uint32{6, 5}}
	for _, tc := range []struct {
		name   string
		source plans.Source
		want   bool
	}{
		{"partitioned root", plans.Source{OID: 5, Kind: 'p'}, true},
		{"partitioned in between", plans.Source{OID: 6, Kind: 'p'}, true},
		{"the leaf itself", plans.Source{OID: 7, Kind: 'r'}, true},
		{"inheritance parent", plans.Source{OID: 5, Kind: 'r', Inherits: true}, true},
		{"ONLY the parent", plans.Source{OID: 5, Kind: 'r'}, false},
		{"another leaf", plans.Source{OID: 8, Kind: 'r'}, false},
	} {
		require.Equal(t, tc.want, readsSource(&tc.source, leaf), tc.name)
	}
}

// TestFullRebuildKeepsNothing: what changed does not matter to the floor.
func TestFullRebuildKeepsNothing(t *testing.T) {
	t.Parallel()
	p := mixedPlan()
	p.Strategy, p.Residual = plans.FullRebuild, nil
	w := newWork(p)
	w.Fold(change(baseTable, row(1, 1), row(1, 1)))
	require.False(t, w.pending())
	w.Fold(change(baseTable, row(1, 1), row(1, 2)))
	require.True(t, w.pending())
	require.Empty(t, w.reconcile)
	require.Zero(t, w.Bytes())
}

// TestUnfeed: effective changes of a round that was rolled back are as if they had
// never come, and those of the stream stay.
func TestUnfeed(t *testing.T) {
	t.Parallel()
	t.Run("images", func(t *testing.T) {
		t.Parallel()
		w := newWork(mixedPlan())
		w.Fold(change(baseTable, nil, row(1, 1)))
		before := w.mark()
		w.Fold(change(producerTable, row(1, 1), row(1, 2)))
		w.unfeed(before)
		require.Equal(t, []int{1, 0}, []int{w.images[0].Len(), w.images[1].Len()})
		require.True(t, w.touched)
		require.False(t, w.retracts)
		require.Empty(t, w.reconcile)
	})
	t.Run("nothing else was pending", func(t *testing.T) {
		t.Parallel()
		w := newWork(mixedPlan())
		before := w.mark()
		w.Fold(change(producerTable, nil, row(1, 2)))
		w.unfeed(before)
		require.False(t, w.pending())
	})
	t.Run("not to be told from earlier ones", func(t *testing.T) {
		t.Parallel()
		w := newWork(mixedPlan())
		w.Fold(change(producerTable, nil, row(1, 1))) // of a round in which it did not move
		before := w.mark()
		w.Fold(change(producerTable, row(1, 1), row(1, 2)))
		w.unfeed(before)
		require.Equal(t, reasonRetry, w.reconcile)
	})
	t.Run("a reconcile stays one", func(t *testing.T) {
		t.Parallel()
		w := newWork(mixedPlan())
		before := w.mark()
		w.demand(reasonProducer)
		w.unfeed(before)
		require.Equal(t, reasonProducer, w.reconcile)
	})
	t.Run("groups", func(t *testing.T) {
		t.Parallel()
		w := newWork(foldPlan(true))
		before := w.mark()
		w.Fold(change(producerTable, nil, row(1, 5)))
		require.Len(t, w.groups.delta(), 1)
		w.unfeed(before)
		require.False(t, w.pending())
		require.Empty(t, w.groups.delta())
		require.Zero(t, w.Bytes())

		w.Fold(change(producerTable, nil, row(1, 5)))
		before = w.mark()
		w.unfeed(before)
		require.Equal(t, reasonRetry, w.reconcile)
	})
	coarsened := func(source int) *work {
		p := mixedPlan()
		p.Coarsened, p.KeySource = []string{"id"}, &plans.KeySource{Source: source, Columns: []int{0}}
		return newWork(p)
	}
	t.Run("a producer's changes in order", func(t *testing.T) {
		t.Parallel()
		w := coarsened(1)
		before := w.mark()
		w.Fold(change(producerTable, nil, row(1, 5)))
		require.Len(t, w.writes.list, 1)
		w.unfeed(before)
		require.Empty(t, w.writes.list)
		require.False(t, w.pending())
		w.Fold(change(producerTable, nil, row(1, 5)))
		before = w.mark()
		w.Fold(change(producerTable, nil, row(2, 5)))
		w.unfeed(before)
		require.Equal(t, reasonRetry, w.reconcile)
	})
	t.Run("a table's changes in order", func(t *testing.T) {
		t.Parallel()
		w := coarsened(0)
		w.Fold(change(baseTable, nil, row(1, 5)))
		before := w.mark()
		w.Fold(change(producerTable, nil, row(2, 5)))
		w.unfeed(before)
		require.Empty(t, w.reconcile)
		require.Len(t, w.writes.list, 1, "what the stream brought stays")
		require.Equal(t, []int{1, 0}, []int{w.images[0].Len(), w.images[1].Len()})
	})
}

// TestUnfeedRandom feeds rounds of which some are rolled back and redone: what a
// consumer has pending in the end is what the committed ones and the stream gave.
func TestUnfeedRandom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		got, want := newWork(mixedPlan()), newWork(mixedPlan())
		draw := func(table *ingest.Table) *ingest.Change {
			id := rapid.IntRange(1, 1000).Draw(t, "id")
			return change(table, row(id, 0), row(id, rapid.IntRange(1, 9).Draw(t, "v")))
		}
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			if c := draw(baseTable); rapid.Bool().Draw(t, "stream") {
				got.Fold(c)
				want.Fold(c)
			}
			effects := []*ingest.Change{draw(producerTable), draw(producerTable)}
			for range rapid.IntRange(0, 3).Draw(t, "failures") {
				before := got.mark()
				for _, c := range effects {
					got.Fold(c)
				}
				got.unfeed(before)
			}
			for _, c := range effects {
				got.Fold(c)
				want.Fold(c)
			}
			if rapid.Bool().Draw(t, "moves") { // else the effects wait for a later round
				require.Equal(t, want.pending(), got.pending())
				got.reset()
				want.reset()
			}
		}
		if got.reconcile != "" {
			require.Contains(t, []string{reasonRetry, want.reconcile}, got.reconcile)
			return
		}
		require.Equal(t, want.touched, got.touched)
		require.Equal(t, want.retracts, got.retracts)
		require.Equal(t, want.images[0].Len(), got.images[0].Len())
		require.Equal(t, want.images[1].Len(), got.images[1].Len())
		require.Equal(t, want.Bytes(), got.Bytes())
	})
}

// TestUndoAfterDelivery delivers a producer's effects in a round that is rolled back:
// to the consumer that moves, and not at all to the one that does not.
func TestUndoAfterDelivery(t *testing.T) {
	t.Parallel()
	e := fakeEngine(t, nil, []int{0}, []int{0})
	a, b, c := e.views[0], e.views[1], e.views[2]
	r := &round{e: e, moving: map[*view]bool{a: true, b: true}, fed: map[*view]fed{}}
	r.deliver(a, backing.Result{})
	require.Empty(t, r.fed, "a view that wrote nothing feeds nobody")
	effect := backing.Effect{New: ingest.Row{ingest.Text("1")}}
	r.deliver(a, backing.Result{Effects: []backing.Effect{effect}})
	require.True(t, b.work.pending())
	require.False(t, c.work.pending(), "before the round has committed")
	require.Len(t, r.later, 1)
	r.undo()
	require.False(t, b.work.pending())

	r = &round{e: e, moving: map[*view]bool{a: true, b: true}, fed: map[*view]fed{}}
	r.deliver(a, backing.Result{Overflow: true})
	require.Equal(t, reasonProducer, b.work.reconcile)
	require.True(t, r.later[0].all)
	r.later[0].fold()
	require.Equal(t, reasonProducer, c.work.reconcile)
}
