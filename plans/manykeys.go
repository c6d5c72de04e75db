package plans

import "strings"

// Marks in the SQL of a plan around a condition that is best for few keys, and in front of the one for many, which the
// second mark's comment holds. Postgres reads the first.
const (
	fewMark  = "/*few keys:*/"
	manyMark = "/*many keys: "
	endMark  = "*/"
)

// bySize writes a condition that depends on how many keys there are.
func bySize(few, many string) string {
	if few == many || strings.Contains(few+many, "/*") || strings.Contains(few+many, "*/") {
		return few // a name that would end the comment
	}
	return fewMark + few + manyMark + many + endMark
}

// FewKeys is a plan's statement as it is best for few keys: conditions on single columns stand as arrays, by which
// Postgres looks rows up in an index or below a grouping, whatever it thinks of the number of keys.
func FewKeys(sql string) string {
	return resolve(sql, func(few, _ string) string { return few })
}

// ManyKeys is a plan's statement as it is best for many keys. Their cost may then grow with the keys, but not with their
// square, as it does where each row is compared with each element of an array, or where an index of several columns is
// asked for each combination of the keys' values.
func ManyKeys(sql string) string {
	return resolve(sql, func(_, many string) string { return many })
}

func resolve(sql string, choose func(few, many string) string) string {
	head, rest, ok := strings.Cut(sql, fewMark)
	if !ok {
		return sql
	}
	var out strings.Builder
	for ok {
		out.WriteString(head)
		few, after, _ := strings.Cut(rest, manyMark)
		many, after, _ := strings.Cut(after, endMark)
		out.WriteString(choose(few, many))
		head, rest, ok = strings.Cut(after, fewMark)
	}
	out.WriteString(head)
	return out.String()
}
