package backing

import (
	"fmt"
	"strconv"
	"strings"
)

// absent returns the SQL condition that x is NULL. "x IS NULL" would also hold for a composite value whose fields are
// all NULL; against the word NULL, IS NOT DISTINCT FROM tests the value itself.
func absent(x string) string { return "(" + x + " IS NOT DISTINCT FROM NULL)" }

// keyEquality returns the SQL condition that two key columns are equal, NULL equal to NULL, in a form over which hash and
// merge joins work and of which [keyIndexed] gives the index expressions. IS NOT DISTINCT FROM would make a nested loop.
func keyEquality(c Column, f typeFacts, left, right string) string {
	if c.NotNull {
		return left + " " + f.equal + " " + right
	}
	l, r := keyIndexed(c, f, left), keyIndexed(c, f, right)
	parts := make([]string, len(l))
	for i := range l {
		parts[i] = l[i] + " OPERATOR(pg_catalog.=) " + r[i]
	}
	return strings.Join(parts, " AND ")
}

// keyIndexed returns the expressions over a key column whose plain equality is the key's, NULL equal to NULL: an array
// of one element, since array equality takes NULL elements as equal; for arrays, which have no arrays over them, a pair.
func keyIndexed(c Column, f typeFacts, x string) []string {
	switch {
	case c.NotNull:
		return []string{x}
	case f.hasArray:
		return []string{"(ARRAY[" + x + "])"}
	case f.array:
		return []string{absent(x), "COALESCE(" + x + ", '{}')"}
	default:
		return []string{"(ROW(" + x + ")::record)"}
	}
}

// sameSQL returns the SQL condition, never NULL, that a stored value is right where the body gave another one: see
// [Dependence].
func sameSQL(c Column, f typeFacts, stored, fresh string) string {
	switch {
	case c.Dependent == Float && f.float:
		return floatSame(stored, fresh, f.tolerance())
	case c.Dependent == Representative && f.equal != "":
		return fmt.Sprintf("CASE WHEN %[3]s OR %[4]s THEN %[3]s AND %[4]s ELSE %[1]s %[5]s %[2]s END",
			stored, fresh, absent(stored), absent(fresh), f.equal)
	default:
		return exactSame([]string{stored}, []string{fresh})
	}
}

// tolerance is how far two evaluations of one float may be apart, relative to the larger: reals hold no more than six
// digits.
func (f typeFacts) tolerance() string {
	if f.real {
		return "1e-5"
	}
	return "1e-9"
}

// floatSame compares without overflow and underflow: values of one sign are subtracted, and their difference, which is at
// least one unit in the last place of the larger, is divided by it.
func floatSame(stored, fresh, tolerance string) string {
	s, n := "("+stored+")::pg_catalog.float8", "("+fresh+")::pg_catalog.float8"
	special := "('NaN', 'Infinity', '-Infinity')"
	return fmt.Sprintf("CASE WHEN %[1]s IS NULL OR %[2]s IS NULL THEN %[1]s IS NULL AND %[2]s IS NULL"+
		" WHEN %[1]s = %[2]s THEN true"+
		" WHEN %[1]s IN %[3]s OR %[2]s IN %[3]s OR (%[1]s < 0) <> (%[2]s < 0) THEN false"+
		" ELSE abs(%[1]s - %[2]s) / greatest(abs(%[1]s), abs(%[2]s)) <= %[4]s END",
		s, n, special, tolerance)
}

// exactSame returns the SQL condition that the values are the same byte for byte. Both sides must have the same types.
func exactSame(stored, fresh []string) string {
	if len(stored) == 0 {
		return "true"
	}
	return "ROW(" + strings.Join(stored, ", ") + ")::record OPERATOR(pg_catalog.*=) ROW(" + strings.Join(fresh, ", ") + ")::record"
}

// sameRow returns the SQL condition, never NULL, that the stored values of columns are right beside the fresh ones.
func sameRow(t types, columns []Column, stored, fresh func(i int) string) string {
	var s, n, parts []string
	for i, c := range columns {
		if c.Dependent == Exact {
			s, n = append(s, stored(i)), append(n, fresh(i))
			continue
		}
		parts = append(parts, sameSQL(c, t[c.Type], stored(i), fresh(i)))
	}
	if len(s) > 0 {
		parts = append([]string{exactSame(s, n)}, parts...)
	}
	if len(parts) == 0 {
		return "true"
	}
	return "(" + strings.Join(parts, ") AND (") + ")"
}

// numbered returns prefix and index as one name, such as c3.
func numbered(prefix string, i int) string { return prefix + strconv.Itoa(i) }
