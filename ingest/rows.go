package ingest

// Part is a part of the net changes of a keyed source, by what is left of a key's row.
type Part uint8

// The parts of the net changes.
const (
	Gone    Part = iota // there was a row, and there is none
	Changed             // there was one, and there is one
	Fresh               // there was none, and there is one
)

// Rows gives the images of one part one after the other, without a copy of the rest:
// of [Gone] the old, else the new ones.
type Rows struct {
	im      *Images
	part    Part
	columns []int // of the spec, in the order in which they are given
	next, n int
	whole   Row
	row     Row
}

// Parts counts the keys of each part.
func (im *Images) Parts() (n [3]int) {
	for i := range im.rows.rows {
		if r := &im.rows.rows[i]; !r.void() {
			n[r.part()]++
		}
	}
	return n
}

func (r *netRow) part() Part {
	switch {
	case r.after == 0:
		return Gone
	case r.before == 0:
		return Fresh
	}
	return Changed
}

// Rows returns the n rows of a part, as [Images.Parts] counts them, with the given
// columns of the spec. The set must have a key.
func (im *Images) Rows(part Part, n int, columns []int) *Rows {
	return &Rows{im: im, part: part, n: n, columns: columns, whole: make(Row, len(im.order)), row: make(Row, len(columns))}
}

// Len is the number of rows.
func (r *Rows) Len() int { return r.n }

// Next returns the next row, which is valid until the next call; nil: there is none.
func (r *Rows) Next() Row {
	rows := r.im.rows
	for ; r.next < len(rows.rows); r.next++ {
		at := &rows.rows[r.next]
		if at.void() || at.part() != r.part {
			continue
		}
		r.next++
		image := at.after
		if r.part == Gone {
			image = at.before
		}
		r.im.unpackInto(r.whole, rows.slab.at(image))
		for i, c := range r.columns {
			r.row[i] = r.whole[c]
		}
		return r.row
	}
	return nil
}
