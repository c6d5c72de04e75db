package daemon

import (
	"io"
	"sync"
	"testing"
)

// logWriter writes the daemon's log into the test's, until the test has ended: a
// test's log must not be written to afterwards.
func logWriter(t testing.TB, w io.Writer) io.Writer {
	if w != nil {
		return w
	}
	l := &testLog{t: t}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.t = nil
	})
	return l
}

type testLog struct {
	mu sync.Mutex
	t  testing.TB // nil after the test
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Logf("%s", p)
	}
	return len(p), nil
}
