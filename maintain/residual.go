package maintain

import (
	"context"
	"fmt"

	"github.com/mvsync/mvsync/backing"
)

// residual maintains a view of the residual family: the keys of the slices that the
// batch touched, the body run again for them, and one keyed diff against the stored
// rows of all of them.
func (r *round) residual(ctx context.Context, v *view) (backing.Result, error) {
	if !r.reads(v) {
		return backing.Result{}, &errReads{v}
	}
	images, changed, err := r.allImages(ctx, v)
	if err != nil || !changed {
		return backing.Result{}, err
	}
	slice := &v.plan.Residual.Slices[0]
	keys := backing.Input{Name: keysName, Columns: inputColumns(slice.KeyColumns)}
	if keys.Rows, err = r.query(ctx, slice.Keys, images); err != nil {
		return backing.Result{}, err
	}
	if len(keys.Rows) == 0 {
		return backing.Result{}, nil
	}
	r.e.observe.ResidualKeys(v.name, len(keys.Rows))
	return r.merge(ctx, v, backing.Merge{New: slice.New, Touched: slice.Touched, Effects: len(v.consumers) > 0}, keys)
}

// allImages ships the images of every source, old and new.
func (r *round) allImages(ctx context.Context, v *view) (ins []backing.Input, changed bool, err error) {
	for i := range v.plan.Sources {
		n, err := r.net(ctx, v, i)
		if err != nil {
			return nil, false, err
		}
		changed = changed || len(n.olds)+len(n.news) > 0
		never := func(int) bool { return false }
		news, _ := imageInput(fmt.Sprintf("mvsync_new_%d", i), &v.plan.Sources[i], n.news, never)
		olds, _ := imageInput(fmt.Sprintf("mvsync_old_%d", i), &v.plan.Sources[i], n.olds, never)
		ins = append(ins, news, olds)
	}
	return ins, changed, nil
}
