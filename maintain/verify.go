package maintain

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/plans"
)

// Because a round's snapshot is exact, a view can be compared with its body while
// writers go on, with no false alarm. Session V opens a transaction, locks the
// sources and exports its snapshot T; the next round imports T as its S; before the
// following round session W opens a transaction. V sees the bodies at T, W the views
// at T: they are compared at leisure while rounds go on.

// Verdict is what verification found of one view.
type Verdict struct {
	View string // quoted, with schema
	Rows int64  // rows of the body
	// Differing counts the rows of the body or the view that the other lacks or has
	// otherwise; a row that stands in both with different values counts once.
	Differing int64
	// Sample shows some of them, as text: row values, for the operator's eyes only.
	Sample []string
	// Skipped says why the view was not compared; empty where it was.
	Skipped string
}

// verifyLimits bound session V, whose locks keep TRUNCATE and ALTER waiting.
const (
	verifyLockTimeout      = 500 * time.Millisecond
	verifyStatementTimeout = 5 * time.Minute
	verifySample           = 20
	// verifyKept is how many rows that differ as text are kept to be paired.
	verifyKept = 100_000
)

// hashed is the digest of a row's text.
type hashed [16]byte

// comparison compares a body with a table, each in a session of its own.
type comparison struct {
	plan  *plans.Plan
	body  *pgx.Conn
	table *pgx.Conn
	// bodySQL gives the view's columns.
	bodySQL string
}

// run compares. Rows that are equal as text are equal; what is left is paired by key
// and judged by the columns' dependence.
func (c *comparison) run(ctx context.Context) (Verdict, error) {
	v := Verdict{View: c.plan.Name.String()}
	counts := map[hashed]int{}
	err := c.each(ctx, c.body, c.bodySQL, func(row []string) error {
		counts[digest(row)]++
		v.Rows++
		return nil
	})
	if err != nil {
		return v, fmt.Errorf("evaluate the body of %s: %w", v.View, err)
	}
	tableSQL := "SELECT " + c.columns() + " FROM " + c.plan.Name.String()
	var stored, wanted [][]string
	err = c.each(ctx, c.table, tableSQL, func(row []string) error {
		d := digest(row)
		if counts[d] > 0 {
			counts[d]--
			if counts[d] == 0 {
				delete(counts, d)
			}
			return nil
		}
		v.Differing++
		if len(stored) < verifyKept {
			stored = append(stored, slices.Clone(row))
		}
		return nil
	})
	if err != nil {
		return v, fmt.Errorf("read %s: %w", v.View, err)
	}
	if len(counts) == 0 && len(stored) == 0 {
		return v, nil
	}
	left := 0
	err = c.each(ctx, c.body, c.bodySQL, func(row []string) error {
		d := digest(row)
		if counts[d] == 0 {
			return nil
		}
		counts[d]--
		left++
		if len(wanted) < verifyKept {
			wanted = append(wanted, slices.Clone(row))
		}
		return nil
	})
	if err != nil {
		return v, fmt.Errorf("evaluate the body of %s: %w", v.View, err)
	}
	if most := max(v.Differing, int64(left)); most > verifyKept && c.dependent() {
		// Judging only some of them would be a false alarm.
		v.Skipped = fmt.Sprintf("%d rows may be right in other bytes, more than are compared one by one", most)
		return v, nil
	}
	v.Differing = max(v.Differing, int64(left))
	return v, c.judge(ctx, &v, stored, wanted)
}

func (c *comparison) columns() string {
	names := make([]string, len(c.plan.Columns))
	for i, col := range c.plan.Columns {
		names[i] = pgx.Identifier{col.Name}.Sanitize()
	}
	return strings.Join(names, ", ")
}

// each runs a SELECT and yields its rows as text, with a prefix that tells NULL from
// the empty string.
func (c *comparison) each(ctx context.Context, conn *pgx.Conn, sql string, yield func([]string) error) error {
	rows, err := conn.Query(ctx, sql, pgx.QueryExecModeDescribeExec, pgx.QueryResultFormats{pgx.TextFormatCode})
	if err != nil {
		return err
	}
	defer rows.Close()
	row := make([]string, len(c.plan.Columns))
	for rows.Next() {
		raw := rows.RawValues()
		for i := range row {
			row[i] = "N"
			if raw[i] != nil {
				row[i] = "V" + string(raw[i])
			}
		}
		if err := yield(row); err != nil {
			return err
		}
	}
	return rows.Err()
}

func digest(row []string) hashed {
	h := sha256.New()
	for _, s := range row {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hashed(h.Sum(nil)[:16])
}

// judge pairs the rows that are left and forgives what Postgres does not fix.
func (c *comparison) judge(ctx context.Context, v *Verdict, stored, wanted [][]string) error {
	stored, wanted, forgiven, err := c.forgive(ctx, stored, wanted)
	if err != nil {
		return err
	}
	v.Differing -= int64(forgiven)
	keys := map[hashed]int{}
	for _, w := range wanted {
		keys[digest(c.pick(w, c.isKey))]++
	}
	paired := 0
	for _, s := range stored {
		if k := digest(c.pick(s, c.isKey)); keys[k] > 0 {
			keys[k]--
			paired++
		}
	}
	// Rows of which neither has the other's key are two differences.
	v.Differing += int64(min(len(stored), len(wanted)) - paired)
	for _, s := range stored {
		v.sample("- ", s)
	}
	for _, w := range wanted {
		v.sample("+ ", w)
	}
	return nil
}

// forgive takes out the pairs that are right as they are. Such rows agree in all exact
// columns.
func (c *comparison) forgive(ctx context.Context, stored, wanted [][]string) (_, _ [][]string, forgiven int, err error) {
	if !c.dependent() {
		return stored, wanted, 0, nil
	}
	byExact := map[hashed][][]string{}
	for _, w := range wanted {
		k := digest(c.pick(w, c.isExact))
		byExact[k] = append(byExact[k], w)
	}
	var left [][]string
	for _, s := range stored {
		k := digest(c.pick(s, c.isExact))
		found := -1
		for j, w := range byExact[k] {
			ok, err := c.equivalent(ctx, s, w)
			if err != nil {
				return nil, nil, 0, err
			}
			if ok {
				found = j
				break
			}
		}
		if found < 0 {
			left = append(left, s)
			continue
		}
		byExact[k] = slices.Delete(byExact[k], found, found+1)
		forgiven++
	}
	wanted = slices.Concat(slices.Collect(maps.Values(byExact))...)
	return left, wanted, forgiven, nil
}

func (c *comparison) dependent() bool {
	return slices.ContainsFunc(c.plan.Columns, func(col plans.Column) bool { return col.Dependent != plans.Exact })
}

func (c *comparison) isKey(column int) bool   { return slices.Contains(c.plan.Key, column) }
func (c *comparison) isExact(column int) bool { return c.plan.Columns[column].Dependent == plans.Exact }

// pick gives the columns of a row for which keep says yes.
func (c *comparison) pick(row []string, keep func(int) bool) []string {
	var out []string
	for i := range row {
		if keep(i) {
			out = append(out, row[i])
		}
	}
	return out
}

// sample shows a row of the difference, where there is still room.
func (v *Verdict) sample(mark string, row []string) {
	if len(v.Sample) < verifySample {
		v.Sample = append(v.Sample, mark+show(row))
	}
}

// equivalent reports whether a stored row is right where the body gave another:
// byte for byte in exact columns, by the type's equality or within 1e-9 in others.
func (c *comparison) equivalent(ctx context.Context, stored, wanted []string) (bool, error) {
	for i, col := range c.plan.Columns {
		s, w := stored[i], wanted[i]
		if s == w {
			continue
		}
		if col.Dependent == plans.Exact || s[0] != w[0] {
			return false, nil
		}
		if col.Dependent == plans.Float {
			if !near(s[1:], w[1:], tolerance(col.Type)) {
				return false, nil
			}
			continue
		}
		var equal bool
		typ := col.Type
		if col.Collation != "" {
			typ += " COLLATE " + col.Collation
		}
		text := fmt.Sprintf("SELECT ROW($1::text::%[1]s)::record = ROW($2::text::%[1]s)::record", typ)
		if err := c.table.QueryRow(ctx, text, s[1:], w[1:]).Scan(&equal); err != nil {
			return false, fmt.Errorf("compare column %s of %s: %w", col.Name, c.plan.Name, err)
		}
		if !equal {
			return false, nil
		}
	}
	return true, nil
}

// tolerance is how far two evaluations of one float may be apart, relative to the
// larger: reals hold no more than six digits.
func tolerance(typ string) float64 {
	if typ == "real" {
		return 1e-5
	}
	return 1e-9
}

// near reports whether two printed floats are equal within a relative tolerance.
func near(a, b string, within float64) bool {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	if errX != nil || errY != nil || math.IsNaN(x) || math.IsNaN(y) || math.IsInf(x, 0) || math.IsInf(y, 0) {
		return false
	}
	return math.Abs(x-y) <= within*max(math.Abs(x), math.Abs(y))
}

func show(row []string) string {
	out := make([]string, len(row))
	for i, s := range row {
		if s == "N" {
			out[i] = "NULL"
			continue
		}
		out[i] = s[1:]
	}
	return "(" + strings.Join(out, ", ") + ")"
}

var errNotCompared = errors.New("not compared")
