// Package plans turns the body of a view into a plan: what the view's columns
// and key are, which tables it reads, how it is kept up to date, and the SQL of
// that. It writes nothing.
//
// # Method
//
// Postgres is the analyser. Inside a transaction that is rolled back the body
// becomes a temporary view, under the configured search path; then, under an
// empty one, the catalog says what the body's columns are, and the stored rule
// tree (pg_rewrite.ev_action) says what it means: which relations, columns,
// functions, operators and collations it uses, and how its rows are grouped. So
// there is no second opinion about names and types. Views that the body reads
// are read through.
//
// Text comes from pg_get_viewdef. Statements of a plan are made by splicing
// that text at token positions, never by printing an expression anew, and
// Postgres confirms that a spliced statement has the columns it should have. Only
// the conditions along which touched keys are looked up are written from the rule
// tree: columns, operators and plain functions, each by its full name. A condition
// that is left out makes a look-up find more, never less.
//
// # Statements
//
// A plan's statements are SELECTs over common table expressions that the caller
// puts in front: mvsync_new_i and mvsync_old_i (new and old images of the changed
// rows of source i; their columns are [Source].Columns by name), mvsync_delta
// (signed contributions of groups), mvsync_keys (touched keys), mvsync_keys_i (those
// of slice i of a residual), mvsync_merged (rows of Merge) and mvsync_stored (the
// stored rows: the view's columns, then its hidden ones). Touched is a condition
// over the alias s of a stored row. Everything is meant to run under an empty search
// path.
//
// mvsync_stored must be inlined: where it is a common table expression, it says
// NOT MATERIALIZED.
package plans
