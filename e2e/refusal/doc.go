// Package refusal shows what becomes of views that cannot be kept: what their user
// reads, that nothing is left of them, and that the other views run.
package refusal
