// Package config turns mvsync.yaml into a configuration that the rest of the
// program may trust.
//
// It parses instead of validating: [Load] and [Parse] return a [Config] only
// if the whole file is right, and otherwise [Mistakes], which list everything
// that is wrong at once, each with file, line, column, path and a hint.
//
// The steps, in order:
//
//  1. The text becomes a tree of YAML nodes; syntax errors end here.
//  2. The tree is decoded into the structs of this package. Fields are the
//     `yaml` tags of the structs and nothing else: unknown, repeated and
//     mistyped ones are mistakes. References to the environment (${VAR} and
//     ${VAR:-default}) are expanded here, in single scalars, so that a value
//     can never change the structure of the file.
//  3. What a single value cannot tell is checked: ranges, combinations,
//     duplicates.
//  4. Keys that are understood but have no effect yet are refused, so that
//     nobody relies on a setting that is ignored.
//
// Mistakes that only the database can show (an unknown table, a refused
// body) are found by others; [Config.Mistake] and [Config.QueryMistake] put
// them into the same form, with their place in the file.
//
// Values that came from the environment and connection strings never appear
// in a message.
//
// The package imports nothing of the rest of mvsync. Its callers are the
// commands.
package config
