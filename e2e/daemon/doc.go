// Package daemon runs mvsync's engine inside a test, wired as the command wires it:
// a stream and an engine over a database of [pgtest], with every round checked by
// the oracle before its COMMIT.
package daemon
