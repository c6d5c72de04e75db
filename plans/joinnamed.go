package plans

import "slices"

// filter marks the walks whose side a condition above speaks of: such a condition
// may have kept rows out that a change lets in.
func (j *joinTree) filter(walks []*trail, s *scope, quals *node) {
	if quals == nil || len(walks) == 0 {
		return
	}
	named := map[int]bool{}
	j.named(s, quals, named)
	for _, w := range walks {
		w.filtered = w.filtered || slices.ContainsFunc(w.side, func(i int) bool { return named[i] })
	}
}

// named collects the places that an expression speaks of.
func (j *joinTree) named(s *scope, v any, out map[int]bool) {
	walk(v, func(n *node) bool {
		switch n.tag {
		case "QUERY":
			sub := newScope(j.a, n, s)
			for _, f := range n.fields {
				j.named(sub, f, out)
			}
			return false
		case "VAR":
			at := s
			for range n.num("varlevelsup") {
				if at = at.parent; at == nil {
					return true
				}
			}
			j.namedVar(at, n, out)
		}
		return true
	})
}

func (j *joinTree) namedVar(at *scope, v *node, out map[int]bool) {
	rte := at.rte(v.num("varno"))
	if kind(rte) == rteJoin {
		aliases, i := rte.items("joinaliasvars"), v.num("varattno")
		if i >= 1 && i <= len(aliases) {
			j.named(at, aliases[i-1], out)
		}
		return
	}
	for _, i := range j.below[entryRef{at, v.num("varno")}] {
		out[i] = true
	}
}
