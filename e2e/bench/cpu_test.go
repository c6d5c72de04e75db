package bench

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mvsync/mvsync/internal/pgserver"
)

// cpu watches which processes work while something is measured: on a machine that others share, the CPU time of the
// busiest says more than the clock. It reads /proc, and says nothing where there is none.
type cpu struct {
	servers []*pgserver.Server
	mu      sync.Mutex
	first   map[int]float64 // seconds, by process
	last    map[int]float64
	names   map[int]string
	own     float64
	stop    chan struct{}
	done    sync.WaitGroup
}

// ticks is the kernel's USER_HZ, which is 100 wherever Go runs.
const ticks = 100

func watchCPU(servers ...*pgserver.Server) *cpu {
	c := &cpu{servers: servers, first: map[int]float64{}, last: map[int]float64{}, names: map[int]string{}, stop: make(chan struct{}), own: ownCPU()}
	c.look(true)
	c.done.Go(func() {
		// Each look costs some milliseconds of what is measured; a process that ends loses what it used since the last.
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				c.look(false)
			case <-c.stop:
				return
			}
		}
	})
	return c
}

// look takes the times of the servers' processes. A process that is new began at zero.
func (c *cpu) look(first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		for _, pid := range children(postmaster(s)) {
			seconds, ok := readStat(pid)
			if !ok {
				continue
			}
			c.last[pid] = seconds
			if first {
				c.first[pid] = seconds
			}
			if title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(title) > 0 {
				c.names[pid] = role(string(bytes.Trim(title, "\x00 ")))
			}
		}
	}
}

// children lists the processes that a process has started.
func children(pid int) (pids []int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", pid))
	if err != nil {
		return nil
	}
	for _, field := range strings.Fields(string(text)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// postmaster returns the server's process.
func postmaster(s *pgserver.Server) int {
	text, err := os.ReadFile(filepath.Join(s.Dir(), "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(line)
	return pid
}

// readStat reads a process's CPU time.
func readStat(pid int) (seconds float64, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false // it has ended
	}
	// The name in front, in parentheses, may hold anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return 0, false
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticks, true
}

// role says what a process of the server does, by its title.
func role(title string) string {
	switch {
	case strings.Contains(title, "walsender"):
		return "walsender"
	case strings.Contains(title, "logical replication worker"):
		return "apply worker"
	case strings.Contains(title, "walwriter"), strings.Contains(title, "checkpointer"), strings.Contains(title, "background writer"):
		return "writers"
	case strings.Contains(title, "logical replication launcher"):
		return "launcher"
	}
	return "backends"
}

// end stops watching, and returns what was used.
func (c *cpu) end() map[string]float64 {
	close(c.stop)
	c.done.Wait()
	return c.used()
}

// used returns the seconds of CPU since the start, by role; "own" is this process.
func (c *cpu) used() map[string]float64 {
	c.look(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	used := map[string]float64{"own": ownCPU() - c.own}
	for pid, seconds := range c.last {
		used[c.names[pid]] += seconds - c.first[pid]
	}
	return used
}

func ownCPU() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// describe lists who worked, the busiest first.
func describe(used map[string]float64) string {
	roles := slices.SortedFunc(maps.Keys(used), func(a, b string) int {
		if used[a] != used[b] {
			return int((used[b] - used[a]) * 1000)
		}
		return strings.Compare(a, b)
	})
	var parts []string
	for _, r := range roles {
		if used[r] >= 0.01 {
			parts = append(parts, fmt.Sprintf("%s %.2fs", r, used[r]))
		}
	}
	return strings.Join(parts, ", ")
}

func TestRole(t *testing.T) {
	for title, want := range map[string]string{
		"postgres: walsender postgres test 127.0.0.1(1) START_REPLICATION": "walsender",
		"postgres: logical replication worker for subscription 16390":      "apply worker",
		"postgres: postgres test 127.0.0.1(1) COPY":                        "backends",
		"postgres: walwriter": "writers",
	} {
		if got := role(title); got != want {
			t.Errorf("%s is %s, want %s", title, got, want)
		}
	}
}
