// Package pgbench keeps views over the tables of pgbench while pgbench writes: the TPC-B transactions that everybody
// knows, by a program that knows nothing of mvsync.
package pgbench
