package config

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of the configuration file,
// by which editors complete and check it. It knows the fields and the forms
// of values; [Parse] knows more.
func Schema() ([]byte, error) {
	return slices.Clone(schema), nil
}
