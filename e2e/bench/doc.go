// Package bench measures mvsync beside what Postgres itself does with the same backlog of changes, as ratios, since
// times differ from machine to machine and from minute to minute. It also measures how long a commit takes to be visible
// in a view, and asserts that catching up keeps to the memory budget.
//
// The tests are small by default. For figures:
//
//	go test ./e2e/bench -v -run 'Throughput|Latency' -bench.changes=1000000 -timeout 1h
package bench
