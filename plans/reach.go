package plans

import (
	"context"
	"slices"
	"strings"
)

// build writes the statements of a join-residual.
func (j *joins) build(ctx context.Context) (string, error) {
	p := j.p
	p.Eval = p.Body
	if len(j.hidden) > 0 {
		p.Eval = splice(j.sql, edit{span{j.sel.list.end, j.sel.list.end}, ", " + join(j.hidden)})
	}
	columns := j.keyColumns()
	slice := Slice{Keys: j.keysSQL(columns), KeyColumns: columns, New: j.newSQL(), Touched: j.touchedSQL()}
	for i := range p.Sources {
		slice.Inputs = append(slice.Inputs, i)
	}
	p.Residual = &Residual{Slices: []Slice{slice}}
	j.indexes()
	return j.a.confirmSlice(ctx, p, slice)
}

// confirmSlice lets Postgres judge a slice's statements.
func (a *analysis) confirmSlice(ctx context.Context, p *Plan, s Slice) (string, error) {
	var images []input
	for _, i := range s.Inputs {
		images = append(images, imagesInput(newImages(i), &p.Sources[i]), imagesInput(oldImages(i), &p.Sources[i]))
	}
	if why, err := a.confirm(ctx, s.Keys, s.KeyColumns, images...); why != "" || err != nil {
		return why, err
	}
	return a.confirm(ctx, s.New, p.visible(), input{"mvsync_keys", s.KeyColumns})
}

// keyColumns are the columns of mvsync_keys: the keys of all tables side by side.
// A row of it is a key of one table, NULL in the columns of the others.
func (j *joins) keyColumns() []Column {
	var out []Column
	for _, o := range j.top {
		for _, c := range o.keyColumns(j.a) {
			c.NotNull = false
			out = append(out, c)
		}
	}
	return out
}

// keysSQL unites the touched keys of all tables: of the changed rows, and of the
// rows that they reach.
func (j *joins) keysSQL(columns []Column) string {
	var parts []string
	for _, o := range j.top {
		parts = append(parts, j.padded(o, columns, o.imageKeys()))
		j.require(o, o.key...)
	}
	for _, n := range j.outer {
		for _, changed := range n.other {
			for _, r := range j.reached(n, changed) {
				parts = append(parts, j.padded(r.to, columns, r.sql))
			}
		}
	}
	return "SELECT DISTINCT * FROM (" + strings.Join(parts, "\n  UNION ALL ") + ") u"
}

// require notes columns that old images of an occurrence's table must carry.
func (j *joins) require(o *occurrence, columns ...string) {
	for _, c := range columns {
		if !slices.Contains(j.need[o.src].columns, c) {
			j.need[o.src].columns = append(j.need[o.src].columns, c)
		}
	}
}

// padded puts an occurrence's keys into their columns.
func (j *joins) padded(o *occurrence, columns []Column, sql string) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		if i >= o.first && i < o.first+len(o.key) {
			out[i] = "z." + quoteAlways(o.key[i-o.first]) + " AS " + c.Name
		} else {
			out[i] = collate("NULL::"+c.Type, c) + " AS " + c.Name
		}
	}
	return "SELECT " + join(out) + " FROM (" + sql + ") z"
}

// images is a table expression of both images' columns.
func (o *occurrence) images(p *Plan, columns ...string) string {
	src := &p.Sources[o.src]
	return "(SELECT " + quoted("i", columns) + " FROM " + imageTable(src, newImages(o.src)) + " i UNION ALL SELECT " +
		quoted("i", columns) + " FROM " + imageTable(src, oldImages(o.src)) + " i)"
}

func quoted(alias string, columns []string) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = alias + "." + quoteAlways(c)
	}
	return join(out)
}

// imageKeys are the keys of an occurrence's changed rows.
func (o *occurrence) imageKeys() string {
	return "SELECT " + quoted("i", o.key) + " FROM " + newImages(o.src) + " i UNION ALL SELECT " + quoted("i", o.key) + " FROM " + oldImages(o.src) + " i"
}

// table is the occurrence's table at the snapshot.
func (o *occurrence) table() string {
	return quoteAlways(o.rel.Schema) + "." + quoteAlways(o.rel.Name)
}

// reaches are keys of an occurrence that a change reaches.
type reaches struct {
	to  *occurrence
	sql string
}

// reached follows the conditions from a changed table on the nullable side to a
// table of the preserved side. Tables on the way are read at the snapshot: where
// one of them changed as well, its own images make the rest of the way. Without
// such a way every preserved row is reached.
func (j *joins) reached(n outerJoin, changed *occurrence) []reaches {
	path := n.path(changed)
	if path == nil {
		return j.all(n, changed, "")
	}
	last := path[len(path)-1]
	to := last.y
	// images e0 → t1 → ... → to
	j.require(changed, path[0].xcol)
	from := changed.images(j.p, path[0].xcol) + " t0"
	for i, e := range path {
		from += " JOIN " + e.y.table() + " t" + itoa(i+1) + " ON t" + itoa(i+1) + "." + quoteAlways(e.ycol) + " " + e.op +
			" t" + itoa(i) + "." + quoteAlways(e.xcol)
	}
	out := []reaches{{to, "SELECT " + quoted("t"+itoa(len(path)), to.key) + " FROM " + from}}
	j.advise(path)
	if !n.nulls {
		return out
	}
	if len(path) > 1 {
		return j.all(n, changed, "")
	}
	if last.ynull {
		out = append(out, reaches{to, "SELECT " + quoted("t", to.key) + " FROM " + to.table() + " t WHERE t." + quoteAlways(last.ycol) + " IS NULL AND " +
			j.anyChange(changed, "")})
	}
	if last.xnull {
		out = append(out, j.all(n, changed, " WHERE i."+quoteAlways(last.xcol)+" IS NULL")...)
	}
	return out
}

// all reaches every row of every preserved table, if there is a change.
func (j *joins) all(n outerJoin, changed *occurrence, where string) []reaches {
	var out []reaches
	for _, o := range n.kept {
		out = append(out, reaches{o, "SELECT " + quoted("t", o.key) + " FROM " + o.table() + " t WHERE " + j.anyChange(changed, where)})
	}
	return out
}

// anyChange asks for images of a table.
func (j *joins) anyChange(o *occurrence, where string) string {
	return "((SELECT count(*) FROM " + newImages(o.src) + " i" + where + ") + (SELECT count(*) FROM " + oldImages(o.src) + " i" + where + ")) > 0"
}

// path finds the shortest chain of equalities from a table of the nullable side
// to one of the preserved side, whose last link belongs to the node's own
// condition; nil for none. Each edge points along the way.
func (n *outerJoin) path(from *occurrence) []edge {
	type step struct {
		at   *occurrence
		path []edge
	}
	queue := []step{{from, nil}}
	seen := map[*occurrence]bool{from: true}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		for _, e := range n.on {
			if e = e.from(s.at); e.x == s.at && slices.Contains(n.kept, e.y) {
				return append(slices.Clone(s.path), e)
			}
		}
		for _, e := range slices.Concat(n.below, n.on) {
			if e = e.from(s.at); e.x == s.at && slices.Contains(n.other, e.y) && !seen[e.y] {
				seen[e.y] = true
				queue = append(queue, step{e.y, append(slices.Clone(s.path), e)})
			}
		}
	}
	return nil
}

// from turns the edge so that it starts at o, if it touches it.
func (e edge) from(o *occurrence) edge {
	if e.y == o && e.x != o {
		e.x, e.y, e.xcol, e.ycol, e.xnull, e.ynull = e.y, e.x, e.ycol, e.xcol, e.ynull, e.xnull
	}
	return e
}

// advise recommends indexes for the columns by which rows are looked up.
func (j *joins) advise(path []edge) {
	for _, e := range path {
		leading := slices.ContainsFunc(e.y.rel.uniques, func(u unique) bool {
			at := e.y.rel.attr(int(u.Columns[0]))
			return at != nil && at.Name == e.ycol
		})
		advice := "an index that begins with (" + quoteIdent(e.ycol) + ") on " + e.y.rel.name().String() +
			" keeps rounds from scanning it: CREATE INDEX ON " + e.y.rel.name().String() + " (" + quoteIdent(e.ycol) + ");"
		if !leading && e.y.rel.producer == nil && !slices.Contains(j.p.Advice, advice) {
			j.p.Advice = append(j.p.Advice, advice)
		}
	}
}

// newSQL runs the body for the touched keys of each table in turn, leaving out
// the rows that an earlier table's keys brought already.
func (j *joins) newSQL() string {
	var parts, before []string
	for _, o := range j.top {
		match := o.match(j.a)
		conditions := []string{"(" + match + ")"}
		for _, b := range before {
			conditions = append(conditions, "("+b+") IS NOT TRUE")
		}
		before = append(before, match)
		parts = append(parts, j.where(conjunction(conditions)))
	}
	for i, part := range parts {
		parts[i] = "SELECT " + qualify("q", j.p.visible()) + " FROM (" + part + ") q"
	}
	return strings.Join(parts, "\nUNION ALL\n")
}

// match is the condition that the occurrence's row has a touched key, at the
// body's own level.
func (o *occurrence) match(a *analysis) string {
	cols := o.keyColumns(a)
	names := make([]string, len(cols))
	for i, c := range cols {
		names[i] = c.Name
	}
	return refMatch(o.refs, cols, "mvsync_keys", names)
}

// where adds a condition and the hidden columns to the body.
func (j *joins) where(condition string) string {
	edits := []edit{{span{j.sel.from.end, j.sel.from.end}, " WHERE " + condition}}
	if !j.sel.where.empty() {
		edits = []edit{
			{span{j.sel.where.start, j.sel.where.start}, "("},
			{span{j.sel.where.end, j.sel.where.end}, ") AND " + condition},
		}
	}
	if len(j.hidden) > 0 {
		edits = append(edits, edit{span{j.sel.list.end, j.sel.list.end}, ", " + join(j.hidden)})
	}
	return splice(j.sql, edits...)
}

// touchedSQL finds the stored rows that hold a touched key of any table.
func (j *joins) touchedSQL() string {
	var parts []string
	for _, o := range j.top {
		refs, names := make([]string, len(o.stored)), make([]string, len(o.stored))
		cols := slices.Clone(o.stored)
		for i := range cols {
			cols[i].NotNull = true // only a key that is there can be touched
			refs[i], names[i] = "s."+quoteAlways(cols[i].Name), prefixed("k", o.first+i)
		}
		parts = append(parts, "("+refMatch(refs, cols, "mvsync_keys", names)+")")
	}
	return strings.Join(parts, " OR ")
}

// indexes asks for an index on each table's key that does not lead the view's.
func (j *joins) indexes() {
	for _, o := range j.top {
		var cols []string
		for _, c := range o.stored {
			if slices.ContainsFunc(j.p.Columns, func(v Column) bool { return v.Name == c.Name }) {
				cols = append(cols, quoteAlways(c.Name))
			}
		}
		leads := len(j.p.Key) >= len(cols)
		for i, c := range cols {
			leads = leads && quoteAlways(j.p.Columns[j.p.Key[i]].Name) == c
		}
		if text := join(cols); len(cols) == len(o.stored) && !leads && !slices.Contains(j.p.Indexes, text) {
			j.p.Indexes = append(j.p.Indexes, text)
		}
	}
}
