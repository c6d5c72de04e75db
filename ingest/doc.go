// Package ingest is the row-change ingestion seam, and the vocabulary that all
// other packages share: [Table], [Row], [Change], [Transaction], [Snapshot] and
// [Batch].
//
// # Contract of the seam
//
// Whoever has already written rows says so here: as whole upstream
// [Transaction] values, in commit order (INV-2), whose changes carry ordered
// images of the rows as Postgres prints them. The seam validates nothing but
// shape and trusts the origin. The replication package is one origin; tests are
// another.
//
// A value that an image does not carry (an unchanged TOAST value, a column
// outside the replica identity) is [Missing], which is not NULL.
//
// # Folding
//
// A [Batch] holds transactions that are not yet visible in a snapshot already
// taken, whole. Once a snapshot that contains a transaction is known, the
// transaction is folded into the pending work of every view whose own as-of does
// not contain it, and forgotten. Folding earlier is wrong: folding loses the
// transaction, and a transaction that the round's snapshot does not see must be
// kept for a later round as it is.
package ingest
