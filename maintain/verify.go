package maintain

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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
		if len(stored) < 10_000 {
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
		if len(wanted) < 10_000 {
			wanted = append(wanted, slices.Clone(row))
		}
		return nil
	})
	if err != nil {
		return v, fmt.Errorf("evaluate the body of %s: %w", v.View, err)
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

// judge pairs the rows that are left by key and forgives what Postgres does not fix.
func (c *comparison) judge(ctx context.Context, v *Verdict, stored, wanted [][]string) error {
	forgiven := 0
	var used []bool
	if slices.ContainsFunc(c.plan.Columns, func(col plans.Column) bool { return col.Dependent != plans.Exact }) {
		used = make([]bool, len(wanted))
		for i, s := range stored {
			for j, w := range wanted {
				if used[j] {
					continue
				}
				ok, err := c.equivalent(ctx, s, w)
				if err != nil {
					return err
				}
				if ok {
					used[j], stored[i] = true, nil
					forgiven++
					break
				}
			}
		}
	}
	v.Differing -= int64(forgiven)
	for _, s := range stored {
		if s != nil && len(v.Sample) < verifySample {
			v.Sample = append(v.Sample, "- "+show(s))
		}
	}
	for j, w := range wanted {
		if (used == nil || !used[j]) && len(v.Sample) < verifySample {
			v.Sample = append(v.Sample, "+ "+show(w))
		}
	}
	return nil
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
		text := fmt.Sprintf("SELECT ROW($1::text::%[1]s)::record = ROW($2::text::%[1]s)::record", col.Type)
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
