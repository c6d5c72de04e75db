package pgserver

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a started child. Its end is awaited from the start: done is closed once it has been reaped.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // how it ended; valid once done is closed
}

// spawn starts cmd so that it does not outlive this process, and calls release once it has ended or could not start.
func spawn(cmd *exec.Cmd, release func()) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal comes when the *thread* that forked ends. So the thread is kept for as long as the
		// child lives; the Go runtime could otherwise end it at any time, and the server with it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		defer release()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
}

// await waits until the process has ended, at most for the given time or until ctx is done; false: it still runs.
func (p *process) await(ctx context.Context, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) signal(sig syscall.Signal) error {
	if !p.running() {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && p.running() {
		return fmt.Errorf("send %s to the server: %w", sig, err)
	}
	return nil
}

// runTool runs a command as the account to its end, and returns its output in the error if it fails.
func runTool(ctx context.Context, acct account, dir, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = sysProcAttr(acct, syscall.SIGKILL)
	cmd.WaitDelay = time.Second
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := spawn(cmd, func() {})
	if err != nil {
		return err
	}
	<-p.done
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.err != nil {
		return fmt.Errorf("%w: %s", p.err, strings.TrimSpace(out.String()))
	}
	return nil
}

// awaitGone waits until none of the processes runs any more, at most for the given time.
func awaitGone(pids []int, limit time.Duration) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(limit)
	for _, pid := range pids {
		for alive(pid) {
			if time.Now().After(deadline) {
				return false
			}
			<-tick.C
		}
	}
	return true
}
