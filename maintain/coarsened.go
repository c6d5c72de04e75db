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

// A coarsened key holds one stored row for each class of body rows that are equal
// under the weak key: after a streamed change the member that was written last. So the
// order of changes matters, and they are kept one by one, not netted. Views without
// such a key pay nothing for this.

// write is one source row change of a coarsened view, in commit order. Rows are of
// Sources[0].Columns.
type write struct{ old, new ingest.Row }

// writes collects the changes of a coarsened view.
type writes struct {
	positions map[*ingest.Table][]int
	columns   []string
	list      []write
	bytes     int64
}

func newWrites(s *plans.Source) *writes {
	return &writes{positions: map[*ingest.Table][]int{}, columns: columnNames(s)}
}

// add takes a change; false says that an image lacks a column.
func (w *writes) add(c *ingest.Change) bool {
	pos, ok := w.positions[c.Table]
	if !ok {
		if pos = namedPositions(c.Table, w.columns); slices.Contains(pos, -1) {
			pos = nil
		}
		w.positions[c.Table] = pos
	}
	if pos == nil {
		return false
	}
	entry := write{old: projected(c.Old, pos), new: projected(c.New, pos)}
	for _, v := range entry.new {
		if v.IsMissing() {
			return false
		}
	}
	w.list = append(w.list, entry)
	w.bytes += 64 + entry.old.Bytes() + entry.new.Bytes()
	return true
}

func (w *writes) reset() { w.list, w.bytes = nil, 0 }

// projected copies the kept columns; nil stays nil.
func projected(row ingest.Row, pos []int) ingest.Row {
	if row == nil {
		return nil
	}
	out := make(ingest.Row, len(pos))
	for i, p := range pos {
		out[i] = clone(row[p])
	}
	return out
}

// winnersName is the input of the keys of the members that were written last.
const winnersName = "mvsync_winners"

// coarsened maintains an inverse-projection view with a coarsened key.
func (r *round) coarsened(ctx context.Context, v *view) (backing.Result, error) {
	list := v.work.writes.list
	if len(list) == 0 {
		return backing.Result{}, nil
	}
	c, err := r.classify(ctx, v, list)
	if err != nil {
		return backing.Result{}, err
	}
	out := c.replay(len(list))
	if len(out.vacated) > 0 && !r.reads(v) {
		return backing.Result{}, &errReads{v}
	}
	if err := r.recordCollisions(ctx, v, out.collisions); err != nil {
		return backing.Result{}, err
	}
	rows := backing.Input{Name: "mvsync_rows", Columns: inputColumns(v.plan.Columns)}
	touched := backing.Input{Name: keysName, Columns: inputColumns(v.plan.Projection.KeyColumns)}
	gone := backing.Input{Name: "mvsync_vacated", Columns: touched.Columns}
	for _, m := range out.winners {
		rows.Rows = append(rows.Rows, m.row)
		touched.Rows = append(touched.Rows, keyOf(v.plan, m.row))
	}
	for _, m := range out.vacated {
		touched.Rows = append(touched.Rows, m.row)
		gone.Rows = append(gone.Rows, m.row)
	}
	m := backing.Merge{New: "SELECT * FROM mvsync_rows", Touched: v.plan.Projection.Touched, Effects: len(v.consumers) > 0}
	inputs := []backing.Input{rows, touched}
	if len(out.vacated) > 0 {
		m.New += " UNION ALL (" + survivors(v.plan) + ")"
		inputs = append(inputs, gone)
	}
	return r.merge(ctx, v, m, inputs...)
}

// classify asks Postgres for the view's rows of the new images and for the classes of
// all keys: what is equal under a collation is not for Go to say.
func (r *round) classify(ctx context.Context, v *view, list []write) (classified, error) {
	src, arm := &v.plan.Sources[0], v.plan.Projection
	log := backing.Input{Name: "mvsync_log", Columns: []backing.InputColumn{{Name: "mvsync_ord", Type: "integer"}}}
	gone := backing.Input{Name: "mvsync_gone", Columns: append([]backing.InputColumn{{Name: "mvsync_ord", Type: "integer"}}, inputColumns(arm.KeyColumns)...)}
	var names []string
	for _, c := range src.Columns {
		log.Columns = append(log.Columns, backing.InputColumn{Name: c.Name, Type: c.Type})
		names = append(names, pgx.Identifier{c.Name}.Sanitize())
	}
	for i, w := range list {
		ord := ingest.Text(strconv.Itoa(i))
		if w.new != nil {
			log.Rows = append(log.Rows, append(ingest.Row{ord}, w.new...))
		}
		if w.old != nil {
			row := ingest.Row{ord}
			for _, from := range arm.KeyFrom {
				if from >= 0 {
					row = append(row, w.old[from])
				}
			}
			gone.Rows = append(gone.Rows, row)
		}
	}
	var sql strings.Builder
	keys, columns := keyExprs(v.plan, "x"), columnNamesOf(v.plan)
	fmt.Fprintf(&sql, `SELECT x.kind, x.ord, dense_rank() OVER (ORDER BY %s), ROW(%s)::text, x.json, %s FROM (
  SELECT 'w' AS kind, n.mvsync_ord AS ord, to_jsonb(q)::text AS json, q.* FROM mvsync_log n CROSS JOIN LATERAL (
    WITH mvsync_new_0(%s) AS (SELECT %s) %s) q
  UNION ALL SELECT 's', 0, to_jsonb(s)::text, s.* FROM %s s WHERE %s
  UNION ALL SELECT 'g', g.mvsync_ord, NULL, %s FROM mvsync_gone g) x`,
		strings.Join(keys, ", "), strings.Join(keys, ", "), strings.Join(prefixAll("x.", columns), ", "),
		strings.Join(names, ", "), strings.Join(prefixAll("n.", names), ", "), arm.New,
		v.layout.Name.SQL(), arm.Touched, strings.Join(goneColumns(v.plan), ", "))
	all := backing.Input{Name: keysName, Columns: inputColumns(arm.KeyColumns)}
	for _, w := range list {
		for _, row := range []ingest.Row{w.old, w.new} {
			if row == nil {
				continue
			}
			key := ingest.Row{}
			for _, from := range arm.KeyFrom {
				if from >= 0 {
					key = append(key, row[from])
				}
			}
			all.Rows = append(all.Rows, key)
		}
	}
	found, err := r.query(ctx, sql.String(), []backing.Input{log, gone, all})
	if err != nil {
		return classified{}, fmt.Errorf("classify keys: %w", err)
	}
	return readClasses(v.plan, found)
}

// readClasses reads rows of kind, write, class, key, JSON, and the view's columns.
func readClasses(p *plans.Plan, found []ingest.Row) (classified, error) {
	c := classified{stored: map[int]member{}, wrote: map[int]member{}, left: map[int]member{}}
	for _, row := range found {
		ord, err := strconv.Atoi(row[1].Text())
		if err != nil {
			return c, fmt.Errorf("classify keys: %w", err)
		}
		class, err := strconv.Atoi(row[2].Text())
		if err != nil {
			return c, fmt.Errorf("classify keys: %w", err)
		}
		m := member{class: class, key: row[3].Text(), json: row[4].Text(), row: row[5:]}
		switch row[0].Text() {
		case "w":
			c.wrote[ord] = m
		case "s":
			c.stored[class] = m
		case "g":
			m.row = keyOf(p, m.row)
			c.left[ord] = m
		}
	}
	return c, nil
}

// goneColumns gives the view's columns with only the key filled.
func goneColumns(p *plans.Plan) []string {
	out := make([]string, len(p.Columns))
	for i, c := range p.Columns {
		out[i] = "NULL::" + c.Type
	}
	n := 0
	for i, k := range p.Key {
		if p.KeySource.Columns[i] < 0 {
			continue
		}
		out[k] = "g.k" + strconv.Itoa(n)
		n++
	}
	return out
}

// keyExprs are the key's columns of an alias under the key's own collations.
func keyExprs(p *plans.Plan, alias string) []string {
	out := make([]string, len(p.Key))
	for i, k := range p.Key {
		c := p.Columns[k]
		out[i] = alias + "." + pgx.Identifier{c.Name}.Sanitize()
		if c.Collation != "" {
			out[i] += " COLLATE " + c.Collation
		}
	}
	return out
}

// bySource orders the members of a class by their source keys, greatest first, under
// a collation in which different bytes differ.
func bySource(p *plans.Plan, alias string) string {
	var out []string
	for _, k := range p.Key {
		out = append(out, alias+"."+pgx.Identifier{p.Columns[k].Name}.Sanitize()+`::text COLLATE "C" DESC`)
	}
	return strings.Join(out, ", ")
}

// survivors finds, for each vacated class, the member with the greatest source key.
func survivors(p *plans.Plan) string {
	keys := strings.Join(keyExprs(p, "q"), ", ")
	var same []string
	for i, e := range keyExprs(p, "q") {
		same = append(same, fmt.Sprintf("%s = x.k%d", e, i))
	}
	return fmt.Sprintf("SELECT DISTINCT ON (%s) q.* FROM (%s) q WHERE EXISTS (SELECT FROM mvsync_vacated x WHERE %s) ORDER BY %s, %s",
		keys, p.Eval, strings.Join(same, " AND "), keys, bySource(p, "q"))
}

// oneMember wraps a SELECT that may give several rows of a class. With winners, an
// input of keys, a member that it names is taken. Else the stored row stays where it is
// a member, else the one with the greatest source key is taken.
func oneMember(p *plans.Plan, rows string, winners bool) string {
	keys := strings.Join(keyExprs(p, "q"), ", ")
	var same, sc, qc, qk, wk []string
	n := 0
	for i, k := range p.Key {
		name := pgx.Identifier{p.Columns[k].Name}.Sanitize()
		same = append(same, "st."+name+" = q."+name)
		if p.KeySource.Columns[i] >= 0 {
			qk, wk = append(qk, "q."+name), append(wk, "w.k"+strconv.Itoa(n))
			n++
		}
	}
	for _, name := range columnNamesOf(p) {
		sc, qc = append(sc, "st."+name), append(qc, "q."+name)
	}
	join, first := "", ""
	if winners {
		join = fmt.Sprintf("\nLEFT JOIN (SELECT true AS mvsync_is, x.* FROM %s x) w ON ROW(%s)::record *= ROW(%s)::record",
			winnersName, strings.Join(qk, ", "), strings.Join(wk, ", "))
		first = "(w.mvsync_is IS NOT NULL) DESC, "
	}
	return fmt.Sprintf(`SELECT DISTINCT ON (%s) q.* FROM (%s) q
LEFT JOIN (SELECT true AS mvsync_is, x.* FROM mvsync_stored x) st ON %s AND ROW(%s)::record *= ROW(%s)::record%s
ORDER BY %s, %s(st.mvsync_is IS NOT NULL) DESC, %s`,
		keys, rows, strings.Join(same, " AND "), strings.Join(sc, ", "), strings.Join(qc, ", "), join, keys, first, bySource(p, "q"))
}

// collideAtCreate refuses to fill a view whose body already has rows that collide.
func (r *round) collideAtCreate(ctx context.Context, v *view) error {
	keys := strings.Join(keyExprs(v.plan, "q"), ", ")
	sql := fmt.Sprintf("SELECT string_agg(ROW(%s)::text, ', ' ORDER BY %s), count(*) FROM (%s) q GROUP BY %s HAVING count(*) > 1 LIMIT 5",
		keys, bySourceAscending(v.plan, "q"), v.plan.Eval, keys)
	found, err := r.query(ctx, sql, nil)
	if err != nil || len(found) == 0 {
		return err
	}
	var classes []string
	for _, row := range found {
		classes = append(classes, row[0].Text())
	}
	return fmt.Errorf("its key %s only weakens that of the source, and rows collide under it: %s; make them one row, or keep the source's collation in the body",
		strings.Join(v.plan.Coarsened, ", "), strings.Join(classes, "; "))
}

func bySourceAscending(p *plans.Plan, alias string) string {
	return strings.ReplaceAll(bySource(p, alias), " DESC", "")
}

// keyOf gives the key's values of a view's row, constants left out.
func keyOf(p *plans.Plan, row ingest.Row) ingest.Row {
	var out ingest.Row
	for i, k := range p.Key {
		if p.KeySource.Columns[i] >= 0 {
			out = append(out, row[k])
		}
	}
	return out
}

func columnNamesOf(p *plans.Plan) []string {
	out := make([]string, len(p.Columns))
	for i, c := range p.Columns {
		out[i] = pgx.Identifier{c.Name}.Sanitize()
	}
	return out
}

func prefixAll(prefix string, names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = prefix + n
	}
	return out
}
