package ingest

import (
	"encoding/binary"
	"slices"
)

// ImageSpec says which columns of a source's rows are kept, and by which of them
// changes are netted.
type ImageSpec struct {
	Columns []string // kept, in the order in which rows are given out
	// Key are the positions in Columns of a key by which changes of one row are
	// netted to its first old and its last new image. Empty: the source has no key
	// (replica identity FULL), and images are netted as a bag by their whole content;
	// Columns must then be all columns. A key whose constraint is deferrable serves
	// under replica identity FULL only, and better not at all: rows that share a key
	// for a moment can be told apart by their content alone.
	Key []int
	// PerRelation says that the key is unique within each relation only, as with
	// inheritance children.
	PerRelation bool
}

// Images nets the row changes of one source: for each key the first old and the
// last new image. What was there and back again, and an update that left all kept
// columns alone, leaves nothing (INV-5).
//
// Rows are held packed (see [Images.pack]) in a few large blocks: a batch may hold
// millions of them. Not safe for concurrent use.
type Images struct {
	spec   ImageSpec
	order  []int            // columns in packed order: the key's first
	prefix int              // length of what stands before the columns of a packed row
	maps   map[*Table][]int // positions of the packed columns in a table's rows; nil: a column is missing
	rows   *netting         // by relation and key
	bag    map[string]int   // by packed row: how many times it came (above 0) or went (below)
	bytes  int64            // of the bag
	lacks  bool             // a new image lacked a value
	packed []byte           // reused by pack
}

// Image is the net change of one row. Old is nil where the row did not exist
// before, New where it exists no longer. Values may be [Missing]: in Old what the
// replica identity does not carry, in New what was never sent.
type Image struct {
	Old, New Row
	// Relation is the OID of the table in which the row stands, where keys are unique
	// within their relation only: what is looked up by key must name it as well. Else 0.
	Relation uint32
}

// bagOverhead is the memory of a map entry beside the packed row, as measured: its slot
// in a map that has just grown, and what the allocator rounds up.
const bagOverhead = 64

// NewImages returns an empty set.
func NewImages(spec ImageSpec) *Images {
	order := slices.Clone(spec.Key)
	for i := range spec.Columns {
		if !slices.Contains(spec.Key, i) {
			order = append(order, i)
		}
	}
	im := &Images{spec: spec, order: order, maps: map[*Table][]int{}}
	if spec.PerRelation && len(spec.Key) > 0 {
		im.prefix = 4
	}
	im.Reset()
	return im
}

// Bytes estimates the memory held.
func (im *Images) Bytes() int64 { return im.bytes + im.rows.bytes() }

// Len is the number of rows that changed; of a bag, the number of different ones.
func (im *Images) Len() int { return im.rows.live + len(im.bag) }

// Lacks reports whether a new image may lack a value, so that it has to be looked up.
func (im *Images) Lacks() bool { return im.lacks }

// Reset empties the set.
func (im *Images) Reset() {
	im.rows, im.bag = newNetting(), map[string]int{}
	im.bytes, im.lacks = 0, false
	if len(im.maps) > 1000 {
		clear(im.maps)
	}
}

// Add takes a change. It returns false where the change cannot be netted: the
// table lacks a kept column, an image lacks a key value, two rows share a key in a
// way that their images do not resolve, or the change is a TRUNCATE. The view must
// then be reconciled, and the set be reset.
func (im *Images) Add(c *Change) bool {
	pos, ok := im.positions(c.Table)
	switch {
	case !ok:
		return false
	case c.Op == Update && unchanged(c, pos):
		return true
	case c.Op == Truncate:
		return false
	case len(im.spec.Key) == 0:
		return im.addBag(c, pos)
	}
	var before string
	if c.Op != Insert {
		if before, ok = im.take(c, pos); !ok {
			return false
		}
	}
	return c.Op == Delete || im.put(c, pos, before)
}

// positions maps the packed columns to a table's columns, by name: a leaf's order
// may differ from its root's, and dropped columns are not sent.
func (im *Images) positions(t *Table) ([]int, bool) {
	if pos, ok := im.maps[t]; ok {
		return pos, pos != nil
	}
	pos := make([]int, len(im.order))
	for i, column := range im.order {
		name := im.spec.Columns[column]
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

func unchanged(c *Change, pos []int) bool {
	for _, p := range pos {
		// Missing in both is an unchanged TOAST value.
		if c.Old[p] != c.New[p] {
			return false
		}
	}
	return true
}

// take removes the row of the change's old image. It returns that row as it stood
// before this change, for values that the new image leaves out.
//
// Under a deferrable key, two rows may share the key until their transaction ends:
// after UPDATE t SET id = id + 1 moved row 1 to 2, the old image of the update 2 to
// 3 is the row that stood at 2 before the batch, and not the one that came there.
// Postgres accepts such keys under FULL only, so the content tells which one it is.
// (Where their content is the same, so is what remains.)
func (im *Images) take(c *Change, pos []int) (string, bool) {
	klen, _ := im.pack(c.Table, c.Old, pos, "")
	if klen == 0 {
		return "", false
	}
	at := im.rows.find(im.packed[:klen])
	before, after := im.rows.refs(at.row)
	switch {
	case after != 0 && im.agree(string(im.packed), im.rows.slab.at(after)):
		im.rows.set(at.row, before, 0)
		return im.rows.slab.at(after), true
	case before == 0: // the row that stood there before the batch
		before = im.rows.slab.add(im.packed)
		im.rows.place(at, im.packed[:klen], before, after)
		return im.rows.slab.at(before), true
	}
	return "", false // there is no such row
}

// put sets the row of the change's new image, completed from the row before.
func (im *Images) put(c *Change, pos []int, before string) bool {
	klen, missing := im.pack(c.Table, c.New, pos, before)
	if klen == 0 {
		return false
	}
	at := im.rows.find(im.packed[:klen])
	was, after := im.rows.refs(at.row)
	if after != 0 {
		return false // a second row at the key, see take
	}
	im.lacks = im.lacks || missing
	if !missing && im.rows.slab.at(was) == string(im.packed) {
		im.rows.set(at.row, 0, 0) // back as it was
	} else {
		im.rows.place(at, im.packed[:klen], was, im.rows.slab.add(im.packed))
	}
	im.rows.compact()
	return true
}

func (im *Images) addBag(c *Change, pos []int) bool {
	return (c.Old == nil || im.count(c.Table, c.Old, pos, -1)) &&
		(c.New == nil || im.count(c.Table, c.New, pos, 1))
}

func (im *Images) count(t *Table, row Row, pos []int, by int) bool {
	if _, missing := im.pack(t, row, pos, ""); missing {
		return false
	}
	im.countPacked(im.packed, by)
	return true
}

// countPacked adds copies of a packed row to the bag, or takes some away.
func (im *Images) countPacked(packed []byte, by int) {
	n, ok := im.bag[string(packed)]
	switch {
	case !ok:
		im.bag[string(packed)] = by
		im.bytes += int64(bagOverhead + len(packed))
	case n+by == 0:
		delete(im.bag, string(packed))
		im.bytes -= int64(bagOverhead + len(packed))
	default:
		im.bag[string(packed)] = n + by
	}
}

// Each yields the net changes: for a keyed source one a key, in the order in which they
// first changed, for a bag one for each copy of a row, in no order. Rows that came to
// stand as before are left out. An image is the caller's own: what is filled in there
// is not found by a later call.
func (im *Images) Each(yield func(*Image)) {
	for row := range im.rows.rows {
		before, after := im.rows.images(row)
		img := &Image{}
		if before != "" {
			img.Old, img.Relation = im.unpack(before), im.relation(before)
		}
		if after != "" {
			img.New, img.Relation = im.unpack(after), im.relation(after)
		}
		if before != "" || after != "" {
			yield(img)
		}
	}
	for packed, n := range im.bag {
		for range n {
			yield(&Image{New: im.unpack(packed)})
		}
		for range -n {
			yield(&Image{Old: im.unpack(packed)})
		}
	}
}

// The numbers in front of values in a packed row.
const (
	packedNull = iota
	packedMissing
	packedText // and above: a text that is so much longer
)

// pack sets im.packed to the packed form of a row: the relation where keys are
// unique within it only, then the kept columns, those of the key first, each as a
// number and its text. So the key is a prefix, different rows differ, and the
// message in which the row came may go. Values that the row lacks are taken from
// before, a packed image, if there is one. It returns the length of the key, 0
// where the row lacks a value of it, and whether the packed row lacks any value.
func (im *Images) pack(t *Table, row Row, pos []int, before string) (klen int, missing bool) {
	b := im.packed[:0]
	if im.prefix > 0 {
		b = binary.LittleEndian.AppendUint32(b, t.OID)
	}
	before = before[min(len(b), len(before)):]
	for i, p := range pos {
		v, was := row[p], Missing
		if before != "" {
			was, before = cut(before)
		}
		if v.IsMissing() {
			v = was
		}
		switch v.state {
		case isNull:
			b = append(b, packedNull)
		case isMissing:
			missing = true
			b = append(b, packedMissing)
		case isText:
			b = binary.AppendUvarint(b, packedText+uint64(len(v.text)))
			b = append(b, v.text...)
		}
		if i == len(im.spec.Key)-1 && !missing {
			klen = len(b)
		}
	}
	im.packed = b
	return klen, missing
}

// agree reports whether two packed images may be of one row: no column has a
// different value in both.
func (im *Images) agree(a, b string) bool {
	if a == b {
		return true
	}
	a, b = a[im.prefix:], b[im.prefix:]
	for range im.order {
		var v, w Value
		v, a = cut(a)
		w, b = cut(b)
		if v != w && !v.IsMissing() && !w.IsMissing() {
			return false
		}
	}
	return true
}

// unpack returns a row, whose values are parts of the packed text.
func (im *Images) unpack(packed string) Row {
	row := make(Row, len(im.order))
	im.unpackInto(row, packed)
	return row
}

func (im *Images) unpackInto(row Row, packed string) {
	rest := packed[im.prefix:]
	for _, column := range im.order {
		row[column], rest = cut(rest)
	}
}

// relation returns the OID in front of a packed row, 0 where there is none.
func (im *Images) relation(packed string) uint32 {
	if im.prefix == 0 {
		return 0
	}
	return binary.LittleEndian.Uint32([]byte(packed[:im.prefix]))
}

// cut splits a packed row behind its first value.
func cut(packed string) (Value, string) {
	var n uint64
	for shift := 0; ; shift += 7 { // as [binary.Uvarint], which wants bytes
		c := packed[0]
		packed = packed[1:]
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			break
		}
	}
	switch n {
	case packedNull:
		return Null, packed
	case packedMissing:
		return Missing, packed
	}
	return Text(packed[:n-packedText]), packed[n-packedText:]
}
