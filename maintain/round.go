package maintain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// round is one round in hand.
type round struct {
	e       *Engine
	session *backing.Session
	tx      *roundTx
	movers  []*view // producers first
	moving  map[*view]bool
	locked  map[uint32]bool // tables locked before S
	opened
	fed map[*view]fed // consumers that received effective changes of this round
	// later holds effective changes for consumers that do not move in this round.
	later      []delivery
	rebuilt    map[*view]string
	results    map[*view]backing.Result
	merged     map[*view]backing.Result // what was merged ahead
	quit       <-chan struct{}          // closed when the daemon is to end
	created    map[*view]uint32         // oids of the tables made in this round
	collisions map[*view]int            // found in this round
	left       []*view                  // views that followed the progress row, which goes on without them
	finished   []int64                  // requests done in this round
	position   ingest.LSN               // what its movers let be confirmed
	started    time.Time
	stopWatch  func() // ends the watch for sessions that wait for this round
}

// delivery is a producer's effective change on its way to a consumer.
type delivery struct {
	to      *view
	changes []*ingest.Change
	all     bool // too many to report: reconcile instead
}

// attempt runs one round and deals with its failure. The error it returns is one
// with which the daemon cannot go on. A round in hand is finished even where the
// context ends.
func (e *Engine) attempt(ctx context.Context) error {
	r := &round{
		e: e, started: time.Now(), moving: map[*view]bool{}, locked: map[uint32]bool{}, fed: map[*view]fed{},
		rebuilt: map[*view]string{}, results: map[*view]backing.Result{},
		merged: map[*view]backing.Result{}, created: map[*view]uint32{}, collisions: map[*view]int{}, quit: ctx.Done(),
	}
	err := r.run(context.WithoutCancel(ctx))
	if r.stopWatch != nil {
		r.stopWatch()
	}
	if err == nil {
		clear(e.pauses)
		return nil
	}
	r.undo()
	if errors.Is(err, errStopping) {
		return context.Cause(ctx)
	}
	return e.survive(ctx, err)
}

// run is the round from BEGIN to COMMIT.
func (r *round) run(ctx context.Context) error {
	e := r.e
	if err := e.connect(ctx); err != nil {
		return err
	}
	if err := e.session.Idle(ctx); err != nil {
		return err
	}
	r.session, r.tx = e.session, &roundTx{e.main}
	r.choose(time.Now())
	if err := r.open(ctx); err != nil {
		return err
	}
	defer r.rollback(ctx)
	r.stopWatch = e.giveWay(ctx, e.main.PgConn().PID())
	if err := r.sameCatalog(); err != nil {
		return err
	}
	if err := r.barrier(ctx); err != nil {
		return err
	}
	for _, v := range r.movers {
		if err := r.maintain(ctx, v); err != nil {
			return err
		}
	}
	if err := r.check(ctx); err != nil {
		return err
	}
	position, err := r.conclude(ctx)
	if err != nil {
		return err
	}
	tag, err := e.main.Exec(ctx, "COMMIT")
	if err == nil && tag.String() != "COMMIT" {
		err = fmt.Errorf("the server answered %s", tag) // of a transaction that had failed
	}
	if err != nil {
		return fmt.Errorf("commit a round: %w", err)
	}
	r.committed(ctx, position)
	return nil
}

// barrier lets the stream pass L, then folds what is visible in S.
func (r *round) barrier(ctx context.Context) error {
	e := r.e
	if views := r.goers(); len(views) > 0 {
		if err := r.barrierAhead(ctx, views); err != nil {
			return err
		}
	}
	for {
		err := e.stream.Barrier(ctx, r.lsn)
		if err != nil && !errors.Is(err, ErrBacklog) {
			return err
		}
		e.absorb()
		if _, err := e.batch.Fold(r.snapshot); err != nil {
			return &fatalError{err}
		}
		if err == nil {
			// The stream has passed L, and so the last round's commit, which is flushed.
			e.confirm.after = r.lsn
			e.confirmDurable()
			return nil
		}
	}
}

// choose lists the views that move in this round.
func (r *round) choose(now time.Time) {
	for _, v := range r.e.views {
		if v.moves(now) {
			r.moving[v] = true
			r.movers = append(r.movers, v)
		}
	}
}

// open begins the transaction. Views whose sources cannot be locked sit the round
// out (INV-7).
func (r *round) open(ctx context.Context) error {
	if _, err := r.e.main.Prepare(ctx, fingerprintName, fingerprintSQL); err != nil { // once a session
		return fmt.Errorf("compare the catalog: %w", err)
	}
	for {
		tables := r.tables()
		o, err := open(ctx, r.e.main.PgConn(), r.e.lockTimeout, r.e.audit.imported, tables, r.e.watch.execute())
		if err == nil {
			r.opened = o
			r.session.Grown(uint64(o.lsn))
			r.session.Immediate(r.tx)
			for _, t := range tables {
				r.locked[t.oid] = true
			}
			return nil
		}
		r.rollback(ctx)
		var out *lockedOut
		if !errors.As(err, &out) {
			return err
		}
		r.sitOut(out)
	}
}

// tables lists what this round may read, in oid order.
func (r *round) tables() []table {
	seen := map[uint32]table{}
	for _, v := range r.movers {
		if !r.willRead(v) {
			continue
		}
		for i := range v.plan.Sources {
			if s := &v.plan.Sources[i]; !s.Producer {
				seen[s.OID] = table{oid: s.OID, name: pgx.Identifier{s.Schema, s.Name}}
			}
		}
	}
	return sortedTables(seen)
}

// willRead reports whether maintaining the view may read base tables. What a
// producer will report is not known yet.
func (r *round) willRead(v *view) bool {
	return r.e.o.Check != nil || v.mustRead(r.started) // the tests' oracle evaluates every body
}

// reads reports whether all base tables of the view are locked.
func (r *round) reads(v *view) bool {
	for i := range v.plan.Sources {
		if s := &v.plan.Sources[i]; !s.Producer && !r.locked[s.OID] {
			return false
		}
	}
	return true
}

// sitOut drops the views over a table whose lock is not to be had, and all that
// read those views.
func (r *round) sitOut(out *lockedOut) {
	e := r.e
	drop := map[*view]bool{}
	kept := r.movers[:0]
	for _, v := range r.movers {
		hit := readsTable(v.plan, out.table.oid)
		for _, p := range v.producers {
			hit = hit || drop[p]
		}
		if hit {
			drop[v] = true
			delete(r.moving, v)
			v.sit(time.Now(), out)
			e.log.Debug("a view sits the round out", "view", v.name, "table", out.table.name.Sanitize(), "err", out.err)
			continue
		}
		v.lock = ""
		kept = append(kept, v)
	}
	r.movers = kept
	e.observe.RoundRetried("lock")
}

// sameCatalog compares the catalog as S shows it with what the plans were compiled
// against. Views over tables with new files are reconciled in this round.
func (r *round) sameCatalog() error {
	e := r.e
	now, err := parse(r.then)
	if err != nil {
		return err
	}
	diff := e.known.changed(now)
	if slices.ContainsFunc(diff, func(o object) bool { return !o.storage() }) {
		return &catalogChanged{objects: diff}
	}
	for _, o := range diff {
		e.rewritten(o, now[o])
	}
	e.compared = time.Now()
	return nil
}

// stillSameCatalog compares once more, after the last read, with what the newest
// snapshot shows. New files of a table are the next round's business: either our lock
// kept them out, or nothing of this round has read the table.
func (r *round) stillSameCatalog(ctx context.Context) error {
	now, err := r.e.watch.read(ctx, r.e.side)
	if err != nil {
		return err
	}
	diff := slices.DeleteFunc(r.e.known.changed(now), object.storage)
	if len(diff) > 0 {
		return &catalogChanged{objects: diff}
	}
	return nil
}

// rewritten reconciles the views over a table whose files are others.
func (e *Engine) rewritten(o object, hash string) {
	for _, v := range e.views {
		if o.affects(v.plan) {
			v.work.demand(reasonTruncate)
			v.unsaved, e.persist = true, true // its fingerprint
		}
	}
	e.known[o] = hash
}

// maintain brings one view to S.
func (r *round) maintain(ctx context.Context, v *view) error {
	if !v.due() {
		return nil
	}
	started := time.Now()
	res, err := r.apply(ctx, v)
	if err != nil {
		var reads *errReads
		if errors.As(err, &reads) {
			return err
		}
		return &viewError{v: v, err: err}
	}
	r.results[v] = r.merged[v].Plus(res)
	r.deliver(v, res)
	v.took = time.Since(started)
	r.e.observe.Maintained(v.name, string(v.plan.Strategy), v.took)
	return nil
}

// apply runs the view's arm.
func (r *round) apply(ctx context.Context, v *view) (backing.Result, error) {
	switch {
	case v.state != Live && v.work.reconcile == "":
		return r.rebuild(ctx, v, reasonCreate)
	case v.work.reconcile != "":
		return r.rebuild(ctx, v, v.work.reconcile)
	case v.work.writes != nil && v.plan.Projection != nil:
		return r.coarsened(ctx, v)
	case v.plan.Projection != nil:
		return r.project(ctx, v)
	case v.plan.Aggregate != nil:
		return r.aggregate(ctx, v)
	case v.plan.Residual != nil:
		return r.residual(ctx, v)
	}
	return r.rebuild(ctx, v, reasonStrategy)
}

// check calls the tests' oracle.
func (r *round) check(ctx context.Context) error {
	if r.e.o.Check == nil {
		return nil
	}
	checked := make([]Checked, 0, len(r.movers))
	for _, v := range r.movers {
		checked = append(checked, Checked{Name: v.layout.Name.SQL(), Plan: v.plan, Snapshot: r.snapshot})
	}
	return r.e.o.Check(ctx, r.e.main, checked)
}

// sortedTables lists tables in oid order.
func sortedTables(set map[uint32]table) []table {
	return slices.SortedFunc(maps.Values(set), func(a, b table) int { return cmp.Compare(a.oid, b.oid) })
}

func readsTable(p *plans.Plan, oid uint32) bool {
	return slices.ContainsFunc(p.Sources, func(s plans.Source) bool { return !s.Producer && s.OID == oid })
}

// rollback ends the transaction where it is still open.
func (r *round) rollback(ctx context.Context) {
	if r.e.main == nil || r.e.main.IsClosed() || r.e.main.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := r.e.main.Exec(ctx, "ROLLBACK"); err != nil {
		r.e.drop(ctx) // a session in doubt is not used again
	}
}
