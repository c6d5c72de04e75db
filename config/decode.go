package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// decoder fills a Config from a tree of YAML nodes. It goes on after a
// mistake, so that one run finds them all.
type decoder struct {
	file     string
	lines    []string
	env      func(string) (string, bool)
	mistakes Mistakes
	// places holds where each path stands, wrong those with a mistake at or
	// below them, scalars each scalar that was read.
	places  map[string]Position
	wrong   map[string]bool
	scalars map[string]*scalar
}

// scalar is one scalar value with what it was before the expansion.
type scalar struct {
	expansion
	node  *yaml.Node
	lines []string
}

var textType = reflect.TypeFor[encoding.TextUnmarshaler]()

// report adds a mistake at a node.
func (d *decoder) report(n *yaml.Node, path, message, hint string) {
	d.reportAt(Position{n.Line, n.Column}, path, message, hint)
}

// reportPath adds a mistake at a path that may be missing from the file.
func (d *decoder) reportPath(path, message, hint string) {
	d.reportAt(nearest(d.places, path), path, message, hint)
}

func (d *decoder) reportAt(at Position, path, message, hint string) {
	d.mistakes = append(d.mistakes, Mistake{
		File: d.file, Line: at.Line, Column: at.Column, Path: path, Message: message, Hint: hint,
	})
	for ; path != ""; path = parent(path) {
		d.wrong[path] = true
	}
}

// decode reads a node into a settable value.
func (d *decoder) decode(n *yaml.Node, into reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	d.places[path] = Position{n.Line, n.Column}
	switch {
	case into.Kind() == reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		d.decode(n, into.Elem(), path)
	case into.Addr().Type().Implements(textType):
		d.decodeText(n, into, path)
	case into.Kind() == reflect.Struct:
		d.decodeStruct(n, into, path)
	case into.Kind() == reflect.Map:
		d.decodeMap(n, into, path)
	case into.Kind() == reflect.Slice:
		d.decodeSlice(n, into, path)
	default:
		d.decodeBasic(n, into, path)
	}
}

// collection tells whether a node is a collection of the wanted kind. An
// absent value, such as a section whose fields are all commented out, is none
// but no mistake.
func (d *decoder) collection(n *yaml.Node, kind yaml.Kind, path, hint string) bool {
	if n.Kind == kind && (n.Tag == "!!map" || n.Tag == "!!seq") {
		return true
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return false
	}
	want := "a list"
	if kind == yaml.MappingNode {
		want = "a mapping"
	}
	d.report(n, path, fmt.Sprintf("must be %s, not %s", want, kindOf(n)), hint)
	return false
}

func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	default:
		return "a single value"
	}
}

func (d *decoder) decodeStruct(n *yaml.Node, into reflect.Value, path string) {
	fields, names := fieldsOf(into.Type())
	if v, ok := into.Addr().Interface().(interface{ setDefaults() }); ok {
		v.setDefaults()
	}
	if !d.collection(n, yaml.MappingNode, path, "its fields are "+strings.Join(names, ", ")) {
		if n.Tag == "!!null" {
			d.requireFields(n, into.Type(), nil, path)
		}
		return
	}
	seen := make(map[string]*yaml.Node)
	for key, value := range pairs(n) {
		if !d.plainKey(key, path) {
			continue
		}
		name := key.Value
		index, known := fields[name]
		switch {
		case !known:
			d.unknownField(key, names, path)
		case seen[name] != nil:
			d.twice(key, seen[name], join(path, name))
		default:
			seen[name] = key
			d.decode(value, into.Field(index), join(path, name))
		}
	}
	d.requireFields(n, into.Type(), seen, path)
}

// pairs iterates over the keys and values of a mapping.
func pairs(n *yaml.Node) func(func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// plainKey refuses keys that are not text.
func (d *decoder) plainKey(key *yaml.Node, path string) bool {
	switch {
	case key.Kind != yaml.ScalarNode:
		d.report(key, path, "a key must be text, not "+kindOf(key), "")
	case key.Tag == "!!merge":
		d.report(key, path, "merge keys are not supported", "write the fields out")
	default:
		return true
	}
	return false
}

func (d *decoder) twice(key, first *yaml.Node, path string) {
	d.report(key, path, fmt.Sprintf("given twice, first in line %d", first.Line), "keep one of them")
}

func (d *decoder) unknownField(key *yaml.Node, names []string, path string) {
	name := key.Value
	hint := didYouMean(name, names)
	if hint == "" {
		hint = "known here: " + strings.Join(names, ", ")
		if elsewhere := fieldPaths[name]; len(elsewhere) > 0 {
			hint = "did you mean " + strings.Join(elsewhere, " or ") + "?"
		}
	}
	if strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789_-") == "" && name != "" {
		d.report(key, join(path, name), "unknown field", hint)
		return
	}
	d.report(key, path, "unknown field (got "+show(name)+")", hint)
}

// requireFields reports the required fields of a struct that were not seen.
func (d *decoder) requireFields(n *yaml.Node, t reflect.Type, seen map[string]*yaml.Node, path string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("yaml")
		if !strings.Contains(f.Tag.Get("jsonschema"), "required") || seen[name] != nil {
			continue
		}
		hint := "add " + name + ": ..."
		if name == "views" {
			hint = "list the views to maintain, or write views: [] for none"
		}
		d.report(n, join(path, name), "missing", hint)
	}
}

func (d *decoder) decodeMap(n *yaml.Node, into reflect.Value, path string) {
	if !d.collection(n, yaml.MappingNode, path, "write it as name: value") {
		return
	}
	t := into.Type()
	into.Set(reflect.MakeMap(t))
	seen := make(map[string]*yaml.Node)
	for key, value := range pairs(n) {
		if !d.plainKey(key, path) {
			continue
		}
		k := reflect.New(t.Key())
		if err := k.Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(key.Value)); err != nil {
			d.reportValue(&scalar{expansion: expansion{text: key.Value}, node: key}, path, err)
			continue
		}
		name := fmt.Sprint(k.Elem().Interface())
		step := path + "[" + name + "]"
		if seen[name] != nil {
			d.twice(key, seen[name], step)
			continue
		}
		seen[name] = key
		v := reflect.New(t.Elem()).Elem()
		d.decode(value, v, step)
		into.SetMapIndex(k.Elem(), v)
	}
}

func (d *decoder) decodeSlice(n *yaml.Node, into reflect.Value, path string) {
	if !d.collection(n, yaml.SequenceNode, path, "write each element as - value, or all of them as [one, two]") {
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content)))
	for i, element := range n.Content {
		d.decode(element, into.Index(i), path+"["+strconv.Itoa(i)+"]")
	}
}

// scalar reads and expands a scalar. It reports what is not one.
func (d *decoder) scalar(n *yaml.Node, path string) (*scalar, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		d.report(n, path, "must be a single value, not "+kindOf(n), "")
		return nil, false
	case n.Tag == "!!null":
		d.report(n, path, "has no value", `give it one (quote "null" or "~" to mean the text), or remove the line for the default`)
		return nil, false
	case !slices.Contains([]string{"!!str", "!!int", "!!float", "!!bool", "!!timestamp"}, n.Tag):
		d.report(n, path, "has a YAML tag that is not supported here", "remove the tag")
		return nil, false
	case brokenReference(n.Value):
		d.report(n, path, "${ does not begin a reference to the environment", "write ${VAR} or ${VAR:-default}")
		return nil, false
	}
	s := &scalar{expansion: expand(n.Value, d.env), node: n, lines: d.lines}
	d.scalars[path] = s
	for _, name := range sortedUnique(s.missing) {
		d.report(n, path, fmt.Sprintf("the environment variable %s is not set", name),
			fmt.Sprintf("set it, or give a default: ${%s:-default}", name))
	}
	if strings.ContainsRune(s.text, 0) {
		d.report(n, path, "a value cannot contain a zero byte", "")
		return nil, false
	}
	return s, len(s.missing) == 0
}

// show quotes the value for a message, or names its variables: what comes
// from the environment may be a secret.
func (s *scalar) show() string {
	if len(s.names) > 0 {
		return "the value of ${" + strings.Join(s.names, "} and ${") + "}"
	}
	return show(s.text)
}

// shown is a name that was read at a path, in the form in which a message may
// show it.
func (d *decoder) shown(path string, name fmt.Stringer) string {
	if s := d.scalars[path]; s != nil && len(s.names) > 0 {
		return s.show()
	}
	return name.String()
}

// show quotes a short text for a message, unless it may hold a password.
func show(text string) string {
	const most = 60
	if lower := strings.ToLower(text); strings.Contains(lower, "://") || strings.Contains(lower, "passw") {
		return "a connection string or password, not shown"
	}
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "..."
	}
	return strconv.Quote(text)
}

// reportValue reports a scalar that is not a value of its type.
func (d *decoder) reportValue(s *scalar, path string, err error) {
	bad := &valueError{message: err.Error()}
	errors.As(err, &bad)
	message := bad.message
	if len(s.names) == 0 {
		message += bad.detail
	}
	d.report(s.node, path, fmt.Sprintf("%s (got %s)", message, s.show()), bad.hint)
}

func (d *decoder) decodeText(n *yaml.Node, into reflect.Value, path string) {
	s, ok := d.scalar(n, path)
	if !ok {
		return
	}
	if err := into.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s.text)); err != nil {
		d.reportValue(s, path, err)
	}
}

// decodeBasic reads text, integers and booleans.
func (d *decoder) decodeBasic(n *yaml.Node, into reflect.Value, path string) {
	s, ok := d.scalar(n, path)
	if !ok {
		return
	}
	var err error
	switch into.Kind() {
	case reflect.String:
		// Verbatim whatever YAML takes it for: 0123 and 1.50 stay as written.
		if e, ok := into.Interface().(enum); ok {
			err = checkEnum(e, s.text)
		}
		if err == nil {
			into.SetString(s.text)
		}
	case reflect.Int64:
		var v int64
		if v, err = parseInt(s); err == nil {
			into.SetInt(v)
		}
	case reflect.Bool:
		var v bool
		if v, err = parseBool(s); err == nil {
			into.SetBool(v)
		}
	default:
		panic(fmt.Sprintf("config: no decoding for %s at %s", into.Type(), path))
	}
	if err != nil {
		d.reportValue(s, path, err)
	}
}

func (s *scalar) quoted() bool {
	const quotes = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	return s.node.Style&quotes != 0
}

func parseInt(s *scalar) (int64, error) {
	v, err := strconv.ParseInt(strings.ReplaceAll(s.text, "_", ""), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, wrong("too large a number", "")
	case err != nil:
		return 0, wrong("must be a whole number", "write it in digits, like 10000")
	case s.quoted():
		return 0, wrong("must be a number, not text", "remove the quotes")
	}
	return v, nil
}

// parseBool also takes the words that YAML 1.1 took for booleans.
func parseBool(s *scalar) (bool, error) {
	var v bool
	switch strings.ToLower(s.text) {
	case "true", "on", "yes":
		v = true
	case "false", "off", "no":
	default:
		return false, wrong("must be true or false", didYouMean(s.text, []string{"true", "false"}))
	}
	if s.quoted() {
		return false, wrong("must be true or false, not text", "remove the quotes")
	}
	return v, nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
