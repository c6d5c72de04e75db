package ingest

// Detach hands over what was netted so far, as a set of its own to which nothing is
// added any more, and goes on with an empty one. What is netted from then on begins
// where the detached set ends; [Images.Then] puts the two together again. Until then the
// detached set may be read by another goroutine.
func (im *Images) Detach() *Images {
	out := *im
	out.packed = nil
	im.Reset()
	return &out
}

// Then adds the net changes of a set that began where this one ends, so that this one
// nets both: of a key's images the first one's old and the second one's new image
// remain, and what is there and back again leaves nothing. It returns false where the
// two do not fit together; the view must then be reconciled.
//
// A value that a new image lacks is not taken from the earlier set: its row may have
// stood at another key there. It is looked up, as always.
func (im *Images) Then(later *Images) bool {
	for row := range later.rows.rows {
		if !im.then(later, row) {
			return false
		}
	}
	for packed, n := range later.bag {
		im.countPacked([]byte(packed), n)
	}
	im.lacks = im.lacks || later.lacks
	im.rows.compact()
	return true
}

// then adds one row of the later set.
func (im *Images) then(later *Images, row int) bool {
	second := &later.rows.rows[row]
	if second.void() {
		return true
	}
	key := []byte(later.rows.key(second))
	old, fresh := later.rows.images(row)
	at := im.rows.find(key)
	before, after := im.rows.refs(at.row)
	switch {
	case before == 0 && after == 0: // the key did not change before
		before = im.copied(old)
	case (after == 0) != (old == ""):
		return false // the first leaves a row where the second found none, or none where it found one
	case after != 0 && !im.agree(im.rows.slab.at(after), old):
		return false
	}
	// A new image that lacks a value is packed as no image without one is.
	if fresh != "" && fresh == im.rows.slab.at(before) && !im.missing(fresh) {
		before, fresh = 0, ""
	}
	if after = im.copied(fresh); at.row >= 0 || before != 0 || after != 0 {
		im.rows.place(at, key, before, after)
	}
	return true
}

// copied puts a packed row of another set into this one's memory.
func (im *Images) copied(packed string) ref {
	if packed == "" {
		return 0
	}
	return im.rows.slab.add([]byte(packed))
}

// missing reports whether a packed row lacks a value.
func (im *Images) missing(packed string) bool {
	rest := packed[im.prefix:]
	for range im.order {
		var v Value
		if v, rest = cut(rest); v.IsMissing() {
			return true
		}
	}
	return false
}
