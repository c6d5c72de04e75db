package maintain

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// project maintains an inverse-projection view.
func (r *round) project(ctx context.Context, v *view) (backing.Result, error) {
	res, err := r.projectImages(ctx, v, v.work.images[0])
	if errors.Is(err, errImage) || errors.Is(err, backing.ErrAstray) {
		return r.rebuild(ctx, v, reasonImage)
	}
	return res, err
}

// projectImages takes over net changes of an inverse-projection view's source: the new
// images of the changed rows give its new rows, the keys of old and new images say
// which stored rows may go. The source is not read but for values that images lack.
// It returns [errImage] where an old image lacks the key, [backing.ErrAstray] where the
// view turned out not to be what the images begin with: then it must be reconciled.
func (r *round) projectImages(ctx context.Context, v *view, im *ingest.Images) (backing.Result, error) {
	arm, src := v.plan.Projection, &v.plan.Sources[0]
	if im.Len() == 0 {
		return backing.Result{}, nil
	}
	if v.work.straight && !im.Lacks() && len(v.consumers) == 0 && r.session.Takes(v.layout, im.Len()) {
		return r.session.Apply(ctx, r.tx, v.layout, straightDelta(v.plan, im))
	}
	n, err := r.net(ctx, v, 0, im)
	if err != nil {
		return backing.Result{}, err
	}
	images, _ := imageInput("mvsync_new_0", src, n.news, nil)
	m := backing.Merge{New: arm.New, Touched: arm.Touched, Effects: len(v.consumers) > 0}
	if n.inserts {
		// A row that did not exist cannot have stored rows: no need to look for them.
		m.Append, m.Touched = true, ""
		return r.merge(ctx, v, m, images)
	}
	keys, ok := projectedKeys(arm, n)
	if !ok {
		return backing.Result{}, errImage
	}
	return r.merge(ctx, v, m, images, keys)
}

// projectedKeys are the keys of the stored rows that the images have to do with; ok is
// false where an old image lacks one.
func projectedKeys(arm *plans.Projection, n netted) (keys backing.Input, ok bool) {
	keys = backing.Input{Name: keysName, Columns: inputColumns(arm.KeyColumns)}
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
					return keys, false
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
	return keys, true
}

// byteKeys are types of keys whose values are equal only where their texts are.
var byteKeys = []uint32{
	pgtype.BoolOID, pgtype.QCharOID, pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.OIDOID, pgtype.UUIDOID,
	pgtype.TextOID, pgtype.VarcharOID, pgtype.ByteaOID, pgtype.DateOID, pgtype.TimestampOID, pgtype.TimestamptzOID,
}

// straight reports whether the view has the very rows of its source under the very key
// by which images are netted, so that the images of a key say all of its stored row:
// whether it goes, changes or comes. A key that is equal to another in other bytes
// (1.0 and 1.00) would look like one that goes and one that comes.
func straight(p *plans.Plan) bool {
	if p.Projection == nil || p.Projection.Bare == nil || p.Strategy != plans.InverseProjection || len(p.Coarsened) > 0 {
		return false
	}
	src := &p.Sources[0]
	from := slices.Sorted(slices.Values(p.Projection.KeyFrom))
	if src.Inherits || src.Producer || len(from) == 0 || !slices.Equal(from, slices.Sorted(slices.Values(src.Key))) {
		return false
	}
	return !slices.ContainsFunc(p.Key, func(k int) bool {
		return p.Columns[k].Collation != "" || !slices.Contains(byteKeys, p.Columns[k].TypeOID)
	})
}

// straightDelta gives the rows of a straight view as its source's images have them.
func straightDelta(p *plans.Plan, im *ingest.Images) backing.Delta {
	key := make([]int, len(p.Key))
	for i, k := range p.Key {
		key[i] = p.Projection.Bare[k]
	}
	n := im.Parts()
	return backing.Delta{
		Gone:    im.Rows(ingest.Gone, n[ingest.Gone], key),
		Changed: im.Rows(ingest.Changed, n[ingest.Changed], p.Projection.Bare),
		Fresh:   im.Rows(ingest.Fresh, n[ingest.Fresh], p.Projection.Bare),
	}
}
