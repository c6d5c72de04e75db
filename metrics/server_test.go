package metrics

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// keysOf returns the sorted keys of a decoded JSON object.
func keysOf(object any) []string {
	return slices.Sorted(maps.Keys(object.(map[string]any)))
}

// syncBuffer is a buffer that several goroutines may write.
type syncBuffer struct {
	mu     sync.Mutex // guards buffer
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// recordedLog returns a logger and what it wrote.
func recordedLog() (*slog.Logger, *syncBuffer) {
	lines := &syncBuffer{}
	return slog.New(slog.NewTextHandler(lines, nil)), lines
}

// listening returns a server on a free port of this machine.
func listening(t *testing.T, handler http.Handler) *Server {
	t.Helper()
	server, err := Listen(t.Context(), "127.0.0.1:0", handler, nil)
	require.NoError(t, err)
	return server
}

// started runs a server until stop is called, which returns what Run returned.
func started(t *testing.T, server *Server) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	return stop
}

// get asks a running server; the connection is not kept.
func get(t *testing.T, server *Server, path string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Addr().String()+path, nil)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func TestServe(t *testing.T) {
	t.Parallel()
	server := listening(t, New("test").Handler(Pages{}))
	require.NotZero(t, server.Addr().(*net.TCPAddr).Port)
	stop := started(t, server)

	code, body := get(t, server, "/healthz")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ok\n", body)
	code, body = get(t, server, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "starting\n", body)

	require.NoError(t, stop(), "a stop that was asked for is no error")
	again, err := Listen(t.Context(), server.Addr().String(), nil, nil)
	require.NoError(t, err, "the address is free again")
	require.NoError(t, again.Close())
}

func TestListenSaysWhatToDo(t *testing.T) {
	t.Parallel()
	taken := listening(t, nil)
	defer func() { require.NoError(t, taken.Close()) }()
	for _, address := range []string{taken.Addr().String(), "127.0.0.1", "127.0.0.1:http:x", "127.0.0.1:70000"} {
		_, err := Listen(t.Context(), address, nil, nil)
		require.ErrorContains(t, err, `listen for http on "`+address+`": `)
		require.ErrorContains(t, err, "set http.listen to a free address")
	}
}

func TestDefaultIsThisMachineOnly(t *testing.T) {
	t.Parallel()
	host, _, err := net.SplitHostPort(DefaultListen)
	require.NoError(t, err)
	require.True(t, net.ParseIP(host).IsLoopback())
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	t.Run("close unrun", func(t *testing.T) {
		t.Parallel()
		server := listening(t, nil)
		require.NoError(t, server.Close())
		require.NoError(t, server.Close())
		require.ErrorIs(t, server.Run(t.Context()), errServed)
	})
	t.Run("run twice", func(t *testing.T) {
		t.Parallel()
		server := listening(t, http.NotFoundHandler())
		stop := started(t, server)
		get(t, server, "/") // so that the first Run was first
		require.ErrorIs(t, server.Run(t.Context()), errServed)
		require.NoError(t, server.Close(), "closing a running server leaves it running")
		code, _ := get(t, server, "/")
		require.Equal(t, http.StatusNotFound, code)
		require.NoError(t, stop())
	})
	t.Run("context ended before", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, listening(t, nil).Run(ctx))
	})
	t.Run("listener breaks", func(t *testing.T) {
		t.Parallel()
		server := listening(t, nil)
		require.NoError(t, server.listener.Close())
		require.ErrorContains(t, server.Run(t.Context()), "serve http on 127.0.0.1:")
	})
	t.Run("start and stop by many", func(t *testing.T) {
		t.Parallel()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range 10 {
					server, err := Listen(t.Context(), "127.0.0.1:0", http.NotFoundHandler(), nil)
					if err != nil {
						t.Error(err)
						return
					}
					ctx, cancel := context.WithCancel(t.Context())
					wg.Go(cancel)
					if err := server.Run(ctx); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestStopLetsRequestsFinish(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	server := listening(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-leave
		if r.Context().Err() != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()

	code := make(chan int, 1)
	go func() {
		got, _ := get(t, server, "/")
		code <- got
	}()
	<-entered
	cancel()
	// The address is given up at once, while the request still runs.
	require.Eventually(t, func() bool {
		connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Addr().String())
		if err != nil {
			return true
		}
		return connection.Close() != nil
	}, 5*time.Second, time.Millisecond)
	close(leave)
	require.Equal(t, http.StatusOK, <-code)
	require.NoError(t, <-ended)
}

func TestServerIsBounded(t *testing.T) {
	t.Parallel()
	server := listening(t, nil)
	defer func() { require.NoError(t, server.Close()) }()
	require.Positive(t, server.http.ReadHeaderTimeout)
	require.Positive(t, server.http.ReadTimeout)
	require.Greater(t, server.http.WriteTimeout, askTimeout, "an answer may take as long as the daemon's")
	require.Positive(t, server.http.IdleTimeout)
	require.LessOrEqual(t, server.http.MaxHeaderBytes, 64<<10)
}

func TestLargeHeadersAreRefused(t *testing.T) {
	t.Parallel()
	server := listening(t, New("test").Handler(Pages{}))
	started(t, server)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Addr().String()+"/healthz", nil)
	require.NoError(t, err)
	request.Header.Set("X-Large", strings.Repeat("x", 4*maxHeaderBytes))
	response, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, response.StatusCode)
}

func TestServingIsLogged(t *testing.T) {
	t.Parallel()
	log, lines := recordedLog()
	server, err := Listen(t.Context(), "127.0.0.1:0", http.NotFoundHandler(), log)
	require.NoError(t, err)
	stop := started(t, server)
	get(t, server, "/")
	require.NoError(t, stop())
	require.Contains(t, lines.String(), `msg="serving http" address=`+server.Addr().String())
}
