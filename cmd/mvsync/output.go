package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/replication"
)

// printJSON prints a value as indented JSON. SQL is meant to be read: its < and > stay.
func (c *cli) printJSON(v any) error {
	encoder := json.NewEncoder(c.std.Out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// isTerminal reports whether the stream is a terminal, which gets colours and a log made for people.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// logger writes the log of a command: text on a terminal, JSON otherwise.
func (c *cli) logger() *slog.Logger {
	level := slog.LevelInfo
	if text, ok := c.std.Env("MVSYNC_LOG"); ok {
		_ = level.UnmarshalText([]byte(text)) // a word that is no level leaves the default
	}
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	if isTerminal(c.std.Err) {
		return slog.New(slog.NewTextHandler(c.std.Err, options))
	}
	return slog.New(slog.NewJSONHandler(c.std.Err, options))
}

// readable writes values as people write them, in JSON too.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case ingest.LSN:
		return slog.String(a.Key, v.String())
	case time.Duration:
		return slog.String(a.Key, v.String())
	case error:
		return slog.String(a.Key, oneLine(v.Error()))
	case []replication.Blocker:
		texts := make([]string, len(v))
		for i, b := range v {
			texts[i] = b.String()
		}
		return slog.Any(a.Key, texts)
	}
	return a
}

// paint colours text, where that is wanted.
type paint bool

// The colours in use.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
	bold   = "1"
	dim    = "2"
)

// colours says whether a stream gets colours: a terminal does, unless NO_COLOR is set.
func (c *cli) colours(w io.Writer) paint {
	value, ok := c.std.Env("NO_COLOR")
	return paint(isTerminal(w) && (!ok || value == ""))
}

func (p paint) in(code, text string) string {
	if !p || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// state colours the state of a view.
func (p paint) state(state string) string {
	switch state {
	case "live", "exact":
		return p.in(green, state)
	case "filling", "paused":
		return p.in(yellow, state)
	}
	return p.in(red, state)
}

// grid is a table of text without lines. Colours do not count as width.
type grid struct {
	rows  [][]string
	right map[int]bool // columns of numbers
}

func newGrid(head ...string) *grid { return &grid{rows: [][]string{head}, right: map[int]bool{}} }

// numbers sets columns to the right.
func (g *grid) numbers(columns ...int) *grid {
	for _, c := range columns {
		g.right[c] = true
	}
	return g
}

func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

// lines renders the table.
func (g *grid) lines(p paint) []string {
	var widths []int
	for _, row := range g.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(cell))
		}
	}
	out := make([]string, 0, len(g.rows))
	for n, row := range g.rows {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-width(cell))
			if n == 0 {
				cell = p.in(bold, cell)
			}
			if i > 0 {
				b.WriteString("  ")
			}
			if g.right[i] {
				b.WriteString(pad + cell)
			} else {
				b.WriteString(cell + pad)
			}
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	return out
}

func (g *grid) print(w io.Writer, p paint) {
	for _, line := range g.lines(p) {
		fmt.Fprintln(w, line)
	}
}

// width counts the characters of a text that show.
func width(text string) int {
	n := utf8.RuneCountInString(text)
	for rest := text; ; {
		_, after, ok := strings.Cut(rest, "\x1b[")
		if !ok {
			return n
		}
		code, tail, _ := strings.Cut(after, "m")
		n -= len("\x1b[m") + utf8.RuneCountInString(code)
		rest = tail
	}
}

// bytesText writes an amount of bytes for people.
func bytesText(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f kB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GB", float64(n)/(1<<30))
}

// agoText writes an age for people.
func agoText(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "0 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// countText writes a number with its thousands apart.
func countText(n int64) string {
	digits := fmt.Sprint(n)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// plural writes a number with its noun.
func plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return countText(n) + " " + noun + "s"
}

// indent shifts all lines of a text.
func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by)
}

// trimPrefix takes our name off a line that goes into the log, which says who speaks already.
func trimPrefix(line string) string { return strings.TrimPrefix(line, "mvsync: ") }
