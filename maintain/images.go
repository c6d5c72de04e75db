package maintain

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// netted is what a batch did to one source, as the arms ship it.
type netted struct {
	olds, news []ingest.Row // of Source.Columns; olds lack what the identity lacks
	inserts    bool         // no row has an old image: all news are new rows
}

// errReads says that maintenance turned out to need sources that the round did not
// lock before its snapshot; the round is redone with them.
type errReads struct{ v *view }

func (e *errReads) Error() string { return "the round must read the sources of " + e.v.name }

// net gives the net images of a source. Values that new images lack are looked up
// by key at S: the row that they belong to is the one that S shows.
func (r *round) net(ctx context.Context, v *view, source int, images *ingest.Images) (netted, error) {
	n := netted{inserts: true}
	var missing []lacking
	images.Each(func(im *ingest.Image) {
		if im.Old != nil {
			n.olds = append(n.olds, im.Old)
			n.inserts = false
		}
		if im.New == nil {
			return
		}
		row := im.New
		if slices.ContainsFunc(row, ingest.Value.IsMissing) {
			row = slices.Clone(row)
			missing = append(missing, lacking{row: row, relation: im.Relation})
		}
		n.news = append(n.news, row)
	})
	if len(missing) == 0 {
		return n, nil
	}
	if !r.reads(v) {
		return netted{}, &errReads{v}
	}
	return n, r.complete(ctx, &v.plan.Sources[source], missing)
}

// lacking is a new image without all of its values.
type lacking struct {
	row      ingest.Row
	relation uint32 // the very table in which it stands, where keys are unique in each child only; else 0
}

// complete fills the missing values of rows, in place.
func (r *round) complete(ctx context.Context, s *plans.Source, rows []lacking) error {
	keys := backing.Input{Name: keysName, Columns: []backing.InputColumn{{Name: "rel", Type: "oid"}}}
	on := []string{"k.rel IN (0, t.tableoid)"}
	for i, k := range s.Key {
		c := s.Columns[k]
		name := fmt.Sprintf("k%d", i)
		keys.Columns = append(keys.Columns, backing.InputColumn{Name: name, Type: c.Type})
		on = append(on, fmt.Sprintf("t.%s = k.%s", pgx.Identifier{c.Name}.Sanitize(), name))
	}
	byKey := map[string]ingest.Row{}
	for _, l := range rows {
		key := ingest.Row{ingest.Text(strconv.FormatUint(uint64(l.relation), 10))}
		for _, k := range s.Key {
			key = append(key, l.row[k])
		}
		keys.Rows = append(keys.Rows, key)
		byKey[rowKey(key)] = l.row
	}
	columns := []string{"k.rel"}
	for _, c := range s.Columns {
		columns = append(columns, "t."+pgx.Identifier{c.Name}.Sanitize())
	}
	sql := "SELECT " + strings.Join(columns, ", ") + " FROM " + pgx.Identifier{s.Schema, s.Name}.Sanitize() +
		" t JOIN " + keysName + " k ON " + strings.Join(on, " AND ")
	found, err := r.query(ctx, sql, []backing.Input{keys})
	if err != nil {
		return fmt.Errorf("look up values that the stream left out: %w", err)
	}
	for _, got := range found {
		key := ingest.Row{got[0]}
		got = got[1:]
		for _, k := range s.Key {
			key = append(key, got[k])
		}
		if row := byKey[rowKey(key)]; row != nil {
			copy(row, got)
			delete(byKey, rowKey(key))
		}
	}
	if len(byKey) > 0 {
		return fmt.Errorf("look up values that the stream left out: %d rows of %s.%s are not there", len(byKey), s.Schema, s.Name)
	}
	return nil
}

// rowKey tells rows apart: different rows have different keys.
func rowKey(row ingest.Row) string { return string(appendRowKey(nil, row)) }

func appendRowKey(b []byte, row ingest.Row) []byte {
	for _, v := range row {
		if v.IsNull() {
			b = append(b, '-') // not the empty string
			continue
		}
		b = append(strconv.AppendInt(b, int64(len(v.Text())), 10), ':')
		b = append(b, v.Text()...)
	}
	return b
}

// imageInput ships images of a source under a name. Values that an old image lacks
// are shipped as NULL where the plan does not need them; where it does, the view
// must be reconciled, which ok false says.
func imageInput(name string, s *plans.Source, rows []ingest.Row, needed func(column int) bool) (in backing.Input, ok bool) {
	in = backing.Input{Name: name}
	for _, c := range s.Columns {
		in.Columns = append(in.Columns, backing.InputColumn{Name: c.Name, Type: c.Type})
	}
	for _, row := range rows {
		if i := slices.IndexFunc(row, ingest.Value.IsMissing); i >= 0 {
			row = slices.Clone(row)
			for i := range row {
				if !row[i].IsMissing() {
					continue
				}
				if needed(i) {
					return in, false
				}
				row[i] = ingest.Null
			}
		}
		in.Rows = append(in.Rows, row)
	}
	return in, true
}
