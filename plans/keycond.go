package plans

import (
	"slices"
	"strings"
)

// keyMatch builds the condition that a row's columns are among the keys of an
// input. For few keys it starts with a condition on each column alone, an array
// that Postgres computes once: such a condition can use an index, and Postgres
// pushes it through GROUP BY, DISTINCT, windows and set operations. Where there
// are several columns, a semi join says the rest. For many keys see [ManyKeys].
//
// Columns with the same name in table and input line up: columns[i] is compared
// with the input's prefix+i.
func keyMatch(alias string, columns []Column, keys, prefix string) string {
	refs, names := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		refs[i], names[i] = alias+"."+quoteAlways(c.Name), prefixed(prefix, i)
	}
	if len(columns) == 1 {
		return columnMatch(refs[0], columns[0], keys, names[0])
	}
	return refMatch(refs, columns, keys, names)
}

// refMatch is keyMatch for any expressions, given the columns that they are, and
// the names of the input's columns. Where there is one it must stand beside the
// tables that it speaks of: for many keys it is a semi join.
func refMatch(refs []string, columns []Column, keys string, names []string) string {
	if len(columns) == 0 {
		return "EXISTS (SELECT FROM " + keys + ")"
	}
	if len(columns) == 1 {
		array := columnMatch(refs[0], columns[0], keys, names[0])
		if !columns[0].NotNull || !columns[0].HasArray {
			return array
		}
		return bySize(array, existsMatch(refs, columns, keys, names))
	}
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = columnMatch(refs[i], c, keys, names[i])
	}
	return bySize(conjunction(parts)+" AND ", "") + existsMatch(refs, columns, keys, names)
}

// existsMatch is keyMatch as a semi join.
func existsMatch(refs []string, columns []Column, keys string, names []string) string {
	theirs := make([]string, len(names))
	for i, n := range names {
		theirs[i] = "mk." + n
	}
	return "EXISTS (SELECT FROM " + keys + " mk WHERE " + sameRefs(refs, columns, theirs) + ")"
}

// columnMatch is keyMatch for one column.
func columnMatch(ref string, c Column, keys, key string) string {
	in := ref + " " + equalOp(c) + " ANY (ARRAY(SELECT " + keys + "." + key + " FROM " + keys + "))"
	if !c.HasArray {
		in = ref + " IN (SELECT " + keys + "." + key + " FROM " + keys + ")"
	}
	if c.NotNull {
		return in
	}
	return "(" + in + " OR " + ref + " IS NULL AND (SELECT bool_or(" + keys + "." + key + " IS NULL) FROM " + keys + "))"
}

// equalOp is the column's equality.
func equalOp(c Column) string {
	if c.Equal == "" {
		return "="
	}
	return c.Equal
}

// sameKey compares the columns of two aliases, NULL with NULL. A comparison of
// columns that cannot be NULL comes first, so that it can be hashed; without
// one, whole records are, where no collation of ours is lost by that.
func sameKey(alias string, columns []Column, other, prefix string) string {
	refs, theirs := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		refs[i], theirs[i] = alias+"."+quoteAlways(c.Name), other+"."+prefixed(prefix, i)
	}
	return sameRefs(refs, columns, theirs)
}

func sameRefs(refs []string, columns []Column, theirs []string) string {
	if len(columns) > 1 && !slices.ContainsFunc(columns, func(c Column) bool { return c.NotNull || c.Collation != "" }) {
		return "ROW(" + join(refs) + ")::record = ROW(" + join(theirs) + ")::record"
	}
	var hashed, rest []string
	for i, c := range columns {
		equal := refs[i] + " " + equalOp(c) + " " + theirs[i]
		if c.NotNull {
			hashed = append(hashed, equal)
			continue
		}
		rest = append(rest, "("+equal+" OR "+refs[i]+" IS NULL AND "+theirs[i]+" IS NULL)")
	}
	return strings.Join(append(hashed, rest...), " AND ")
}

// keyColumns are the columns k0, k1, ... that carry keys of the given columns.
func keyColumns(columns []Column) []Column {
	out := make([]Column, len(columns))
	for i, c := range columns {
		c.Name = prefixed("k", i)
		out[i] = c
	}
	return out
}

// keyed are the key's columns.
func (p *Plan) keyed() []Column {
	out := make([]Column, len(p.Key))
	for i, k := range p.Key {
		out[i] = p.Columns[k]
	}
	return out
}
