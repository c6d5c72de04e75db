package plans

import (
	"slices"
	"strings"
)

// Order sorts declarations so that every view comes after those that it reads.
// Path is the search path of the bodies; empty: public.
// Views on a cycle, and those that read themselves, are refused; what reads a
// refused view is left in its place, and Compile will say what it misses. A query
// that cannot be parsed reads nothing here: Compile says why.
func Order(ds []Declaration, path []string) ([]Declaration, map[Name]*Refusal) {
	if len(path) == 0 {
		path = []string{"public"}
	}
	s := &sorter{ds: ds, at: map[Name]int{}, state: make([]visit, len(ds)), refused: map[Name]*Refusal{}}
	for i, d := range ds {
		s.at[d.Name] = i
	}
	for _, d := range ds {
		s.reads = append(s.reads, s.producers(d, path))
	}
	for i := range ds {
		s.visit(i, nil)
	}
	return s.out, s.refused
}

type visit int

const (
	unseen visit = iota
	open
	done
)

// sorter is a depth-first search.
type sorter struct {
	ds      []Declaration
	at      map[Name]int
	reads   [][]int
	state   []visit
	out     []Declaration
	refused map[Name]*Refusal
}

// producers are the declared views that a query names. A name without a schema
// is looked for along the search path.
func (s *sorter) producers(d Declaration, path []string) []int {
	if checkSize(d.Query) != nil {
		return nil
	}
	names, err := readNames(d.Query)
	if err != nil {
		return nil
	}
	var out []int
	for _, n := range names {
		schemas := path
		if n.Schema != "" {
			schemas = []string{n.Schema}
		}
		for _, schema := range schemas {
			if i, ok := s.at[Name{schema, n.Name}]; ok {
				out = append(out, i)
				break
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (s *sorter) visit(i int, path []int) {
	switch s.state[i] {
	case done:
		return
	case open:
		s.cycle(path[slices.Index(path, i):])
		return
	case unseen:
	}
	s.state[i] = open
	path = append(path, i)
	for _, r := range s.reads[i] {
		s.visit(r, path)
	}
	s.state[i] = done
	if s.refused[s.ds[i].Name] == nil {
		s.out = append(s.out, s.ds[i])
	}
}

// cycle refuses every view on it, and names the way round.
func (s *sorter) cycle(on []int) {
	names := make([]string, 0, len(on)+1)
	for _, i := range on {
		names = append(names, s.ds[i].Name.String())
	}
	way := strings.Join(append(names, names[0]), " → ")
	for _, i := range on {
		name := s.ds[i].Name
		r := refuse(Cycle, name.String(), "views read each other in a circle: "+way, "let one of them read the tables below")
		if len(on) == 1 {
			r = refuse(SelfReference, name.String(), "the view reads itself ("+way+")", "read the tables below it")
		}
		s.refused[name] = r
	}
}
