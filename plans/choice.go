package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// far is how many times an estimate must be another before it counts. Statements of
// different strategies are estimated from different statistics, and tables grow.
const far = 10

// Kept is a choice made earlier, so that a view does not change its strategy with each
// new estimate.
type Kept struct {
	Strategy Strategy
	// Estimate is Plan.Estimate of the plan that was chosen.
	Estimate float64
	// Always keeps the strategy whatever it costs now, as long as it fits.
	Always bool
}

// holds reports whether the choice stands, at what its strategy would cost now.
func (k *Kept) holds(now float64) bool {
	return k.Always || k.Estimate == 0 || (now <= k.Estimate*far && now*far >= k.Estimate)
}

// family orders strategies by what a round reads: nothing but stored rows; the touched
// slices; everything. Only inside a family do costs decide which one is chosen: the
// estimates of a small table say nothing of what it will be.
func (s Strategy) family() int {
	switch s {
	case InverseProjection, DeltaAggregate:
		return 0
	case ResidualRecompute, PrefixDelete, JoinResidual:
		return 1
	case FullRebuild:
	}
	return 2
}

// planned is what an arm fills in.
type planned struct {
	strategy               Strategy
	projection             *Projection
	aggregate              *Aggregate
	residual               *Residual
	hidden                 []Column
	eval                   string
	indexes, hiddenIndexes []string
	advice                 []string
	lookups                []lookup
}

// taken is what the plan holds now; what is appended to it later is not in it.
func (a *analysis) taken(p *Plan) planned {
	return planned{
		p.Strategy, p.Projection, p.Aggregate, p.Residual, p.Hidden, p.Eval,
		slices.Clip(p.Indexes), slices.Clip(p.HiddenIndexes), slices.Clip(p.Advice), slices.Clip(a.lookups),
	}
}

func (a *analysis) put(p *Plan, x planned) {
	p.Strategy, p.Projection, p.Aggregate, p.Residual, p.Hidden, p.Eval = x.strategy, x.projection, x.aggregate, x.residual, x.hidden, x.eval
	p.Indexes, p.HiddenIndexes, p.Advice, a.lookups = x.indexes, x.hiddenIndexes, x.advice, x.lookups
}

// fit is a strategy that fits, with what it needs in old images of each source.
type fit struct {
	planned

	needs    []needs
	estimate float64
}

// weigh chooses among strategies of one family, which come in the order of preference.
func (a *analysis) weigh(ctx context.Context, p *Plan, fits []fit) (fit, error) {
	fits = append(fits[:1:1], slices.DeleteFunc(fits[1:], func(f fit) bool { return !a.identified(p, f) })...)
	if len(fits) == 1 {
		return fits[0], nil // and it says which identity it lacks
	}
	for i := range fits {
		a.put(p, fits[i].planned)
		cost, err := Estimate(ctx, a.tx, p)
		if err != nil {
			return fit{}, err
		}
		fits[i].estimate = cost.Batch(1)
	}
	at, kept := settle(fits, a.o.Kept)
	p.Estimate = fits[at].estimate
	if kept && a.o.Kept.Estimate != 0 {
		p.Estimate = a.o.Kept.Estimate // else it would follow the tables step by step
	}
	for _, f := range fits[:at] {
		p.Declined[f.strategy] = fmt.Sprintf("a round with one changed row of each table costs %s in place of %s", figure(f.estimate), figure(fits[at].estimate))
		if kept {
			p.Declined[f.strategy] = fmt.Sprintf("the view is maintained by %s, and no estimate has become %d times another", fits[at].strategy, far)
		}
	}
	return fits[at], nil
}

// settle returns the strategy of an earlier choice where that holds, else the cheapest,
// else, of those that cost about as much, the first.
func settle(fits []fit, k *Kept) (at int, kept bool) {
	if k != nil {
		at = slices.IndexFunc(fits, func(f fit) bool { return f.strategy == k.Strategy })
		if at >= 0 && k.holds(fits[at].estimate) {
			return at, true
		}
	}
	at = 0
	for i, f := range fits {
		if f.estimate*far < fits[0].estimate && f.estimate < fits[at].estimate {
			at = i
		}
	}
	return at, false
}

// identified reports whether the sources have the replica identity that a strategy
// needs. None is chosen for its cost that needs tables to be altered.
func (a *analysis) identified(p *Plan, f fit) bool {
	try := *p
	try.Sources = slices.Clone(p.Sources)
	return a.requireIdentities(&try, f.needs) == nil && len(try.Alter) == len(p.Alter)
}

// Candidate is a strategy that was weighed.
type Candidate struct {
	Strategy Strategy `json:"strategy"`
	// Cost is nil where the strategy does not fit.
	Cost   *Cost `json:"cost,omitempty"`
	Chosen bool  `json:"chosen"`
	// Lost says why the strategy was not chosen.
	Lost string `json:"lost,omitempty"`
}

// compare fills in the candidates: the strategies in the order of their families,
// each that fits with its cost.
func (p *Plan) compare(ctx context.Context, q Querier, d Declaration, o Options) error {
	o.Compare, o.Estimate, o.ReplicaIdentity = false, true, Manage
	for _, arm := range arms {
		c := Candidate{Strategy: arm.strategy, Chosen: arm.strategy == p.Strategy}
		switch {
		case c.Chosen:
			c.Cost = p.Cost
		case p.Declined[arm.strategy] != "":
			c.Lost = p.Declined[arm.strategy]
		default:
			if err := c.force(ctx, q, d, o); err != nil {
				return err
			}
		}
		p.Candidates = append(p.Candidates, c)
	}
	floor := Candidate{Strategy: FullRebuild, Chosen: p.Strategy == FullRebuild, Cost: p.Cost}
	if !floor.Chosen {
		e := &estimate{p: p, cost: &Cost{Evaluate: p.Cost.Evaluate, Refresh: p.Cost.Refresh, Rows: p.Cost.Rows, Scans: []string{}}}
		e.floor()
		floor.Cost = e.cost
	}
	p.Candidates = append(p.Candidates, floor)
	for i := range p.Candidates {
		p.Candidates[i].lose(p)
	}
	return nil
}

// force compiles the declaration for one strategy.
func (c *Candidate) force(ctx context.Context, q Querier, d Declaration, o Options) error {
	d.Force, d.RebuildRowThreshold = c.Strategy, 0
	other, err := Compile(ctx, q, d, o)
	if r, ok := errors.AsType[*Refusal](err); ok {
		c.Lost = r.Reason
		return nil
	}
	if err != nil {
		return err
	}
	if other.Strategy == c.Strategy {
		c.Cost = other.Cost
		return nil
	}
	c.Lost = other.Declined[c.Strategy]
	return nil
}

// lose says why a strategy that fits was not chosen.
func (c *Candidate) lose(p *Plan) {
	if c.Chosen || c.Cost == nil {
		return
	}
	mine, theirs := c.Cost.Batch(1), p.Cost.Batch(1)
	switch {
	case mine > theirs:
		c.Lost = fmt.Sprintf("a round with one changed row of each table costs %s in place of %s", figure(mine), figure(theirs))
	case c.Strategy.family() == p.Strategy.family():
		c.Lost = fmt.Sprintf("it costs %s in place of %s: a difference by less than %d times is none of an estimate", figure(mine), figure(theirs), far)
		if p.Estimate != 0 && far*mine < theirs {
			c.Lost = fmt.Sprintf("the view is maintained by %s, whose estimate is not %d times what it was", p.Strategy, far)
		}
	case c.Strategy == FullRebuild:
		c.Lost = fmt.Sprintf("it costs %s in place of %s while the tables are small, and grows with them", figure(mine), figure(theirs))
	default:
		c.Lost = "it reads the tables, where the strategy chosen reads what is stored"
	}
}

// figure prints a cost with three digits that count.
func figure(x float64) string {
	switch {
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}
