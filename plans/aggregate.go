package plans

import "context"

// planAggregate is the arm of delta-aggregate.
func planAggregate(context.Context, *analysis, *Plan) (string, []needs, error) {
	return "it does not group rows of one table", nil, nil
}

// planResidual is the arm of residual-recompute.
func planResidual(context.Context, *analysis, *Plan) (string, []needs, error) {
	return "its rows do not split into slices", nil, nil
}
