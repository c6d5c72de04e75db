package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/mvsync/mvsync/maintain"
)

// screen shows the demo's views: drawn anew in place on a terminal, else a line now and then.
type screen struct {
	demo  *demo
	out   io.Writer
	live  bool
	every time.Duration
	drawn int // lines of the last drawing

	at        time.Time // of the last headline
	committed int64     // transactions then
}

func (d *demo) newScreen() *screen {
	s := &screen{demo: d, out: d.cli.std.Out, live: isTerminal(d.cli.std.Out), every: 5 * time.Second, at: time.Now(), committed: d.shop.committed.Load()}
	if s.live {
		s.every = 400 * time.Millisecond
	}
	return s
}

// draw shows the present state.
func (s *screen) draw() {
	if !s.live {
		fmt.Fprintln(s.out, s.headline())
		return
	}
	lines := append([]string{s.headline(), ""}, s.table()...)
	lines = append(lines, s.demo.notes.recent()...)
	width, height := 120, 50
	if file, ok := s.out.(*os.File); ok {
		if w, h, err := term.GetSize(int(file.Fd())); err == nil && w > 0 && h > 2 {
			width, height = w, h
		}
	}
	lines = lines[:min(len(lines), height-1)]
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	for _, line := range lines {
		// A line that wrapped would count twice.
		b.WriteString("\r" + clip(line, width) + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	s.drawn = len(lines)
	_, _ = io.WriteString(s.out, b.String()) // a terminal that went away ends the demo by a signal
}

// last leaves the final state on the screen.
func (s *screen) last() {
	s.draw()
	if s.live {
		return
	}
	for _, line := range append([]string{""}, s.table()...) {
		fmt.Fprintln(s.out, line)
	}
	for _, line := range s.demo.notes.recent() {
		fmt.Fprintln(s.out, line)
	}
}

// headline is the state of the whole in one line.
func (s *screen) headline() string {
	d := s.demo
	activity := d.daemon.metrics.StreamActivity()
	now, committed := time.Now(), d.shop.committed.Load()
	rate := float64(committed-s.committed) / max(now.Sub(s.at).Seconds(), 1e-3)
	if now.Sub(s.at) >= time.Second { // a shorter time gives no steady figure
		s.at, s.committed = now, committed
	}
	text := fmt.Sprintf("%5s  %s transactions, %.0f/s  %s changes, %s rounds", now.Sub(d.began).Truncate(time.Second),
		countText(committed), rate, countText(activity.Changes), countText(activity.Rounds))
	if visible, ok := d.shop.visible(); ok {
		text += fmt.Sprintf("  visible %s after commit", agoText(visible))
	}
	return text
}

// table lists the views.
func (s *screen) table() []string {
	d := s.demo
	g := newGrid("VIEW", "STRATEGY", "STATE", "BEHIND", "ROWS/S", "WRITTEN", "UNCHANGED").numbers(3, 4, 5, 6)
	service := d.daemon.now.Load()
	if service == nil {
		return nil
	}
	status := service.engine.Status()
	for i := range status.Views {
		v := &status.Views[i]
		activity := d.daemon.metrics.ViewActivity(v.Name)
		behind := "-"
		if v.State == maintain.Live {
			behind = agoText(v.Age)
		}
		g.add(v.Name, string(v.Strategy), d.paint.state(string(v.State)), behind, fmt.Sprintf("%.0f", activity.RowsPerSecond),
			countText(activity.RowsWritten), countText(activity.RowsSuppressed))
	}
	return g.lines(d.paint)
}

// clip cuts a line to the width of the terminal, where its colours end as well.
func clip(line string, most int) string {
	if width(line) <= most {
		return line
	}
	var b strings.Builder
	shown := 0
	for rest := line; rest != ""; {
		if code, after, ok := strings.Cut(rest, "m"); ok && strings.HasPrefix(rest, "\x1b[") {
			b.WriteString(code + "m")
			rest = after
			continue
		}
		r := []rune(rest)[0]
		if shown++; shown <= most {
			b.WriteRune(r)
		}
		rest = rest[len(string(r)):]
	}
	return b.String()
}

// notes is the log of the demo's daemon: warnings and worse, the newest few.
type notes struct {
	mu    sync.Mutex
	lines []string
}

// Enabled implements [slog.Handler].
func (n *notes) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements [slog.Handler].
func (n *notes) Handle(_ context.Context, r slog.Record) error {
	text := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, oneLine(text))
	n.lines = n.lines[max(0, len(n.lines)-4):]
	return nil
}

// WithAttrs implements [slog.Handler]; what parts of the daemon say of themselves is of no interest here.
func (n *notes) WithAttrs([]slog.Attr) slog.Handler { return n }

// WithGroup implements [slog.Handler].
func (n *notes) WithGroup(string) slog.Handler { return n }

// recent are the newest lines, behind an empty one.
func (n *notes) recent() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.lines) == 0 {
		return nil
	}
	return append([]string{""}, n.lines...)
}
