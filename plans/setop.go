package plans

import "context"

// planSetOperation is residual-recompute for set operations.
func planSetOperation(context.Context, *analysis, *Plan) (string, []needs, error) {
	return "it is a set operation", nil, nil
}
