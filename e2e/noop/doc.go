// Package noop shows that a change which changes nothing writes nothing: no row of a
// view or of what is kept beside it is another one afterwards, and no consumer runs.
// A change that changes something writes the rows that differ, and no others.
package noop
