package maintain

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// weakColumns are the columns k0, k1, ... of inputs of keys.
func weakColumns(p *plans.Plan) []backing.InputColumn {
	var out []backing.InputColumn
	for i, k := range p.Key {
		if p.KeySource.Columns[i] >= 0 {
			out = append(out, backing.InputColumn{Name: "k" + strconv.Itoa(len(out)), Type: p.Columns[k].Type})
		}
	}
	return out
}

// sourceKey gives the key's values in an image of the key's source.
func sourceKey(p *plans.Plan, image ingest.Row) ingest.Row {
	var out ingest.Row
	for _, from := range p.KeySource.Columns {
		if from >= 0 {
			out = append(out, image[from])
		}
	}
	return out
}

// inClasses is the condition that the key of an alias is equal, under the weak key, to
// one of mvsync_keys.
func inClasses(p *plans.Plan, alias string) string {
	var same []string
	n := 0
	for i, e := range keyExprs(p, alias) {
		if p.KeySource.Columns[i] < 0 {
			continue
		}
		k := "x.k" + strconv.Itoa(n)
		same = append(same, fmt.Sprintf("(%[1]s = %[2]s OR %[1]s IS NULL AND %[2]s IS NULL)", e, k))
		if p.Columns[p.Key[i]].NotNull {
			same[len(same)-1] = e + " = " + k
		}
		n++
	}
	return "EXISTS (SELECT FROM " + keysName + " x WHERE " + strings.Join(same, " AND ") + ")"
}

// coarsenedSlices maintains the classes that the touched slices of a residual view with
// a coarsened key have to do with: all members of a class are looked at again, since
// the one that stands may belong to another slice than the one that went.
func (r *round) coarsenedSlices(ctx context.Context, v *view, m backing.Merge, touched []backing.Input) (backing.Result, error) {
	p := v.plan
	columns := strings.Join(columnNamesOf(p), ", ")
	keys := strings.Join(keyExprs(p, "q"), ", ")
	found, err := r.session.Query(ctx, r.tx, backing.Select{
		SQL: fmt.Sprintf("SELECT DISTINCT %s FROM (SELECT %s FROM (%s) n UNION ALL SELECT %s FROM mvsync_stored s WHERE (%s)) q",
			keys, columns, m.New, strings.Join(prefixAll("s.", columnNamesOf(p)), ", "), strings.Join(m.TouchedBy, ") OR (")),
		Stored: v.layout,
	}, touched)
	if err != nil {
		return backing.Result{}, fmt.Errorf("find touched classes: %w", err)
	}
	classes := backing.Input{Name: keysName, Columns: weakColumns(p), Rows: varying(p, found)}
	body := fmt.Sprintf("SELECT * FROM (%s) q WHERE %s", p.Eval, inClasses(p, "q"))
	winners := backing.Input{Name: winnersName, Columns: weakColumns(p)}
	if len(v.work.writes.list) > 0 {
		if winners.Rows, err = r.lastWritten(ctx, v, body, classes); err != nil {
			return backing.Result{}, err
		}
	}
	return r.merge(ctx, v, backing.Merge{
		New: oneMember(p, body, true), Touched: inClasses(p, "s"), Effects: m.Effects,
	}, classes, winners)
}

// varying drops constants from rows of keys.
func varying(p *plans.Plan, rows []ingest.Row) []ingest.Row {
	out := make([]ingest.Row, len(rows))
	for i, row := range rows {
		for j, from := range p.KeySource.Columns {
			if from >= 0 {
				out[i] = append(out[i], row[j])
			}
		}
	}
	return out
}

// lastWritten replays the writes of the key's source and gives the keys of the members
// written last. Which members the body has is judged at S.
func (r *round) lastWritten(ctx context.Context, v *view, body string, classes backing.Input) ([]ingest.Row, error) {
	p := v.plan
	ord := backing.InputColumn{Name: "mvsync_ord", Type: "integer"}
	log := backing.Input{Name: "mvsync_log", Columns: append([]backing.InputColumn{ord}, weakColumns(p)...)}
	gone := backing.Input{Name: "mvsync_gone", Columns: log.Columns}
	for i, w := range v.work.writes.list {
		at := ingest.Text(strconv.Itoa(i))
		if w.new != nil {
			log.Rows = append(log.Rows, append(ingest.Row{at}, sourceKey(p, w.new)...))
		}
		if w.old != nil {
			gone.Rows = append(gone.Rows, append(ingest.Row{at}, sourceKey(p, w.old)...))
		}
	}
	names := columnNamesOf(p)
	var qk, nk []string
	for i, k := range p.Key {
		if p.KeySource.Columns[i] >= 0 {
			qk, nk = append(qk, "q."+names[k]), append(nk, "n.k"+strconv.Itoa(len(nk)))
		}
	}
	keys := strings.Join(keyExprs(p, "x"), ", ")
	sql := fmt.Sprintf(`SELECT x.kind, x.ord, dense_rank() OVER (ORDER BY %[1]s), ROW(%[1]s)::text, x.json, %[2]s FROM (
  SELECT 'w' AS kind, n.mvsync_ord AS ord, to_jsonb(q)::text AS json, %[3]s
    FROM mvsync_log n JOIN (%[4]s) q ON ROW(%[5]s)::record *= ROW(%[6]s)::record
  UNION ALL SELECT 's', 0, to_jsonb(s)::text, s.* FROM %[7]s s WHERE %[8]s
  UNION ALL SELECT 'g', g.mvsync_ord, NULL, %[9]s FROM mvsync_gone g) x`,
		keys, strings.Join(prefixAll("x.", names), ", "), strings.Join(prefixAll("q.", names), ", "), body,
		strings.Join(qk, ", "), strings.Join(nk, ", "), v.layout.Name.SQL(), inClasses(p, "s"), strings.Join(goneColumns(p), ", "))
	found, err := r.query(ctx, sql, []backing.Input{log, gone, classes})
	if err != nil {
		return nil, fmt.Errorf("classify keys: %w", err)
	}
	c, err := readClasses(p, found)
	if err != nil {
		return nil, err
	}
	out := c.replay(len(v.work.writes.list))
	if err := r.recordCollisions(ctx, v, out.collisions); err != nil {
		return nil, err
	}
	var winners []ingest.Row
	for _, m := range out.winners {
		winners = append(winners, keyOf(p, m.row))
	}
	return winners, nil
}
