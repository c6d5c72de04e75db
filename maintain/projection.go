package maintain

import (
	"context"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
)

// project maintains an inverse-projection view: the new images of the changed rows
// give its new rows, the keys of old and new images say which stored rows may go.
// The source is not read.
func (r *round) project(ctx context.Context, v *view) (backing.Result, error) {
	arm, src := v.plan.Projection, &v.plan.Sources[0]
	n, err := r.net(ctx, v, 0)
	if err != nil || len(n.olds)+len(n.news) == 0 {
		return backing.Result{}, err
	}
	images, _ := imageInput("mvsync_new_0", src, n.news, nil)
	m := backing.Merge{New: arm.New, Touched: arm.Touched, Effects: len(v.consumers) > 0}
	if n.inserts {
		// A row that did not exist cannot have stored rows: no need to look for them.
		m.Append, m.Touched = true, ""
		return r.merge(ctx, v, m, images)
	}
	keys := backing.Input{Name: keysName, Columns: inputColumns(arm.KeyColumns)}
	seen := make(map[string]struct{}, len(n.olds)+len(n.news))
	var packed []byte
	for _, rows := range [][]ingest.Row{n.olds, n.news} {
		for _, row := range rows {
			key := make(ingest.Row, 0, len(arm.KeyFrom))
			for _, from := range arm.KeyFrom {
				if from < 0 {
					continue // a constant
				}
				if row[from].IsMissing() {
					return r.rebuild(ctx, v, reasonImage)
				}
				key = append(key, row[from])
			}
			packed = appendRowKey(packed[:0], key)
			if _, ok := seen[string(packed)]; !ok {
				seen[string(packed)] = struct{}{}
				keys.Rows = append(keys.Rows, key)
			}
		}
	}
	return r.merge(ctx, v, m, images, keys)
}
