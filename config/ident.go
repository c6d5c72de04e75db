package config

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxNameBytes is what Postgres keeps of a name. It cuts longer ones with a
// notice; here they are mistakes, since two views could end up as one.
const maxNameBytes = 63

const identHint = `write it as in SQL: orders, public.orders or public."Orders"`

// Name is a single SQL name as Postgres stores it: folded and unquoted.
type Name string

// String quotes the name where Postgres' quote_ident would.
func (n Name) String() string { return quoteIdent(string(n)) }

// MarshalText writes the name as String does.
func (n Name) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText reads a name in SQL identifier syntax.
func (n *Name) UnmarshalText(text []byte) error {
	parts, err := splitNames(string(text))
	if err != nil {
		return err
	}
	if len(parts) != 1 {
		return wrong("must be one name, without a schema", `a name that contains a dot is written "in.quotes"`)
	}
	*n = Name(parts[0])
	return nil
}

// Ident is the name of a relation or function with its schema, both folded
// and unquoted. It can be compared and used as a key.
type Ident struct {
	Schema, Name Name
}

// ParseIdent reads a name in SQL identifier syntax. The schema is public
// unless given.
func ParseIdent(text string) (Ident, error) {
	var id Ident
	err := id.UnmarshalText([]byte(text))
	return id, err
}

// String is quote_ident(schema).quote_ident(name), the form in which the
// catalog, metrics and messages show names.
func (i Ident) String() string { return i.Schema.String() + "." + i.Name.String() }

// MarshalText writes the name as String does.
func (i Ident) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads a name as [ParseIdent] does.
func (i *Ident) UnmarshalText(text []byte) error {
	parts, err := splitNames(string(text))
	if err != nil {
		return err
	}
	switch len(parts) {
	case 1:
		*i = Ident{Schema: DefaultSchema, Name: Name(parts[0])}
	case 2:
		*i = Ident{Schema: Name(parts[0]), Name: Name(parts[1])}
	default:
		return wrong("a name has at most a schema and a name", identHint)
	}
	return nil
}

// Signature names a function or aggregate with its argument types, in the
// form that the server's regprocedure reads.
type Signature struct {
	// Function is the name; its schema is public unless given.
	Function Ident
	// Args are the argument types, folded, separated by a comma and a space.
	Args string
}

// String is the signature with quoted names, such as public.vat(numeric).
func (s Signature) String() string { return s.Function.String() + "(" + s.Args + ")" }

// MarshalText writes the signature as String does.
func (s Signature) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a signature such as public.vat(numeric).
func (s *Signature) UnmarshalText(text []byte) error {
	const hint = "write it as public.vat(numeric), with the argument types in parentheses, () for none"
	name, rest, ok := cutUnquoted(string(text), '(')
	if !ok {
		return wrong("a signature needs its argument types", hint)
	}
	if err := s.Function.UnmarshalText([]byte(name)); err != nil {
		return err
	}
	args, ok := strings.CutSuffix(strings.TrimSpace(rest), ")")
	if !ok {
		return wrong("a signature ends with a closing parenthesis", hint)
	}
	s.Args, ok = normalizeTypes(args)
	if !ok {
		return wrong("the argument types are not a list of type names", hint)
	}
	return nil
}

// normalizeTypes folds and spaces a list of types evenly, so that equal
// signatures are equal texts. It checks the shape alone: whether the types
// exist is for the server to say.
func normalizeTypes(list string) (string, bool) {
	if strings.TrimSpace(list) == "" {
		return "", true
	}
	var types []string
	for more := true; more; {
		var one string
		one, list, more = cutUnquoted(list, ',')
		one = foldUnquoted(strings.Join(strings.Fields(one), " "))
		if one == "" || strings.Count(one, `"`)%2 != 0 || strings.ContainsAny(one, "();'$\\") {
			return "", false
		}
		types = append(types, one)
	}
	return strings.Join(types, ", "), true
}

// cutUnquoted is strings.Cut at the first sep that is not inside quotes.
func cutUnquoted(s string, sep byte) (before, after string, found bool) {
	quoted := false
	for i := range len(s) {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == sep && !quoted:
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

// foldUnquoted lower-cases what is not inside quotes.
func foldUnquoted(s string) string {
	quoted := false
	b := []byte(s)
	for i, c := range b {
		if c == '"' {
			quoted = !quoted
		} else if !quoted {
			b[i] = foldByte(c)
		}
	}
	return string(b)
}

// splitNames splits a dotted name by the rules of SQL: unquoted parts are
// folded, quoted ones are taken as they are with "" for a quote.
func splitNames(text string) ([]string, error) {
	if strings.TrimSpace(text) == "" {
		return nil, wrong("a name cannot be empty", identHint)
	}
	var parts []string
	for rest := text; ; {
		part, after, err := nextName(strings.TrimLeft(rest, " \t"))
		if err != nil {
			return nil, err
		}
		if len(part) > maxNameBytes {
			return nil, wrong(
				fmt.Sprintf("a name of %d bytes is longer than the %d that Postgres keeps", len(part), maxNameBytes),
				"choose a shorter one")
		}
		parts = append(parts, part)
		after = strings.TrimLeft(after, " \t")
		if after == "" {
			return parts, nil
		}
		if after[0] != '.' {
			return nil, unexpected(after)
		}
		rest = after[1:]
	}
}

func unexpected(rest string) error {
	r, _ := utf8.DecodeRuneInString(rest)
	return &valueError{
		message: "not a name",
		detail:  fmt.Sprintf(": unexpected %q", r),
		hint:    `put a name with special characters in double quotes, as in '"Order items"'`,
	}
}

// nextName reads one part of a dotted name.
func nextName(s string) (name, rest string, err error) {
	if strings.HasPrefix(s, `"`) {
		return quotedName(s[1:])
	}
	end := 0
	for end < len(s) && (isNameStart(s[end]) || end > 0 && isNameRest(s[end])) {
		end++
	}
	if end == 0 {
		if s == "" {
			return "", "", wrong("a part of the name is missing", identHint)
		}
		return "", "", unexpected(s)
	}
	return foldUnquoted(s[:end]), s[end:], nil
}

func quotedName(s string) (name, rest string, err error) {
	var b strings.Builder
	for {
		part, after, ok := strings.Cut(s, `"`)
		b.WriteString(part)
		switch {
		case !ok:
			return "", "", wrong("the closing double quote is missing", identHint)
		case strings.HasPrefix(after, `"`):
			b.WriteByte('"')
			s = after[1:]
		case b.Len() == 0:
			return "", "", wrong("a name cannot be empty", identHint)
		case strings.ContainsRune(b.String(), 0):
			return "", "", wrong("a name cannot contain a zero byte", "")
		default:
			return b.String(), after, nil
		}
	}
}

// foldByte lower-cases ASCII only, as Postgres does in databases with a
// multi-byte encoding.
func foldByte(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// isNameStart and isNameRest are the scanner's rules; every byte beyond ASCII
// is a letter to it.
func isNameStart(c byte) bool {
	c = foldByte(c)
	return c >= 'a' && c <= 'z' || c == '_' || c >= utf8.RuneSelf
}

func isNameRest(c byte) bool {
	return isNameStart(c) || c >= '0' && c <= '9' || c == '$'
}

// quoteIdent quotes a name where Postgres' quote_ident does: unless it is
// lower case and simple, and no keyword but an unreserved one.
func quoteIdent(s string) string {
	simple := s != "" && !keywords[s]
	for i := range len(s) {
		c := s[i]
		simple = simple && (c >= 'a' && c <= 'z' || c == '_' || i > 0 && c >= '0' && c <= '9')
	}
	if simple {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// Slot is the name of a replication slot.
type Slot string

// UnmarshalText reads a slot name, which Postgres holds to lower-case
// letters, digits and underscores.
func (s *Slot) UnmarshalText(text []byte) error {
	if len(text) == 0 || len(text) > maxNameBytes || strings.Trim(string(text), "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return wrong("not a slot name", "use 1 to 63 lower-case letters, digits and underscores")
	}
	*s = Slot(text)
	return nil
}

// Parameter is the name of a storage parameter of a table, such as
// fillfactor or toast.autovacuum_enabled.
type Parameter string

// UnmarshalText reads the name of a storage parameter.
func (p *Parameter) UnmarshalText(text []byte) error {
	s := foldUnquoted(string(text))
	for _, word := range strings.SplitN(s, ".", 2) {
		if word == "" || strings.Trim(word, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			return wrong("not the name of a storage parameter", "write it like fillfactor or toast.autovacuum_enabled")
		}
	}
	*p = Parameter(s)
	return nil
}
