// Package minimal makes small what made a view wrong.
//
// A [Recorder] stands between a test's stream and its engine. It keeps the row changes that were delivered since the
// views were last right, and what their sources held before, as tables in memory. When the oracle has found a round
// wrong, [Recorder.Case] returns the failing view with the changes of that round alone, as SQL; it is replayed against
// fresh databases, with ever fewer transactions, statements and rows, as long as the view still comes out wrong. What is
// left is printed as a script with the view's configuration.
//
// Changes are replayed as the stream had them, row by row and in commit order, not as the writers' statements: those
// depend on what each found.
package minimal
