// Package exact keeps few views, one of each way to maintain a view, under four
// writers that do everything a workload knows, and compares them with their bodies in
// thousands of rounds: rare interleavings need many.
//
// A longer run, or the same again:
//
//	go test ./e2e/exact -timeout 0 -exact.rounds 50000 -exact.seed 7
package exact
