// Package oracle judges whether a backing table holds what its body returns.
//
// [Compare] evaluates both in one statement, hence at one snapshot: that of the caller's transaction, or the
// statement's own. Since the promise is kept per snapshot, the caller must see both sides at the same one: inside the
// round's transaction before its commit, in a transaction that imported a snapshot taken while nothing moved, or, with
// [CompareAcross], in two transactions of which one sees the body and the other the table.
//
// # What counts as equal
//
// Rows are compared as a multiset, by the bytes of their columns (the operators *= and *< on records). Equality of the
// types, as EXCEPT ALL uses it, would pass 1.0 for 1.00, -0.0 for 0.0, '24:00' for '1 day', and 'Bob' for 'bob' under a
// case-insensitive collation. The columns must have the body's names, order, types and type modifiers; a column of a
// domain's base type stands for the domain.
//
// Two refinements need a key, by which rows are matched with the equality of the table's own columns (default: the
// table's primary key, else a unique index):
//
//   - plan-dependent columns: a representative is equal by its type's =, a float within a relative tolerance, with NaN
//     and infinities exact ([Options]). All other columns of the row are compared by their bytes.
//   - a coarsened key: each class of body rows that are equal under the table's key has exactly one stored row, and that
//     has the bytes of a member.
//
// # In every round
//
// A [Checker] holds the views of a test and compares all of them under pinned settings.
package oracle
