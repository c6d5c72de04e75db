// Package samples keeps the views of three databases such as every course on SQL
// starts from: a music shop, a trading company and a film rental. Nothing in them was
// made for mvsync: they are the joins, sums and lists that applications ask for.
//
// music.go, trade.go and rental.go name each view's strategy. Where it is the floor,
// or the view is refused, the reason stands beside it.
//
// A longer run, or the same again:
//
//	go test ./e2e/samples -timeout 0 -samples.rounds 5000 -samples.seed 7
package samples
