package replication

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/ingest"
)

// waiter is a barrier that waits.
type waiter struct {
	target  ingest.LSN
	done    chan error    // one result
	replied chan struct{} // the server answered, not far enough
}

func (w *waiter) fail(err error) {
	select {
	case w.done <- err:
	default:
	}
}

// How a barrier asks. A walsender answers within 100 µs, but perhaps before it has decoded the last record, so the first
// answers are followed by another question at once: Go's timers are no finer than a millisecond on an idle machine.
const (
	eagerQuestions = 4
	questionPause  = time.Millisecond
	questionLimit  = 50 * time.Millisecond
	nudgeLimit     = 500 * time.Millisecond
)

// Barrier waits until everything that committed before lsn has been received. Given the insert position that was read
// together with a snapshot, everything visible in the snapshot has been received when it returns nil (another position,
// such as the flush position, would not do). lsn is rounded down where it stands just behind a page header.
//
// It asks the server for its position at once, and after [Options.NudgeAfter] has the tail of the WAL flushed, since what
// is not flushed is not sent. It returns [ErrBarrierTimeout] after [Options.BarrierTimeout], [ErrBacklog] while reading is
// paused because the budget is full (take what is pending, and call it again), and ctx's cause when that ends. While the
// stream reconnects it waits.
func (s *Stream) Barrier(ctx context.Context, lsn ingest.LSN) error {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.opts.BarrierTimeout, ErrBarrierTimeout)
	defer cancel()
	w, err := s.enter(lsn)
	if w != nil {
		err = s.await(ctx, w)
		s.leave(w)
	}
	if err != nil {
		return fmt.Errorf("barrier at %s, stream at %s: %w", lsn, s.Position(), err)
	}
	s.opts.Observer.BarrierPassed(time.Since(began))
	return nil
}

// enter registers a waiter unless the answer is known.
func (s *Stream) enter(lsn ingest.LSN) (*waiter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	target := s.layout.roundDown(lsn)
	switch {
	case s.position >= target:
		return nil, nil
	case s.ended:
		return nil, s.endedError()
	case s.room != nil:
		return nil, ErrBacklog
	}
	w := &waiter{target: target, done: make(chan error, 1), replied: make(chan struct{}, 1)}
	s.waiters[w] = struct{}{}
	return w, nil
}

func (s *Stream) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiters, w)
}

// await asks and nudges until w is done.
func (s *Stream) await(ctx context.Context, w *waiter) error {
	nudge := time.NewTimer(s.opts.NudgeAfter)
	defer nudge.Stop()
	question := time.NewTimer(questionPause)
	question.Stop()
	nextNudge, nextQuestion, asked := max(5*s.opts.NudgeAfter, 10*time.Millisecond), questionPause, 1
	s.ask()
	for {
		select {
		case err := <-w.done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.replied:
			if asked < eagerQuestions {
				asked++
				s.ask()
				continue
			}
			question.Reset(nextQuestion)
			nextQuestion = min(2*nextQuestion, questionLimit)
		case <-question.C:
			s.ask()
		case <-nudge.C:
			select {
			case s.nudges <- struct{}{}:
			default: // one is on its way
			}
			asked = 1
			nudge.Reset(nextNudge)
			nextNudge = min(4*nextNudge, nudgeLimit)
		}
	}
}

// ask has the server say where it is. A failure ends the connection, which its reporting goroutine notices.
func (s *Stream) ask() {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l == nil {
		return // a new connection asks as it begins
	}
	if err := l.status(true); err != nil {
		s.log.Debug("cannot ask the server for its position", "err", err)
	}
}

// advance raises the position, and lets barriers go. reply tells that the server spoke of its position, which the
// barriers that still wait want to know.
func (s *Stream) advance(l *link, position ingest.LSN, reply bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		return // rewound
	}
	s.health.LastMessage = time.Now()
	s.raise(position)
	if !reply {
		return
	}
	for w := range s.waiters {
		select {
		case w.replied <- struct{}{}:
		default:
		}
	}
}

// raise needs s.mu.
func (s *Stream) raise(position ingest.LSN) {
	if position <= s.position {
		return
	}
	s.position = position
	for w := range s.waiters {
		if position >= w.target {
			w.fail(nil)
		}
	}
}

// nudger flushes the tail of the WAL when a barrier asks for it.
func (s *Stream) nudger(ctx context.Context) error {
	// The connection is made before the first barrier wants it. Where that fails, the first nudge tries again.
	if err := s.side.do(ctx, func(*pgx.Conn) error { return nil }); err != nil && ctx.Err() == nil {
		s.log.Debug("cannot connect for nudges yet", "err", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil // the supervisor says why
		case <-s.nudges:
		}
		if err := s.nudge(ctx); err != nil {
			if ctx.Err() == nil {
				s.log.Debug("cannot nudge the server", "err", err)
			}
			continue
		}
		s.ask()
	}
}

// nudge writes a WAL record and flushes it. Its own transaction's commit would not do it under every setting: a message
// that is not transactional does not flush, and one that is flushes by its commit. From 17 on there is a message that
// flushes and takes no transaction id.
func (s *Stream) nudge(ctx context.Context) error {
	return s.side.do(ctx, func(conn *pgx.Conn) error {
		sql := "SELECT pg_catalog.pg_logical_emit_message(true, 'mvsync', '')"
		if majorVersion(conn.PgConn()) >= 17 {
			sql = "SELECT pg_catalog.pg_logical_emit_message(false, 'mvsync', '', true)"
		}
		_, err := conn.Exec(ctx, sql)
		return err
	})
}
