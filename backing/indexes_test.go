package backing

import (
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestIndexesFollowTheLayout: a table that stands gets the indexes of its layout now, and loses those of an earlier one.
// Those of users stay.
func TestIndexesFollowTheLayout(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Catalog: "My catalog"})
	l := &Layout{
		Name: Name{"public", `it's "x"`}, Key: []int{0},
		Columns: []Column{{Name: "id", Type: "integer", NotNull: true}, {Name: "v'", Type: "text"}, {Name: "n", Type: "integer"}},
		Hidden:  []Column{{Name: "a", Type: "integer"}, {Name: "b", Type: "integer"}},
		Indexes: []string{"(lower(\"v'\"))", `UNIQUE (n)`}, HiddenIndexes: []string{"(a)"},
	}
	f.create(l)
	table := l.Name.SQL()
	f.merge(l, Merge{New: "SELECT i, 'v' || i, i, i, i FROM generate_series(1, 100) i"})
	f.db.Exec(t, "CREATE INDEX mine ON "+table+" (n DESC); COMMENT ON INDEX mine IS 'for the report'")
	list := func() []string {
		return f.rows(`SELECT regexp_replace(pg_get_indexdef(indexrelid), '^.* USING btree ', '') FROM pg_index
			WHERE indrelid IN (` + literal(table) + "::regclass, " + literal(f.host.companion(l)) + "::regclass)")
	}
	want := []string{"(a)", "(id)", "(id)", "(lower(\"v'\"))", "(n DESC)", "(n)"}
	require.Equal(t, want, list())

	follow := func() {
		t.Helper()
		require.NoError(t, f.tx(func(tx pgx.Tx) error { return f.host.Index(t.Context(), tx, l) }))
		require.NoError(t, f.tx(func(tx pgx.Tx) error { return f.host.Unindex(t.Context(), tx, l) }))
	}
	follow()
	require.Equal(t, want, list(), "nothing is declared anew")
	l.Indexes, l.HiddenIndexes = []string{"UNIQUE (lower(\"v'\"))", "(n DESC)"}, []string{"(b)", "(a, b)"}
	follow()
	want = []string{"(a, b)", "(b)", "(id)", "(id)", "(lower(\"v'\"))", "(n DESC)", "(n DESC)"}
	require.Equal(t, want, list())
	require.Empty(t, f.rows("SELECT conname FROM pg_constraint WHERE contype = 'u' AND conrelid = "+literal(table)+"::regclass"))
	follow()
	require.Equal(t, want, list())

	// One that the rows violate is an error, and what was there stays.
	l.Indexes = []string{"UNIQUE ((n / 10))"}
	err := f.tx(func(tx pgx.Tx) error { return f.host.Index(t.Context(), tx, l) })
	requireCode(t, pgerrcode.UniqueViolation, err)
	require.ErrorContains(t, err, "make index UNIQUE ((n / 10)) of ")
	require.Equal(t, want, list())

	// After a while with a declaration of no index at all.
	l.Indexes, l.HiddenIndexes = nil, nil
	follow()
	require.Equal(t, []string{"(id)", "(id)", "(n DESC)"}, list())
	require.Equal(t, "for the report", f.db.Value(t, "SELECT obj_description('mine'::regclass)"))
	l.Indexes = []string{"(n)"}
	follow()
	require.NoError(t, f.host.Detach(t.Context(), f.db.Pool, l))
	require.Equal(t, "for the report", f.db.Value(t, "SELECT string_agg(obj_description(indexrelid), '') FROM pg_index WHERE indrelid = "+literal(table)+"::regclass"))
}
