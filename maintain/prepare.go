package maintain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// Prepare compiles the declared views and creates nothing. It returns how many are
// accepted; [Engine.Refused] has the others.
func (e *Engine) Prepare(ctx context.Context) (int, error) {
	if err := e.connect(ctx); err != nil {
		return 0, err
	}
	rows, err := e.catalog(ctx)
	if err != nil {
		return 0, err
	}
	e.views, e.refused, e.facts = nil, nil, plans.NewFacts()
	ordered, refused := plans.Order(e.o.Views, e.o.Planner.SearchPath)
	for _, d := range e.o.Views {
		if r := refused[d.Name]; r != nil {
			e.refuse(d.Name, r)
		}
	}
	for _, d := range ordered {
		v, err := e.compile(ctx, d, keptOf(rows, d.Name))
		var refusal *plans.Refusal
		if errors.As(err, &refusal) {
			e.refuse(d.Name, refusal)
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("plan %s: %w", d.Name, err)
		}
		e.views = append(e.views, v)
	}
	if err := e.inspect(ctx, rows); err != nil {
		return 0, err
	}
	effective(e.views)
	return len(e.views), nil
}

func (e *Engine) refuse(name plans.Name, r *plans.Refusal) {
	e.refused = append(e.refused, Refused{Name: name.String(), Refusal: r})
}

// catalog reads the views that the catalog has; there may be no catalog yet.
func (e *Engine) catalog(ctx context.Context) ([]backing.View, error) {
	version, err := e.host.Version(ctx, e.side)
	if err != nil || version == 0 {
		return nil, err
	}
	return e.host.Views(ctx, e.side)
}

// keptOf is the choice of a strategy that the catalog remembers.
func keptOf(rows []backing.View, name plans.Name) *plans.Kept {
	for _, r := range rows {
		if r.Name == (backing.Name{Schema: name.Schema, Name: name.Name}) {
			return &plans.Kept{Strategy: plans.Strategy(r.Strategy), Estimate: r.Estimate}
		}
	}
	return nil
}

// compile plans one view; its producers are among the views accepted so far.
func (e *Engine) compile(ctx context.Context, d plans.Declaration, kept *plans.Kept) (*view, error) {
	p, err := e.plan(ctx, d, e.views, kept)
	if err != nil {
		return nil, err
	}
	v := &view{name: d.Name.String(), decl: d, state: Filling}
	e.take(v, p)
	v.member = &ingest.Member{Folder: v.work}
	return v, nil
}

// plan compiles a declaration against the plans of the views that it may read.
func (e *Engine) plan(ctx context.Context, d plans.Declaration, before []*view, kept *plans.Kept) (*plans.Plan, error) {
	o := e.o.Planner
	o.Facts, o.Kept = e.facts, kept
	o.Producers = map[plans.Name]*plans.Plan{}
	for _, v := range before {
		o.Producers[v.decl.Name] = v.plan
	}
	p, err := plans.Compile(ctx, e.side, d, o)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// take gives a view a new plan. Pending work of the old one is dropped.
func (e *Engine) take(v *view, p *plans.Plan) {
	v.plan = p
	v.work = newWork(p)
	if v.member != nil {
		v.member.Folder = v.work
	}
	id := int64(0)
	if v.layout != nil {
		id = v.layout.ID
	}
	v.layout = layoutOf(p, e.o.Tables[v.decl.Name], id)
	v.layout.HashKey = v.hashKey
	v.indexed = false
	e.link(v)
}

// link connects a view with its producers.
func (e *Engine) link(v *view) {
	v.unlink()
	for i := range v.plan.Sources {
		s := &v.plan.Sources[i]
		if !s.Producer {
			continue
		}
		for _, p := range e.views {
			if p.decl.Name == s.Table() {
				v.producers = append(v.producers, p)
				p.consumers = append(p.consumers, v)
			}
		}
	}
}

func (v *view) unlink() {
	for _, p := range v.producers {
		p.consumers = slices.DeleteFunc(p.consumers, func(c *view) bool { return c == v })
	}
	v.producers = nil
}

// layoutOf describes the tables of a view to the host.
func layoutOf(p *plans.Plan, o TableOptions, id int64) *backing.Layout {
	l := &backing.Layout{
		ID: id, Name: backing.Name{Schema: p.Name.Schema, Name: p.Name.Name},
		Key: p.Key, Query: p.Body, Storage: o.Storage,
		Indexes: slices.Clone(o.Indexes),
	}
	if len(o.Grants) > 0 {
		l.Grants = map[string][]string{"select": o.Grants}
	}
	for _, columns := range p.Indexes {
		l.Indexes = append(l.Indexes, "("+columns+")")
	}
	for _, columns := range p.HiddenIndexes {
		l.HiddenIndexes = append(l.HiddenIndexes, "("+columns+")")
	}
	for _, c := range p.Columns {
		l.Columns = append(l.Columns, backingColumn(c))
	}
	for _, c := range p.Hidden {
		l.Hidden = append(l.Hidden, backingColumn(c))
	}
	return l
}

func backingColumn(c plans.Column) backing.Column {
	return backing.Column{
		Name: c.Name, Type: c.Type, Collation: c.Collation, NotNull: c.NotNull,
		Dependent: backing.Dependence(c.Dependent),
	}
}

func inputColumns(cs []plans.Column) []backing.InputColumn {
	out := make([]backing.InputColumn, len(cs))
	for i, c := range cs {
		out[i] = backing.InputColumn{Name: c.Name, Type: c.Type}
	}
	return out
}

// rewatch sets what is compared, and takes what the catalog says now as known. It
// must be taken before the plans are compiled: what changes in between shows as a
// difference then.
func (e *Engine) rewatch(ctx context.Context) error {
	e.watch = watchOf(e.o.Publication, e.Plans())
	known, err := e.watch.read(ctx, e.side)
	if err != nil {
		return err
	}
	e.known = known
	return nil
}

// recompile plans the views again that depend on changed objects. A view whose
// columns stay as they are is reconciled in the next round; one that is broken, or
// whose columns changed, goes stale: it serves its last snapshot and says why.
func (e *Engine) recompile(ctx context.Context, changed []object) error {
	if err := e.tryRecompile(ctx, changed); err != nil {
		return e.survive(ctx, err)
	}
	return nil
}

func (e *Engine) tryRecompile(ctx context.Context, changed []object) error {
	if err := e.connect(ctx); err != nil {
		return err
	}
	// Taken before the plans are made: what changes meanwhile shows again later.
	before, err := e.watch.read(ctx, e.side)
	if err != nil {
		return err
	}
	// And what changed since the difference was found would be taken as known below.
	changed = append(slices.Clone(changed), e.known.changed(before)...)
	var hit []*view
	for _, v := range e.views {
		affected := slices.ContainsFunc(changed, func(o object) bool { return o.affects(v.plan) })
		if affected || v.state == Stale {
			hit = append(hit, v)
		}
	}
	return e.replanAll(ctx, hit, before, slices.ContainsFunc(changed, object.published))
}

// replanAll compiles views again, publishes and watches what they read now. What was
// known of the catalog before stays known: later changes show as differences.
func (e *Engine) replanAll(ctx context.Context, hit []*view, before fingerprint, altered bool) error {
	if e.stream != nil {
		e.stream.Relearn()
	}
	e.facts = plans.NewFacts()
	for _, v := range withConsumers(e.views, hit) {
		if v.state == Paused {
			continue // it is planned again when it is resumed
		}
		if err := e.replan(ctx, v); err != nil {
			return err
		}
	}
	effective(e.views)
	added, err := e.republish(ctx, hit, altered)
	if err != nil {
		return err
	}
	e.watch = watchOf(e.o.Publication, e.Plans())
	now, err := e.watch.read(ctx, e.side)
	if err != nil {
		return err
	}
	for o := range now {
		// What we did to the publication ourselves is no news.
		if old, ok := before[o]; ok && (!added || !o.published()) {
			now[o] = old
		}
	}
	e.known = now
	return nil
}

// withConsumers adds the views that read those given, through others too: their plans
// hold the bodies of what they read. Views come producers first.
func withConsumers(views, hit []*view) []*view {
	set := map[*view]bool{}
	var out []*view
	for _, v := range views {
		if slices.Contains(hit, v) || slices.ContainsFunc(v.producers, func(p *view) bool { return set[p] }) {
			set[v] = true
			out = append(out, v)
		}
	}
	return out
}

// watchProducers begins to watch tables of views that were made in a round.
func (e *Engine) watchProducers(ctx context.Context) error {
	e.watch = watchOf(e.o.Publication, e.Plans())
	now, err := e.watch.read(ctx, e.side)
	if err != nil {
		return err
	}
	maps.DeleteFunc(e.known, func(o object, _ string) bool { return o.class == "producer" && now[o] == "" })
	for o, hash := range now {
		if _, ok := e.known[o]; !ok && o.class == "producer" {
			e.known[o] = hash
		}
	}
	e.rewatchDue = false
	return nil
}

// compileAgain gives a view's plan after something that it depends on changed, or why there is none.
func (e *Engine) compileAgain(ctx context.Context, v *view) (p *plans.Plan, why, err error) {
	at := slices.Index(e.views, v)
	// While the daemon runs, no estimate changes a strategy.
	p, err = e.plan(ctx, v.decl, e.views[:at], &plans.Kept{Strategy: v.plan.Strategy, Estimate: v.plan.Estimate, Always: true})
	var refusal *plans.Refusal
	switch {
	case errors.As(err, &refusal):
		return nil, refusal, nil
	case err != nil:
		return nil, nil, err
	case !sameColumns(v.plan, p):
		return nil, fmt.Errorf("its columns would change; declare it under another name, or drop %s and start again", v.name), nil
	}
	return p, nil, nil
}

// lookAtStale compiles one of the stale views again. What it lacks may have come back in an object that is not watched,
// such as a table that was dropped and made anew; until then it says what it lacks now.
func (e *Engine) lookAtStale(ctx context.Context) error {
	for range e.views {
		e.staleNext = (e.staleNext + 1) % len(e.views)
		v := e.views[e.staleNext]
		if v.state != Stale {
			continue
		}
		e.facts = plans.NewFacts()
		_, why, err := e.compileAgain(ctx, v)
		switch {
		case err != nil:
			return err
		case why == nil:
			return e.tryRecompile(ctx, nil)
		case v.err == nil || why.Error() != v.err.Error():
			e.stale(v, why)
		}
		return nil
	}
	return nil
}

// replan compiles a view again after something that it depends on changed.
func (e *Engine) replan(ctx context.Context, v *view) error {
	p, why, err := e.compileAgain(ctx, v)
	if err != nil {
		return err
	}
	if why != nil {
		e.stale(v, why)
		return nil
	}
	wasStale := v.state == Stale
	e.take(v, p)
	v.work.demand(reasonSchema)
	if wasStale {
		v.err = nil
		e.setState(v, Failed) // reconciled in the next round
		v.retry = e.polled
	}
	e.log.Info("a definition changed; the view is planned again and reconciled", "view", v.name)
	return nil
}

// stale makes a view stand still because the catalog broke it.
func (e *Engine) stale(v *view, why error) {
	v.work.demand(reasonSchema)
	v.err = why
	if v.state != Stale {
		e.log.Error("a definition changed and the view is stale: it serves its last snapshot", "view", v.name, "err", why)
	}
	e.setState(v, Stale)
}

// republish publishes what the views read now, such as a new partition. Changes
// that running transactions made before that are not in the stream, so the views are
// reconciled in each round until those have ended.
func (e *Engine) republish(ctx context.Context, hit []*view, altered bool) (added bool, err error) {
	added, err = e.o.Publish.Ensure(ctx, e.Sources())
	if err != nil || (!added && !altered) {
		return added, err
	}
	fence, err := e.fence(ctx)
	for _, v := range hit {
		v.fence = max(v.fence, fence)
	}
	return added, err
}

// fence gives the id of a transaction that began after everything that committed so
// far. A snapshot's xmax would not do: ids above it may be running unseen.
func (e *Engine) fence(ctx context.Context) (id uint64, err error) {
	if err := e.side.QueryRow(ctx, "SELECT pg_catalog.pg_current_xact_id()::text::bigint").Scan(&id); err != nil {
		return 0, fmt.Errorf("set a fence: %w", err)
	}
	return id, nil
}

// sameColumns reports whether the table of the old plan can hold the rows of the new
// one. What is kept beside it, and whether a column outside the key may be NULL, can
// be changed in place.
func sameColumns(a, b *plans.Plan) bool {
	same := func(x, y plans.Column) bool {
		return x.Name == y.Name && x.Type == y.Type && x.Collation == y.Collation
	}
	if !slices.EqualFunc(a.Columns, b.Columns, same) || !slices.Equal(a.Key, b.Key) {
		return false
	}
	return !slices.ContainsFunc(b.Key, func(k int) bool { return a.Columns[k].NotNull && !b.Columns[k].NotNull })
}
