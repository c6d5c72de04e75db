package maintain

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// groups folds row changes into signed contributions of groups, as
// [plans.Aggregate].DeltaColumns lists them. Groups are told apart by the bytes of
// their keys; Postgres merges those that its equality holds to be one.
type groups struct {
	fold    *plans.Fold
	columns []string
	used    []int // indexes into columns that the fold reads
	maps    map[*ingest.Table][]int
	rows    map[string]*group
	key     []byte // scratch
	bytes   int64
	// cellBytes is the memory of a group's cells: decimals stand apart.
	cellBytes int64
}

// group is the net contribution of a batch to one group.
type group struct {
	key   ingest.Row
	n     int64
	cells []cell
	dirty bool // holds a value that is not exact in Go: run the group again
}

// cell accumulates one partial. Which of its fields counts follows from the
// fold's operation.
type cell struct {
	set bool
	i   int64
	sum *big.Int     // of integers, once i overflowed
	dec *apd.Decimal // of numerics
}

func newGroups(fold *plans.Fold, columns []string) *groups {
	used := slices.Clone(fold.Groups)
	for _, c := range fold.Cells {
		used = append(used, c.Argument)
	}
	slices.Sort(used)
	g := &groups{
		fold: fold, columns: columns, used: slices.Compact(used),
		maps: map[*ingest.Table][]int{}, rows: map[string]*group{},
	}
	for _, c := range fold.Cells {
		g.cellBytes += 32
		if (c.Op == plans.FoldSum || c.Op == plans.FoldSquares) && !c.Integer {
			g.cellBytes += 64
		}
	}
	return g
}

func (g *groups) reset() {
	g.rows, g.bytes = map[string]*group{}, 0
	if len(g.maps) > 1000 { // descriptions of tables long redefined
		clear(g.maps)
	}
}

// add takes a change; false says that it cannot be folded.
func (g *groups) add(c *ingest.Change) bool {
	pos, ok := g.positions(c.Table)
	if !ok || c.Op == ingest.Truncate {
		return false
	}
	if c.Op == ingest.Update {
		return g.update(c, pos)
	}
	if c.Old != nil {
		return g.contribute(c.Old, pos, -1, nil)
	}
	return g.contribute(c.New, pos, 1, nil)
}

// update folds both images, but for what the update left alone: an unchanged
// argument in an unchanged group neither retracts nor inserts an extreme.
func (g *groups) update(c *ingest.Change, pos []int) bool {
	same := func(i int) bool { return c.Old[pos[i]] == c.New[pos[i]] }
	if !slices.ContainsFunc(g.used, func(i int) bool { return !same(i) }) {
		return true
	}
	var skip func(plans.FoldCell) bool
	if !slices.ContainsFunc(g.fold.Groups, func(i int) bool { return !same(i) }) {
		skip = func(c plans.FoldCell) bool { return same(c.Argument) }
	}
	return g.contribute(c.Old, pos, -1, skip) && g.contribute(c.New, pos, 1, skip)
}

// positions maps the source's columns to a table's, by name; a column that the
// table lacks is an error only where the fold uses it.
func (g *groups) positions(t *ingest.Table) ([]int, bool) {
	pos, ok := g.maps[t]
	if !ok {
		pos = namedPositions(t, g.columns)
		if slices.ContainsFunc(g.used, func(i int) bool { return pos[i] < 0 }) {
			pos = nil
		}
		g.maps[t] = pos
	}
	return pos, pos != nil
}

// namedPositions gives the positions of columns in the rows of a table, -1 for one that
// it lacks.
func namedPositions(t *ingest.Table, columns []string) []int {
	pos := make([]int, len(columns))
	for i, name := range columns {
		pos[i] = slices.IndexFunc(t.Columns, func(c ingest.Column) bool { return c.Name == name })
	}
	return pos
}

func (g *groups) contribute(row ingest.Row, pos []int, sign int64, skip func(plans.FoldCell) bool) bool {
	for _, i := range g.used {
		if row[pos[i]].IsMissing() {
			return false
		}
	}
	gr := g.group(row, pos)
	gr.n += sign
	for i, c := range g.fold.Cells {
		v := row[pos[c.Argument]]
		if v.IsNull() || (skip != nil && skip(c)) {
			continue
		}
		if !gr.cells[i].add(c, v.Text(), sign) {
			gr.dirty = true
		}
	}
	return true
}

func (g *groups) group(row ingest.Row, pos []int) *group {
	key := g.key[:0]
	for _, i := range g.fold.Groups {
		v := row[pos[i]]
		if v.IsNull() {
			key = append(key, 0)
			continue
		}
		s := v.Text()
		key = append(key, 1, byte(len(s)), byte(len(s)>>8), byte(len(s)>>16), byte(len(s)>>24))
		key = append(key, s...)
	}
	g.key = key
	if gr := g.rows[string(key)]; gr != nil {
		return gr
	}
	gr := &group{key: make(ingest.Row, len(g.fold.Groups)), cells: make([]cell, len(g.fold.Cells))}
	for i, k := range g.fold.Groups {
		gr.key[i] = clone(row[pos[k]])
	}
	g.rows[string(key)] = gr
	g.bytes += 200 + int64(2*len(key)) + g.cellBytes
	return gr
}

// clone copies a value out of the message it stands in.
func clone(v ingest.Value) ingest.Value {
	if v.IsNull() || v.IsMissing() {
		return v
	}
	return ingest.Text(strings.Clone(v.Text()))
}

// add takes a value that is not NULL; false says that it is not exact in Go.
func (c *cell) add(f plans.FoldCell, text string, sign int64) bool {
	switch f.Op {
	case plans.FoldCount:
		c.i += sign
		return true
	case plans.FoldSum:
		if f.Integer {
			return c.addInteger(text, sign)
		}
		return c.addNumeric(text, sign)
	case plans.FoldSquares:
		if f.Integer {
			return c.addSquare(text, sign)
		}
		return c.addNumericSquare(text, sign)
	case plans.FoldMin, plans.FoldMax, plans.FoldAnd, plans.FoldOr, plans.FoldBitAnd, plans.FoldBitOr:
		if f.Old != (sign < 0) {
			return true
		}
		return c.extreme(f, text)
	}
	return false
}

func (c *cell) addInteger(text string, sign int64) bool {
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return false
	}
	c.set = true
	if c.sum == nil {
		if sum, ok := addInt64(c.i, v, sign); ok {
			c.i = sum
			return true
		}
	}
	c.addBig(big.NewInt(v), sign)
	return true
}

// addBig adds what an int64 cannot hold, or cannot hold the sum of.
func (c *cell) addBig(v *big.Int, sign int64) {
	if c.sum == nil {
		c.sum, c.i = big.NewInt(c.i), 0
	}
	if sign < 0 {
		c.sum.Sub(c.sum, v)
	} else {
		c.sum.Add(c.sum, v)
	}
}

func (c *cell) addSquare(text string, sign int64) bool {
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return false
	}
	c.set = true
	if c.sum == nil && v > math.MinInt32 && v <= math.MaxInt32 { // its square is an int64
		if sum, ok := addInt64(c.i, v*v, sign); ok {
			c.i = sum
			return true
		}
	}
	w := big.NewInt(v)
	c.addBig(w.Mul(w, w), sign)
	return true
}

// addInt64 returns a+v or, for a negative sign, a-v; ok is false on overflow.
func addInt64(a, v, sign int64) (int64, bool) {
	if sign < 0 {
		diff := a - v
		return diff, (v >= 0) == (diff <= a)
	}
	sum := a + v
	return sum, (v >= 0) == (sum >= a)
}

// exact adds without rounding: precision 0 sets no limit.
var exact = apd.Context{MaxExponent: apd.MaxExponent, MinExponent: apd.MinExponent}

func (c *cell) addNumeric(text string, sign int64) bool {
	var v apd.Decimal
	if _, _, err := v.SetString(text); err != nil || v.Form != apd.Finite {
		return false // NaN cannot be retracted
	}
	return c.addDecimal(&v, sign)
}

func (c *cell) addNumericSquare(text string, sign int64) bool {
	var v, square apd.Decimal
	if _, _, err := v.SetString(text); err != nil || v.Form != apd.Finite {
		return false
	}
	if _, err := exact.Mul(&square, &v, &v); err != nil {
		return false
	}
	return c.addDecimal(&square, sign)
}

func (c *cell) addDecimal(v *apd.Decimal, sign int64) bool {
	if c.dec == nil {
		c.dec = &apd.Decimal{Exponent: v.Exponent}
	}
	c.set = true
	var err error
	if sign < 0 {
		_, err = exact.Sub(c.dec, c.dec, v)
	} else {
		_, err = exact.Add(c.dec, c.dec, v)
	}
	return err == nil
}

// extreme folds a value into a minimum, a maximum, or a bitwise or boolean and/or.
func (c *cell) extreme(f plans.FoldCell, text string) bool {
	var v int64
	switch text {
	case "t":
		v = 1
	case "f":
	default:
		var err error
		if v, err = strconv.ParseInt(text, 10, 64); err != nil || !f.Integer {
			return false
		}
	}
	if !c.set {
		c.set, c.i = true, v
		return true
	}
	switch f.Op {
	case plans.FoldMin, plans.FoldAnd:
		c.i = min(c.i, v)
	case plans.FoldMax, plans.FoldOr:
		c.i = max(c.i, v)
	case plans.FoldBitAnd:
		c.i &= v
	case plans.FoldBitOr:
		c.i |= v
	case plans.FoldCount, plans.FoldSum, plans.FoldSquares:
		return false
	}
	return true
}

// value prints the partial as its column's type reads it.
func (c *cell) value(f plans.FoldCell) ingest.Value {
	switch f.Op {
	case plans.FoldCount:
	case plans.FoldSum, plans.FoldSquares:
		switch {
		case c.dec != nil:
			return ingest.Text(c.dec.Text('f'))
		case c.sum != nil:
			return ingest.Text(c.sum.String())
		}
	case plans.FoldAnd, plans.FoldOr:
		if !c.set {
			return ingest.Null
		}
		return ingest.Text(strconv.FormatBool(c.i != 0))
	case plans.FoldMin, plans.FoldMax, plans.FoldBitAnd, plans.FoldBitOr:
		if !c.set {
			return ingest.Null
		}
	}
	return ingest.Text(strconv.FormatInt(c.i, 10))
}

// delta gives the contributions as rows of DeltaColumns. Groups to which nothing
// was added on balance are left out.
func (g *groups) delta() []ingest.Row {
	out := make([]ingest.Row, 0, len(g.rows))
	for _, gr := range g.rows {
		if gr.idle(g.fold.Cells) {
			continue
		}
		row := make(ingest.Row, 0, len(gr.key)+len(gr.cells)+2)
		row = append(row, gr.key...)
		row = append(row, ingest.Text(strconv.FormatInt(gr.n, 10)))
		for i := range gr.cells {
			row = append(row, gr.cells[i].value(g.fold.Cells[i]))
		}
		out = append(out, append(row, ingest.Text(strconv.FormatBool(gr.dirty))))
	}
	return out
}

// idle reports whether the batch left the group as it was.
func (gr *group) idle(cells []plans.FoldCell) bool {
	if gr.n != 0 || gr.dirty {
		return false
	}
	for i, c := range gr.cells {
		switch cells[i].Op {
		case plans.FoldCount, plans.FoldSum, plans.FoldSquares:
			if c.i != 0 || (c.sum != nil && c.sum.Sign() != 0) || (c.dec != nil && !c.dec.IsZero()) {
				return false
			}
		default:
			if c.set {
				return false
			}
		}
	}
	return true
}
