package plans

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

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
		p.Candidates[i].lose(p.Cost)
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
func (c *Candidate) lose(chosen *Cost) {
	if c.Chosen || c.Cost == nil {
		return
	}
	mine, theirs := c.Cost.Batch(1), chosen.Batch(1)
	switch {
	case mine > theirs:
		c.Lost = fmt.Sprintf("a round with one changed row of each table costs %s in place of %s", figure(mine), figure(theirs))
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
