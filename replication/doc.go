// Package replication is the wire: it turns Postgres' logical replication into whole
// [ingest.Transaction] values, and knows nothing of views.
//
// # What it owns
//
// A replication slot ([Slot], pgoutput, never two-phase), a publication of its own ([Publication], marked by a comment;
// leaves only), the [Fence] that a new slot or a new member needs, the checks before any of it is created ([Preflight]),
// and the [Stream] itself.
//
// # Positions
//
// The stream's position is the end of the last commit received, or a keepalive's WAL end, whichever is later: everything
// committed before it has been received. The WAL position of a change message is never progress. [Stream.Barrier] waits
// for the position to reach the WAL end that belongs to a snapshot, which is when everything visible in that snapshot
// has been received.
//
// # Confirming
//
// Only [Stream.Confirm] moves the slot. Each status update repeats that position as written, flushed and applied: what
// was merely received is not confirmed, since it is not yet durable anywhere else.
//
// # Reconnecting
//
// [Stream.Run] reconnects by itself, always from 0/0, so that the server begins at what the slot has confirmed. Within
// the process the stream drops what it has received already: a transaction whose commit record is not beyond the last
// complete commit. Across processes it cannot know; there the consumer decides by visibility in a snapshot.
package replication
