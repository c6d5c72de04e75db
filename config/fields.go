package config

import "reflect"

// fieldsOf maps the yaml tags of a struct to its field indexes, and lists
// them in order.
func fieldsOf(t reflect.Type) (index map[string]int, names []string) {
	index = make(map[string]int)
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "" {
			index[name] = i
			names = append(names, name)
		}
	}
	return index, names
}

// fieldPaths tells for each field name where in the file it belongs, for
// hints about fields in the wrong place.
var fieldPaths = func() map[string][]string {
	paths := make(map[string][]string)
	collectFields(reflect.TypeFor[Config](), "", paths)
	return paths
}()

func collectFields(t reflect.Type, prefix string, paths map[string][]string) {
	switch t.Kind() {
	case reflect.Slice, reflect.Map:
		collectFields(t.Elem(), prefix+"[]", paths)
	case reflect.Struct:
		for i := range t.NumField() {
			name := t.Field(i).Tag.Get("yaml")
			if name == "" {
				continue
			}
			path := join(prefix, name)
			paths[name] = append(paths[name], path)
			collectFields(t.Field(i).Type, path, paths)
		}
	}
}
