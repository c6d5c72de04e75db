// Package backing is the host that holds the views: it makes backing tables,
// merges rows into them and reports exactly the changes it made, and keeps
// mvsync's own catalog beside them. It knows rows, keys and snapshots, and
// nothing of bodies or strategies.
//
// # Writing back
//
// Every strategy comes down to one operation, [Session.Merge]: a SELECT of new
// rows against the stored rows that the batch may change, compared by key in
// one statement. Stored rows that the new ones lack are deleted, differing ones
// updated, missing ones inserted, equal ones neither written nor locked (INV-5).
// A key that survives is never deleted and inserted again, since foreign keys of
// users would cascade. Value identity is bytes (*<>), key identity is the key's
// own equality; columns that Postgres itself does not fix byte for byte keep a
// stored value that is right (see [Dependence]).
//
// Hidden columns, partials that a strategy needs and the body does not project,
// stand in a companion table in the catalog schema, merged in the same statement.
//
// # Who may write
//
// Backing and companion tables carry a statement-level trigger, enabled always,
// that lets only registered sessions through ([Host.Open], INV-11): a row of
// mvsync's own catalog names the backend by pid and start time. No setting and
// no lock opens it.
//
// # The catalog
//
// One schema, mvsync by default, holds the views, the progress row that commits
// with each round's rows (INV-3), collisions, queued requests and the functions
// that users call. [Host.Migrate] brings it to the version of this program.
//
// Several daemons on one database need a catalog schema each; [Host.Lead] sees to
// it that a catalog has one daemon.
package backing
