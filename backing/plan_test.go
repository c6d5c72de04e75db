package backing

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/ingest"
)

// TestMergeReadsByKey looks at the plans of merges of few keys into big tables: no table is scanned, whether inputs are
// arrays or staged, with plans for the very values or generic ones. (A staged table of 20 rows is taken for one of a
// thousand, by its first page.)
func TestMergeReadsByKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	integer, text := Column{Name: "k", Type: "integer", NotNull: true}, Column{Name: "g", Type: "text"}
	total := Column{Name: "total", Type: "bigint"}
	hidden := []Column{{Name: "n", Type: "bigint", NotNull: true}}
	const (
		body = "SELECT i, 'group ' || i, i FROM generate_series(1, 100000) i"
		with = "SELECT i, 'group ' || i, i, 1 FROM generate_series(1, 100000) i"
		few  = "SELECT i, 'group ' || i, i, 1 FROM generate_series(1, 20000) i"
		none = "s.k IN (SELECT k FROM mvsync_new_0)"
	)
	for _, tc := range []struct {
		name    string
		layout  Layout
		touched string
		fill    string
	}{
		{"key by sub-select", Layout{Columns: []Column{integer, text, total}, Key: []int{0}}, none, body},
		{"key by array", Layout{Columns: []Column{integer, text, total}, Key: []int{0}}, "s.k = ANY ($1::integer[])", body},
		{
			"two keys",
			Layout{Columns: []Column{integer, {Name: "g", Type: "text", NotNull: true}, total}, Key: []int{0, 1}},
			"(s.k, s.g) IN (SELECT k, g FROM mvsync_new_0)", body,
		},
		{"companion", Layout{Columns: []Column{integer, text, total}, Key: []int{0}, Hidden: hidden}, none, with},
		{"companion by array", Layout{Columns: []Column{integer, text, total}, Key: []int{0}, Hidden: hidden}, "s.k = ANY ($1::integer[])", with},
		{
			"companion, nullable key",
			Layout{Columns: []Column{integer, text, total}, Key: []int{1}, Hidden: hidden},
			"s.g = ANY ($2::text[]) OR (s.g IS NULL AND $3)", with,
		},
		{
			"companion, nullable key by sub-select",
			Layout{Columns: []Column{integer, text, total}, Key: []int{1}, Hidden: hidden},
			"s.g IN (SELECT g FROM mvsync_new_0)", with,
		},
		{
			"companion, hashed key",
			Layout{Columns: []Column{integer, text, total}, Key: []int{1}, HashKey: true, Hidden: hidden},
			"s.g = ANY ($2::text[])", few,
		},
	} {
		l := tc.layout
		l.Name = Name{"public", tc.name}
		f.create(&l)
		f.merge(&l, Merge{New: tc.fill, Append: true})
		f.db.Exec(t, "ANALYZE "+l.Name.SQL())
		if len(l.Hidden) > 0 {
			f.db.Exec(t, "ANALYZE "+f.host.companion(&l))
		}
		for _, arrayRows := range []int{1, 2000} {
			for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
				t.Run(fmt.Sprintf("%s/%d/%s", tc.name, arrayRows, mode), func(t *testing.T) {
					f := *f
					f.t = t
					f.host.arrayRows = arrayRows
					plan := f.plan(&l, tc.touched, mode)
					require.NotContains(t, plan, "Seq Scan on "+strings.Trim(l.Name.Name, `"`))
					require.NotContains(t, plan, `Seq Scan on "`+l.Name.Name)
					require.NotContains(t, plan, "Seq Scan on state_")
					require.Contains(t, plan, "Index")
				})
			}
		}
	}
}

// plan returns the plan of a merge of 20 rows.
func (f *fixture) plan(l *Layout, touched, mode string) string {
	var in Input
	in.Name = "mvsync_new_0"
	types := []string{"integer", "text", "bigint", "bigint"}
	for i, name := range []string{"k", "g", "total", "n"}[:3+len(l.Hidden)] {
		in.Columns = append(in.Columns, InputColumn{name, types[i]})
	}
	args := []any{Array{Type: "integer"}, Array{Type: "text"}, true}
	for i := range 20 {
		k := values([]string{fmt.Sprint(i * 7), fmt.Sprintf("group %d", i*7), "1", "1"})[0]
		in.Rows = append(in.Rows, k[:len(in.Columns)])
		args[0] = Array{Type: "integer", Values: append(args[0].(Array).Values, k[0])}
		args[1] = Array{Type: "text", Values: append(args[1].(Array).Values, k[1])}
	}
	var out strings.Builder
	err := f.tx(func(tx pgx.Tx) error {
		ctx := f.t.Context()
		if err := exec(ctx, tx, "SET LOCAL plan_cache_mode = "+mode); err != nil {
			return err
		}
		m := Merge{New: "SELECT * FROM mvsync_new_0", Touched: touched, Effects: true, Args: args}
		if !strings.Contains(touched, "$") {
			m.Args = nil
		}
		if m.Args != nil {
			// Each parameter must be used somewhere.
			m.Touched = "(" + touched + ") AND $1::integer[] IS NOT NULL AND $2::text[] IS NOT NULL AND $3::boolean"
		}
		ctes, all, how, err := f.session.inputs(ctx, tx, []Input{in}, m.Args)
		if err != nil {
			return err
		}
		text := "EXPLAIN " + f.session.statement(l, &m).text(f.host.catalog, ctes)
		rows, err := tx.Query(ctx, text, append([]any{how}, all...)...)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		out.WriteString(strings.Join(lines, "\n"))
		return err
	})
	require.NoError(f.t, err)
	return out.String()
}

var benchColumns = []Column{
	{Name: "id", Type: "bigint", NotNull: true},
	{Name: "region", Type: "text"},
	{Name: "cents", Type: "bigint"},
	{Name: "price", Type: "numeric(12,2)"},
	{Name: "at", Type: "timestamp with time zone"},
}

func benchRow(id int, cents string) []ingest.Value {
	return []ingest.Value{
		ingest.Text(fmt.Sprint(id)), ingest.Text("north"), ingest.Text(cents), ingest.Text("12.34"), ingest.Text("2024-01-01 00:00:00+00"),
	}
}

// BenchmarkMerge merges batches of five-column rows: new ones, then the same keys with another value.
func BenchmarkMerge(b *testing.B) {
	for _, size := range []int{1, 100, 2_000, 50_000, 200_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := newFixture(b, Options{})
			l := f.create(&Layout{Name: Name{"public", "v"}, Key: []int{0}, Columns: benchColumns})
			in := Input{Name: "mvsync_new_0"}
			for _, c := range benchColumns {
				in.Columns = append(in.Columns, InputColumn{c.Name, c.Type})
			}
			m := Merge{New: "SELECT * FROM mvsync_new_0", Touched: "s.id IN (SELECT id FROM mvsync_new_0)"}
			next := 0
			var inserted, updated int64
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				in.Rows = nil
				for i := range size {
					in.Rows = append(in.Rows, benchRow(next+i, "5"))
				}
				next += size
				b.StartTimer()
				inserted += f.merge(l, m, in).Inserted
				for i := range in.Rows {
					in.Rows[i][2] = ingest.Text("6")
				}
				updated += f.merge(l, m, in).Updated
			}
			require.Equal(b, inserted, updated)
			b.ReportMetric(float64(inserted+updated)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
