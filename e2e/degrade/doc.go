// Package degrade tests when a batch is taken over by evaluating the body instead of by the arm of the view's strategy.
package degrade
