package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sync/errgroup"

	"github.com/mvsync/mvsync/ingest"
)

// link is one live replication connection. One goroutine reads from it, and one tells the server on a timer what is
// confirmed, however long the reader is kept; writes are taken in turns.
type link struct {
	stream   *Stream
	conn     net.Conn
	frontend *pgproto3.Frontend
	pid      uint32
	timeout  atomic.Int64 // wal_sender_timeout in nanoseconds, 0 for none
	decoder  *decoder
	messages atomic.Int64 // received so far, to see that the server is alive
	leaving  atomic.Bool  // the rest of the stream is of no interest

	writing sync.Mutex // guards writes to conn
}

const (
	writeTimeout = 10 * time.Second
	// silence is how long the server may say nothing although it was asked, at the least: while it reads through a huge
	// transaction it may well be busy for long.
	silence = 2 * time.Minute
	// leaveTimeout bounds the wait for the server to let go of the slot at the end.
	leaveTimeout = 2 * time.Second
	// checkInterval is how often our own row of pg_stat_replication is read.
	checkInterval = time.Second
)

// connected runs one connection from its beginning to its end.
func (s *Stream) connected(ctx context.Context) error {
	conn, err := connectReplication(ctx, s.opts.Replication, s.opts.Session, s.opts.DecodingMemory)
	if err != nil {
		return fmt.Errorf("connect for replication: %w", classifyConnect(err))
	}
	l, err := s.open(ctx, conn)
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		return errors.Join(err, conn.Close(closing))
	}
	s.attach(ctx, l)
	defer l.decoder.close()
	err = l.run(ctx)
	s.detach(l)
	return err
}

// open checks the server and starts the stream. On success conn belongs to the link.
func (s *Stream) open(ctx context.Context, conn *pgconn.PgConn) (*link, error) {
	server, err := readServer(ctx, conn, s.opts.Slot)
	if err != nil {
		return nil, fmt.Errorf("look at the server: %w", classifyConnect(err))
	}
	if err := s.accept(server); err != nil {
		return nil, err
	}
	if err := s.start(ctx, conn); err != nil {
		return nil, err
	}
	hijacked, err := conn.Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over the connection: %w", err)
	}
	l := &link{stream: s, conn: hijacked.Conn, frontend: hijacked.Frontend, pid: hijacked.PID}
	l.timeout.Store(int64(server.senderTimeout))
	return l, nil
}

// accept refuses a server that cannot be read from, and takes over what is known of it.
func (s *Stream) accept(server serverFacts) error {
	if server.inRecovery {
		return fmt.Errorf("%w: snapshots of a standby do not list running transactions; connect to the primary", ErrInRecovery)
	}
	if matchesStandby(server.syncStandbys) {
		return syncStandbyError(server.syncStandbys)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.identity != (Identity{}) && s.identity != server.identity {
		return fmt.Errorf("%w: it is %s, was %s; changes may be missing, which is a gap",
			ErrIdentityChanged, server.identity, s.identity)
	}
	s.identity, s.layout = server.identity, server.layout
	s.confirmed = max(s.confirmed, server.confirmed)
	// What committed before the confirmed position is not sent again, so in effect it has been received.
	s.position = max(s.position, server.confirmed)
	return nil
}

// start sends START_REPLICATION. It always starts at 0/0, that is at what the slot has confirmed: at a position of ours
// the server would leave out transactions that are still to be confirmed.
func (s *Stream) start(ctx context.Context, conn *pgconn.PgConn) error {
	options := pglogrepl.StartReplicationOptions{Mode: pglogrepl.LogicalReplication, PluginArgs: []string{
		"proto_version '1'",
		// The value is a list of identifiers, which are folded to lower case unless quoted.
		"publication_names " + quoteText(quoteName(s.opts.Publication)),
	}}
	err := pglogrepl.StartReplication(ctx, conn, quoteName(s.opts.Slot), 0, options)
	if err == nil {
		return nil
	}
	return s.explain(ctx, fmt.Errorf("start replication: %w", err))
}

// explain asks the catalog what an error of the server is about.
func (s *Stream) explain(ctx context.Context, err error) error {
	if sqlState(err) == "" || ctx.Err() != nil {
		return err
	}
	explained := err
	asking := s.catalog.do(ctx, func(conn *pgx.Conn) error {
		explained = classifyStream(ctx, err, s.slot, s.opts.Publication, conn)
		return nil
	})
	if asking != nil {
		return errors.Join(err, asking)
	}
	return explained
}

// attach makes l the stream's connection and has it answer barriers that wait already.
func (s *Stream) attach(ctx context.Context, l *link) {
	s.mu.Lock()
	l.decoder = newDecoder(
		func(oid uint32) (lineage, error) { return s.lineage(ctx, oid) },
		func() *collector { return newCollector(s.opts.SpoolDir, s.opts.Budget/4) },
		s.received)
	s.link = l
	if !s.health.LastMessage.IsZero() {
		s.health.Reconnections++
	}
	now := time.Now()
	s.health.Connected, s.health.Since, s.health.LastMessage = true, now, now
	s.health.PID, s.health.Err = l.pid, nil
	s.mu.Unlock()
	s.log.Info("streaming", "pid", l.pid, "lsn", s.Position(), "confirmed", s.Confirmed())
}

func (s *Stream) detach(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == l {
		s.link = nil
	}
	s.health.Connected, s.health.Since = false, time.Now()
}

// run reads and reports until either fails or ctx ends.
func (l *link) run(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	received := make(chan struct{})
	group.Go(func() error {
		defer close(received)
		err := l.receive(inner)
		if sqlState(err) != "" {
			return l.stream.explain(inner, &streamError{err: err})
		}
		return err
	})
	group.Go(func() error { return l.report(inner) })
	group.Go(func() error {
		select {
		case <-inner.Done():
			l.leave(ctx)
			return nil
		case <-received:
			return nil
		}
	})
	err := group.Wait()
	return errors.Join(err, l.close())
}

func (l *link) close() error {
	if err := l.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close the replication connection: %w", err)
	}
	return nil
}

// leave makes the reader end. Where ctx ended the server hears the confirmed position for the last time, and is given a
// moment to let go of the slot; where something broke, nothing is said.
func (l *link) leave(ctx context.Context) {
	l.leaving.Store(true)
	deadline := time.Now()
	if ctx.Err() != nil {
		if l.status(false) == nil && l.terminate() == nil {
			deadline = deadline.Add(leaveTimeout)
		}
	}
	_ = l.conn.SetReadDeadline(deadline) // fails only if the connection is closed, which ends the reader as well
}

// terminate says goodbye.
func (l *link) terminate() error {
	message, err := (&pgproto3.Terminate{}).Encode(nil)
	if err != nil {
		return err
	}
	return l.write(message)
}

// receive reads until the connection ends.
func (l *link) receive(ctx context.Context) error {
	for {
		if !l.decoder.open { // what is open takes no more of the budget than its share
			if err := l.stream.awaitRoom(ctx); err != nil {
				return err
			}
		}
		message, err := l.frontend.Receive()
		switch leaving := l.leaving.Load(); {
		case err == nil && leaving:
			continue
		case leaving:
			return context.Cause(ctx) // the read was interrupted, or the server has let go
		case err != nil:
			return fmt.Errorf("read from the server: %w", err)
		}
		l.messages.Add(1)
		switch m := message.(type) {
		case *pgproto3.CopyData:
			err = l.data(m.Data)
		case *pgproto3.ErrorResponse:
			err = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
			err = errors.New("the server ended the stream")
		default:
			err = fmt.Errorf("%w: %T while streaming", ErrProtocol, m)
		}
		if err != nil {
			return err
		}
	}
}

// walDataHeader is the length of what precedes a message of the output plugin: its kind, two positions, and a time.
const walDataHeader = 1 + 8 + 8 + 8

func (l *link) data(data []byte) error {
	if len(data) == 0 {
		return fmt.Errorf("%w: an empty one", ErrProtocol)
	}
	switch data[0] {
	case pglogrepl.XLogDataByteID:
		if len(data) < walDataHeader {
			return fmt.Errorf("%w: WAL data of %d bytes", ErrProtocol, len(data))
		}
		return l.wal(data[walDataHeader:])
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		l.stream.advance(l, alive.ServerWALEnd, true)
		if alive.ReplyRequested {
			return l.status(false)
		}
		return nil
	default:
		return fmt.Errorf("%w: copy data of kind %q", ErrProtocol, data[0])
	}
}

// wal takes a message of the output plugin.
func (l *link) wal(message []byte) error {
	if l.stream.relearn.Load() && !l.decoder.open {
		l.stream.relearn.Store(false)
		l.decoder.forget()
	}
	ignored := l.decoder.ignored
	tx, err := l.decoder.decode(message)
	if err != nil {
		return err
	}
	if l.decoder.ignored > ignored {
		l.stream.ignore(message[0])
	}
	switch {
	case tx == nil:
	case tx.Changes == nil: // received before
		l.stream.advance(l, tx.EndLSN, false)
	default:
		return l.stream.receive(l, tx)
	}
	return nil
}

// statusUpdate is the message that confirms a position: as written, as flushed and as applied. All three are set: zero
// would stand for the written position, and the first that is ahead of the others would confirm what is not durable.
func statusUpdate(confirmed ingest.LSN, now time.Time, reply bool) []byte {
	const body = 1 + 8 + 8 + 8 + 8 + 1
	b := make([]byte, 0, 1+4+body)
	b = append(b, 'd')
	b = binary.BigEndian.AppendUint32(b, 4+body)
	b = append(b, pglogrepl.StandbyStatusUpdateByteID)
	for range 3 {
		b = binary.BigEndian.AppendUint64(b, uint64(confirmed))
	}
	b = binary.BigEndian.AppendUint64(b, uint64(now.Sub(postgresEpoch).Microseconds()))
	if reply {
		return append(b, 1)
	}
	return append(b, 0)
}

var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// status sends a status update; with reply the server answers with its position at once.
func (l *link) status(reply bool) error {
	return l.write(statusUpdate(l.stream.Confirmed(), time.Now(), reply))
}

func (l *link) write(message []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("write to the server: %w", err)
	}
	if _, err := l.conn.Write(message); err != nil {
		return fmt.Errorf("write to the server: %w", err)
	}
	return nil
}

// report tells the server on a timer that we are here and what is confirmed, and watches over the connection.
func (l *link) report(ctx context.Context) error {
	// At once: only a walsender whose peer has reported a position can be a synchronous standby.
	if err := l.status(true); err != nil {
		return err
	}
	watch := watcher{link: l, heard: time.Now()}
	if err := watch.check(ctx); err != nil {
		return err
	}
	timer := time.NewTimer(l.interval())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		ask, err := watch.look(ctx)
		if err != nil {
			return err
		}
		if err := l.status(ask); err != nil {
			return err
		}
		timer.Reset(l.interval())
	}
}

// interval is well below half of wal_sender_timeout, from which on the server asks whether anybody is there.
func (l *link) interval() time.Duration {
	interval := l.stream.opts.StatusInterval
	if timeout := time.Duration(l.timeout.Load()); timeout > 0 {
		interval = min(interval, timeout/5)
	}
	return max(interval, 10*time.Millisecond)
}

// watcher looks after a connection from its reporting goroutine.
type watcher struct {
	link     *link
	messages int64     // received when it last looked
	heard    time.Time // when that number was last seen to grow
	checked  time.Time
}

// look notices a silent server and a changed sync state. It reports whether to ask the server for a sign of life.
func (w *watcher) look(ctx context.Context) (ask bool, err error) {
	now := time.Now()
	paused := w.link.stream.State().Paused
	if n := w.link.messages.Load(); n != w.messages || paused {
		w.messages, w.heard = n, now
		if !paused {
			w.link.stream.heard(now)
		}
	}
	timeout := time.Duration(w.link.timeout.Load())
	quiet := now.Sub(w.heard)
	if quiet > max(2*timeout, silence) {
		return false, fmt.Errorf("the server has been silent for %s", quiet.Round(time.Second))
	}
	if now.Sub(w.checked) >= checkInterval {
		if err := w.check(ctx); err != nil {
			return false, err
		}
	}
	// Asked once a second or so an idle server keeps the position, and with it the age of views, up to date.
	return true, nil
}

const walsenderSQL = `
SELECT coalesce((SELECT sync_state FROM pg_catalog.pg_stat_replication WHERE pid = $1), ''),
       (SELECT setting::int8 FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'),
       pg_catalog.current_setting('synchronous_standby_names'),
       EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = $2)`

// check reads our own row of pg_stat_replication, and whether the publication is still there: a server from 18 on skips
// the changes of a missing one without a word. A failure to ask is not held against the stream: the next look asks
// again.
func (w *watcher) check(ctx context.Context) error {
	w.checked = time.Now()
	publication := w.link.stream.opts.Publication
	var state, standbys string
	var timeout int64
	var published bool
	err := w.link.stream.catalog.do(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, walsenderSQL, w.link.pid, publication).Scan(&state, &timeout, &standbys, &published)
	})
	if err != nil {
		w.link.stream.log.Debug("cannot read the state of the walsender", "err", err)
		return nil
	}
	w.link.timeout.Store(int64(time.Duration(timeout) * time.Millisecond))
	w.link.stream.setSyncState(state)
	// The state of another role's walsender cannot be seen by an ordinary one; the setting can.
	if state != "async" && (state != "" || matchesStandby(standbys)) {
		return syncStandbyError(standbys)
	}
	if !published {
		return fmt.Errorf("%w: publication %s does not exist; changes may be missing, which is a gap",
			ErrPublicationLost, publication)
	}
	return nil
}

func syncStandbyError(standbys string) error {
	return fmt.Errorf("%w: synchronous_standby_names = %s matches application_name %s, so that commits would wait for mvsync "+
		"and mvsync for them; name the real standbys in synchronous_standby_names", ErrSyncStandby, quoteText(standbys), ApplicationName)
}

// matchesStandby reports whether synchronous_standby_names would take a connection of ours as a standby.
func matchesStandby(names string) bool {
	if at := strings.IndexByte(names, '('); at >= 0 {
		names = strings.TrimSuffix(strings.TrimSpace(names[at+1:]), ")")
	}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		if name == "*" || strings.EqualFold(strings.Trim(name, `"`), ApplicationName) {
			return true
		}
	}
	return false
}
