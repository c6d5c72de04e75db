package crash

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// What the parent tells its child: the database, by URL and name.
const (
	childURL  = "MVSYNC_CRASH_URL"
	childName = "MVSYNC_CRASH_NAME"
)

// What the child tells its parent: words that begin a line.
const (
	saidRound    = "round"
	saidRebuilt  = "rebuilt" // with the view and the reason
	saidMismatch = "mismatch"
)

// views is one of each strategy, one over another, and of both one that moves slower than the rounds.
func views() []plans.Declaration {
	all := []plans.Declaration{
		daemon.View("rows", "SELECT pk, p, q FROM item WHERE bucket > 3"),
		daemon.View("texts", "SELECT id, lower(body) AS body, at FROM txt"),
		daemon.View("sums", "SELECT bucket, count(*) AS n, sum(p) AS s FROM item GROUP BY bucket"),
		daemon.View("bounds", "SELECT bucket, count(*) AS n, count(p) AS c, sum(q) AS s, min(p) AS lo, max(q) AS hi FROM nul GROUP BY bucket"),
		daemon.View("total", "SELECT count(*) AS n, sum(amt) AS s FROM loose"),
		daemon.View("kinds", "SELECT bucket, count(DISTINCT p) AS n FROM item GROUP BY bucket"),
		daemon.View("labels", "SELECT f.id, f.amt, d.label FROM fact f JOIN dim d ON d.id = f.dim_id"),
		daemon.View("sizes", "SELECT n, count(*) AS buckets, sum(s) AS s FROM public.sums GROUP BY n"),
	}
	slow := []plans.Declaration{
		daemon.View("slow", "SELECT p, count(*) AS n, sum(q) AS s FROM item GROUP BY p"),
		daemon.View("slow_sizes", "SELECT n, count(*) AS buckets FROM public.sums GROUP BY n"),
	}
	for i := range slow {
		slow[i].Every = 300 * time.Millisecond
	}
	return append(all, slow...)
}

// TestDaemonProcess is the daemon's process; among the tests it does nothing.
func TestDaemonProcess(t *testing.T) {
	url := os.Getenv(childURL)
	if url == "" {
		return
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	d := begin(ctx, t, url)
	select {
	case <-ctx.Done():
		d.Stop()
	case <-d.Done():
		require.NoError(t, d.Err(), "the daemon ended by itself")
	}
}

// begin starts the daemon, as often as it takes: the sessions of a killed one take a moment to end, and the server may
// not be back.
func begin(ctx context.Context, t *testing.T, url string) *daemon.Daemon {
	tally := &daemon.Tally{OnRebuilt: func(view, reason string) { fmt.Println(saidRebuilt, view, reason) }}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(time.Minute)
	for {
		launched := make(chan *daemon.Daemon, 1)
		d, err := daemon.Launch(t, &pgtest.DB{Name: os.Getenv(childName), URL: url}, daemon.Options{
			Views: views(), Log: os.Stderr,
			Engine: func(o *maintain.Options) {
				tally.Observe(o)
				o.Check = tell(o.Check, launched)
			},
		})
		if err == nil {
			launched <- d
			return d
		}
		fmt.Fprintln(os.Stderr, "cannot start yet:", err)
		if time.Now().After(deadline) {
			require.NoError(t, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.NoError(t, context.Cause(ctx))
		}
	}
}

type check = func(context.Context, *pgx.Conn, []maintain.Checked) error

// tell says of each round how it compared, and ends the process where a view is wrong: later rounds might mend it.
func tell(inner check, launched chan *daemon.Daemon) check {
	return func(ctx context.Context, conn *pgx.Conn, views []maintain.Checked) error {
		if err := inner(ctx, conn, views); err != nil {
			return err
		}
		d := <-launched
		launched <- d
		if wrong := d.Mismatches(); len(wrong) > 0 {
			fmt.Println(saidMismatch, strings.ReplaceAll(errors.Join(wrong...).Error(), "\n", " | "))
			os.Exit(3)
		}
		fmt.Println(saidRound)
		return nil
	}
}

// process is a child.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and all it said was read
	log  *tail

	mu      sync.Mutex
	rounds  int
	rebuilt []string // view and reason
	wrong   string
	changed chan struct{} // closed and replaced when it said something
}

// spawn starts a child over the database. It is killed when the test ends.
func spawn(t *testing.T, db *pgtest.DB) *process {
	t.Helper()
	p := &process{done: make(chan struct{}), changed: make(chan struct{}), log: &tail{}}
	p.cmd = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDaemonProcess$", "-test.timeout=10m")
	p.cmd.Env = append(os.Environ(), childURL+"="+db.URL, childName+"="+db.Name)
	p.cmd.Stderr = p.log
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		p.listen(out)
		_ = p.cmd.Wait() // how it ended is in its ProcessState
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		p.mu.Lock()
		switch word {
		case saidRound:
			p.rounds++
		case saidRebuilt:
			p.rebuilt = append(p.rebuilt, rest)
		case saidMismatch:
			p.wrong = rest
		default: // the test binary's own words
			fmt.Fprintln(p.log, lines.Text())
		}
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
}

// await returns once the child has committed n rounds, all exact, or has ended.
func (p *process) await(t *testing.T, n int) {
	t.Helper()
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	for {
		p.mu.Lock()
		rounds, changed := p.rounds, p.changed
		p.mu.Unlock()
		if rounds >= n {
			return
		}
		select {
		case <-changed:
		case <-p.done:
			require.Fail(t, "the daemon ended by itself", "%s: %s\n%s", p.cmd.ProcessState, p.wrong, p.log)
		case <-limit.C:
			require.Fail(t, "no progress", "%d of %d rounds\n%s", rounds, n, p.log)
		}
	}
}

// kill ends the child without a chance to clean up.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// terminate ends the child as a service manager would.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	<-p.done
	require.True(t, p.cmd.ProcessState.Success(), "%s\n%s", p.cmd.ProcessState, p.log)
}

// judge fails the test where a round was not exact, or a view did not go on from where it was. Views of the strategy
// full-rebuild are evaluated in every round that concerns them. A view that was behind its producer is reconciled after
// a restart, for whatever reason its last state gives: what the producer did is in no stream.
func (p *process) judge(t *testing.T, filled bool) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Empty(t, p.wrong, "not exact\n%s", p.log)
	for _, r := range p.rebuilt {
		view, reason, _ := strings.Cut(r, " ")
		behind := view == "public.slow_sizes" && reason != "gap"
		fine := reason == "strategy" || (reason == "create" && !filled) || behind
		require.True(t, fine, "reconciled: %s\n%s", r, p.log)
	}
	require.NotContains(t, p.log.String(), "has a gap")
}

func (p *process) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rounds
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	if most := 64 << 10; len(l.text) > 2*most {
		l.text = append(l.text[:0], l.text[len(l.text)-most:]...)
	}
	return len(b), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text[max(0, len(l.text)-16<<10):])
}
