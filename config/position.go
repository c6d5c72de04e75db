package config

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// QueryPosition maps an offset in the view's body, in bytes from 0, to its
// line and column in the file, both from 1 and the column in characters. An
// offset beyond the body means its end.
//
// It is exact for every character that is not white space, in block scalars
// as well as in plain and quoted ones, and for white space in literal block
// scalars (|). An offset inside a value from the environment gives the place
// of the reference. A view that was not parsed gives 0, 0.
func (v *View) QueryPosition(byteOffset int) (line, column int) {
	if v.query == nil {
		return 0, 0
	}
	return v.query.position(byteOffset)
}

// QueryErrorPosition is QueryPosition for the position that Postgres reports
// with an error: in characters from 1.
func (v *View) QueryErrorPosition(position int) (line, column int) {
	offset := 0
	for range position - 1 {
		if offset >= len(v.Query) {
			break
		}
		_, size := utf8.DecodeRuneInString(v.Query[offset:])
		offset += size
	}
	return v.QueryPosition(offset)
}

// position maps an offset in the expanded text.
func (s *scalar) position(offset int) (line, column int) {
	// "At the end of input" is behind the last word, not behind the line
	// breaks that end a block scalar.
	offset = min(max(0, offset), len(strings.TrimRight(s.text, " \t\r\n")))
	offset = s.rawOffset(offset)
	start := skipProperties(s.lines, cursor{s.node.Line - 1, s.node.Column - 1})
	if s.node.Style&yaml.LiteralStyle != 0 {
		line, column = literalPosition(s.lines, start, s.node.Value, offset)
	} else {
		line, column = foldedPosition(s.lines, start, s.node, offset)
	}
	// Empty lines of a block need not be indented.
	line = min(line, len(s.lines))
	return line, min(column, utf8.RuneCountInString(s.lines[line-1])+1)
}

// rawOffset undoes the expansion of references.
func (s *scalar) rawOffset(offset int) int {
	shift := 0
	for _, e := range s.edits {
		switch {
		case offset < e.start:
			return offset + shift
		case offset < e.end:
			return e.rawStart
		}
		shift = e.rawEnd - e.end
	}
	return offset + shift
}

// literalPosition finds an offset of a literal block scalar: its lines are
// those below the header, each without the same indentation.
func literalPosition(lines []string, header cursor, value string, offset int) (line, column int) {
	indent := 0
	for i, text := range splitLines(value) {
		if at := header.line + 1 + i; text != "" && at < len(lines) {
			indent = max(0, utf8.RuneCountInString(lines[at])-utf8.RuneCountInString(text))
			break
		}
	}
	before := splitLines(value[:min(offset, len(value))])
	last := len(before) - 1
	return header.line + 2 + last, indent + utf8.RuneCountInString(before[last]) + 1
}

// foldedPosition finds an offset in a scalar of any other style. They all
// change white space only, apart from escapes in quotes: so the n-th
// character that is not white space is the same in the value and the file.
func foldedPosition(lines []string, start cursor, n *yaml.Node, offset int) (line, column int) {
	before := n.Value[:min(offset, len(n.Value))]
	count, gap := 0, 0
	for _, r := range before {
		if isSpace(r) {
			gap++
			continue
		}
		count, gap = count+1, 0
	}
	src := newSource(lines, start, n.Style)
	var at cursor
	for range count {
		at = src.next()
	}
	next, _ := utf8.DecodeRuneInString(n.Value[len(before):])
	switch {
	case len(before) < len(n.Value) && !isSpace(next):
		at = src.next()
	case count == 0:
		at = src.at
	default:
		// White space: as far behind the last character as in the value.
		at.column += src.width + gap
	}
	return at.line + 1, at.column + 1
}

// cursor is a place in the lines of a file, both parts from 0.
type cursor struct{ line, column int }

// source reads the characters of a scalar from the file.
type source struct {
	lines []string
	style yaml.Style
	// at is where it goes on; width is that of the last character as written.
	at    cursor
	width int
	// line holds the characters of the line with number loaded.
	line   []rune
	loaded int
}

func newSource(lines []string, start cursor, style yaml.Style) *source {
	switch {
	case style&yaml.FoldedStyle != 0:
		start = cursor{start.line + 1, 0}
	case style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		start.column++
	}
	return &source{lines: lines, style: style, at: start, loaded: -1}
}

// next returns the place of the next character that is not white space.
func (s *source) next() cursor {
	for s.at.line < len(s.lines) {
		if s.loaded != s.at.line {
			s.line, s.loaded = []rune(s.lines[s.at.line]), s.at.line
		}
		if s.at.column >= len(s.line) {
			s.at = cursor{s.at.line + 1, 0}
			continue
		}
		here := s.at
		visible, width := s.character(s.line[s.at.column:])
		s.at.column += width
		if visible {
			s.width = width
			return here
		}
	}
	return s.at
}

// character tells how wide the next character is written and whether it is
// anything but white space.
func (s *source) character(rest []rune) (visible bool, width int) {
	switch {
	case s.style&yaml.SingleQuotedStyle != 0 && len(rest) > 1 && rest[0] == '\'' && rest[1] == '\'':
		return true, 2
	case s.style&yaml.DoubleQuotedStyle != 0 && rest[0] == '\\':
		return escape(rest)
	default:
		return !isSpace(rest[0]), 1
	}
}

// escape measures an escape sequence of a double-quoted scalar.
func escape(rest []rune) (visible bool, width int) {
	if len(rest) == 1 {
		return false, 1 // joins two lines
	}
	digits := map[rune]int{'x': 2, 'u': 4, 'U': 8}[rest[1]]
	if digits == 0 {
		return !strings.ContainsRune("ntrNLP \t", rest[1]), 2
	}
	width = min(2+digits, len(rest))
	code, err := strconv.ParseUint(string(rest[2:width]), 16, 32)
	return err != nil || !isSpace(rune(code)), width
}

// skipProperties moves from the start of a node over its anchor and tag.
func skipProperties(lines []string, at cursor) cursor {
	for at.line >= 0 && at.line < len(lines) {
		line := []rune(lines[at.line])
		for at.column < len(line) && isSpace(line[at.column]) {
			at.column++
		}
		if at.column >= len(line) || line[at.column] == '#' {
			at = cursor{at.line + 1, 0}
			continue
		}
		if line[at.column] != '&' && line[at.column] != '!' {
			break
		}
		for at.column < len(line) && !isSpace(line[at.column]) {
			at.column++
		}
	}
	return at
}

// splitLines splits a text at everything that YAML takes for a line break.
func splitLines(text string) []string {
	return strings.Split(breaks.Replace(text), "\n")
}

var breaks = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n")

func isSpace(r rune) bool {
	return strings.ContainsRune(" \t\n\r\u0085\u2028\u2029", r)
}
