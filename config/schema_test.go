package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

var update = flag.Bool("update", false, "rewrite schema.json and the expected messages")

// referencePattern lets a whole value be a reference to the environment where
// the schema would otherwise ask for a number or a boolean.
const referencePattern = `\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}`

func orReference(s *jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{s, {Type: "string", Pattern: "^" + referencePattern + "$"}}}
}

func text(pattern string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: "^(" + pattern + "|.*" + referencePattern + ".*)$"}
}

// scalarSchema gives the forms of the scalar types.
func scalarSchema(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[Duration]():
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{text(`([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+|0`), {Type: "integer", Const: 0}}}
	case reflect.TypeFor[ByteSize]():
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{text(`[0-9]+ ?(B|kB|MB|GB|KiB|MiB|GiB)?`), {Type: "integer", Minimum: "0"}}}
	case reflect.TypeFor[Switch]():
		return orReference(&jsonschema.Schema{Enum: []any{"on", "off", true, false}})
	case reflect.TypeFor[Slot]():
		return text(`[a-z0-9_]{1,63}`)
	case reflect.TypeFor[Name](), reflect.TypeFor[Ident]():
		return &jsonschema.Schema{Type: "string", MinLength: new(uint64(1))}
	}
	if e, ok := reflect.Zero(t).Interface().(enum); ok {
		s := &jsonschema.Schema{}
		for _, v := range e.values() {
			s.Enum = append(s.Enum, v)
		}
		return orReference(s)
	}
	switch t.Kind() {
	case reflect.Int64:
		return orReference(&jsonschema.Schema{Type: "integer", Minimum: "0"})
	case reflect.Bool:
		return orReference(&jsonschema.Schema{Type: "boolean"})
	case reflect.Map:
		if t.Elem().Kind() == reflect.String {
			return &jsonschema.Schema{
				Type:                 "object",
				AdditionalProperties: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "number"}, {Type: "boolean"}}},
			}
		}
	}
	return nil
}

// generate makes the schema from the structs and their comments.
func generate(t *testing.T) []byte {
	t.Helper()
	r := &jsonschema.Reflector{
		FieldNameTag:               "yaml",
		RequiredFromJSONSchemaTags: true,
		ExpandedStruct:             true,
		Anonymous:                  true,
		Mapper:                     scalarSchema,
	}
	require.NoError(t, r.AddGoComments("github.com/mvsync/mvsync/config", "."))
	s := r.Reflect(&Config{})
	s.Title = "mvsync.yaml"
	s.Description = "The configuration of mvsync."
	setDefaults(t, s, s.Definitions, reflect.ValueOf(*Default()))
	for name, d := range s.Definitions {
		if name == "View" {
			v := View{}
			v.setDefaults()
			setDefaults(t, d, nil, reflect.ValueOf(v))
		}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	require.NoError(t, e.Encode(s))
	return out.Bytes()
}

// setDefaults notes the default of each scalar field.
func setDefaults(t *testing.T, s *jsonschema.Schema, definitions jsonschema.Definitions, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("yaml")
		if name == "" {
			continue
		}
		p, ok := s.Properties.Get(name)
		require.True(t, ok, "no property %s", name)
		if d := definitions[f.Type.Name()]; d != nil && f.Type.Kind() == reflect.Struct {
			setDefaults(t, d, nil, v.Field(i))
			continue
		}
		if v.Field(i).IsZero() || v.Field(i).Interface() == int64(unset) {
			continue
		}
		p.Default = v.Field(i).Interface()
	}
}

func TestSchemaIsUpToDate(t *testing.T) {
	t.Parallel()
	want := generate(t)
	if *update {
		require.NoError(t, os.WriteFile("schema.json", want, 0o644))
		return
	}
	got, err := Schema()
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run go test ./config -update")
}

func compileSchema(t *testing.T) *validator.Schema {
	t.Helper()
	doc, err := validator.UnmarshalJSON(bytes.NewReader(generate(t)))
	require.NoError(t, err)
	c := validator.NewCompiler()
	require.NoError(t, c.AddResource("mvsync.json", doc))
	s, err := c.Compile("mvsync.json")
	require.NoError(t, err)
	return s
}

// toJSON reads YAML as an editor does before it asks the schema.
func toJSON(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	require.NoError(t, yaml.Load(data, &v))
	encoded, err := json.Marshal(v)
	require.NoError(t, err)
	v, err = validator.UnmarshalJSON(bytes.NewReader(encoded))
	require.NoError(t, err)
	return v
}

func TestSchemaAcceptsGoodFiles(t *testing.T) {
	t.Parallel()
	s := compileSchema(t)
	files, err := filepath.Glob("testdata/good/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, s.Validate(toJSON(t, data)), file)
	}
}

func TestSchemaRefusesBadExamples(t *testing.T) {
	t.Parallel()
	s := compileSchema(t)
	for _, tc := range []struct{ name, yaml string }{
		{"unknown section", "views: []\nsorce: {}"},
		{"unknown field", "views: []\nsource: {urls: x}"},
		{"no views", "source: {}"},
		{"view without query", "views: [{name: a}]"},
		{"view without name", "views: [{query: SELECT 1}]"},
		{"unknown value", "views: []\nsource: {on_gap: stop}"},
		{"duration without unit", "views: []\nround: {interval: 10}"},
		{"unknown unit", "views: []\nround: {memory: 10 potatoes}"},
		{"list for text", "views: []\nsource: {url: [a]}"},
		{"text for list", "views: []\nsession: {search_path: public}"},
		{"negative count", "views: []\nlimits: {rebuild_row_threshold: -1}"},
		{"text for boolean", "views: []\nsource: {failover: maybe}"},
		{"upper-case slot", "views: []\nsource: {slot: Mine}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Error(t, s.Validate(toJSON(t, []byte(tc.yaml))))
		})
	}
}

func TestSchemaDescribesEveryField(t *testing.T) {
	t.Parallel()
	var walk func(path string, v any)
	walk = func(path string, v any) {
		m, ok := v.(map[string]any)
		if !ok {
			return
		}
		for name, p := range m {
			if name == "properties" {
				for field, s := range p.(map[string]any) {
					require.NotEmpty(t, s.(map[string]any)["description"], path+"."+field)
				}
			}
			walk(path+"."+name, p)
		}
	}
	var doc any
	data, err := Schema()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &doc))
	require.Contains(t, doc.(map[string]any)["$schema"], "2020-12")
	walk("", doc)
	require.Contains(t, strings.ToLower(string(data)), `"default": "256mib"`)
}
