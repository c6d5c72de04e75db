package config

import (
	"fmt"
	"strings"
)

// Position is a place in the configuration file. Line and Column count from
// 1, columns in characters; a Line of 0 means that the place is not known.
type Position struct {
	Line, Column int
}

// Mistake is one thing that is wrong with the configuration.
type Mistake struct {
	// File is the name of the file as the user gave it.
	File string
	// Line and Column are its place, counting from 1, or 0 if unknown.
	Line, Column int
	// Path names the field, such as "views[2].query"; empty for the file.
	Path string
	// Message says what is wrong, Hint what to do about it (may be empty).
	Message, Hint string
}

// Error gives the mistake as one line:
//
//	mvsync.yaml:14:7: views[2].query: what is wrong; hint: what to do
func (m Mistake) Error() string {
	var b strings.Builder
	b.WriteString(m.File)
	if m.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", m.Line, m.Column)
	}
	if m.Path != "" {
		b.WriteString(": " + m.Path)
	}
	b.WriteString(": " + m.Message)
	if m.Hint != "" {
		b.WriteString("; hint: " + m.Hint)
	}
	// Messages of the database may span lines, and one mistake is one line.
	return lineBreaks.Replace(b.String())
}

var lineBreaks = strings.NewReplacer("\r\n", " ", "\n", " ", "\r", " ")

// Mistakes is the error of a configuration that is not valid: everything that
// is wrong with it, in the order of the file. It is never empty.
type Mistakes []Mistake

// Error joins the mistakes, one a line.
func (ms Mistakes) Error() string {
	lines := make([]string, len(ms))
	for i, m := range ms {
		lines[i] = m.Error()
	}
	return strings.Join(lines, "\n")
}

// Mistake makes a mistake at a path of the file, for what only the database
// can tell. Where the file does not have the path (a default, a key that was
// left out), the place is that of the nearest thing around it.
func (c *Config) Mistake(path, message, hint string) Mistake {
	at := nearest(c.places, path)
	return Mistake{File: c.file, Line: at.Line, Column: at.Column, Path: path, Message: message, Hint: hint}
}

// QueryMistake makes a mistake at a byte offset, counting from 0, of a view's
// body.
func (c *Config) QueryMistake(v *View, byteOffset int, message, hint string) Mistake {
	m := c.Mistake(v.path+".query", message, hint)
	if line, column := v.QueryPosition(byteOffset); line > 0 {
		m.Line, m.Column = line, column
	}
	return m
}

// nearest finds the place of the longest prefix of path that has one.
func nearest(places map[string]Position, path string) Position {
	for {
		if at, ok := places[path]; ok || path == "" {
			return at
		}
		path = parent(path)
	}
}

// parent cuts the last step off a path. What stands in the brackets of
// tables[public.orders] is one step, and anything may stand in its quotes.
func parent(path string) string {
	if !strings.HasSuffix(path, "]") {
		return path[:max(0, strings.LastIndexByte(path, '.'))]
	}
	depth, quoted := 0, false
	for i := len(path) - 1; i >= 0; i-- {
		switch {
		case path[i] == '"':
			quoted = !quoted
		case quoted:
		case path[i] == ']':
			depth++
		case path[i] == '[':
			depth--
		}
		if depth == 0 {
			return path[:i]
		}
	}
	return ""
}
