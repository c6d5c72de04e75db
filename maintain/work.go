package maintain

import (
	"slices"

	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// Reasons for which a view is reconciled instead of maintained from what was
// folded. They label mvsync_rebuilds_total.
const (
	reasonCreate   = "create"   // the view is new, or its plan is
	reasonStrategy = "strategy" // the strategy is full-rebuild
	reasonRefresh  = "refresh"  // somebody asked for it
	reasonResume   = "resume"   // the view was paused
	reasonRetry    = "retry"    // the view's last statement failed
	reasonTruncate = "truncate" // a source was truncated
	reasonMemory   = "memory"   // the budget for pending changes was used up
	reasonImage    = "image"    // an image lacked a value that the strategy needs
	reasonSchema   = "schema"   // a definition changed without a trace in the stream
	reasonFence    = "fence"    // changes made before a table was published may be missing
	reasonGap      = "gap"      // the stream has a hole
	reasonDegrade  = "degrade"  // the touched keys of a batch cost more than one evaluation
	reasonFloor    = "floor"    // a change that may touch every row
	reasonProducer = "producer" // what a producer did is not known: it was too much to report, or an earlier process did it
)

// work is what a view has pending: the folder of its changes. Once a reconcile is
// due, nothing more is folded: the body at the snapshot says it all.
type work struct {
	plan      *plans.Plan
	images    []*ingest.Images // one a source; nil where groups are folded
	ahead     []*ingest.Images // taken over by the round in hand already, in order; they precede images[0]
	straight  bool             // rows go from the images into the backing table as they are
	groups    *groups          // nil: images are kept
	writes    *writes          // of a view with a coarsened key: the changes in their order
	touched   bool             // something was folded
	retracts  bool             // an old image was folded
	reconcile string           // the reason for which the view is to be reconciled, or ""
}

func newWork(p *plans.Plan) *work {
	w := &work{plan: p, straight: straight(p)}
	if p.Aggregate != nil && p.Aggregate.Fold != nil {
		w.groups = newGroups(p.Aggregate.Fold, columnNames(&p.Sources[0]))
		return w
	}
	if p.KeySource != nil && p.Strategy != plans.FullRebuild {
		w.writes = newWrites(&p.Sources[p.KeySource.Source])
	}
	for i := range p.Sources {
		w.images = append(w.images, ingest.NewImages(imageSpec(&p.Sources[i])))
	}
	return w
}

func imageSpec(s *plans.Source) ingest.ImageSpec {
	return ingest.ImageSpec{Columns: columnNames(s), Key: s.Key, PerRelation: s.Inherits}
}

func columnNames(s *plans.Source) []string {
	names := make([]string, len(s.Columns))
	for i := range s.Columns {
		names[i] = s.Columns[i].Name
	}
	return names
}

// reset forgets what was taken over by a committed round.
func (w *work) reset() {
	if w.groups != nil {
		w.groups.reset()
	}
	if w.writes != nil {
		w.writes.reset()
	}
	for _, im := range w.images {
		im.Reset()
	}
	w.ahead = nil
	w.touched, w.retracts, w.reconcile = false, false, ""
}

// detach hands over what was netted so far, for the round in hand to take over before it
// knows the rest. It is kept until that round has committed.
func (w *work) detach() *ingest.Images {
	im := w.images[0].Detach()
	w.ahead = append(w.ahead, im)
	return im
}

// reattach takes back what a round has taken over that did not commit.
func (w *work) reattach() {
	if len(w.ahead) == 0 {
		return
	}
	whole := w.ahead[0]
	for _, later := range append(w.ahead[1:], w.images[0]) {
		if !whole.Then(later) {
			w.demand(reasonRetry)
			return
		}
	}
	w.images[0], w.ahead = whole, nil
}

// demand makes the view's next maintenance a reconcile and drops the details. The
// first reason stays: it is the cause.
func (w *work) demand(reason string) {
	if w.reconcile != "" {
		return
	}
	w.reset()
	w.reconcile = reason
}

// pending reports whether the view has anything to take over.
func (w *work) pending() bool { return w.touched || w.reconcile != "" }

// Reads implements [ingest.Folder].
func (w *work) Reads(t *ingest.Table) bool {
	return slices.ContainsFunc(w.plan.Sources, func(s plans.Source) bool { return readsSource(&s, t) })
}

// readsSource reports whether the source's rows may stand in the table: it is the
// table, or a parent that is read with its children.
func readsSource(s *plans.Source, t *ingest.Table) bool {
	return t.OID == s.OID || ((s.Kind == 'p' || s.Inherits) && t.Reads(s.OID))
}

// Fold implements [ingest.Folder].
func (w *work) Fold(c *ingest.Change) {
	if w.reconcile != "" {
		return
	}
	if c.Op == ingest.Truncate {
		w.demand(reasonTruncate)
		return
	}
	if w.groups != nil {
		w.note(c)
		if !w.groups.add(c) {
			w.demand(reasonImage)
		}
		return
	}
	for i := range w.plan.Sources {
		if !readsSource(&w.plan.Sources[i], c.Table) || w.images[i].Unchanged(c) {
			continue
		}
		w.note(c)
		if w.plan.Strategy == plans.FullRebuild {
			continue // what changed does not matter; that something did is enough
		}
		ok := true
		if w.writes != nil && i == w.plan.KeySource.Source {
			ok = w.writes.add(c)
		}
		if w.writes == nil || w.plan.Projection == nil {
			ok = ok && w.images[i].Add(c) // a coarsened projection needs the writes alone
		}
		if !ok {
			w.demand(reasonImage)
			return
		}
	}
}

func (w *work) note(c *ingest.Change) {
	w.touched = true
	w.retracts = w.retracts || c.Old != nil
}

// Bytes implements [ingest.Folder]: what is held, and what a round will need to take it over.
func (w *work) Bytes() int64 {
	var n int64
	if w.groups != nil {
		n += w.groups.bytes
	}
	if w.writes != nil {
		n += w.writes.bytes
	}
	for i, im := range w.images {
		n += im.Bytes() + int64(im.Len())*w.shipped(i)
	}
	for _, im := range w.ahead {
		n += im.Bytes()
	}
	return n
}

// shipped is what a netted row of a source takes beside its packed images while a round
// ships it: a row of values for each image, and its key.
func (w *work) shipped(source int) int64 {
	if w.straight {
		return 0 // one row at a time
	}
	row := int64(24 + 24*len(w.plan.Sources[source].Columns))
	if w.retracts {
		return 2*row + 100
	}
	return row
}

// Forget implements [ingest.Folder].
func (w *work) Forget() { w.demand(reasonMemory) }

// fed is a consumer's state before a round's effective changes were folded into it.
type fed struct {
	touched, retracts bool
	clean             bool // nothing of its producers was pending
}

// mark remembers the state before a round's effective changes are folded.
func (w *work) mark() fed {
	f := fed{touched: w.touched, retracts: w.retracts, clean: w.groups == nil || len(w.groups.rows) == 0}
	if w.ordersProducer() && len(w.writes.list) > 0 {
		f.clean = false
	}
	for i := range w.images {
		if w.plan.Sources[i].Producer && w.images[i].Len() > 0 {
			f.clean = false
		}
	}
	return f
}

// ordersProducer reports whether it is a producer's changes whose order is kept.
func (w *work) ordersProducer() bool {
	return w.writes != nil && w.plan.Sources[w.plan.KeySource.Source].Producer
}

// unfeed takes back effective changes of a round that did not commit. Where they
// cannot be told from those of earlier rounds, the view is reconciled instead.
func (w *work) unfeed(before fed) {
	if w.reconcile != "" {
		return
	}
	if !before.clean {
		w.demand(reasonRetry)
		return
	}
	if w.groups != nil {
		w.groups.reset()
	}
	if w.ordersProducer() {
		w.writes.reset()
	}
	for i := range w.images {
		if w.plan.Sources[i].Producer {
			w.images[i].Reset()
		}
	}
	w.touched, w.retracts = before.touched, before.retracts
}
