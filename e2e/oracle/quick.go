package oracle

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// knownView is a view with how to compare it.
type knownView struct {
	view View
	cmp  *comparison
}

// quick compares the views that it knows in one batch of statements, and returns those that it cannot vouch for.
func (c *Checker) quick(ctx context.Context, tx pgx.Tx) []View {
	known, rest := c.split()
	if len(known) == 0 {
		return rest
	}
	var batch pgx.Batch
	counts := make([]string, len(known))
	for i, k := range known {
		batch.Queue(k.cmp.quickStatement())
		counts[i] = "(SELECT count(*) FROM " + k.cmp.table + ")"
	}
	batch.Queue("SELECT ARRAY[" + strings.Join(counts, ", ") + "]")
	var wrong []bool
	var stored []int64
	err := c.pinned(ctx, tx, func(tx pgx.Tx) error {
		results := tx.SendBatch(ctx, &batch)
		var err error
		wrong, stored, err = readQuick(results, len(known))
		return errors.Join(err, results.Close())
	})
	if err != nil {
		return c.Views
	}
	for i, k := range known {
		if wrong[i] {
			rest = append(rest, k.view)
			continue
		}
		c.checks.Add(1)
		c.rows.Add(stored[i])
	}
	return rest
}

// split tells the views that can be compared quickly from the rest.
func (c *Checker) split() (known []knownView, rest []View) {
	for _, v := range c.Views {
		cmp := c.known.find(&v)
		if cmp == nil || (cmp.tolerant() && len(cmp.key) == 0) {
			rest = append(rest, v)
			continue
		}
		known = append(known, knownView{v, cmp})
	}
	return known, rest
}

// readQuick reads for each view whether a row says that it is wrong, and then how many rows each holds.
func readQuick(results pgx.BatchResults, views int) (wrong []bool, stored []int64, err error) {
	for range views {
		rows, err := results.Query()
		if err != nil {
			return nil, nil, err
		}
		wrong = append(wrong, rows.Next())
		rows.Close()
		if err := rows.Err(); err != nil {
			return nil, nil, err
		}
	}
	err = results.QueryRow().Scan(&stored)
	return wrong, stored, err
}
