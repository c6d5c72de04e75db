package oracle

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// View is a backing table with the body that it should equal.
type View struct {
	// Table is named as SQL names it, and best with its schema.
	Table, Body string
	Options     Options
}

// Checker compares views again and again, such as once a round. It may be used concurrently once it is set up.
type Checker struct {
	Views []View
	// SearchPath is that under which bodies are read (default "public").
	SearchPath string
	// TimeZone is that under which bodies are evaluated (default "UTC").
	TimeZone string

	checks, rows atomic.Int64
	known        known
}

// Mismatch is the error of a check that found views to be wrong.
type Mismatch struct {
	Diffs []Diff
}

// Error describes the differences of all views.
func (m *Mismatch) Error() string {
	diffs := make([]string, len(m.Diffs))
	for i, d := range m.Diffs {
		diffs[i] = d.String()
	}
	return strings.Join(diffs, "\n")
}

// Beginner opens transactions; connections and pools of pgx do.
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Checks returns the number of views that were compared, and the number of stored rows that were in them, so that a test
// can tell that it compared something.
func (c *Checker) Checks() (views, rows int64) { return c.checks.Load(), c.rows.Load() }

// Check compares all views within an open transaction, such as a round's before its commit. It works in a savepoint, so
// that neither its settings nor a body's failure stay. The error is a [Mismatch] where views are wrong.
func (c *Checker) Check(ctx context.Context, tx pgx.Tx) error {
	rest := c.quick(ctx, tx)
	if len(rest) == 0 {
		return nil
	}
	return c.pinned(ctx, tx, func(tx pgx.Tx) error {
		return c.each(rest, func(v View) (Diff, error) {
			cmp, diff, err := compare(ctx, tx, v.Body, v.Table, v.Options)
			if err == nil {
				c.known.add(&v, cmp)
			}
			return diff, err
		})
	})
}

// CheckSnapshot compares all views at a snapshot that another session has exported, and still holds.
func (c *Checker) CheckSnapshot(ctx context.Context, db Beginner, snapshot string) error {
	return c.reading(ctx, db, snapshot, func(tx pgx.Tx) error { return c.Check(ctx, tx) })
}

// CheckNow compares all views at a snapshot of its own. That is a fair test only while nothing is left to maintain.
func (c *Checker) CheckNow(ctx context.Context, db Beginner) error {
	return c.reading(ctx, db, "", func(tx pgx.Tx) error { return c.Check(ctx, tx) })
}

// CheckAcross compares the bodies as one transaction sees them with the tables as another does.
func (c *Checker) CheckAcross(ctx context.Context, bodySide, storedSide pgx.Tx) error {
	return c.pinned(ctx, bodySide, func(bodySide pgx.Tx) error {
		return c.pinned(ctx, storedSide, func(storedSide pgx.Tx) error {
			return c.each(c.Views, func(v View) (Diff, error) {
				return CompareAcross(ctx, bodySide, storedSide, v.Body, v.Table, v.Options)
			})
		})
	})
}

// each compares the views, all of them, whatever comes out.
func (c *Checker) each(views []View, compare func(View) (Diff, error)) error {
	var wrong []Diff
	for _, v := range views {
		diff, err := compare(v)
		if err != nil {
			return err
		}
		c.checks.Add(1)
		c.rows.Add(diff.Stored)
		if !diff.Empty() {
			wrong = append(wrong, diff)
		}
	}
	if len(wrong) > 0 {
		return &Mismatch{Diffs: wrong}
	}
	return nil
}

// reading runs something in a read-only transaction with one snapshot for all its statements.
func (c *Checker) reading(ctx context.Context, db Beginner, snapshot string, do func(pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("begin a check: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if snapshot != "" {
		// Before any other statement, or the transaction has a snapshot of its own.
		if _, err := tx.Exec(ctx, "SET TRANSACTION SNAPSHOT "+quote(snapshot), pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("import snapshot %s: %w", snapshot, err)
		}
	}
	return do(tx)
}

// pins are the settings on which what bodies return may depend. Row security is off so that hidden rows are an error.
const pins = `SET LOCAL search_path = %s; SET LOCAL TimeZone = %s; SET LOCAL DateStyle = 'ISO, MDY';
SET LOCAL IntervalStyle = postgres; SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = hex;
SET LOCAL lc_monetary = 'C'; SET LOCAL xmloption = content; SET LOCAL row_security = off`

// pinned runs something in a savepoint with pinned settings, which go with it.
func (c *Checker) pinned(ctx context.Context, tx pgx.Tx, do func(pgx.Tx) error) error {
	nested, err := tx.Begin(ctx)
	if err != nil {
		return fmt.Errorf("open a savepoint for a check: %w", err)
	}
	defer nested.Rollback(context.WithoutCancel(ctx))
	path, zone := c.SearchPath, c.TimeZone
	if path == "" {
		path = "public"
	}
	if zone == "" {
		zone = "UTC"
	}
	if _, err := nested.Exec(ctx, fmt.Sprintf(pins, path, quote(zone)), pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("pin the settings of a check: %w", err)
	}
	return do(nested)
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
