package config

import (
	"regexp"
	"strings"
)

// reference is a reference to the environment, ${VAR} or ${VAR:-default}. A
// dollar before it makes it literal. Everything else that has a dollar in it
// is left alone: $1, and the $$ around a dollar-quoted string in a body.
var reference = regexp.MustCompile(`\$?\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}`)

// expansion is the result of expanding one scalar.
type expansion struct {
	text  string
	edits []edit
	// names are the variables it refers to, missing those that have neither
	// value nor default.
	names, missing []string
}

// edit says that text[start:end] of the expanded value came from
// raw[rawStart:rawEnd] of the written one.
type edit struct {
	start, end, rawStart, rawEnd int
}

// expand replaces the references in one scalar. As in a shell, :- also
// replaces a variable that is set but empty.
func expand(raw string, env func(string) (string, bool)) expansion {
	var x expansion
	var b strings.Builder
	last := 0
	for _, m := range reference.FindAllStringSubmatchIndex(raw, -1) {
		b.WriteString(raw[last:m[0]])
		last = m[1]
		start := b.Len()
		if raw[m[0]+1] == '$' {
			b.WriteString(raw[m[0]+1 : m[1]])
		} else {
			b.WriteString(x.lookUp(raw, m, env))
		}
		x.edits = append(x.edits, edit{start: start, end: b.Len(), rawStart: m[0], rawEnd: m[1]})
	}
	b.WriteString(raw[last:])
	x.text = b.String()
	return x
}

func (x *expansion) lookUp(raw string, m []int, env func(string) (string, bool)) string {
	name := raw[m[2]:m[3]]
	x.names = append(x.names, name)
	value, ok := env(name)
	hasDefault := m[4] >= 0
	switch {
	case hasDefault && value == "":
		return raw[m[4]:m[5]]
	case !ok:
		x.missing = append(x.missing, name)
	}
	return value
}

// brokenReference finds a ${ that was surely meant as a reference and is none.
// Behind another dollar it is the content of a dollar-quoted string.
func brokenReference(raw string) bool {
	rest := reference.ReplaceAllLiteralString(raw, " ")
	for {
		i := strings.Index(rest, "${")
		if i < 0 {
			return false
		}
		if i == 0 || rest[i-1] != '$' {
			return true
		}
		rest = rest[i+2:]
	}
}
