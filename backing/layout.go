package backing

// Dependence says how far a column's bytes are fixed by the body.
type Dependence string

const (
	// Exact columns are compared byte for byte.
	Exact Dependence = ""
	// Representative columns may show any of several values that are equal by their type's own equality.
	Representative Dependence = "representative"
	// Float columns are right within 1e-9 relative, NaN and infinities exactly.
	Float Dependence = "float"
)

// Column is a column of a backing or companion table.
type Column struct {
	Name string
	// Type is the type as format_type prints it under an empty search_path, with its modifier.
	Type string
	// Collation is the collation as a quoted, qualified name; empty for the type's own.
	Collation string
	NotNull   bool
	Dependent Dependence
}

// Layout describes a view's backing table and its companion.
type Layout struct {
	// ID is the view's id in the catalog, which [Host.AddView] gives.
	ID   int64
	Name Name
	// Columns are exactly the body's columns.
	Columns []Column
	// Hidden columns stand in the companion table; none, and there is no companion.
	Hidden []Column
	// Key holds indexes into Columns; empty for a view of one row.
	Key []int
	// HashKey asks for a unique index over a hash of the key's text, for keys that no btree index can hold.
	HashKey bool
	// Query is the body, for the comment on the table.
	Query string
	// Indexes are further indexes, such as "(revenue DESC)" or "UNIQUE (email)".
	Indexes []string
	// HiddenIndexes are further indexes of the companion, such as "(owner)".
	HiddenIndexes []string
	// Storage holds storage parameters, such as fillfactor.
	Storage map[string]string
	// Grants maps a privilege, such as select, to the roles that get it.
	Grants map[string][]string
}

// keyColumns returns the columns of the key.
func (l *Layout) keyColumns() []Column {
	out := make([]Column, len(l.Key))
	for i, k := range l.Key {
		out[i] = l.Columns[k]
	}
	return out
}

// nullableKey reports whether a key column may be NULL.
func (l *Layout) nullableKey() bool {
	for _, k := range l.Key {
		if !l.Columns[k].NotNull {
			return true
		}
	}
	return false
}
