package maintain

import (
	"context"
	"time"

	"github.com/mvsync/mvsync/plans"
)

// estimateAge is how long the planner's figures for a view are good for. They follow
// the tables' statistics, which change as slowly.
const estimateAge = time.Minute

// estimate is what the planner last said of a view.
type estimate struct {
	of   *plans.Plan
	at   time.Time
	cost *plans.Cost
}

// dearer reports whether running the body again for the touched keys of a batch costs
// more than evaluating it once. It depends on the batch and on what the planner knows
// of the tables alone, not on what was decided before.
func (r *round) dearer(ctx context.Context, v *view, keys int) (bool, error) {
	if !r.e.o.Degrade {
		return false, nil
	}
	if v.estimate.of != v.plan || time.Since(v.estimate.at) > estimateAge {
		cost, err := plans.EstimateKeys(ctx, r.tx, v.plan)
		if err != nil {
			return false, err
		}
		v.estimate = estimate{of: v.plan, at: time.Now(), cost: cost}
	}
	return v.estimate.cost.Exceeds(keys), nil
}
