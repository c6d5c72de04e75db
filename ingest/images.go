package ingest

import (
	"slices"
	"strings"
)

// ImageSpec says which columns of a source's rows are kept, and by which of them
// changes are netted.
type ImageSpec struct {
	Columns []string // kept, in the order in which rows are given out
	// Key are the positions in Columns of a key by which changes of one row are
	// netted to its first old and its last new image. Empty: the source has no key
	// (replica identity FULL), and images are netted as a bag by their whole content;
	// Columns must then be all columns.
	Key []int
	// PerRelation says that the key is unique within each relation only, as with
	// inheritance children.
	PerRelation bool
}

// Images nets the row changes of one source: for each key the first old and the
// last new image. What was there and back again, and an update that left all kept
// columns alone, leaves nothing (INV-5).
type Images struct {
	spec  ImageSpec
	maps  map[*Table][]int // positions of the kept columns in a table's rows; nil: a column is missing
	rows  map[string]*Image
	bytes int64
}

// Image is the net change of one row. Old is nil where the row did not exist
// before, New where it exists no longer. Values may be [Missing]: in Old what the
// replica identity does not carry, in New what was never sent.
type Image struct {
	Old, New Row
	count    int // bag: how many times New (above 0) or Old (below) stands
}

// NewImages returns an empty set.
func NewImages(spec ImageSpec) *Images {
	return &Images{spec: spec, maps: map[*Table][]int{}, rows: map[string]*Image{}}
}

// imageOverhead estimates the memory of a map entry and its Image.
const imageOverhead = 144

// Bytes estimates the memory held.
func (im *Images) Bytes() int64 { return im.bytes }

// Len is the number of rows that changed.
func (im *Images) Len() int { return len(im.rows) }

// Reset empties the set.
func (im *Images) Reset() {
	im.rows = map[string]*Image{}
	im.bytes = 0
	if len(im.maps) > 1000 {
		clear(im.maps)
	}
}

// Add takes a change. It returns false where the change cannot be netted: the
// table lacks a kept column, an image lacks a key value, or the change is a
// TRUNCATE. The view must then be reconciled.
func (im *Images) Add(c *Change) bool {
	pos, ok := im.positions(c.Table)
	if !ok || c.Op == Truncate {
		return false
	}
	if len(im.spec.Key) == 0 {
		return im.addBag(c, pos)
	}
	switch c.Op {
	case Insert:
		return im.put(c, pos, nil)
	case Delete:
		_, ok := im.take(c, pos)
		return ok
	case Update:
		before, ok := im.take(c, pos)
		return ok && im.put(c, pos, before)
	case Truncate:
	}
	return false
}

// positions maps the kept columns to a table's columns, by name: a leaf's order
// may differ from its root's, and dropped columns are not sent.
func (im *Images) positions(t *Table) ([]int, bool) {
	if pos, ok := im.maps[t]; ok {
		return pos, pos != nil
	}
	pos := make([]int, len(im.spec.Columns))
	for i, name := range im.spec.Columns {
		pos[i] = slices.IndexFunc(t.Columns, func(c Column) bool { return c.Name == name })
		if pos[i] < 0 {
			pos = nil
			break
		}
	}
	im.maps[t] = pos
	return pos, pos != nil
}

// Unchanged reports whether the change is an update that left all kept columns
// alone, as far as its images show: it cannot matter.
func (im *Images) Unchanged(c *Change) bool {
	pos, ok := im.positions(c.Table)
	return ok && c.Op == Update && unchanged(c, pos)
}

// unchanged reports whether an update left all kept columns alone, as far as its
// images show.
func unchanged(c *Change, pos []int) bool {
	for _, p := range pos {
		o, n := c.Old[p], c.New[p]
		if n.IsMissing() && o.IsMissing() {
			continue // an unchanged TOAST value
		}
		if o != n {
			return false
		}
	}
	return true
}

// take removes the row of the change's old image. It returns the row as it stood
// before this change, for values that the new image leaves out.
func (im *Images) take(c *Change, pos []int) (Row, bool) {
	key, ok := im.key(c.Table, c.Old, pos)
	if !ok {
		return nil, false
	}
	img := im.rows[string(key)]
	if img == nil {
		old := project(c.Old, pos)
		im.rows[string(key)] = &Image{Old: old}
		im.bytes += imageOverhead + int64(len(key)) + old.Bytes()
		return old, true
	}
	before := img.New
	im.bytes -= before.Bytes()
	img.New = nil
	if img.Old == nil {
		delete(im.rows, string(key))
		im.bytes -= imageOverhead + int64(len(key))
	}
	return before, true
}

// put sets the row of the change's new image.
func (im *Images) put(c *Change, pos []int, before Row) bool {
	row := project(c.New, pos)
	for i := range row {
		if row[i].IsMissing() && before != nil {
			row[i] = before[i] // carried forward from an earlier change of the row
		}
	}
	key, ok := im.projectedKey(c.Table, row)
	if !ok {
		return false
	}
	img := im.rows[string(key)]
	if img == nil {
		img = &Image{}
		im.rows[string(key)] = img
		im.bytes += imageOverhead + int64(len(key))
	}
	im.bytes += row.Bytes() - img.New.Bytes()
	img.New = row
	return true
}

func (im *Images) addBag(c *Change, pos []int) bool {
	if c.Old != nil && !im.count(project(c.Old, pos), -1) {
		return false
	}
	return c.New == nil || im.count(project(c.New, pos), 1)
}

func (im *Images) count(row Row, by int) bool {
	var key []byte
	for _, v := range row {
		if v.IsMissing() {
			return false
		}
		key = appendValue(key, v)
	}
	img := im.rows[string(key)]
	if img == nil {
		img = &Image{New: row}
		im.rows[string(key)] = img
		im.bytes += imageOverhead + int64(len(key)) + row.Bytes()
	}
	img.count += by
	if img.count == 0 {
		delete(im.rows, string(key))
		im.bytes -= imageOverhead + int64(len(key)) + row.Bytes()
	}
	return true
}

// project copies the kept columns, so that the message they stand in may go.
func project(row Row, pos []int) Row {
	out := make(Row, len(pos))
	for i, p := range pos {
		out[i] = row[p]
		if len(pos) < len(row) {
			out[i].text = strings.Clone(row[p].text)
		}
	}
	return out
}

func (im *Images) key(t *Table, row Row, pos []int) ([]byte, bool) {
	key := im.relation(t)
	for _, k := range im.spec.Key {
		v := row[pos[k]]
		if v.IsMissing() {
			return nil, false
		}
		key = appendValue(key, v)
	}
	return key, true
}

func (im *Images) projectedKey(t *Table, row Row) ([]byte, bool) {
	key := im.relation(t)
	for _, k := range im.spec.Key {
		if row[k].IsMissing() {
			return nil, false
		}
		key = appendValue(key, row[k])
	}
	return key, true
}

func (im *Images) relation(t *Table) []byte {
	key := make([]byte, 0, 32)
	if im.spec.PerRelation {
		key = append(key, byte(t.OID), byte(t.OID>>8), byte(t.OID>>16), byte(t.OID>>24))
	}
	return key
}

// appendValue appends a value so that different lists of values differ.
func appendValue(key []byte, v Value) []byte {
	if v.IsNull() {
		return append(key, 0)
	}
	n := len(v.text)
	key = append(key, 1, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	return append(key, v.text...)
}

// Each yields the net changes, in no order: for a keyed source one a key, for a
// bag one for each copy of a row. Rows that came to stand as before are left out.
// The rows must not be changed, but for filling in missing values of New.
func (im *Images) Each(yield func(*Image)) {
	for _, img := range im.rows {
		switch {
		case img.count > 0:
			for range img.count {
				yield(&Image{New: img.New})
			}
		case img.count < 0:
			for range -img.count {
				yield(&Image{Old: img.New})
			}
		case img.Old != nil && img.New != nil && slices.Equal(img.Old, img.New) && !slices.ContainsFunc(img.Old, Value.IsMissing):
		default:
			yield(img)
		}
	}
}
