package backing

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/ingest"
)

// sliced is a view whose rows are found by a visible and by a hidden column.
func sliced(f *fixture) *Layout {
	l := f.create(&Layout{
		Name:          Name{"public", "sliced"},
		Columns:       []Column{{Name: "id", Type: "integer", NotNull: true}, {Name: "v", Type: "text"}},
		Hidden:        []Column{{Name: "owner", Type: "integer"}},
		Key:           []int{0},
		HiddenIndexes: []string{`("owner")`},
	})
	f.merge(l, Merge{New: "SELECT i, 'v' || i, nullif(i % 3, 0) FROM generate_series(1, 6) i"})
	return l
}

func TestTouchedBy(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := sliced(f)
	keys := []Input{
		input("mvsync_keys_0", []InputColumn{{"k0", "integer"}}, []string{"1"}, []string{"4"}),
		input("mvsync_keys_1", []InputColumn{{"k0", "integer"}}, []string{"1"}),
	}
	// Row 1 is touched either way, row 4 as well; row 2 by neither.
	r := f.merge(l, Merge{
		New: "SELECT 1, 'new', 1 UNION ALL SELECT 7, 'v7', 1",
		TouchedBy: []string{
			`s.id = ANY (ARRAY(SELECT mvsync_keys_0.k0 FROM mvsync_keys_0))`,
			`s."owner" = ANY (ARRAY(SELECT mvsync_keys_1.k0 FROM mvsync_keys_1))`,
		},
		Effects: true,
	}, keys...)
	require.Equal(t, []string{"- -> 7|v7", "1|v1 -> 1|new", "4|v4 -> -"}, lines(r.Effects))
	require.Zero(t, r.Unchanged)
	require.Equal(t, []string{"1|new", "2|v2", "3|v3", "5|v5", "6|v6", "7|v7"}, f.rows("SELECT * FROM public.sliced"))
}

func TestTouchedByOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := sliced(f)
	r := f.merge(l, Merge{New: "SELECT 1, 'v1', NULL::integer WHERE false", TouchedBy: []string{"s.owner = 2"}})
	require.EqualValues(t, 2, r.Deleted)
	require.Equal(t, []string{"1|v1", "3|v3", "4|v4", "6|v6"}, f.rows("SELECT * FROM public.sliced"))
}

func TestSelectStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := sliced(f)
	q := Select{Stored: l, SQL: "SELECT s.id, s.owner FROM mvsync_stored s JOIN mvsync_old_0 o ON o.x = s.owner ORDER BY 1"}
	old := input("mvsync_old_0", []InputColumn{{"x", "integer"}}, []string{"2"}, []string{"NULL"})
	var rows []ingest.Row
	require.NoError(t, f.tx(func(tx pgx.Tx) (err error) {
		rows, err = f.session.Query(t.Context(), tx, q, []Input{old})
		return err
	}))
	require.Len(t, rows, 2)
	require.Equal(t, "2|2", line(rows[0]))
	require.Equal(t, "5|2", line(rows[1]))
}

func TestHiddenIndexes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := sliced(f)
	got := f.rows("SELECT indexdef FROM pg_indexes WHERE indexdef LIKE '%(owner)%'")
	require.Len(t, got, 1)
	require.Contains(t, got[0], f.host.companion(l)[len(`"mvsync".`)+1:len(f.host.companion(l))-1])
}

// TestSlicesReadByKey: a few touched rows of a big view, some by a column of the
// table and some by one of the companion, are found without a scan of either.
func TestSlicesReadByKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := sliced(f)
	f.merge(l, Merge{New: "SELECT i, 'v' || i, i / 3 FROM generate_series(1, 50000) i"})
	f.db.Exec(t, "ANALYZE "+l.Name.SQL())
	f.db.Exec(t, "ANALYZE "+f.host.companion(l))
	keys := []Input{
		input("mvsync_keys_0", []InputColumn{{"k0", "integer"}}, []string{"1"}, []string{"4"}),
		input("mvsync_keys_1", []InputColumn{{"k0", "integer"}}, []string{"1"}),
	}
	m := Merge{
		New: "SELECT 1, 'new', 1",
		TouchedBy: []string{
			`s.id = ANY (ARRAY(SELECT mvsync_keys_0.k0 FROM mvsync_keys_0))`,
			`s."owner" = ANY (ARRAY(SELECT mvsync_keys_1.k0 FROM mvsync_keys_1))`,
		},
	}
	for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
		var plan []string
		require.NoError(t, f.tx(func(tx pgx.Tx) error {
			if err := exec(t.Context(), tx, "SET LOCAL plan_cache_mode = "+mode); err != nil {
				return err
			}
			ctes, args, how, err := f.session.inputs(t.Context(), tx, keys, nil)
			if err != nil {
				return err
			}
			rows, err := tx.Query(t.Context(), "EXPLAIN "+f.session.statement(l, &m).text(f.host.catalog, ctes), append([]any{how}, args...)...)
			if err != nil {
				return err
			}
			plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		}))
		text := strings.Join(plan, "\n")
		require.NotContains(t, text, "Seq Scan on sliced", mode)
		require.NotContains(t, text, "Seq Scan on state_", mode)
	}
}
