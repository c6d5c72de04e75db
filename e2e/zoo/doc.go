// Package zoo keeps a view of every shape of body exact while concurrent writers
// change the tables below at random.
//
// shapes_test.go is the list: each shape with its body, the strategy that the planner
// must choose for it, and the replica identity that this strategy needs at the least.
// The tests run each shape beside its forced full-rebuild twin in one daemon; the
// oracle compares every view in every round, in the round's own snapshot.
//
// A failure is logged with the seed, the writers' last transactions and a minimal
// reproduction. A longer run, or the same again:
//
//	go test ./e2e/zoo -run TestZoo -timeout 0 -zoo.rounds 20000 -zoo.seed 7
package zoo
