package cli

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/rogpeppe/go-internal/testscript"
)

// pooler puts something in front of the database that behaves like a connection pooler. A strict one refuses startup
// parameters that it does not know; a lenient one lets them through but hands out its own process numbers.
func (s *script) pooler(ts *testscript.TestScript, args []string) {
	u, err := url.Parse(s.db.URL)
	ts.Check(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	p := &pooler{server: u.Host, strict: args[0] == "strict"}
	p.running.Go(func() { p.serve(listener) })
	ts.Defer(func() {
		_ = listener.Close()
		p.running.Wait()
	})
	u.Host = listener.Addr().String()
	ts.Setenv("POOLER_URL", u.String())
	ts.Setenv("POOLER_PORT", strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
}

type pooler struct {
	server  string
	strict  bool
	running sync.WaitGroup
}

func (p *pooler) serve(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() {
			defer func() { _ = client.Close() }()
			if p.strict {
				p.refuse(client)
			} else {
				_ = p.forward(client) // the client sees the end of it
			}
		})
	}
}

// refuse answers as PgBouncer does to a startup parameter that is not in ignore_startup_parameters.
func (p *pooler) refuse(client net.Conn) {
	backend := pgproto3.NewBackend(client, client)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.ErrorResponse{
		Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: extra_float_digits",
	})
	_ = backend.Flush()
}

// forward passes everything on but the key data of the session, up to the end of the startup.
func (p *pooler) forward(client net.Conn) error {
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(server, client)
		_ = server.Close()
		sent <- err
	}()
	err = p.answer(client, server)
	_ = client.Close()
	return errors.Join(err, <-sent)
}

func (p *pooler) answer(client io.Writer, server io.Reader) error {
	for {
		var head [5]byte // a type and a length that counts itself
		if _, err := io.ReadFull(server, head[:]); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(server, body); err != nil {
			return err
		}
		if head[0] == 'K' {
			binary.BigEndian.PutUint32(body, 4_000_000_000)
		}
		if _, err := client.Write(slices.Concat(head[:], body)); err != nil {
			return err
		}
		if head[0] == 'Z' {
			_, err := io.Copy(client, server)
			return err
		}
	}
}
