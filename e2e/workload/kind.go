package workload

import "slices"

// Kind is a way to change a table.
type Kind int

// The kinds of change.
const (
	InsertRow        Kind = iota // one row
	InsertRows                   // several rows by one statement
	Upsert                       // ON CONFLICT DO UPDATE, or DO NOTHING
	UpdatePayload                // columns that are neither key nor group
	UpdateGroup                  // a move to another group
	UpdateKey                    // another key for a row
	UpdateAll                    // key, group and payload at once
	UpdateNothing                // the same values again
	UpdatePredicate              // many rows, picked by a condition
	UpdateAroundWide             // rows with TOASTed values, of which other columns change
	ThereAndBack                 // a change and its reversal
	Swap                         // two rows exchange everything but their keys
	Reinsert                     // a row deleted and inserted again as it was
	Delete                       // one row
	DeletePredicate              // many rows, picked by a condition
	Cascade                      // a row with the rows of other tables that reference it
	Truncate                     // a whole table, or a leaf of it
)

const kindCount = int(Truncate) + 1

// kinds says of each kind its name, its weight by default, and to which tables it applies.
var kinds = [kindCount]struct {
	name    string
	weight  int
	applies func(t *Table) bool
}{
	InsertRow:       {"insert row", 24, func(*Table) bool { return true }},
	InsertRows:      {"insert rows", 8, func(*Table) bool { return true }},
	Upsert:          {"upsert", 12, func(t *Table) bool { return t.keyed() && t.keyIs((*Column).writable) }},
	UpdatePayload:   {"update payload", 16, func(t *Table) bool { return t.keyed() && len(t.payload()) > 0 }},
	UpdateGroup:     {"update group", 12, func(t *Table) bool { return t.keyed() && len(t.group()) > 0 }},
	UpdateKey:       {"update key", 8, func(t *Table) bool { return t.keyed() && t.keyIs((*Column).renewable) }},
	UpdateAll:       {"update all", 6, func(t *Table) bool { return t.keyed() && len(t.writable()) > 0 }},
	UpdateNothing:   {"update nothing", 4, func(t *Table) bool { return t.keyed() && len(t.writable()) > 0 }},
	UpdatePredicate: {"update by predicate", 5, func(t *Table) bool { return t.predicable() && len(t.writable()) > 0 }},
	UpdateAroundWide: {"update around wide", 4, func(t *Table) bool {
		return t.predicable() && t.wide() != nil && len(t.narrow()) > 0
	}},
	ThereAndBack:    {"there and back", 4, func(t *Table) bool { return t.keyed() && len(t.reversible()) > 0 }},
	Swap:            {"swap", 3, func(t *Table) bool { return t.keyed() && len(t.unkeyed()) > 0 }},
	Reinsert:        {"reinsert", 3, (*Table).keyed},
	Delete:          {"delete", 10, (*Table).keyed},
	DeletePredicate: {"delete by predicate", 2, func(t *Table) bool { return t.predicable() && len(t.writable()) > 0 }},
	Cascade:         {"cascade", 2, func(t *Table) bool { return t.keyed() && t.Cascades }},
	// A table that others reference goes with them, which bounded tables are too many for.
	Truncate: {"truncate", 1, func(t *Table) bool { return t.Bound == 0 }},
}

// Kinds returns all kinds.
func Kinds() []Kind {
	all := make([]Kind, kindCount)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// String returns the kind in words.
func (k Kind) String() string { return kinds[k].name }

// Weights says how often each kind is chosen, relative to the others. A kind without a weight is not chosen.
type Weights map[Kind]int

// DefaultWeights returns the weights of a workload that keeps small tables about half full.
func DefaultWeights() Weights {
	weights := Weights{}
	for _, k := range Kinds() {
		weights[k] = kinds[k].weight
	}
	return weights
}

// applies says whether the table can be changed in this way.
func (k Kind) applies(t *Table) bool { return kinds[k].applies(t) }

func (t *Table) keyed() bool { return len(t.Key) > 0 }

// predicable says whether conditions other than on the key may pick rows: bounding them takes a key.
func (t *Table) predicable() bool { return t.keyed() || t.Bound == 0 }

// keyIs says whether all columns of the key are such.
func (t *Table) keyIs(such func(*Column) bool) bool {
	return !slices.ContainsFunc(t.named(t.Key), func(c *Column) bool { return !such(c) })
}

// renewable says whether an update can give the column another value, be it the server's.
func (c *Column) renewable() bool { return c.writable() || c.Identity }
