// Package workload changes a database as applications do, at random and concurrently, so that what watches the
// changes can be tested under everything that transactions may do.
//
// A [Spec] describes tables as data: columns with the values they take, keys, foreign keys. [Fixtures] is the one of
// the tables that the tests share (schema.sql); [Reflect] reads one from the catalog of any other database. From a
// Spec and a seed each writer generates [Transaction] values, and [Workload.Run] executes them: committed, rolled
// back, failed and prepared ones, with savepoints, cascades and changes that change nothing ([Kind] lists them). Key
// spaces are small, so that collisions, moves between groups, and emptied groups happen all the time.
//
// # Errors are part of it
//
// Unique and foreign key violations, deadlocks, serialization failures and lock timeouts end a savepoint or a
// transaction and are counted. Any other error ends the run, and names the seed and the statement.
//
// # Reproduction
//
// What a writer generates depends on the seed and the writer's number alone, never on what the database answered. The
// interleaving of several writers is the server's; [Workload.Journal] keeps the last transactions of each writer, as
// scripts for psql, in the order in which they ended.
package workload
