package oracle

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// known remembers how to compare views, so that a check which finds nothing wrong takes two round trips for all of
// them. What it remembers may be out of date; then it finds something wrong, and the views are described anew.
type known struct {
	mu          sync.Mutex // guards comparisons
	comparisons map[string]*comparison
}

// identity tells views apart that are not compared alike.
func (v *View) identity() string { return fmt.Sprintf("%q %q %+v", v.Table, v.Body, v.Options) }

func (k *known) find(v *View) *comparison {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.comparisons[v.identity()]
}

func (k *known) add(v *View, c *comparison) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.comparisons == nil {
		k.comparisons = map[string]*comparison{}
	}
	k.comparisons[v.identity()] = c
}

// errNotQuick says that a check has to be made at leisure.
var errNotQuick = errors.New("views are not all known, or not all right")

// quick compares all views in one batch of statements. It returns false where it cannot say that all are right.
func (c *Checker) quick(ctx context.Context, tx pgx.Tx) bool {
	var batch pgx.Batch
	for i := range c.Views {
		cmp := c.known.find(&c.Views[i])
		if cmp == nil || (cmp.tolerant() && len(cmp.key) == 0) {
			return false
		}
		batch.Queue("SELECT count(*) FROM " + cmp.table)
		batch.Queue(cmp.statement(cmp.bodySQL()))
	}
	var stored int64
	err := c.pinned(ctx, tx, func(tx pgx.Tx) error {
		results := tx.SendBatch(ctx, &batch)
		err := readQuick(results, len(c.Views), &stored)
		return errors.Join(err, results.Close())
	})
	if err != nil {
		return false
	}
	c.checks.Add(int64(len(c.Views)))
	c.rows.Add(stored)
	return true
}

func readQuick(results pgx.BatchResults, views int, stored *int64) error {
	for range views {
		var n int64
		if err := results.QueryRow().Scan(&n); err != nil {
			return err
		}
		*stored += n
		rows, err := results.Query()
		if err != nil {
			return err
		}
		wrong := rows.Next()
		rows.Close()
		if err := rows.Err(); err != nil {
			return err
		}
		if wrong {
			return errNotQuick
		}
	}
	return nil
}
