package plans

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// node is a node of Postgres' stored parse trees (pg_node_tree), such as
// {VAR :varno 1 :varattno 2 ...}. A value is a *node, a list, an atom, or nil
// for <>.
type node struct {
	tag    string
	fields map[string]any
}

// list is a list of values. Its kind is 0, or i, o, x, b for lists of integers,
// oids and transaction ids, and for sets of integers.
type list struct {
	kind  byte
	items []any
}

// atom is a single word, unescaped; a string in quotes keeps none of them.
type atom string

// maxTreeDepth keeps the reader's recursion within bounds. Postgres' own stack
// limit ends far below.
const maxTreeDepth = 10_000

// parseTree reads the text form of a pg_node_tree.
func parseTree(text string) (any, error) {
	r := &treeReader{in: text}
	v, err := r.value(0)
	if err != nil {
		return nil, fmt.Errorf("read a stored rule at byte %d: %w", r.pos, err)
	}
	if tok := r.next(); tok.kind != endToken {
		return nil, fmt.Errorf("read a stored rule at byte %d: text after its end", r.pos)
	}
	return v, nil
}

type tokenKind byte

const (
	endToken  tokenKind = 0
	wordToken tokenKind = 'w'
	// The others are the four kinds of parentheses themselves.
)

type treeToken struct {
	kind tokenKind
	raw  string // a word as it stands
}

// treeReader splits as pg_strtok does: at white space and at ( ) { }, and a
// backslash takes the next character as it is.
type treeReader struct {
	in  string
	pos int
}

func (r *treeReader) next() treeToken {
	for r.pos < len(r.in) && isTreeSpace(r.in[r.pos]) {
		r.pos++
	}
	if r.pos == len(r.in) {
		return treeToken{}
	}
	start := r.pos
	if c := r.in[r.pos]; isTreeParen(c) {
		r.pos++
		return treeToken{kind: tokenKind(c)}
	}
	for r.pos < len(r.in) && !isTreeSpace(r.in[r.pos]) && !isTreeParen(r.in[r.pos]) {
		if r.in[r.pos] == '\\' && r.pos+1 < len(r.in) {
			r.pos++
		}
		r.pos++
	}
	return treeToken{kind: wordToken, raw: r.in[start:r.pos]}
}

// peek is next without moving on.
func (r *treeReader) peek() treeToken {
	at := r.pos
	tok := r.next()
	r.pos = at
	return tok
}

func isTreeSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' }
func isTreeParen(c byte) bool { return c == '(' || c == ')' || c == '{' || c == '}' }

func (r *treeReader) value(depth int) (any, error) {
	if depth > maxTreeDepth {
		return nil, fmt.Errorf("it nests more than %d levels deep", maxTreeDepth)
	}
	switch tok := r.next(); tok.kind {
	case '{':
		return r.node(depth)
	case '(':
		return r.list(depth)
	case wordToken:
		return r.word(tok.raw)
	default:
		return nil, errors.New("a value is missing")
	}
}

// word reads an atom. Datums are a length and bytes in brackets, which are one
// value.
func (r *treeReader) word(raw string) (any, error) {
	if raw == "<>" {
		return nil, nil
	}
	if r.peek().raw != "[" {
		return unescape(raw), nil
	}
	var b strings.Builder
	b.WriteString(raw)
	for {
		tok := r.next()
		if tok.kind != wordToken {
			return nil, errors.New("a datum has no end")
		}
		b.WriteString(" " + tok.raw)
		if tok.raw == "]" {
			return atom(b.String()), nil
		}
	}
}

func (r *treeReader) node(depth int) (*node, error) {
	tag := r.next()
	if tag.kind != wordToken {
		return nil, errors.New("a node has no name")
	}
	n := &node{tag: tag.raw, fields: make(map[string]any)}
	for {
		tok := r.next()
		switch {
		case tok.kind == '}':
			return n, nil
		case tok.kind != wordToken || !strings.HasPrefix(tok.raw, ":"):
			return nil, fmt.Errorf("node %s: a field is missing", n.tag)
		}
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		n.fields[tok.raw[1:]] = v
	}
}

func (r *treeReader) list(depth int) (list, error) {
	var l list
	if tok := r.peek(); tok.kind == wordToken && isListKind(tok.raw) {
		r.next()
		l.kind = tok.raw[0]
	}
	for {
		if tok := r.peek(); tok.kind == ')' {
			r.next()
			return l, nil
		} else if tok.kind == endToken {
			return l, errors.New("a list has no end")
		}
		v, err := r.value(depth + 1)
		if err != nil {
			return l, err
		}
		l.items = append(l.items, v)
	}
}

// isListKind reports the letter that begins a list of numbers.
func isListKind(word string) bool { return word == "i" || word == "o" || word == "x" || word == "b" }

// unescape removes the backslashes, and the quotes around a string node. A
// quote at the start of a plain word is escaped, so the two do not meet.
func unescape(raw string) atom {
	if len(raw) >= 2 && raw[0] == '"' && raw[len(raw)-1] == '"' {
		raw = raw[1 : len(raw)-1]
	}
	if !strings.Contains(raw, `\`) {
		return atom(raw)
	}
	b := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] == '\\' && i+1 < len(raw) {
			i++
		}
		b = append(b, raw[i])
	}
	return atom(b)
}

// child returns the field as a node, or nil.
func (n *node) child(field string) *node {
	if n == nil {
		return nil
	}
	c, ok := n.fields[field].(*node)
	if !ok {
		return nil
	}
	return c
}

// items returns the field's list, empty for none.
func (n *node) items(field string) []any {
	if n == nil {
		return nil
	}
	l, ok := n.fields[field].(list)
	if !ok {
		return nil
	}
	return l.items
}

// nodes returns the nodes of the field's list.
func (n *node) nodes(field string) []*node {
	items := n.items(field)
	out := make([]*node, 0, len(items))
	for _, v := range items {
		if c, ok := v.(*node); ok {
			out = append(out, c)
		}
	}
	return out
}

// text returns the field's word, empty for none.
func (n *node) text(field string) string {
	if n == nil {
		return ""
	}
	a, ok := n.fields[field].(atom)
	if !ok {
		return ""
	}
	return string(a)
}

// num returns the field as a number, 0 for none.
func (n *node) num(field string) int {
	v, err := strconv.ParseInt(n.text(field), 10, 64)
	if err != nil {
		return 0
	}
	return int(v)
}

// oid returns the field as an oid, 0 for none.
func (n *node) oid(field string) uint32 { return uint32(n.num(field)) }

// is reports whether the field is the word true.
func (n *node) is(field string) bool { return n.text(field) == "true" }

// has reports whether the field holds something: a node, a word, or a list
// that is not empty.
func (n *node) has(field string) bool {
	switch v := n.fields[field].(type) {
	case list:
		return len(v.items) > 0
	case nil:
		return false
	default:
		return true
	}
}

// ints returns the numbers of the field's list or set.
func (n *node) ints(field string) []int {
	items := n.items(field)
	out := make([]int, 0, len(items))
	for _, v := range items {
		a, ok := v.(atom)
		if !ok {
			continue
		}
		if i, err := strconv.Atoi(string(a)); err == nil {
			out = append(out, i)
		}
	}
	return out
}

// walk visits the value and all below it, parents first, until visit says no
// for a node, whose children are then skipped.
func walk(v any, visit func(*node) bool) {
	switch v := v.(type) {
	case *node:
		if v == nil || !visit(v) {
			return
		}
		for _, f := range v.fields {
			walk(f, visit)
		}
	case list:
		for _, item := range v.items {
			walk(item, visit)
		}
	}
}
