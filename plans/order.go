package plans

import (
	"slices"
	"strings"
)

// Order sorts declarations so that each comes after those that it reads. Views that
// read themselves, directly or through others, are refused with the path, and so
// are views that read a refused one. A declaration that cannot be parsed keeps its
// place: compiling it says what is wrong.
func Order(declarations []Declaration, searchPath []string) ([]Declaration, map[Name]*Refusal) {
	o := ordering{
		byName: map[Name]Declaration{}, searchPath: searchPath,
		state: map[Name]int{}, refused: map[Name]*Refusal{},
	}
	if len(searchPath) == 0 {
		o.searchPath = []string{"public"}
	}
	for _, d := range declarations {
		o.byName[d.Name] = d
	}
	for _, d := range declarations {
		o.visit(d, nil)
	}
	return o.out, o.refused
}

type ordering struct {
	byName     map[Name]Declaration
	searchPath []string
	state      map[Name]int // 1: being visited, 2: done
	refused    map[Name]*Refusal
	out        []Declaration
}

// visit places a declaration behind those that it reads; path leads to it.
func (o *ordering) visit(d Declaration, path []Name) {
	if o.state[d.Name] != 0 {
		return
	}
	o.state[d.Name] = 1
	path = append(path, d.Name)
	for _, name := range o.reads(d) {
		if o.state[name] == 1 {
			o.refuseCycle(path[slices.Index(path, name):])
			continue
		}
		o.visit(o.byName[name], path)
		if o.refused[name] != nil && o.refused[d.Name] == nil {
			o.refused[d.Name] = refuse(Invalid, name.String(), "it is a view that is refused itself", "mend that view first")
		}
	}
	o.state[d.Name] = 2
	if o.refused[d.Name] == nil {
		o.out = append(o.out, d)
	}
}

// refuseCycle refuses every view of a cycle; a cycle of one reads itself.
func (o *ordering) refuseCycle(cycle []Name) {
	steps := make([]string, 0, len(cycle)+1)
	for _, n := range append(slices.Clone(cycle), cycle[0]) {
		steps = append(steps, n.String())
	}
	for _, n := range cycle {
		if o.refused[n] != nil {
			continue
		}
		if len(cycle) == 1 {
			o.refused[n] = refuse(SelfReference, n.String(), "the view reads itself",
				"read its sources instead; a recursive query (WITH RECURSIVE) may refer to itself under a name of its own")
			continue
		}
		o.refused[n] = refuse(Cycle, strings.Join(steps, " -> "), "the views read each other in a circle",
			"let one of them read the sources of the other")
	}
}

// reads lists the declared views whose names the body uses.
func (o *ordering) reads(d Declaration) []Name {
	names, err := readNames(d.Query)
	if err != nil {
		return nil
	}
	var out []Name
	for _, n := range names {
		schemas := []string{n.Schema}
		if n.Schema == "" {
			schemas = o.searchPath
		}
		for _, s := range schemas {
			if _, ok := o.byName[Name{s, n.Name}]; ok {
				out = append(out, Name{s, n.Name})
				break
			}
		}
	}
	return out
}
