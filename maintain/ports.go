package maintain

import (
	"context"
	"errors"
	"time"

	"github.com/mvsync/mvsync/ingest"
)

// Stream is what rounds need of the replication stream. It is read by its own
// goroutine, and safe for concurrent use.
type Stream interface {
	// Take returns the whole transactions received since the last call, in commit
	// order, and hands them over. It never blocks.
	Take() []*ingest.Transaction
	// Ready is signalled when something was received.
	Ready() <-chan struct{}
	// Barrier blocks until the stream has passed lsn. It is bounded: where the
	// server is busy with somebody's huge transaction it returns an error that
	// wraps ErrBarrier; where reading is paused, one that wraps ErrBacklog.
	Barrier(ctx context.Context, lsn ingest.LSN) error
	// Position is how far the stream has come: a commit's end or a keepalive's.
	Position() ingest.LSN
	// Relearn makes the stream look up again through which tables each relation's rows
	// are read: partitions come and go without a trace in the stream.
	Relearn()
	// Confirm lets the server discard the log before lsn.
	Confirm(lsn ingest.LSN)
	// Rewind forgets what was received, taken or not, and receives everything again
	// from the confirmed position on. What Take returns afterwards is of that.
	Rewind()
}

// ErrBarrier says that the stream did not reach the round's position in time.
var ErrBarrier = errors.New("the replication stream did not reach the round's position in time")

// ErrBacklog says that reading is paused until what was received is taken.
var ErrBacklog = errors.New("received transactions wait to be taken")

// Publisher adds what views read to the publication.
type Publisher interface {
	// Ensure publishes every table in which rows of the given tables stand, and
	// reports whether it had to add any: changes made to those by transactions that
	// were running are not in the stream, so a fence must pass.
	Ensure(ctx context.Context, tables []uint32) (added bool, err error)
}

// Observer is told what happens, for metrics. Its methods must not block.
type Observer interface {
	RoundCommitted(took time.Duration)
	RoundRetried(reason string)
	Maintained(view, strategy string, took time.Duration)
	RowsWritten(view, op string, n int)
	RowsSuppressed(view string, n int)
	ResidualKeys(view string, n int)
	Rebuilt(view, reason string)
	Collisions(view string, n int)
	ViewDeclared(view, strategy string)
	ViewForgotten(view string)
	ViewState(view, state string)
	Verified(view string, differingRows int)
	Gap(reason string)
}
