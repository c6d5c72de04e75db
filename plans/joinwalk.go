package plans

import (
	"slices"
	"strings"
)

// trail leads from changed rows of one place to the rows of another whose fate they
// decide.
type trail struct {
	path  []int // places, from the changed one to the target
	conds []cond
	// side are the places of the nullable side that the walk starts from; nil for
	// subqueries.
	side []int
	// filtered: a condition above the outer join speaks of that side, so that the
	// stored rows may not show what was joined.
	filtered bool
}

func (w *trail) start() int  { return w.path[0] }
func (w *trail) target() int { return w.path[len(w.path)-1] }

// reach finds walks from each start to the nearest target, and the starts from
// which there is none. All walks to one target follow one tree, so that the rest
// of a walk is the walk of the place where it begins.
func (j *joinTree) reach(targets, starts []int, conds []cond) (walks []*trail, lost []int) {
	next, via := map[int]int{}, map[int]int{}
	seen := map[int]bool{}
	sorted := byCertainty(conds)
	for _, t := range targets {
		seen[t] = true
	}
	for queue := slices.Clone(targets); len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for i, c := range sorted {
			k := slices.Index(c.places, at)
			if k < 0 || seen[c.places[1-k]] || c.absent != nil && (c.absent.outside != at || !slices.Contains(targets, at)) {
				continue
			}
			from := c.places[1-k]
			if !j.places[from].sliced(c) || j.drifts(c) {
				continue // which of its rows changed is not known in other columns
			}
			seen[from], next[from], via[from] = true, at, i
			queue = append(queue, from)
		}
	}
	for _, s := range starts {
		if _, ok := next[s]; !ok {
			lost = append(lost, s)
			continue
		}
		w := &trail{path: []int{s}}
		for at := s; ; {
			c, ok := via[at]
			if !ok {
				break
			}
			w.conds = append(w.conds, sorted[c])
			at = next[at]
			w.path = append(w.path, at)
		}
		w.conds = j.withOthers(w, sorted)
		walks = append(walks, w)
	}
	return walks, lost
}

// byCertainty puts conditions that are unknown for NULL last.
func byCertainty(conds []cond) []cond {
	out := slices.Clone(conds)
	slices.SortStableFunc(out, func(x, y cond) int {
		switch {
		case x.absent == nil && y.absent != nil:
			return -1
		case x.absent != nil && y.absent == nil:
			return 1
		}
		return 0
	})
	return out
}

// withOthers adds the conditions between places of the walk that it does not
// lead along: they narrow it.
func (j *joinTree) withOthers(w *trail, conds []cond) []cond {
	out := slices.Clone(w.conds)
	for _, c := range conds {
		known := slices.ContainsFunc(out, func(o cond) bool { return o.text == c.text })
		if c.absent == nil && !known && contained(c.places, w.path) && j.places[w.start()].sliced(c) {
			out = append(out, c)
		}
	}
	return out
}

// fromImages writes the keys of the target that a walk reaches from images.
func (j *joinTree) fromImages(w *trail, images string) []string {
	start := j.places[w.start()]
	tables := []string{bySize(j.changes(start, images), j.values(w, images))}
	for _, i := range w.path[1:] {
		tables = append(tables, j.table0(j.places[i], w.conds))
	}
	target := j.places[w.target()]
	head := "SELECT " + target.keyList(target.name()) + " FROM "
	var conds []string
	for _, c := range w.conds {
		conds = append(conds, c.text)
	}
	out := []string{head + join(tables) + " WHERE " + conjunction(conds)}
	return append(out, j.absences(w, tables, head)...)
}

// values are the images where a walk starts without what it does not read, each value once: of many changed rows that
// share one, each would find all the rows that it leads to. It keeps the images as they are where it may read more.
func (j *joinTree) values(w *trail, images string) string {
	start := j.places[w.start()]
	whole := j.changes(start, images)
	if start.derived != nil || slices.ContainsFunc(w.conds, func(c cond) bool { return c.absent != nil }) {
		return whole
	}
	var cols []string
	for _, at := range j.firstAttributes(w) {
		if !j.a.exact(at.TypeOID, at.Modifier, at.Collation) {
			return whole
		}
		cols = append(cols, quoteAlways(at.Name))
	}
	if len(cols) == 0 {
		return whole
	}
	return "(SELECT DISTINCT " + join(cols) + " FROM " + imageTable(&j.p.Sources[start.src], images) + " i) " + start.name()
}

// absences are the walks where x IN (subquery) is unknown: a NULL among the
// subquery's values concerns every x, and a NULL x any of its values.
func (j *joinTree) absences(w *trail, tables []string, head string) []string {
	i := slices.IndexFunc(w.conds, func(c cond) bool { return c.absent != nil })
	if i < 0 {
		return nil
	}
	u := w.conds[i].absent
	last := len(w.path) - 1 // the target is x's place: such a condition leads to a target at once
	var conds []string
	for k, c := range w.conds {
		if k != i && !slices.Contains(c.places, w.target()) {
			conds = append(conds, c.text)
		}
	}
	some := func(extra ...string) string {
		text := "EXISTS (SELECT FROM " + join(tables[:last])
		if all := slices.Concat(conds, extra); len(all) > 0 {
			text += " WHERE " + conjunction(all)
		}
		return text + ")"
	}
	var out []string
	if u.value != "" {
		out = append(out, head+tables[last]+" WHERE "+some(u.value))
	}
	if u.x != "" {
		out = append(out, head+tables[last]+" WHERE "+u.x+" AND "+some())
	}
	return out
}

// changes are images of a place's changed rows under the place's name.
func (j *joinTree) changes(p *site, images string) string {
	if p.derived != nil {
		return p.changedSlices()
	}
	return imageTable(&j.p.Sources[p.src], images) + " " + p.name()
}

// table0 is a place's table under the place's name, as conditions read it.
func (j *joinTree) table0(p *site, conds []cond) string {
	if p.derived != nil {
		return p.derivedTable(conds)
	}
	text := quoteAlways(p.rel.Schema) + "." + quoteAlways(p.rel.Name) + " " + p.name()
	if !p.scope.rte(p.rt).is("inh") && p.rel.Parent {
		text = "ONLY " + text
	}
	return text
}

// keyList lists the key as k0, k1, ...
func (p *site) keyList(alias string) string {
	cols := make([]string, len(p.key))
	for i, at := range p.key {
		cols[i] = alias + "." + quoteAlways(at.Name) + " AS " + prefixed("k", i)
	}
	return join(cols)
}

// keyColumns are the columns k0, k1, ... of the place's touched keys.
func (j *joinTree) keyColumns(p *site) []Column {
	out := make([]Column, len(p.key))
	for i := range p.key {
		out[i] = j.a.keyColumn(p.key[i])
		out[i].Name = prefixed("k", i)
	}
	return out
}

// keys writes the touched keys of a place, and says which sources' images they
// come from.
func (j *joinTree) keys(p *site) (sql string, inputs []int) {
	inputs = p.inputs()
	parts := j.changedParts(p)
	for _, w := range j.walks {
		if w.target() != p.id {
			continue
		}
		start := j.places[w.start()]
		for _, i := range start.inputs() {
			if !slices.Contains(inputs, i) {
				inputs = append(inputs, i)
			}
		}
		src := start.src
		parts = append(parts, j.fromImages(w, newImages(src))...)
		if j.fromStored(w) {
			parts = append(parts, j.storedKeys(w, p))
		} else {
			parts = append(parts, j.fromImages(w, oldImages(src))...)
		}
	}
	var unique []string
	for _, part := range parts {
		if !slices.Contains(unique, part) {
			unique = append(unique, part)
		}
	}
	cols := make([]string, len(p.key))
	for i := range cols {
		cols[i] = "u." + prefixed("k", i)
	}
	slices.Sort(inputs)
	return "SELECT DISTINCT " + join(cols) + " FROM (" + strings.Join(unique, "\n  UNION ALL ") + ") u", inputs
}

// inputs are the sources whose images tell what changed at a place.
func (p *site) inputs() []int {
	if p.derived != nil {
		return slices.Clone(p.derived.inputs)
	}
	return []int{p.src}
}

// changedParts are the keys of a place's changed rows, by new and old images.
func (j *joinTree) changedParts(p *site) []string {
	if p.derived != nil {
		return []string{"SELECT " + join(numberedKeys("i.", len(p.key))) + " FROM (" + p.derived.keys + ") i"}
	}
	var parts []string
	for _, images := range []string{newImages(p.src), oldImages(p.src)} {
		parts = append(parts, "SELECT "+p.keyList("i")+" FROM "+imageTable(&j.p.Sources[p.src], images)+" i")
	}
	return parts
}

// fromStored reports whether the old image lacks what the walk starts with, while
// the stored rows that held the changed row name the keys that it would lead to.
func (j *joinTree) fromStored(w *trail) bool {
	start := j.places[w.start()]
	if start.derived != nil {
		return false
	}
	src := &j.p.Sources[start.src]
	n := needs{columns: j.firstColumns(w)}
	if j.a.carried(src, n) && j.streamed(src, n.columns) {
		return false
	}
	return j.showsKeys(w)
}

// showsKeys: the stored rows hold both the changed row's key and the target's. Under
// a coarsened key some rows of the body are not stored.
func (j *joinTree) showsKeys(w *trail) bool {
	mayBeNull := slices.ContainsFunc(j.places[w.target()].key, func(at attribute) bool { return !at.NotNull })
	return !mayBeNull && len(j.p.Coarsened) == 0 && slices.Contains(w.side, w.start()) && !w.filtered && len(j.places[w.start()].stored) > 0
}

// storedKeys writes the keys of the target in the stored rows that hold a changed
// row of the start.
func (j *joinTree) storedKeys(w *trail, target *site) string {
	start := j.places[w.start()]
	cols := make([]string, len(target.key))
	for i, c := range target.stored {
		cols[i] = "s." + quoteAlways(c.Name) + " AS " + prefixed("k", i)
	}
	refs := make([]string, len(start.stored))
	for i, c := range start.stored {
		refs[i] = "s." + quoteAlways(c.Name)
	}
	some := make([]string, len(target.stored))
	for i, c := range target.stored {
		some[i] = "s." + quoteAlways(c.Name) + " IS NOT NULL"
	}
	names := make([]string, len(start.key))
	for i, at := range start.key {
		names[i] = quoteAlways(at.Name)
	}
	return "SELECT " + join(cols) + " FROM mvsync_stored s WHERE " + conjunction(some) + " AND " +
		refMatch(refs, start.stored, oldImages(start.src), names)
}

// firstColumns are the columns by which a walk leaves its start.
func (j *joinTree) firstColumns(w *trail) []string {
	var out []string
	for _, at := range j.firstAttributes(w) {
		out = append(out, at.Name)
	}
	return out
}

func (j *joinTree) firstAttributes(w *trail) []*attribute {
	var out []*attribute
	for _, c := range w.conds {
		for _, col := range c.cols {
			if col.place != w.start() {
				continue
			}
			at := j.places[col.place].rel.attr(col.attr)
			if at != nil && !slices.ContainsFunc(out, func(o *attribute) bool { return o.Name == at.Name }) {
				out = append(out, at)
			}
		}
	}
	return out
}

// streamed reports whether old images can hold the columns at all.
func (j *joinTree) streamed(src *Source, columns []string) bool {
	only := *src
	only.Columns = slices.DeleteFunc(slices.Clone(src.Columns), func(c SourceColumn) bool { return !slices.Contains(columns, c.Name) })
	return j.a.missingInStream(&only) == ""
}

// needs are the columns that old images must carry for the touched keys.
func (j *joinTree) needs() []needs {
	out := make([]needs, len(j.p.Sources))
	for _, p := range j.places {
		if p.derived != nil {
			for i, n := range p.derived.need {
				out[i].full = out[i].full || n.full
				out[i].add(n.columns...)
			}
			continue
		}
		for _, at := range p.key {
			out[p.src].add(at.Name)
		}
	}
	for _, w := range j.walks {
		if j.places[w.start()].derived == nil && !j.fromStored(w) {
			out[j.places[w.start()].src].add(j.firstColumns(w)...)
		}
	}
	return out
}

// add adds columns that are not yet there.
func (n *needs) add(columns ...string) {
	for _, c := range columns {
		if !slices.Contains(n.columns, c) {
			n.columns = append(n.columns, c)
		}
	}
}

// numberedKeys lists k0, k1, ..., each with a prefix.
func numberedKeys(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = prefix + prefixed("k", i)
	}
	return out
}

// missKeys says that a row is none of the keys, as an anti join.
func missKeys(refs []string, columns []Column, keys string) string {
	return "NOT EXISTS (SELECT FROM " + keys + " mk WHERE " + sameRefs(refs, columns, numberedKeys("mk.", len(refs))) + ")"
}
