package config

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Load reads a configuration file, with references expanded from the
// environment of the process. Its error is of type [Mistakes].
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, Mistakes{{
			File: path, Message: "no such file",
			Hint: "name the configuration with -c or MVSYNC_CONFIG; the README shows a first one",
		}}
	case err != nil:
		cause := err
		if pathError, ok := errors.AsType[*fs.PathError](err); ok {
			cause = pathError.Err
		}
		return nil, Mistakes{{File: path, Message: "cannot be read: " + cause.Error(), Hint: "check the path and its permissions"}}
	}
	return Parse(path, data, os.LookupEnv)
}

// Parse reads a configuration from text. The name stands for the file in
// messages, env looks up environment variables. Its error is of type
// [Mistakes].
func Parse(name string, data []byte, env func(string) (string, bool)) (*Config, error) {
	d := &decoder{
		file:    name,
		env:     env,
		places:  make(map[string]Position),
		wrong:   make(map[string]bool),
		scalars: make(map[string]*scalar),
	}
	cfg := Default()
	if root := d.tree(data); root != nil {
		d.lines = splitLines(string(data))
		d.decode(root, reflect.ValueOf(cfg).Elem(), "")
		d.finish(cfg)
		d.validate(cfg)
		d.refuseUnsupported(cfg)
	}
	if len(d.mistakes) > 0 {
		slices.SortStableFunc(d.mistakes, func(a, b Mistake) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
		})
		return nil, d.mistakes
	}
	return cfg, nil
}

// tree parses the text into its one document, or reports why there is none.
// A second document is reported and the first one returned.
func (d *decoder) tree(data []byte) *yaml.Node {
	if !utf8.Valid(data) {
		d.reportAt(Position{}, "", "not UTF-8 text", "save the file as UTF-8")
		return nil
	}
	if i := bytes.IndexFunc(data, isControl); i >= 0 {
		before := splitLines(string(data[:i]))
		last := len(before) - 1
		d.reportAt(Position{last + 1, utf8.RuneCountInString(before[last]) + 1}, "", "control characters are not allowed", "remove it")
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		d.syntax(err)
		return nil
	}
	var first, second yaml.Node
	err = loader.Load(&first)
	switch {
	case errors.Is(err, io.EOF) || err == nil && isEmpty(&first):
		d.reportAt(Position{}, "", "the file is empty", "the README shows a first configuration")
		return nil
	case err != nil:
		d.syntax(err)
		return nil
	}
	if err := loader.Load(&second); err == nil {
		d.report(&second, "", "more than one document in the file", "remove the --- line and what follows, or use a file each")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
	}
	return first.Content[0]
}

func isControl(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f
}

func isEmpty(document *yaml.Node) bool {
	return len(document.Content) == 0 || document.Content[0].Tag == "!!null"
}

// syntax reports an error of the YAML parser in our words.
func (d *decoder) syntax(err error) {
	bad, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		d.reportAt(Position{}, "", "not valid YAML", "")
		return
	}
	message := bad.Message
	if bad.ContextMsg != "" {
		message = bad.ContextMsg + ": " + message
	}
	hint := ""
	for _, known := range syntaxHints {
		if strings.Contains(bad.Message, known.message) {
			message, hint = cmp.Or(known.instead, message), known.hint
			break
		}
	}
	d.reportAt(Position{bad.Mark.Line, bad.Mark.Column}, "", "not valid YAML: "+message, hint)
}

// syntaxHints rewords what the parser says. An unknown anchor is not named:
// a password that begins with a star looks like one.
var syntaxHints = []struct{ message, instead, hint string }{
	{"cannot start any token", "", "indent with spaces, not tabs, and quote values that begin with a special character"},
	{"mapping values are not allowed", "", `check the indentation; a value that contains ": " needs quotes`},
	{"unknown anchor", "unknown anchor", "quote values that begin with *"},
	{"did not find expected ',' or '", "", "close the bracket; values that contain brackets need quotes"},
	{"could not find expected ':'", "", "check the indentation, and that each key is followed by a colon and a space"},
	{"did not find expected key", "", "check the indentation"},
	{"unknown escape character", "", `write a backslash twice inside double quotes, or use single quotes`},
}

// finish links views to their places and resolves what depends on other
// parts of the file.
func (d *decoder) finish(cfg *Config) {
	cfg.file, cfg.places = d.file, d.places
	for i := range cfg.Views {
		v := &cfg.Views[i]
		v.path = elementPath("views", i)
		if v.RebuildRowThreshold == unset {
			v.RebuildRowThreshold = cfg.Limits.RebuildRowThreshold
		}
		if s := d.scalars[v.path+".query"]; s != nil {
			v.query = s
			line, column := s.position(0)
			d.places[v.path+".query"] = Position{line, column}
		}
	}
}
