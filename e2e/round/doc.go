// Package round attacks the round: what happens between transactions and locks,
// standbys that hold commits up, connections that drop, restarts, and changes of the
// catalog that no stream reports.
//
// Every round of every test is compared with the bodies by the oracle, in the round's
// own snapshot. twins_test.go breaks the round on purpose, through a wrapper of the
// stream, in each of the ways that look harmless and are not; the harness must find
// each of them wrong.
package round
