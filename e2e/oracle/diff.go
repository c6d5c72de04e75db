package oracle

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// Row is a row as its types print it; nil is NULL.
type Row []*string

// Pair is a row that both sides have, with different contents.
type Pair struct {
	Want, Got Row
}

// Diff is what distinguishes a table from its body.
type Diff struct {
	// Table is the table's full name; Columns are its columns, and Stored is the number of its rows.
	Table   string
	Columns []string
	Stored  int64
	// Missing rows are in the body only, Extra ones in the table only, and Different ones in both under one key. Each
	// holds no more than the options' limit.
	Missing, Extra []Row
	Different      []Pair
	// Counts of each, without limit.
	MissingCount, ExtraCount, DifferentCount int64
}

func newDiff(c *comparison) Diff {
	d := Diff{Table: c.table}
	for _, column := range c.schema {
		d.Columns = append(d.Columns, column.name)
	}
	return d
}

// Empty says whether the table is right.
func (d Diff) Empty() bool { return d.MissingCount+d.ExtraCount+d.DifferentCount == 0 }

// String describes the differences, a row a line.
func (d Diff) String() string {
	if d.Empty() {
		return fmt.Sprintf("%s equals its body (%d rows)", d.Table, d.Stored)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s differs from its body: %d missing, %d extra, %d different (%d rows stored; columns %s)",
		d.Table, d.MissingCount, d.ExtraCount, d.DifferentCount, d.Stored, strings.Join(d.Columns, ", "))
	for _, row := range d.Missing {
		fmt.Fprintf(&b, "\n  missing   %s", row)
	}
	for _, row := range d.Extra {
		fmt.Fprintf(&b, "\n  extra     %s", row)
	}
	for _, pair := range d.Different {
		fmt.Fprintf(&b, "\n  different %s", d.describe(pair))
	}
	return b.String()
}

// describe shows the row that was found, and what the differing columns should be.
func (d Diff) describe(pair Pair) string {
	var wrong []string
	for i := range pair.Want {
		if show(pair.Want[i]) != show(pair.Got[i]) {
			wrong = append(wrong, fmt.Sprintf("%s should be %s", d.Columns[i], show(pair.Want[i])))
		}
	}
	if len(wrong) == 0 {
		wrong = []string{"bytes differ where the text does not"}
	}
	return fmt.Sprintf("%s: %s", pair.Got, strings.Join(wrong, ", "))
}

// String returns the row with its texts quoted, so that NULL, blanks and line ends can be told apart.
func (r Row) String() string {
	values := make([]string, len(r))
	for i, value := range r {
		values[i] = show(value)
	}
	return "(" + strings.Join(values, ", ") + ")"
}

// longest is how much of a value is shown.
const longest = 200

func show(value *string) string {
	if value == nil {
		return "NULL"
	}
	if len(*value) > longest {
		return fmt.Sprintf("%q and %d more bytes", (*value)[:longest], len(*value)-longest)
	}
	return strconv.Quote(*value)
}

// collector puts the rows that a statement returns together into a Diff.
type collector struct {
	c             *comparison
	diff          *Diff
	mark          string // of the rows at hand
	certain       bool   // they differ by more than floats
	bodies, found []Row
}

// add takes the next row; rows of one mark follow each other.
func (l *collector) add(mark string, stored, certain bool, row Row) {
	if mark != l.mark {
		l.flush()
		l.mark = mark
	}
	l.certain = certain // the same for both rows of a pair
	if stored {
		l.found = append(l.found, row)
	} else {
		l.bodies = append(l.bodies, row)
	}
	if len(l.c.key) == 0 && !l.c.tolerant() {
		l.flush() // rows without a key have nothing to do with each other
	}
}

// near says whether the floats of two rows are within the tolerance of each other.
func (c *comparison) near(pair Pair) bool {
	for i, column := range c.schema {
		if column.rule != float || show(pair.Want[i]) == show(pair.Got[i]) {
			continue
		}
		tolerance := c.opts.FloatTolerance
		if column.base == pgtype.Float4OID {
			tolerance = max(tolerance, realTolerance)
		}
		if !near(pair.Want[i], pair.Got[i], tolerance) {
			return false
		}
	}
	return true
}

// near says whether two printed numbers differ by no more than the relative tolerance. NaN, infinities, NULL and what is
// no number are near nothing else.
func near(want, got *string, tolerance float64) bool {
	if want == nil || got == nil {
		return false
	}
	a, errA := strconv.ParseFloat(*want, 64)
	b, errB := strconv.ParseFloat(*got, 64)
	if errA != nil || errB != nil {
		return false
	}
	if a == b {
		return true // 0 and -0
	}
	if math.IsNaN(a) || math.IsNaN(b) || math.IsInf(a, 0) || math.IsInf(b, 0) {
		return false
	}
	// Divided first: neither the difference nor the product can overflow.
	scale := max(math.Abs(a), math.Abs(b))
	return math.Abs(a/scale-b/scale) <= tolerance
}

// flush adds the rows at hand to the Diff: as many pairs as there are, and the rest.
func (l *collector) flush() {
	limit := l.c.opts.Limit
	pairs := min(len(l.bodies), len(l.found))
	for i := range pairs {
		pair := Pair{Want: l.bodies[i], Got: l.found[i]}
		if !l.certain && l.c.near(pair) {
			continue
		}
		l.diff.DifferentCount++
		if len(l.diff.Different) < limit {
			l.diff.Different = append(l.diff.Different, pair)
		}
	}
	for _, row := range l.bodies[pairs:] {
		l.diff.MissingCount++
		if len(l.diff.Missing) < limit {
			l.diff.Missing = append(l.diff.Missing, row)
		}
	}
	for _, row := range l.found[pairs:] {
		l.diff.ExtraCount++
		if len(l.diff.Extra) < limit {
			l.diff.Extra = append(l.diff.Extra, row)
		}
	}
	l.bodies, l.found = nil, nil
}
