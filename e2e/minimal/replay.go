package minimal

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
)

// patience bounds one replay.
const patience = 30 * time.Second

// replay runs a case in a database of its own, and returns how the view differs, or nothing where it does not or the
// case cannot be run: a row that was left out may be one that a constraint wants.
func (r *Recorder) replay(ctx context.Context, c *Case) (found string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	t := &trial{TB: r.t, context: func() context.Context { return ctx }}
	t.run(func() { found = r.once(t, c) })
	return found
}

func (r *Recorder) once(t *trial, c *Case) string {
	db := pgtest.New(t)
	conn := db.Conn(t)
	run := func(sql string) {
		_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	}
	run(c.Setup())
	o := r.daemon
	o.Views, o.Log, o.Level, o.Judged = c.Views, io.Discard, slog.LevelError, nil
	d, err := daemon.Launch(t, db, o)
	require.NoError(t, err)
	t.Cleanup(func() { d.Quit() })
	pgtest.Eventually(t, patience, func() error {
		if wrong(d) != "" {
			return nil
		}
		return d.Live()
	})
	if found := wrong(d); found != "" {
		return found
	}
	if c.Each {
		for _, sql := range c.Changes() {
			run(sql)
			d.Settle(db)
		}
		return wrong(d)
	}
	d.Quit()
	for _, sql := range c.Changes() {
		run(sql)
	}
	o.Once = true
	again, err := daemon.Launch(t, db, o)
	require.NoError(t, err)
	defer again.Quit()
	select {
	case <-again.Done():
	case <-t.Context().Done():
	}
	return wrong(again)
}

// wrong is what the oracle has found so far.
func wrong(d *daemon.Daemon) string {
	for _, err := range d.Mismatches() {
		return err.Error()
	}
	return ""
}

// trial is a test within a test, whose failure is no failure of it.
type trial struct {
	testing.TB

	context  func() context.Context
	cleanups []func()
	failed   bool
}

// run calls what may end its goroutine, and cleans up behind it.
func (t *trial) run(do func()) {
	apart(do)
	for len(t.cleanups) > 0 {
		last := len(t.cleanups) - 1
		do := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		apart(do)
	}
}

// apart calls a function in a goroutine of its own, and waits for it.
func apart(do func()) {
	var wg sync.WaitGroup
	wg.Go(do)
	wg.Wait()
}

func (t *trial) Helper()                  {}
func (t *trial) Context() context.Context { return t.context() }
func (t *trial) Cleanup(do func())        { t.cleanups = append(t.cleanups, do) }
func (t *trial) Log(...any)               {}
func (t *trial) Logf(string, ...any)      {}
func (t *trial) Error(...any)             { t.failed = true }
func (t *trial) Errorf(string, ...any)    { t.failed = true }
func (t *trial) Fail()                    { t.failed = true }
func (t *trial) Failed() bool             { return t.failed }
func (t *trial) Fatal(...any)             { t.FailNow() }
func (t *trial) Fatalf(string, ...any)    { t.FailNow() }
func (t *trial) FailNow() {
	t.failed = true
	runtime.Goexit()
}
