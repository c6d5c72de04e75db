package maintain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// residual maintains a view of the residual family: the keys of the slices that the
// batch touched, the body run again for them, and one keyed diff against the stored
// rows of all of them.
func (r *round) residual(ctx context.Context, v *view) (backing.Result, error) {
	if !r.reads(v) {
		return backing.Result{}, &errReads{v}
	}
	images, changed, err := r.allImages(ctx, v)
	if errors.Is(err, errImage) {
		return r.rebuild(ctx, v, reasonImage)
	}
	if err != nil || !slices.Contains(changed, true) {
		return backing.Result{}, err
	}
	arm := v.plan.Residual
	if slices.ContainsFunc(arm.Floor, func(source int) bool { return changed[source] }) {
		return r.rebuild(ctx, v, reasonFloor)
	}
	m := backing.Merge{New: arm.New, Effects: len(v.consumers) > 0}
	var keys []backing.Input
	total := 0
	for i := range arm.Slices {
		slice := &arm.Slices[i]
		in := backing.Input{Name: fmt.Sprintf("%s_%d", keysName, i), Columns: inputColumns(slice.KeyColumns)}
		if slices.ContainsFunc(slice.Inputs, func(source int) bool { return changed[source] }) {
			if in.Rows, err = r.keys(ctx, v, slice, images); err != nil {
				return backing.Result{}, err
			}
		}
		if len(in.Rows) > 0 {
			m.TouchedBy = append(m.TouchedBy, slice.Touched)
		}
		total += len(in.Rows)
		keys = append(keys, in)
	}
	if total == 0 {
		return backing.Result{}, nil
	}
	r.e.observe.ResidualKeys(v.name, total)
	if dear, err := r.dearer(ctx, v, total); dear || err != nil {
		if err != nil {
			return backing.Result{}, err
		}
		return r.rebuild(ctx, v, reasonDegrade)
	}
	if len(v.plan.Coarsened) > 0 {
		return r.coarsenedSlices(ctx, v, m, keys)
	}
	return r.merge(ctx, v, m, keys...)
}

// keys derives the touched keys of one slice.
func (r *round) keys(ctx context.Context, v *view, slice *plans.Slice, images []backing.Input) ([]ingest.Row, error) {
	q := backing.Select{SQL: bySize(slice.Keys, images)}
	if slice.Stored {
		q.Stored = v.layout
	}
	return r.session.Query(ctx, r.tx, q, images)
}

// errImage says that an old image lacks what the plan reads in it.
var errImage = errors.New("an old image lacks a value")

// allImages ships the images of every source, old and new, and says which of the
// sources changed.
func (r *round) allImages(ctx context.Context, v *view) (ins []backing.Input, changed []bool, err error) {
	for i := range v.plan.Sources {
		n, err := r.net(ctx, v, i, v.work.images[i])
		if err != nil {
			return nil, nil, err
		}
		changed = append(changed, len(n.olds)+len(n.news) > 0)
		src := &v.plan.Sources[i]
		needed := func(column int) bool { return slices.Contains(src.Old, column) }
		news, _ := imageInput(fmt.Sprintf("mvsync_new_%d", i), src, n.news, needed)
		olds, ok := imageInput(fmt.Sprintf("mvsync_old_%d", i), src, n.olds, needed)
		if !ok {
			return nil, nil, errImage
		}
		ins = append(ins, news, olds)
	}
	return ins, changed, nil
}
