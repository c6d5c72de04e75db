package maintain

import (
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

func barePlan() *plans.Plan {
	return &plans.Plan{
		Strategy: plans.InverseProjection,
		Columns:  []plans.Column{{Name: "v"}, {Name: "id", Type: "integer", TypeOID: pgtype.Int4OID, NotNull: true}},
		Key:      []int{1},
		Sources: []plans.Source{{
			OID: 7, Kind: 'r', Key: []int{0}, Columns: []plans.SourceColumn{{Name: "id"}, {Name: "v"}},
		}},
		Projection: &plans.Projection{Bare: []int{1, 0}, KeyFrom: []int{0}},
	}
}

// TestStraight: rows go from images into the table only where the images of a key say
// all of one stored row.
func TestStraight(t *testing.T) {
	t.Parallel()
	require.True(t, straight(barePlan()))
	for name, spoil := range map[string]func(*plans.Plan){
		"filtered":                      func(p *plans.Plan) { p.Projection.Bare = nil },
		"fanned out":                    func(p *plans.Plan) { p.Strategy = plans.PrefixDelete },
		"keys equal in other bytes":     func(p *plans.Plan) { p.Columns[1].TypeOID = pgtype.NumericOID },
		"blanks do not count":           func(p *plans.Plan) { p.Columns[1].TypeOID = pgtype.BPCharOID },
		"another collation":             func(p *plans.Plan) { p.Columns[1].Collation = `"public"."nocase"` },
		"coarsened":                     func(p *plans.Plan) { p.Coarsened = []string{"id"} },
		"netted by another key":         func(p *plans.Plan) { p.Sources[0].Key = []int{1} },
		"netted by a part of the key":   func(p *plans.Plan) { p.Projection.KeyFrom = []int{0, 1} },
		"the key is a part of it":       func(p *plans.Plan) { p.Sources[0].Key = []int{0, 1} },
		"one column twice":              func(p *plans.Plan) { p.Projection.KeyFrom, p.Sources[0].Key = []int{0, 0}, []int{0, 1} },
		"netted by content":             func(p *plans.Plan) { p.Sources[0].Key = nil },
		"keys unique in each child":     func(p *plans.Plan) { p.Sources[0].Inherits = true },
		"a view over a view":            func(p *plans.Plan) { p.Sources[0].Producer = true },
		"a constant is part of the key": func(p *plans.Plan) { p.Projection.KeyFrom = []int{-1} },
	} {
		p := barePlan()
		spoil(p)
		require.False(t, straight(p), name)
	}
}

// TestReattach: what a round took over before it failed is pending again, and what it
// must not hold any more is gone.
func TestReattach(t *testing.T) {
	t.Parallel()
	table := &ingest.Table{OID: 7, Full: true, Columns: []ingest.Column{{Name: "id"}, {Name: "v"}}}
	row := func(id, v string) ingest.Row { return ingest.Row{ingest.Text(id), ingest.Text(v)} }
	w := newWork(barePlan())
	insert := func(id string) { w.Fold(&ingest.Change{Table: table, Op: ingest.Insert, New: row(id, "a")}) }

	insert("1")
	insert("2")
	part := w.detach()
	require.Equal(t, 2, part.Len())
	require.True(t, w.pending(), "the round must still look at the view")
	require.Positive(t, w.Bytes(), "parts count until they are durable (INV-8)")
	w.Fold(&ingest.Change{Table: table, Op: ingest.Delete, Old: row("1", "a")})
	w.detach()
	insert("3")
	w.reattach()
	require.Equal(t, 2, w.images[0].Len(), "row 1 has come and gone")
	require.Empty(t, w.ahead)
	require.Equal(t, "", w.reconcile)
	insert("4")
	require.Equal(t, 3, w.images[0].Len())

	w.detach()
	w.Forget()
	require.Zero(t, w.Bytes())
	w.reattach()
	require.Zero(t, w.Bytes(), "the view is reconciled")
	w.reset()

	insert("1")
	w.detach()
	insert("1") // a second row at the key: the stream and the view do not fit together
	w.reattach()
	require.Equal(t, reasonRetry, w.reconcile)
}
