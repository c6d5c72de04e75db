package plans

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSettle: costs decide only where they are another by far, and an earlier choice
// holds until the estimate by which it was made does not.
func TestSettle(t *testing.T) {
	t.Parallel()
	fits := func(costs ...float64) (out []fit) {
		for i, c := range costs {
			out = append(out, fit{planned: planned{strategy: []Strategy{ResidualRecompute, PrefixDelete, JoinResidual}[i]}, estimate: c})
		}
		return out
	}
	for _, tc := range []struct {
		name  string
		costs []float64
		kept  *Kept
		want  Strategy
		held  bool
	}{
		{"first", []float64{50, 40, 30}, nil, ResidualRecompute, false},
		{"as cheap as a tenth", []float64{50, 5, 6}, nil, ResidualRecompute, false},
		{"far cheaper", []float64{50, 4.9, 6}, nil, PrefixDelete, false},
		{"the cheapest", []float64{50, 4.9, 3}, nil, JoinResidual, false},
		{"kept", []float64{1, 5, 100}, &Kept{Strategy: JoinResidual, Estimate: 99}, JoinResidual, true},
		{"kept without an estimate", []float64{1, 5, 100}, &Kept{Strategy: JoinResidual}, JoinResidual, true},
		{"it costs ten times as much", []float64{1, 5, 100}, &Kept{Strategy: JoinResidual, Estimate: 10}, JoinResidual, true},
		{"it costs more than that", []float64{1, 5, 101}, &Kept{Strategy: JoinResidual, Estimate: 10}, ResidualRecompute, false},
		{"it costs less than a tenth, and is chosen again", []float64{100, 5, 1}, &Kept{Strategy: JoinResidual, Estimate: 11}, JoinResidual, false},
		{"it costs less than a tenth, and another still less", []float64{1, 1, 2}, &Kept{Strategy: JoinResidual, Estimate: 21}, ResidualRecompute, false},
		{"whatever it costs while the daemon runs", []float64{1, 5, 101}, &Kept{Strategy: JoinResidual, Estimate: 10, Always: true}, JoinResidual, true},
		{"one that does not fit", []float64{1, 5}, &Kept{Strategy: JoinResidual, Always: true}, ResidualRecompute, false},
		{"one of another family", []float64{1, 5}, &Kept{Strategy: FullRebuild, Estimate: 1, Always: true}, ResidualRecompute, false},
	} {
		at, held := settle(fits(tc.costs...), tc.kept)
		require.Equal(t, tc.want, fits(tc.costs...)[at].strategy, tc.name)
		require.Equal(t, tc.held, held, tc.name)
	}
}

// spread can be kept by its rows' images, or by look-ups of the rows like a join.
const spread = "SELECT b.pk, w.ord, w.w FROM big b CROSS JOIN LATERAL string_to_table(b.words, ' ') WITH ORDINALITY w(w, ord)"

// TestChoiceIsKept: a view keeps the strategy by which it is maintained, until what that
// costs has become another by far.
func TestChoiceIsKept(t *testing.T) {
	t.Parallel()
	db, conn := bigFixture(t)
	db.Exec(t, "ALTER TABLE big REPLICA IDENTITY FULL; ANALYZE")
	compiled := func(k *Kept) *Plan {
		t.Helper()
		p, err := Compile(t.Context(), conn, view(spread), Options{Kept: k})
		require.NoError(t, err)
		return p
	}
	p := compiled(nil)
	require.Equal(t, PrefixDelete, p.Strategy)
	require.Positive(t, p.Estimate)
	require.NotNil(t, p.Projection)
	require.Nil(t, p.Residual)

	kept := compiled(&Kept{Strategy: JoinResidual})
	require.Equal(t, JoinResidual, kept.Strategy)
	require.NotNil(t, kept.Residual)
	require.Nil(t, kept.Projection)
	require.Contains(t, kept.Declined[PrefixDelete], "the view is maintained by join-residual")
	forced, err := Compile(t.Context(), conn, Declaration{Name: Name{"public", "v"}, Query: spread, Force: JoinResidual}, Options{})
	require.NoError(t, err)
	require.Equal(t, forced.Statements(), kept.Statements(), "what another strategy planned is left over")
	require.Equal(t, forced.HiddenIndexes, kept.HiddenIndexes)
	require.Equal(t, forced.Sources, kept.Sources)

	again := compiled(&Kept{Strategy: JoinResidual, Estimate: 3 * kept.Estimate})
	require.Equal(t, JoinResidual, again.Strategy)
	require.InDelta(t, 3*kept.Estimate, again.Estimate, 0, "a choice that stands keeps its estimate")
	require.Equal(t, PrefixDelete, compiled(&Kept{Strategy: JoinResidual, Estimate: kept.Estimate / 20}).Strategy)
	require.Equal(t, PrefixDelete, compiled(&Kept{Strategy: JoinResidual, Estimate: kept.Estimate * 20}).Strategy)
	require.Equal(t, JoinResidual, compiled(&Kept{Strategy: JoinResidual, Estimate: kept.Estimate * 20, Always: true}).Strategy)
	require.Equal(t, PrefixDelete, compiled(&Kept{Strategy: FullRebuild, Always: true}).Strategy, "the family decides first")

	// Where there is no choice, nothing is estimated.
	p, err = Compile(t.Context(), conn, view("SELECT pk, p FROM big"), Options{Kept: &Kept{Strategy: JoinResidual}})
	require.NoError(t, err)
	require.Equal(t, InverseProjection, p.Strategy)
	require.Zero(t, p.Estimate)
}

// TestNoAlternativeWithoutIdentity: a strategy is not chosen for its cost, or kept, where
// tables would have to be altered for it.
func TestNoAlternativeWithoutIdentity(t *testing.T) {
	t.Parallel()
	for _, identity := range []Identity{Require, Manage} {
		a := &analysis{d: view("SELECT 1"), o: Options{ReplicaIdentity: identity}, catalog: &catalog{relations: map[uint32]*relation{}}}
		p := &Plan{Sources: []Source{{OID: 1, Schema: "public", Name: "big", Columns: []SourceColumn{{Name: "pk"}, {Name: "words"}}, Leaves: []uint32{1}}}}
		a.relations[1] = &relation{OID: 1, leaves: []leaf{{OID: 1, Identity: "d", Columns: []string{"pk"}, Primary: []string{"pk"}}}}
		require.True(t, a.identified(p, fit{needs: []needs{{columns: []string{"pk"}}}}))
		require.False(t, a.identified(p, fit{needs: []needs{{columns: []string{"words"}}}}))
		require.Empty(t, p.Alter)
		require.Empty(t, p.Sources[0].Identity)
	}
}
