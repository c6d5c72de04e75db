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

	kindCount
)

var kindNames = [kindCount]string{
	"insert row", "insert rows", "upsert", "update payload", "update group", "update key", "update all", "update nothing",
	"update by predicate", "update around wide", "there and back", "swap", "reinsert", "delete", "delete by predicate",
	"cascade", "truncate",
}

// Kinds returns all kinds.
func Kinds() []Kind {
	kinds := make([]Kind, kindCount)
	for i := range kinds {
		kinds[i] = Kind(i)
	}
	return kinds
}

// String returns the kind in words.
func (k Kind) String() string { return kindNames[k] }

// Weights says how often each kind is chosen, relative to the others. A kind without a weight is not chosen.
type Weights map[Kind]int

// DefaultWeights returns the weights of a workload that keeps small tables about half full.
func DefaultWeights() Weights {
	return Weights{
		InsertRow: 24, InsertRows: 8, Upsert: 12, UpdatePayload: 16, UpdateGroup: 12, UpdateKey: 8, UpdateAll: 6, UpdateNothing: 4,
		UpdatePredicate: 5, UpdateAroundWide: 4, ThereAndBack: 4, Swap: 3, Reinsert: 3, Delete: 10, DeletePredicate: 2, Cascade: 2,
		Truncate: 1,
	}
}

// applies says whether the table can be changed in this way.
func (k Kind) applies(t *Table) bool {
	keyed := len(t.Key) > 0
	switch k {
	case InsertRow, InsertRows:
		return true
	case UpdatePredicate, DeletePredicate:
		return len(t.writable()) > 0 && (keyed || t.Bound == 0)
	case Truncate:
		// A table that others reference goes with them, which bounded tables are too many for.
		return t.Bound == 0
	case UpdateNothing, UpdateAll:
		return keyed && len(t.writable()) > 0
	case Upsert:
		return keyed && !slices.ContainsFunc(t.named(t.Key), func(c *Column) bool { return !c.writable() })
	case UpdatePayload:
		return keyed && len(t.payload()) > 0
	case UpdateGroup:
		return keyed && len(t.group()) > 0
	case UpdateKey:
		return keyed && !slices.ContainsFunc(t.named(t.Key), func(c *Column) bool { return !c.writable() && !c.Identity })
	case UpdateAroundWide:
		return keyed && t.wide() != nil && len(t.narrow()) > 0
	case ThereAndBack:
		return keyed && len(t.reversible()) > 0
	case Swap:
		return keyed && len(t.unkeyed()) > 0
	case Reinsert, Delete:
		return keyed
	case Cascade:
		return keyed && t.Cascades
	default:
		panic("workload: no such kind")
	}
}
