package maintain

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// ErrGap says that the stream has a hole and the configuration asks to halt.
var ErrGap = errors.New("the stream has a gap")

// Origin is what the stream comes from, as the caller found or made it.
type Origin struct {
	SystemID string
	Timeline int32
	// New says that the slot was made just now, after the publication. Its fence must
	// have passed before [Engine.Begin] is called.
	New bool
	// Confirmed is the slot's confirmed position.
	Confirmed ingest.LSN
	// Gap names a reason found by the caller, such as an invalidated slot; empty: none.
	Gap string
}

// Lead makes this process the only daemon of its catalog, and brings the catalog up
// to date. It is the first call that writes.
func (e *Engine) Lead(ctx context.Context) error {
	if err := e.connectMain(ctx); err != nil {
		return err
	}
	if err := e.host.Migrate(ctx, e.main); err != nil {
		return err
	}
	return e.openSession(ctx)
}

// inspect refuses views whose name or body clashes with what the database holds. It
// only reads, and there may be no catalog yet.
func (e *Engine) inspect(ctx context.Context, rows []backing.View) error {
	kept := e.views[:0]
	for _, v := range e.views {
		refusal, err := e.clash(ctx, v, rows)
		if err != nil {
			return err
		}
		if refusal == nil {
			refusal = refusedProducer(v, kept, rows)
		}
		if refusal != nil {
			e.refuse(v.decl.Name, refusal)
			v.unlink()
			continue
		}
		kept = append(kept, v)
	}
	e.views = kept
	return nil
}

// refusedProducer refuses a view that reads one which is not maintained: its table
// stands still, and is no source of its own.
func refusedProducer(v *view, kept []*view, rows []backing.View) *plans.Refusal {
	for i := range v.plan.Sources {
		s := &v.plan.Sources[i]
		if !s.Producer && slices.ContainsFunc(rows, func(r backing.View) bool { return r.Table == s.OID && s.OID != 0 }) {
			return &plans.Refusal{
				Code: plans.Invalid, Construct: s.Table().String(), Position: -1,
				Reason:     "it is the table of a view that is not maintained now, being refused or no longer declared",
				Suggestion: "mend or declare that view again, or read its sources",
			}
		}
	}
	for _, p := range v.producers {
		if !slices.Contains(kept, p) {
			return &plans.Refusal{
				Code: plans.Invalid, Construct: p.name, Position: -1,
				Reason: "it is a view that is refused itself", Suggestion: "mend that view first",
			}
		}
	}
	return nil
}

func (e *Engine) clash(ctx context.Context, v *view, rows []backing.View) (*plans.Refusal, error) {
	i := slices.IndexFunc(rows, func(r backing.View) bool { return r.Name == v.layout.Name })
	ours := false
	if i >= 0 {
		_, _, err := e.host.Find(ctx, e.side, v.layout.Name)
		if err != nil && !errors.Is(err, backing.ErrNotOurs) {
			return nil, err
		}
		ours = err == nil
	}
	var exists bool
	err := e.side.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2)`, v.layout.Name.Schema, v.layout.Name.Name).Scan(&exists)
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", v.name, err)
	}
	switch {
	case exists && !ours:
		return &plans.Refusal{
			Code: plans.Invalid, Construct: v.name, Position: -1,
			Reason:     "a relation of that name exists that mvsync did not make, and it will not be touched",
			Suggestion: "rename or drop it, or give the view another name",
		}, nil
	case i < 0:
		return nil, nil
	}
	r := rows[i]
	if r.Hash != "" && r.Hash != v.plan.Hash && r.Query != v.decl.Query {
		return &plans.Refusal{
			Code: plans.Invalid, Construct: v.name, Position: -1,
			Reason:     "its body is another than the one by which its table is maintained",
			Suggestion: "restore the body, or declare the new one under another name; to start anew remove the table with mvsync teardown --drop-views",
		}, nil
	}
	return nil, nil
}

// Begin decides for each view whether it goes on from its recorded as-of or is
// reconciled, and writes the views to the catalog. Call it once the publication,
// the slot and, where either is new, the fence are in place.
func (e *Engine) Begin(ctx context.Context, o Origin) error {
	e.server = server{id: o.SystemID, timeline: int64(o.Timeline)}
	if err := e.rewatch(ctx); err != nil {
		return err
	}
	progress, recorded, err := e.host.ReadProgress(ctx, e.side)
	if err != nil {
		return err
	}
	gap := gapOf(o, progress, recorded)
	if gap != "" {
		if e.o.ByGap == Halt {
			return fmt.Errorf("%w (%s) and on_gap is halt; set on_gap: reconcile, or run mvsync run once with it, to compare every view with its body", ErrGap, gap)
		}
		e.log.Warn("the stream has a gap; every view is reconciled", "reason", gap)
		e.observe.Gap(gap)
		e.gapped = progress.Snapshot
	}
	e.recorded, e.reached = progress.Snapshot, progress.LSN
	rows, err := e.host.Views(ctx, e.side)
	if err != nil {
		return err
	}
	if recorded && gap == "" {
		e.newest = asOf{snapshot: progress.Snapshot, lsn: progress.LSN, at: progress.At}
	}
	for _, v := range e.views {
		if err := e.adopt(ctx, v, rows, gap == "" && recorded); err != nil {
			return err
		}
	}
	e.batch.Clear()
	for _, v := range e.views {
		e.batch.Join(v.member)
	}
	if err := e.retire(ctx, rows); err != nil {
		return err
	}
	e.publish()
	return nil
}

// gapOf returns why the stream cannot continue from the recorded progress, or "".
func gapOf(o Origin, p backing.Progress, recorded bool) string {
	switch {
	case !recorded:
		return ""
	case o.Gap != "":
		return o.Gap
	case p.SystemIdentifier != o.SystemID:
		return "identity"
	case p.Timeline != int64(o.Timeline):
		return "timeline"
	case o.New:
		return "lost"
	case o.Confirmed > p.LSN:
		// Only a round confirms, and only what it has recorded.
		return "ahead"
	}
	return ""
}

// learnKey finds out how the view's table is kept unique.
func (e *Engine) learnKey(ctx context.Context, v *view) (err error) {
	if !v.exists {
		return nil
	}
	v.hashKey, err = e.host.Hashed(ctx, e.side, v.layout)
	v.layout.HashKey = v.hashKey
	return err
}

// adopt takes a view's row of the catalog over, or adds one.
func (e *Engine) adopt(ctx context.Context, v *view, rows []backing.View, resume bool) error {
	e.observe.ViewDeclared(v.name, string(v.plan.Strategy))
	oid, owner, err := e.host.Find(ctx, e.side, v.layout.Name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(rows, func(r backing.View) bool { return r.Name == v.layout.Name })
	if i < 0 {
		row := e.row(v)
		if err := e.host.AddView(ctx, e.side, &row); err != nil {
			return err
		}
		v.layout.ID = row.ID
		v.work.demand(reasonCreate)
		e.setState(v, Filling)
		return nil
	}
	row := rows[i]
	v.layout.ID = row.ID
	v.exists = oid != 0 && owner == row.ID
	v.setTable(oid)
	if err := e.learnKey(ctx, v); err != nil {
		return err
	}
	fits, err := e.fitted(ctx, v, row)
	if err != nil {
		return err
	}
	known := row.Fingerprint == e.fingerprintOf(v)
	goesOn := row.State == backing.Live && resume && known
	switch {
	case !v.exists:
		v.work.demand(reasonCreate)
		e.setState(v, Filling)
	case row.State == backing.Paused && row.Error == "": // by request; else the error says why
		v.work.demand(reasonResume)
		e.setState(v, Paused)
	case goesOn && fits && e.together(v, row):
		e.goOn(v, row)
		return nil
	case goesOn:
		if !fits {
			v.work.demand(reasonCreate)
		}
		v.work.demand(reasonProducer) // the first reason counts
		e.setState(v, Filling)
	default:
		if row.State == backing.Live && !known {
			// The publication may have been another, or the fence of a table that was
			// just published had not passed.
			if v.fence, err = e.fence(ctx); err != nil {
				return err
			}
		}
		v.work.demand(reconcileReason(row.State, resume))
		e.setState(v, Filling)
	}
	saved := e.row(v)
	return e.host.SaveView(ctx, e.side, &saved)
}

// goOn takes a view over as it was left.
func (e *Engine) goOn(v *view, row backing.View) {
	v.follows = row.AsOf == nil
	v.asOf = e.newest
	if row.AsOf != nil {
		v.asOf = asOf{snapshot: row.AsOf.Snapshot, lsn: row.Confirm, at: row.AsOf.Time}
	}
	v.member.AsOf = v.asOf.snapshot
	e.setState(v, Live)
}

// fitted reports whether the view's tables are those of its plan, which may have been
// made by another strategy or another mvsync, and sees to their indexes.
func (e *Engine) fitted(ctx context.Context, v *view, row backing.View) (bool, error) {
	if !v.exists {
		return false, nil
	}
	fits, err := e.host.Fits(ctx, e.side, v.layout)
	if err != nil || !fits || row.Strategy != string(v.plan.Strategy) {
		return false, err
	}
	return e.index(ctx, v)
}

// index makes and drops indexes of a view's tables before it moves. False says that one
// could not be made: it is tried again in a round, in which the view can fail alone.
func (e *Engine) index(ctx context.Context, v *view) (bool, error) {
	for _, step := range []func(context.Context, backing.Querier, *backing.Layout) error{e.host.Index, e.host.Unindex} {
		err := pgx.BeginFunc(ctx, e.side, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", e.lockTimeout.Milliseconds())); err != nil {
				return err
			}
			return step(ctx, tx, v.layout)
		})
		switch {
		case err == nil:
		case code(err) == pgerrcode.LockNotAvailable:
			e.log.Warn("a table of the view is locked, so its indexes stay as they are until the next start", "view", v.name, "err", err)
		case code(err) != "":
			e.log.Warn("an index cannot be made", "view", v.name, "err", redact(err))
			return false, nil
		default:
			return false, err
		}
	}
	v.indexed = true
	return true, nil
}

// together reports whether the view's producers stand at its recorded as-of: what
// brought them from there to where they are now is in no stream.
func (e *Engine) together(v *view, row backing.View) bool {
	at := e.newest.snapshot
	if row.AsOf != nil {
		at = row.AsOf.Snapshot
	}
	return !slices.ContainsFunc(v.producers, func(p *view) bool {
		return p.state != Live || p.asOf.snapshot.String() != at.String()
	})
}

func reconcileReason(s backing.State, resume bool) string {
	switch s {
	case backing.Live:
		if !resume {
			return reasonGap
		}
		return reasonSchema
	case backing.Failed, backing.Stale:
		return reasonRetry
	case backing.Paused:
		return reasonResume
	case backing.Filling, backing.Refused:
	}
	return reasonCreate
}

const noLongerDeclared = "no longer declared"

// retire pauses what the catalog has and the file does not declare any more, and
// marks what is refused.
func (e *Engine) retire(ctx context.Context, rows []backing.View) error {
	for _, row := range rows {
		if slices.ContainsFunc(e.views, func(v *view) bool { return v.layout.Name == row.Name }) {
			continue
		}
		if i := slices.IndexFunc(e.refused, func(r Refused) bool { return r.Name == row.Label }); i >= 0 {
			if err := e.host.SetState(ctx, e.side, row.ID, backing.Paused, e.refused[i].Refusal.Error()); err != nil {
				return err
			}
			continue
		}
		if row.State == backing.Paused && row.Error == noLongerDeclared {
			continue
		}
		if err := e.host.SetState(ctx, e.side, row.ID, backing.Paused, noLongerDeclared); err != nil {
			return err
		}
		e.log.Warn("a view is no longer declared; it is paused and keeps its rows", "view", row.Label)
	}
	return nil
}

// row is the view as the catalog records it.
func (e *Engine) row(v *view) backing.View {
	key := make([]string, len(v.plan.Key))
	for i, k := range v.plan.Key {
		key[i] = v.plan.Columns[k].Name
	}
	r := backing.View{
		ID: v.layout.ID, Name: v.layout.Name, State: backing.State(v.shown()), Strategy: string(v.plan.Strategy), Estimate: v.plan.Estimate, Key: key,
		Query: v.decl.Query, Body: v.plan.Body, Hash: v.plan.Hash, Fingerprint: e.fingerprintOf(v),
	}
	if v.err != nil {
		r.Error = v.err.Error()
	}
	if p := v.waitsFor(); p != nil && v.state == Filling {
		r.Error = "waits for " + p.name
	}
	if v.work.reconcile != "" {
		r.Fingerprint = "" // its rows are not of this catalog before the reconcile
	}
	if !v.follows && !v.asOf.snapshot.IsZero() {
		r.AsOf = &backing.AsOf{Snapshot: v.asOf.snapshot, LSN: v.asOf.lsn, Time: v.asOf.at}
		if v.state == Live {
			r.Confirm = v.asOf.lsn
		}
	}
	return r
}

// fingerprintOf is what the catalog says of everything that the view depends on,
// recorded so that a change made while no daemon runs is noticed.
func (e *Engine) fingerprintOf(v *view) string {
	var parts []string
	for o, hash := range e.known {
		if o.class != "producer" && o.affects(v.plan) {
			parts = append(parts, fmt.Sprintf("%s %d %s", o.class, o.oid, hash))
		}
	}
	slices.Sort(parts)
	sum := md5.Sum([]byte(strings.Join(parts, "\n")))
	return hex.EncodeToString(sum[:])
}

// server is what progress is recorded with: after a failover or a restore the same
// transaction ids mean other transactions.
type server struct {
	id       string
	timeline int64
}

// saveStates writes states that changed outside of a round to the catalog.
func (e *Engine) saveStates(ctx context.Context) error {
	if !e.persist {
		return nil
	}
	for _, v := range e.views {
		if !v.unsaved {
			continue
		}
		row := e.row(v)
		if err := e.host.SaveView(ctx, e.side, &row); err != nil {
			return err
		}
		v.unsaved = false
	}
	e.persist = false
	return nil
}

// setState changes a view's state.
func (e *Engine) setState(v *view, s State) {
	if v.state != s {
		e.log.Info("view is "+string(s), "view", v.name)
	}
	v.state = s
	v.unsaved, e.persist = true, true
	if s != Live {
		v.follows = false
	}
	e.observe.ViewState(v.name, string(v.shown()))
	for _, c := range v.consumers {
		e.takeOver(c, v)
	}
}

// takeOver makes a consumer wait for a producer that is not live. Nothing of the
// stream is kept for it meanwhile: it is reconciled once the producer is live again.
func (e *Engine) takeOver(c, producer *view) {
	switch {
	case c.state == Live && producer.state != Live:
		c.work.demand(reasonProducer)
		e.setState(c, Filling)
	case c.state == Filling:
		e.setState(c, Filling) // what is shown may be another state now
	}
}
