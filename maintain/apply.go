package maintain

import (
	"context"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
)

// merge writes back what the batch did to a view.
func (r *round) merge(ctx context.Context, v *view, m backing.Merge, inputs ...backing.Input) (backing.Result, error) {
	return r.session.Merge(ctx, r.tx, v.layout, sized(m, inputs), inputs)
}

// query runs a SELECT of a plan over inputs.
func (r *round) query(ctx context.Context, sql string, inputs []backing.Input) ([]ingest.Row, error) {
	return r.session.Query(ctx, r.tx, backing.Select{SQL: bySize(sql, inputs)}, inputs)
}

// rebuild evaluates the body at S and writes what differs. Fill, refresh, recovery
// and the memory valve are this one operation. A view that has no table yet gets
// it in the same transaction, so that its name appears together with its rows.
func (r *round) rebuild(ctx context.Context, v *view, reason string) (backing.Result, error) {
	if !r.reads(v) {
		return backing.Result{}, &errReads{v}
	}
	r.rebuilt[v] = reason
	m := backing.Merge{New: v.plan.Eval, Effects: len(v.consumers) > 0}
	coarsened := len(v.plan.Coarsened) > 0
	exists, err := r.stands(ctx, v)
	if err != nil {
		return backing.Result{}, err
	}
	if coarsened && exists {
		m.New = oneMember(v.plan, m.New, false)
	}
	if exists {
		if err := r.fit(ctx, v); err != nil {
			return backing.Result{}, err
		}
	}
	if !exists {
		if coarsened {
			if err := r.collideAtCreate(ctx, v); err != nil {
				return backing.Result{}, err
			}
		}
		if err := r.create(ctx, v); err != nil {
			return backing.Result{}, err
		}
		m.Append = true
	}
	return r.merge(ctx, v, m)
}

// stands reports whether the view's table is there: somebody may have dropped it.
func (r *round) stands(ctx context.Context, v *view) (bool, error) {
	if !v.exists {
		return false, nil
	}
	oid, _, err := r.e.host.Find(ctx, r.tx, v.layout.Name)
	return oid == v.oid, err
}

// fit alters the view's tables where a new plan keeps other columns beside them, gives
// NULL where the old one could not, or looks rows up by others. Indexes that are of no
// more use go at the next start: dropping one would keep users from the table while the
// round lasts.
func (r *round) fit(ctx context.Context, v *view) error {
	fits, err := r.e.host.Fits(ctx, r.tx, v.layout)
	if err == nil && !fits {
		err = r.session.Reshape(ctx, r.tx, v.layout)
	}
	if err != nil || v.indexed {
		return err
	}
	return r.e.host.Index(ctx, r.tx, v.layout)
}

// deliver hands a producer's effective changes to its consumers.
func (r *round) deliver(v *view, res backing.Result) {
	if len(v.consumers) == 0 || (len(res.Effects) == 0 && !res.Overflow) {
		return
	}
	table := v.table()
	changes := make([]*ingest.Change, len(res.Effects))
	for i, e := range res.Effects {
		c := &ingest.Change{Table: table, Op: ingest.Update, Old: e.Old, New: e.New}
		switch {
		case e.Old == nil:
			c.Op = ingest.Insert
		case e.New == nil:
			c.Op = ingest.Delete
		}
		changes[i] = c
	}
	for _, c := range v.consumers {
		d := delivery{to: c, changes: changes, all: res.Overflow}
		if !r.moving[c] {
			r.later = append(r.later, d) // folded once the round has committed
			continue
		}
		if _, ok := r.fed[c]; !ok {
			r.fed[c] = c.work.mark()
		}
		d.fold()
	}
}

// fold gives the changes to the consumer.
func (d delivery) fold() {
	if d.all {
		d.to.work.demand(reasonProducer)
		return
	}
	for _, c := range d.changes {
		d.to.work.Fold(c)
	}
}

// undo takes back what a round that did not commit has folded into consumers, and what
// it has taken over ahead.
func (r *round) undo() {
	for v, before := range r.fed {
		v.work.unfeed(before)
	}
	for _, v := range r.movers {
		v.work.reattach()
	}
}

// table describes the backing table as the source of its consumers, whose changes
// come with full images.
func (v *view) table() *ingest.Table {
	if v.described != nil {
		return v.described
	}
	t := &ingest.Table{OID: v.oid, Schema: v.layout.Name.Schema, Name: v.layout.Name.Name, Full: true}
	for _, c := range v.plan.Columns {
		t.Columns = append(t.Columns, ingest.Column{Name: c.Name, TypeOID: c.TypeOID, Identity: true})
	}
	v.described = t
	return t
}
