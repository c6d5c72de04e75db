package metrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// DefaultListen is where the pages are served unless configured otherwise:
// reachable from this machine alone.
const DefaultListen = "127.0.0.1:9632"

// Timeouts of the server. Requests have no body and answers are small, so
// whoever needs longer is broken or hostile.
const (
	readTimeout     = 10 * time.Second
	writeTimeout    = 30 * time.Second
	idleTimeout     = 2 * time.Minute // above common scrape intervals, to keep their connections
	shutdownTimeout = 5 * time.Second
	maxHeaderBytes  = 16 << 10
)

// errServed is the error of running a server a second time.
var errServed = errors.New("the http server has run already; listen again")

// Server serves a handler at an address that it holds already. Create it with
// [Listen], then call [Server.Run] or [Server.Close].
type Server struct {
	listener net.Listener
	http     *http.Server
	log      *slog.Logger
	served   atomic.Bool
}

// Listen binds the address, so that a mistake in it or a taken port is an error
// at start, and port 0 can be asked for. Nothing is answered before Run. A nil
// log discards.
func Listen(ctx context.Context, address string, handler http.Handler, log *slog.Logger) (*Server, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for http on %q: %w; set http.listen to a free address, or to \"\" to serve no pages",
			address, err)
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Server{
		listener: listener,
		log:      log,
		http: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: readTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}, nil
}

// Addr returns the address that was bound, with the actual port.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until the context ends, then lets running requests finish for a
// few seconds, closes the address and returns nil. It returns an error only if
// serving ends by itself. It can be called once.
func (s *Server) Run(ctx context.Context) error {
	if s.served.Swap(true) {
		return errServed
	}
	// Requests do not outlive the daemon's context, but for the grace below.
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s.http.BaseContext = func(net.Listener) context.Context { return requests }

	s.log.Info("serving http", "address", s.Addr().String())
	ended := make(chan error, 1)
	go func() { ended <- s.http.Serve(s.listener) }()

	select {
	case err := <-ended:
		return fmt.Errorf("serve http on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancelGrace := context.WithTimeout(requests, shutdownTimeout)
	defer cancelGrace()
	if err := s.http.Shutdown(grace); err != nil {
		s.log.Debug("http requests cut off at shutdown", "err", err)
		_ = s.http.Close() // the listener is closed already; this drops the connections
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http on %s: %w", s.Addr(), err)
	}
	return nil
}

// Close gives the address up if Run was not called; after that, and the second
// time, it does nothing.
func (s *Server) Close() error {
	if s.served.Swap(true) {
		return nil
	}
	if err := s.listener.Close(); err != nil {
		return fmt.Errorf("close http listener on %s: %w", s.Addr(), err)
	}
	return nil
}
