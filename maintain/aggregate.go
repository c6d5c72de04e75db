package maintain

import (
	"context"

	"github.com/mvsync/mvsync/backing"
)

// Names that the SQL of a plan knows.
const (
	deltaName = "mvsync_delta"
	keysName  = "mvsync_keys"
)

// aggregate maintains a delta-aggregate view: the signed contributions of the batch
// are added to the stored groups. Groups for which that is not exact, such as one
// that lost its extreme, are left alone and run again from the source.
func (r *round) aggregate(ctx context.Context, v *view) (backing.Result, error) {
	with, inputs, err := r.contributions(ctx, v)
	if err != nil {
		return backing.Result{}, err
	}
	if inputs == nil {
		if v.work.reconcile != "" {
			return r.rebuild(ctx, v, v.work.reconcile)
		}
		return backing.Result{}, nil
	}
	arm := v.plan.Aggregate
	effects := len(v.consumers) > 0
	sum, err := r.merge(ctx, v, backing.Merge{With: with, New: arm.Merge, Flags: true, Touched: arm.Touched, Effects: effects}, inputs...)
	if err != nil || len(sum.Rerun) == 0 {
		return sum, err
	}
	if !r.reads(v) {
		return sum, &errReads{v}
	}
	r.e.observe.ResidualKeys(v.name, len(sum.Rerun))
	var keys []backing.Input
	if len(arm.KeyColumns) > 0 { // a view of one row runs all of its body again
		keys = []backing.Input{{Name: keysName, Columns: inputColumns(arm.KeyColumns), Rows: sum.Rerun}}
	}
	again, err := r.merge(ctx, v, backing.Merge{New: arm.Rerun, Touched: arm.RerunTouched, Effects: effects}, keys...)
	return plus(sum, again), err
}

// plus adds what two merges of one view did.
func plus(a, b backing.Result) backing.Result {
	a.Inserted += b.Inserted
	a.Updated += b.Updated
	a.Deleted += b.Deleted
	a.Unchanged += b.Unchanged
	a.Effects = append(a.Effects, b.Effects...)
	a.Overflow = a.Overflow || b.Overflow
	return a
}

// contributions gives mvsync_delta: folded in Go, or computed by Postgres from the
// images. No inputs: nothing changed, or the view has to be reconciled.
func (r *round) contributions(ctx context.Context, v *view) ([]backing.CTE, []backing.Input, error) {
	arm := v.plan.Aggregate
	if v.work.groups != nil {
		rows := v.work.groups.delta()
		if len(rows) == 0 {
			return nil, nil, nil
		}
		return nil, []backing.Input{{Name: deltaName, Columns: inputColumns(arm.DeltaColumns), Rows: rows}}, nil
	}
	src := &v.plan.Sources[0]
	n, err := r.net(ctx, v, 0, v.work.images[0])
	if err != nil || len(n.olds)+len(n.news) == 0 {
		return nil, nil, err
	}
	all := func(int) bool { return true }
	news, _ := imageInput("mvsync_new_0", src, n.news, all)
	olds, ok := imageInput("mvsync_old_0", src, n.olds, all)
	if !ok {
		v.work.demand(reasonImage)
		return nil, nil, nil
	}
	return []backing.CTE{{Name: deltaName, SQL: arm.Delta}}, []backing.Input{news, olds}, nil
}
