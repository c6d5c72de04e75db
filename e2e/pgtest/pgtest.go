package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mvsync/mvsync/internal/pgserver"
)

// shared is the server of this test binary; it starts with the first database asked for.
var shared = struct {
	sync.Mutex
	server *pgserver.Server
	err    error // why it could not be started: reported once by each test, not tried again
	main   bool  // Main is in charge of its end
}{}

// Main runs the tests of a package, stops the server they used, and exits: with status 1 if a test failed, the server
// could not be removed, or a goroutine is left.
func Main(m *testing.M) {
	shared.main = true
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	// After a failure leaked goroutines are its consequence, and only hide the cause.
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest: goroutines left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func stopShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		return nil
	}
	err := shared.server.Close()
	shared.server = nil
	return err
}

// sharedServer returns the server of this test binary.
func sharedServer(t testing.TB) *pgserver.Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.main {
		t.Fatal("pgtest.New needs pgtest.Main in TestMain, which stops the server")
	}
	if shared.server == nil && shared.err == nil {
		// Not the context of the test that happens to come first: the server serves the others too.
		shared.server, shared.err = pgserver.Start(context.Background(), pgserver.Options{})
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// NewServer starts a server for this test alone, and removes it when the test ends.
func NewServer(t testing.TB, opts pgserver.Options) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Eventually calls condition until it returns nil, and fails the test with its last error after the given time. It is
// for what gives no signal to wait for: another process, another session.
func Eventually(t testing.TB, limit time.Duration, condition func() error) {
	t.Helper()
	if err := poll(t.Context(), limit, condition); err != nil {
		t.Fatalf("not within %s: %v", limit, err)
	}
}

// poll calls condition until it returns nil; after the limit or the end of ctx it returns the last error.
func poll(ctx context.Context, limit time.Duration, condition func() error) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return err
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}
