package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/mvsync/mvsync/ingest"
)

// Observer is told what happens in the stream. Its methods are called by several goroutines and must not block.
type Observer interface {
	// TransactionReceived counts n upstream transactions that arrived whole.
	TransactionReceived(n int)
	// Changes counts n changes of one kind that arrived in one transaction.
	Changes(table *ingest.Table, op ingest.Op, n int)
	// BarrierPassed says how long a barrier that was reached took.
	BarrierPassed(took time.Duration)
}

// Options of a [Stream]. Source, Slot and Publication are required; the zero value of the rest works.
type Options struct {
	// Source is where SQL goes; Replication is where the stream comes from (default: the same).
	Source      *pgx.ConnConfig
	Replication *pgconn.Config
	Session     Session
	Slot        string
	Publication string
	// Identity is the server that is expected; the zero value takes the first one met.
	Identity Identity
	// Budget bounds, in bytes, what was received and not taken (default 64 MiB). A transaction that would fill a quarter
	// of it is kept in a file instead. Beyond the budget nothing is read.
	Budget int64
	// SpoolDir is the folder for such files (default: the one for temporary files).
	SpoolDir string
	// SpoolBudget bounds, in bytes, the files that wait to be taken (default 16 times Budget). One transaction may
	// exceed it.
	SpoolBudget int64
	// DecodingMemory is the server's logical_decoding_work_mem for the stream, in bytes (default 256 MiB).
	DecodingMemory int64
	// BarrierTimeout bounds a [Stream.Barrier] (default 10 s).
	BarrierTimeout time.Duration
	// NudgeAfter is how long a barrier waits before it has the tail of the WAL flushed (default 2 ms).
	NudgeAfter time.Duration
	// StatusInterval is how often the server hears of us (default 1 s, less where wal_sender_timeout asks for it).
	StatusInterval time.Duration
	// SlotWait is how long the slot may be in another process's use before that is an error (default 75 s, beyond the
	// default wal_sender_timeout, after which the server lets go of a connection that died).
	SlotWait time.Duration
	// PoisonAfter is how many times the server may fail at one position (default 4).
	PoisonAfter int
	// Observer may be nil.
	Observer Observer
}

// withDefaults fills in what is not set.
func (o Options) withDefaults() Options {
	if o.Replication == nil {
		o.Replication = &o.Source.Config
	}
	o.Budget = cmp.Or(o.Budget, 64<<20)
	o.SpoolBudget = cmp.Or(o.SpoolBudget, 16*o.Budget)
	o.SpoolDir = cmp.Or(o.SpoolDir, os.TempDir())
	o.DecodingMemory = cmp.Or(o.DecodingMemory, 256<<20)
	o.BarrierTimeout = cmp.Or(o.BarrierTimeout, 10*time.Second)
	o.NudgeAfter = cmp.Or(o.NudgeAfter, 2*time.Millisecond)
	o.StatusInterval = cmp.Or(o.StatusInterval, time.Second)
	o.SlotWait = cmp.Or(o.SlotWait, 75*time.Second)
	o.PoisonAfter = cmp.Or(o.PoisonAfter, 4)
	if o.Observer == nil {
		o.Observer = unobserved{}
	}
	return o
}

// unobserved is an [Observer] for those who do not look.
type unobserved struct{}

// TransactionReceived implements [Observer].
func (unobserved) TransactionReceived(int) {}

// Changes implements [Observer].
func (unobserved) Changes(*ingest.Table, ingest.Op, int) {}

// BarrierPassed implements [Observer].
func (unobserved) BarrierPassed(time.Duration) {}

// Stream is the stream of committed transactions of one slot, for one [Stream.Run]. Its other methods may be called by
// several goroutines, before, during and after Run.
type Stream struct {
	opts    Options
	log     *slog.Logger
	slot    Slot
	catalog *session // asks about relations and about our walsender
	side    *session // nudges

	ready   chan struct{}
	nudges  chan struct{}
	relearn atomic.Bool

	mu        sync.Mutex
	link      *link // the live connection, nil while there is none
	identity  Identity
	layout    walLayout
	position  ingest.LSN
	confirmed ingest.LSN
	received  ingest.LSN // commit record of the last complete transaction
	pending   []*ingest.Transaction
	memory    int64 // bytes of pending in memory
	spooled   int64 // bytes of pending in files
	room      chan struct{}
	waiters   map[*waiter]struct{}
	health    State
	ended     bool
	err       error // why Run ended
}

// New returns a stream that does nothing until [Stream.Run].
func New(opts Options, log *slog.Logger) *Stream {
	opts = opts.withDefaults()
	s := &Stream{
		opts: opts, log: log.With("part", "replication", "slot", opts.Slot), slot: Slot{Name: opts.Slot},
		ready: make(chan struct{}, 1), nudges: make(chan struct{}, 1), waiters: map[*waiter]struct{}{},
		identity: opts.Identity,
	}
	s.catalog = &session{connect: func(ctx context.Context) (*pgx.Conn, error) {
		return connectSQL(ctx, opts.Source, opts.Session, nil)
	}}
	// A nudge flushes by its own commit. It must not wait for a synchronous standby, which may be away, nor be made
	// useless by a role's synchronous_commit = off.
	s.side = &session{connect: func(ctx context.Context) (*pgx.Conn, error) {
		return connectSQL(ctx, opts.Source, opts.Session, map[string]string{"synchronous_commit": "local"})
	}}
	return s
}

// Run keeps the stream connected until ctx ends, which is no error, or until something happens that a reconnection does
// not mend: one of [ErrSlotLost], [ErrSlotForeign], [ErrSlotInUse], [ErrPublicationLost], [ErrInRecovery],
// [ErrIdentityChanged], [ErrSyncStandby], [ErrPoison], [ErrDenied] and [ErrProtocol]. It runs once; afterwards what was
// received can still be taken, and barriers fail.
func (s *Stream) Run(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return s.supervise(inner) })
	group.Go(func() error { return s.nudger(inner) })
	err := group.Wait()
	closing := context.WithoutCancel(ctx)
	s.catalog.close(closing)
	s.side.close(closing)
	if ctx.Err() != nil && !isTerminal(err) {
		err = nil
	}
	s.end(err)
	return err
}

// end fails what waits, and what will.
func (s *Stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.err = true, err
	for w := range s.waiters {
		w.fail(s.endedError())
	}
	s.signal()
}

var errEnded = errors.New("the stream has ended")

func (s *Stream) endedError() error {
	if s.err != nil {
		return fmt.Errorf("%w: %w", errEnded, s.err)
	}
	return errEnded
}

// supervise connects again and again. The wait grows while nothing is received, and starts anew once something was.
func (s *Stream) supervise(ctx context.Context) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, 15*time.Second
	var trouble trouble
	for attempt := 1; ; attempt++ {
		before, began := s.Position(), time.Now()
		err := s.connected(ctx)
		if ctx.Err() != nil {
			if err != nil && !errors.Is(err, context.Cause(ctx)) {
				s.log.Debug("the stream did not end cleanly", "err", err)
			}
			return context.Cause(ctx)
		}
		err = trouble.judge(err, s.Position(), s.opts)
		s.failed(err)
		if isTerminal(err) {
			return err
		}
		if s.Position() > before || time.Since(began) > wait.MaxInterval {
			attempt = 1
			wait.Reset()
		}
		delay := wait.NextBackOff()
		s.log.Warn("the stream dropped; connecting again", "err", err, "attempt", attempt, "in", delay,
			"lsn", s.Position())
		if err := newPause(delay, delay).wait(ctx); err != nil {
			return err
		}
	}
}

// trouble remembers earlier failures, to know a repeated one.
type trouble struct {
	at     ingest.LSN // position of the last failure of the server while it streamed
	times  int
	inUse  time.Time // since when the slot is found in use
	inUseN int
}

// judge makes a terminal error of one that came too often.
func (t *trouble) judge(err error, position ingest.LSN, opts Options) error {
	if busy, ok := errors.AsType[*slotBusyError](err); ok {
		if t.inUseN++; t.inUseN == 1 {
			t.inUse = time.Now()
		}
		if time.Since(t.inUse) >= opts.SlotWait {
			return fmt.Errorf("%w for %s: %w", ErrSlotInUse, opts.SlotWait, busy)
		}
		return err
	}
	t.inUseN = 0
	streaming, ok := errors.AsType[*streamError](err)
	if !ok || passing(sqlState(streaming.err)) {
		return err
	}
	if position != t.at {
		t.at, t.times = position, 0
	}
	if t.times++; t.times < opts.PoisonAfter {
		return err
	}
	return fmt.Errorf("%w: it failed %d times behind %s: %w; the slot has to be made anew, which is a gap",
		ErrPoison, t.times, position, err)
}

// streamError is an error that the server sent after streaming had begun.
type streamError struct{ err error }

func (e *streamError) Error() string { return "stream: " + e.err.Error() }
func (e *streamError) Unwrap() error { return e.err }

// slotBusyError is the server's refusal to let a second process read the slot.
type slotBusyError struct {
	pid int32
	err error
}

func (e *slotBusyError) Error() string {
	if e.pid == 0 {
		return e.err.Error()
	}
	return fmt.Sprintf("process %d reads the slot; stop the other mvsync, or run SELECT pg_terminate_backend(%d): %v",
		e.pid, e.pid, e.err)
}
func (e *slotBusyError) Unwrap() error { return e.err }

// Take returns the transactions that were received since the last call, in commit order. The caller owns them and closes
// their changes. It never blocks.
func (s *Stream) Take() []*ingest.Transaction {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.pending
	s.pending, s.memory, s.spooled = nil, 0, 0
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
	return taken
}

// Ready receives after something was received that [Stream.Take] has not returned yet, and when the stream ends. One
// signal may stand for several transactions.
func (s *Stream) Ready() <-chan struct{} { return s.ready }

// signal must not block: the reader and the keepalives do not wait for the consumer.
func (s *Stream) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Position is the point in the WAL up to which every committed transaction has been received.
func (s *Stream) Position() ingest.LSN {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position
}

// Confirm tells the server, with the next status update, that transactions which committed before lsn are durable
// elsewhere and need not be sent again. It never goes back, and never beyond the stream's position.
func (s *Stream) Confirm(lsn ingest.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirmed = max(s.confirmed, min(lsn, s.position))
}

// Confirmed is the position last given to [Stream.Confirm], or what the slot had confirmed before.
func (s *Stream) Confirmed() ingest.LSN {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmed
}

// Relearn makes the stream look up the parents of every table again from the next transaction on. The server describes a
// table anew when the table itself changes, not when something far above it in a partition tree does.
func (s *Stream) Relearn() { s.relearn.Store(true) }

// State is the stream's condition.
type State struct {
	Connected           bool      // receiving from the server
	Since               time.Time // when that became so, or stopped being so
	LastMessage         time.Time // when the server was last heard
	Reconnections       int       // connections after the first
	PID                 uint32    // the walsender's process
	SyncState           string    // as pg_stat_replication has it; "" where that may not be seen
	Identity            Identity
	Position            ingest.LSN
	Confirmed           ingest.LSN
	PendingTransactions int
	PendingBytes        int64 // in memory
	SpooledBytes        int64 // in files
	Paused              bool  // the budget is full
	Ignored             int64 // messages that were not asked for
	Err                 error // why the stream is not connected
}

// State returns the stream's condition.
func (s *Stream) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.health
	state.Identity, state.Position, state.Confirmed = s.identity, s.position, s.confirmed
	state.PendingTransactions, state.PendingBytes, state.SpooledBytes = len(s.pending), s.memory, s.spooled
	state.Paused = s.room != nil
	return state
}

// failed notes the end of a connection.
func (s *Stream) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.health.Since.IsZero() {
		s.health.Since = time.Now()
	}
	s.health.Connected, s.health.PID, s.health.SyncState, s.health.Err = false, 0, "", err
}

// heard notes that the server was heard at now.
func (s *Stream) heard(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health.LastMessage = now
}

func (s *Stream) setSyncState(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health.SyncState = state
}

// ignore counts a message that was not asked for.
func (s *Stream) ignore(kind byte) {
	s.mu.Lock()
	s.health.Ignored++
	s.mu.Unlock()
	s.log.Debug("ignored a message that was not asked for", "kind", string(rune(kind)))
}
