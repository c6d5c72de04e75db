// Package maintain keeps the views equal to their bodies, in rounds.
//
// # Why it is exact
//
// The classic trap of asynchronous view maintenance is that the stream says what
// changed up to one point while a query against the sources sees another. A round
// makes the two meet:
//
//  1. It waits until a transaction is pending, a view needs work or somebody waits.
//  2. It opens a REPEATABLE READ transaction, locks the sources that it may read in
//     ACCESS SHARE mode, and fixes the snapshot S and the WAL insert position L with
//     one statement. Nothing before that statement may take a snapshot.
//  3. Barrier: it lets the stream pass L. Every transaction visible in S has its
//     commit record below L, so all of them have arrived now.
//  4. It splits what has arrived by visibility in S. The visible transactions are
//     folded into the views' pending work; the others stay whole for a later round.
//  5. It maintains every view with pending work, producers before consumers, with
//     SQL that runs in that same transaction and so sees exactly S.
//  6. It records S and the position that may be confirmed in the same transaction,
//     commits, and confirms that position once its own commit is flushed.
//
// So after every committed round each live view equals its body at S (INV-1), rows
// and progress move together (INV-3), and the slot never passes a durable progress
// row (INV-4).
//
// # What may go wrong
//
// A round that fails for a passing reason (a lock, a serialization failure, a lost
// connection, a barrier that takes too long) is rolled back and opened anew; what
// was folded stays folded, since visibility only grows. A statement that fails for
// one view sets that view aside and the round is redone without it (INV-7). What
// changed in the catalog, and so without a trace in the stream, is found by
// comparing a fingerprint inside S and once more before COMMIT (INV-9).
package maintain
