package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
)

// walsender is a server that streams what a test says, for what no real one does on demand.
type walsender struct {
	listener net.Listener
	script   func(*pgproto3.Backend) // what is sent once streaming began; then the connection is closed
	streams  atomic.Int64            // how often streaming began
}

func fakeWalsender(t *testing.T, script func(*pgproto3.Backend)) *walsender {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &walsender{listener: listener, script: script}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = w.serve(conn) // the client's view of it is what is tested
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return w
}

func (w *walsender) config(t *testing.T) *pgconn.Config {
	t.Helper()
	return &sourceOf(t, fmt.Sprintf("postgres://x@%s/x?sslmode=disable", w.listener.Addr())).Config
}

// serve answers what [readServer] asks.
func (w *walsender) serve(conn net.Conn) error {
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return err
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "15.1"})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for {
		if err := b.Flush(); err != nil {
			return err
		}
		message, err := b.Receive()
		if err != nil {
			return err
		}
		query, ok := message.(*pgproto3.Query)
		switch {
		case !ok:
			return errors.New("not a query")
		case strings.HasPrefix(query.String, "IDENTIFY_SYSTEM"):
			answer(b, "77", "1", "0/100", "x")
		case strings.HasPrefix(query.String, "START_REPLICATION"):
			w.streams.Add(1)
			b.Send(&pgproto3.CopyBothResponse{})
			w.script(b)
			return b.Flush()
		default:
			answer(b, "f", "", "60000", "8192", "16777216", "0/100")
		}
	}
}

func answer(b *pgproto3.Backend, values ...string) {
	var fields []pgproto3.FieldDescription
	var row [][]byte
	for _, v := range values {
		fields = append(fields, pgproto3.FieldDescription{Name: []byte("c"), DataTypeOID: 25})
		row = append(row, []byte(v))
	}
	b.Send(&pgproto3.RowDescription{Fields: fields})
	b.Send(&pgproto3.DataRow{Values: row})
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
}

// wal wraps messages of the output plugin.
func wal(b *pgproto3.Backend, messages ...message) {
	for _, m := range messages {
		b.Send(&pgproto3.CopyData{Data: append(copyData('w', make(message, walDataHeader-1)), m...)})
	}
}

func copyData(kind byte, m message) message { return append(message{kind}, m...) }

func keepalive(b *pgproto3.Backend, end uint64) {
	b.Send(&pgproto3.CopyData{Data: copyData('k', message{}.u64(end).u64(0).u8(0))})
}

// TestFakeServer: what the stream makes of a server that misbehaves.
func TestFakeServer(t *testing.T) {
	t.Parallel()
	fail := func(code string) *pgproto3.ErrorResponse {
		return &pgproto3.ErrorResponse{Severity: "ERROR", Code: code, Message: "Speicher voll"}
	}
	for _, tc := range []struct {
		name    string
		script  func(*pgproto3.Backend)
		want    error
		text    string
		streams int64
	}{
		{
			name: "the same failure at the same place", want: ErrPoison, text: "3 times behind 0/100", streams: 3,
			script: func(b *pgproto3.Backend) { b.Send(fail("XX000")) },
		},
		{
			name: "a value too large", want: ErrPoison, text: "Speicher voll", streams: 3,
			script: func(b *pgproto3.Backend) {
				keepalive(b, 0x500)
				wal(b, begin(0x600, 1))
				b.Send(fail("54000"))
			},
		},
		{
			name: "an unknown message", want: ErrProtocol, text: `'Z' (0x5a)`, streams: 1,
			script: func(b *pgproto3.Backend) { wal(b, begin(0x600, 1), message("Z")) },
		},
		{
			name: "an unknown kind of copy data", want: ErrProtocol, text: `kind 'q'`, streams: 1,
			script: func(b *pgproto3.Backend) { b.Send(&pgproto3.CopyData{Data: []byte("q")}) },
		},
		{
			name: "empty copy data", want: ErrProtocol, streams: 1,
			script: func(b *pgproto3.Backend) { b.Send(&pgproto3.CopyData{}) },
		},
		{
			name: "short WAL data", want: ErrProtocol, text: "WAL data of 3 bytes", streams: 1,
			script: func(b *pgproto3.Backend) { b.Send(&pgproto3.CopyData{Data: []byte("wxx")}) },
		},
		{
			name: "a short keepalive", want: ErrProtocol, streams: 1,
			script: func(b *pgproto3.Backend) { b.Send(&pgproto3.CopyData{Data: []byte("kxx")}) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			target := provisioned(t, db)
			server := fakeWalsender(t, tc.script)
			r := run(t, db, target, func(o *Options) { o.Replication, o.PoisonAfter = server.config(t), 3 })
			err := r.ended(t)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, tc.text)
			require.Equal(t, tc.streams, server.streams.Load())
		})
	}
}

// TestFakeDrop: a connection that drops within a transaction, and behind it, costs nothing and doubles nothing.
func TestFakeDrop(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	target := provisioned(t, db)
	var connection int
	server := fakeWalsender(t, func(b *pgproto3.Backend) {
		connection++
		all := []message{
			begin(0x200, 1), relation(1, "t", 'd', "id"), message("I").u32(1).u8('N').row(1), commit(0x200),
			begin(0x300, 2), message("I").u32(1).u8('N').row(2), message("A").u32(1).u32(1), message("I").u32(1).u8('N').row(3), commit(0x300),
		}
		// One message further with each connection, and from the beginning each time.
		wal(b, all[:min(connection, len(all))]...)
		if connection > len(all) {
			keepalive(b, 0x400)
		}
	})
	r := run(t, db, target, func(o *Options) { o.Replication = server.config(t) })
	require.NoError(t, r.Barrier(t.Context(), 0x400))
	all := r.Take()
	require.Equal(t, []string{"insert t id=1", "insert t id=2", "insert t id=3"}, printed(t, all))
	require.Len(t, all, 2)
	require.EqualValues(t, 0x400, r.Position())
	require.Positive(t, r.State().Ignored)
	require.NoError(t, r.stop())
}

// TestFakePosition: a position is a commit's end or a keepalive's, never that of a change.
func TestFakePosition(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	target := provisioned(t, db)
	next := make(chan struct{})
	server := fakeWalsender(t, func(b *pgproto3.Backend) {
		header := copyData('w', message{}.u64(0x900).u64(0x900).u64(0))
		for _, m := range []message{begin(0x200, 1), relation(1, "t", 'd', "id"), message("I").u32(1).u8('N').row(1), commit(0x200)} {
			b.Send(&pgproto3.CopyData{Data: append(header[:len(header):len(header)], m...)})
		}
		_ = b.Flush() // what is missing shows
		<-next
		keepalive(b, 0x300)
		_ = b.Flush()
		<-next
	})
	r := run(t, db, target, func(o *Options) { o.Replication = server.config(t) })
	at := func(want ingest.LSN) {
		t.Helper()
		pgtest.Eventually(t, patience, func() error {
			if r.Position() < want {
				return fmt.Errorf("at %s", r.Position())
			}
			return nil
		})
		require.Equal(t, want, r.Position())
	}
	at(0x208)
	next <- struct{}{}
	at(0x300)
	close(next)
	require.NoError(t, r.stop())
}

// TestJudge: a failure counts as poison only at one place and only where it says something of the WAL.
func TestJudge(t *testing.T) {
	t.Parallel()
	opts := Options{PoisonAfter: 3, SlotWait: time.Hour}
	stream := func(code string) error { return &streamError{err: &pgconn.PgError{Code: code}} }
	var tr trouble
	for _, step := range []struct {
		err    error
		at     ingest.LSN
		poison bool
	}{
		{stream("XX000"), 10, false},
		{stream("XX000"), 10, false},
		{stream("XX000"), 11, false},
		{stream("XX000"), 11, false},
		{stream("57P01"), 11, false},
		{errors.New("reset"), 11, false},
		{stream("XX000"), 11, true},
		{stream("XX000"), 12, false},
	} {
		require.Equal(t, step.poison, errors.Is(tr.judge(step.err, step.at, opts), ErrPoison))
	}
}

// TestSilence: a server that says nothing although it was asked is given up.
func TestSilence(t *testing.T) {
	t.Parallel()
	s := New(Options{Source: sourceOf(t, "postgres://x@127.0.0.1:1/x")}, quiet())
	l := &link{stream: s}
	w := watcher{link: l, heard: time.Now().Add(-silence - time.Second), checked: time.Now()}
	_, err := w.look(t.Context())
	require.ErrorContains(t, err, "silent for")
	l.messages.Add(1)
	_, err = w.look(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), s.State().LastMessage, time.Minute)
	l.timeout.Store(int64(time.Hour))
	w.heard = time.Now().Add(-time.Hour)
	_, err = w.look(t.Context())
	require.NoError(t, err, "a long wal_sender_timeout is patience")
}

// TestInterval: reports come well below half of wal_sender_timeout.
func TestInterval(t *testing.T) {
	t.Parallel()
	l := &link{stream: New(Options{Source: sourceOf(t, "postgres://x@127.0.0.1:1/x")}, quiet())}
	for timeout, want := range map[time.Duration]time.Duration{
		0: time.Second, time.Minute: time.Second, time.Second: 200 * time.Millisecond, time.Millisecond: 10 * time.Millisecond,
	} {
		l.timeout.Store(int64(timeout))
		require.Equal(t, want, l.interval())
	}
}

// frame is the length of a copy data message as it is sent.
func TestFrame(t *testing.T) {
	t.Parallel()
	encoded, err := (&pgproto3.CopyData{Data: statusUpdate(1, time.Now(), false)[5:]}).Encode(nil)
	require.NoError(t, err)
	require.Equal(t, encoded[:5], statusUpdate(1, time.Now(), false)[:5])
	require.EqualValues(t, len(encoded)-1, binary.BigEndian.Uint32(encoded[1:]))
}
