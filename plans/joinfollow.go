package plans

import (
	"maps"
	"slices"
)

// covers checks that every place of every source in the body was found.
func (j *joinTree) covers(whole *node) string {
	for i := range j.p.Sources {
		n := 0
		for _, p := range j.places {
			if p.src == i {
				n++
			}
			if p.derived != nil {
				n += readsIn(p.scope.sub(p.scope.rte(p.rt)).q, j.p.Sources[i].OID).places
			}
		}
		if n != readsIn(whole, j.p.Sources[i].OID).places {
			return j.p.Sources[i].Table().String() + " stands where its changes cannot be followed"
		}
	}
	return ""
}

// follows checks that a change of each place that decides about rows of other places leads to them: along a walk, or by
// touching every row. It holds by construction; were it ever not to, views would be wrong in silence.
func (j *joinTree) follows() string {
	for _, p := range j.places {
		starts := slices.ContainsFunc(j.walks, func(w *trail) bool { return w.start() == p.id })
		if (p.apart || p.nullable) && !starts && !j.degraded(p) {
			return j.place(p) + " decides about rows to which its changes do not lead"
		}
	}
	return ""
}

// place names what stands at a place.
func (j *joinTree) place(p *site) string {
	if p.derived != nil {
		return "a query in FROM"
	}
	return j.p.Sources[p.src].Table().String()
}

// degraded reports whether any change of the place may touch every row.
func (j *joinTree) degraded(p *site) bool {
	if p.derived == nil {
		return j.floor[p.src]
	}
	return !slices.ContainsFunc(p.derived.inputs, func(src int) bool { return !j.floor[src] })
}

// degrade notes that changes of the places' tables may touch every row.
func (j *joinTree) degrade(places []int) {
	for _, i := range places {
		p := j.places[i]
		if p.derived == nil {
			j.floor[p.src] = true
			continue
		}
		for _, src := range p.derived.inputs {
			j.floor[src] = true
		}
	}
}

// lose degrades places from which nothing is reached. Groupings beside them may have
// been what they decide about.
func (j *joinTree) lose(places []int, queries []entryRef) {
	if len(places) > 0 {
		j.wants(queries...)
	}
	j.degrade(places)
}

// floorSources are the sources whose changes may touch every row.
func (j *joinTree) floorSources() []int { return slices.Sorted(maps.Keys(j.floor)) }
