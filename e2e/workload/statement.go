package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// nearby is the number of rows, in the order of the key, among which a statement picks one by position.
const nearby = 12

// statement returns a change of the given kind, which must apply to the table. A change in two steps is two
// statements separated by a semicolon.
func (t *Table) statement(r *rand.Rand, k Kind) string {
	switch k {
	case InsertRow:
		return t.insert(r, 1) + t.ignore(r)
	case InsertRows:
		return t.insert(r, 2+r.IntN(5)) + t.ignore(r)
	case Upsert:
		return t.upsert(r)
	case UpdatePayload:
		return t.update(t.assign(r, some(r, t.payload())), t.one(r))
	case UpdateGroup:
		return t.update(t.assign(r, t.group()), t.one(r))
	case UpdateKey:
		return t.update(t.assign(r, some(r, t.named(t.Key))), t.one(r))
	case UpdateAll:
		return t.update(t.assign(r, t.writable()), t.one(r))
	case UpdateNothing:
		return t.update(same(t.writable()), t.oneOrAll(r))
	case UpdatePredicate:
		return t.update(t.assign(r, some(r, t.unkeyedOr(t.writable()))), t.bounded(t.predicate(r)))
	case UpdateAroundWide:
		wide := fmt.Sprintf("octet_length(%s) > 4000", t.wide().sql())
		return t.update(t.assign(r, some(r, t.narrow())), t.bounded(wide))
	case ThereAndBack:
		return t.thereAndBack(r)
	case Swap:
		return t.swap(r)
	case Reinsert:
		return t.reinsert(r)
	case Delete, Cascade:
		return "DELETE FROM " + t.sql() + " WHERE " + t.one(r)
	case DeletePredicate:
		return "DELETE FROM " + t.sql() + " WHERE " + t.bounded(t.predicate(r))
	case Truncate:
		return t.truncate(r)
	default:
		panic("workload: no such kind")
	}
}

func (t *Table) insert(r *rand.Rand, n int) string {
	rows := make([]string, n)
	for i := range rows {
		rows[i] = t.row(r, false)
	}
	return t.insertRows(rows)
}

func (t *Table) insertRows(rows []string) string {
	if len(t.writable()) == 0 {
		return "INSERT INTO " + t.sql() + " DEFAULT VALUES"
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES %s", t.sql(), list(t.writable()), strings.Join(rows, ", "))
}

// row returns the values of a new row in parentheses. With valid, all its references are to rows that exist.
func (t *Table) row(r *rand.Rand, valid bool) string {
	values := t.values(r, t.writable(), valid)
	return "(" + strings.Join(values, ", ") + ")"
}

// values returns new values for the columns. The columns of one reference are picked from one row of the parent.
func (t *Table) values(r *rand.Rand, columns []*Column, valid bool) []string {
	values := make([]string, len(columns))
	for i, c := range columns {
		if !c.writable() {
			values[i] = "DEFAULT" // an identity column takes nothing else
			continue
		}
		values[i] = c.Values(r)
	}
	for _, fk := range t.Parents {
		if r.Float64() >= fk.Pick && !valid {
			continue
		}
		nth := r.IntN(nearby)
		for n, name := range fk.Columns {
			i := slices.IndexFunc(columns, func(c *Column) bool { return c.Name == name })
			if i < 0 || (columns[i].Nullable && values[i] == "NULL") {
				continue
			}
			values[i] = fk.pick(n, nth)
		}
	}
	return values
}

// pick returns an expression for the column that the nth column of the reference points at, in a row of the parent
// chosen by position.
func (fk ForeignKey) pick(n, position int) string {
	order := make([]string, len(fk.Referenced))
	for i, name := range fk.Referenced {
		order[i] = pgx.Identifier{name}.Sanitize()
	}
	parent := pgx.Identifier{fk.Schema, fk.Table}.Sanitize()
	// The position is taken modulo the rows there are, so that it finds one wherever there is any.
	return fmt.Sprintf("(SELECT %[1]s FROM %[2]s ORDER BY %[3]s LIMIT 1 OFFSET %[4]d %% (SELECT greatest(count(*), 1) FROM %[2]s))",
		order[n], parent, strings.Join(order, ", "), position)
}

func (t *Table) ignore(r *rand.Rand) string {
	if r.IntN(2) == 0 {
		return " ON CONFLICT DO NOTHING"
	}
	return ""
}

func (t *Table) upsert(r *rand.Rand) string {
	insert := t.insert(r, 1)
	unkeyed := t.unkeyed()
	if len(unkeyed) == 0 || r.IntN(4) == 0 {
		return insert + " ON CONFLICT DO NOTHING"
	}
	set := make([]string, len(unkeyed))
	for i, c := range unkeyed {
		set[i] = fmt.Sprintf("%[1]s = excluded.%[1]s", c.sql())
	}
	return fmt.Sprintf("%s ON CONFLICT (%s) DO UPDATE SET %s", insert, list(t.named(t.Key)), strings.Join(set, ", "))
}

func (t *Table) update(set []string, where string) string {
	return fmt.Sprintf("UPDATE %s SET %s WHERE %s", t.sql(), strings.Join(set, ", "), where)
}

func (t *Table) assign(r *rand.Rand, columns []*Column) []string {
	values := t.values(r, columns, false)
	set := make([]string, len(columns))
	for i, c := range columns {
		set[i] = c.sql() + " = " + values[i]
	}
	return set
}

func same(columns []*Column) []string {
	set := make([]string, len(columns))
	for i, c := range columns {
		set[i] = fmt.Sprintf("%[1]s = %[1]s", c.sql())
	}
	return set
}

// thereAndBack changes a column of a row and changes it back. The second statement must find the row by what the first
// made of its key, so keys are generated where they can be. Where the server gives them, the row is found by position, and
// another writer may make that a different row: its value then stays changed, which does no harm.
func (t *Table) thereAndBack(r *rand.Rand) string {
	columns := t.reversible()
	c := columns[r.IntN(len(columns))]
	there, back := fmt.Sprintf(c.There, c.sql()), fmt.Sprintf(c.Back, c.sql())
	before := t.one(r)
	after := before
	if t.keyIs((*Column).writable) {
		before, after = t.beforeAndAfter(r, c)
	}
	return t.update([]string{c.sql() + " = " + there}, before) + ";\n" + t.update([]string{c.sql() + " = " + back}, after)
}

// beforeAndAfter returns conditions that pick the row of a generated key before and after the column was changed.
func (t *Table) beforeAndAfter(r *rand.Rand, changed *Column) (before, after string) {
	var befores, afters []string
	for _, c := range t.named(t.Key) {
		value := c.Values(r)
		befores = append(befores, c.sql()+" = "+value)
		if c == changed {
			value = strings.NewReplacer("%s", "("+value+")", "%[1]s", "("+value+")").Replace(c.There)
		}
		afters = append(afters, c.sql()+" = "+value)
	}
	return strings.Join(befores, " AND "), strings.Join(afters, " AND ")
}

// swap lets two rows, picked by position, exchange all values but their keys.
func (t *Table) swap(r *rand.Rand) string {
	key, unkeyed := t.named(t.Key), t.unkeyed()
	first := r.IntN(nearby)
	second := first + 1 + r.IntN(nearby)
	return fmt.Sprintf(`WITH pair AS (
    SELECT *, row_number() OVER (ORDER BY %[2]s) AS nth FROM (SELECT * FROM %[1]s ORDER BY %[2]s LIMIT %[6]d) AS head
)
UPDATE %[1]s AS t SET (%[3]s) = ROW(%[4]s) FROM pair AS mine, pair AS other
WHERE %[5]s AND mine.nth IN (%[7]d, %[8]d) AND other.nth = %[7]d + %[8]d - mine.nth`,
		t.sql(), list(key), list(unkeyed), prefixed("other", unkeyed), joined("t", "mine", key), 2*nearby+1, first+1, second+1)
}

// reinsert deletes a row and inserts it again, by one statement.
func (t *Table) reinsert(r *rand.Rand) string {
	columns := slices.Collect(func(yield func(*Column) bool) {
		for i := range t.Columns {
			if !t.Columns[i].Computed && !yield(&t.Columns[i]) {
				return
			}
		}
	})
	return fmt.Sprintf("WITH gone AS (DELETE FROM %[1]s WHERE %[2]s RETURNING *)\nINSERT INTO %[1]s (%[3]s) OVERRIDING SYSTEM VALUE SELECT %[3]s FROM gone",
		t.sql(), t.one(r), list(columns))
}

func (t *Table) truncate(r *rand.Rand) string {
	name := t.sql()
	if n := r.IntN(len(t.Leaves) + 1); n > 0 {
		name = pgx.Identifier{t.Schema, t.Leaves[n-1]}.Sanitize()
	}
	if t.Cascades {
		return "TRUNCATE " + name + " CASCADE"
	}
	return "TRUNCATE " + name
}

// one returns a condition that picks at most one row: by a generated key, which may not exist, or by position.
func (t *Table) one(r *rand.Rand) string {
	key := t.named(t.Key)
	if t.keyIs((*Column).writable) && r.IntN(2) == 0 {
		conditions := make([]string, len(key))
		for i, c := range key {
			conditions[i] = c.sql() + " = " + c.Values(r)
		}
		return strings.Join(conditions, " AND ")
	}
	return fmt.Sprintf("(%[1]s) = (SELECT %[1]s FROM %[2]s ORDER BY %[1]s LIMIT 1 OFFSET %[3]d)", list(key), t.sql(), r.IntN(nearby))
}

func (t *Table) oneOrAll(r *rand.Rand) string {
	if r.IntN(3) == 0 {
		return t.bounded("true")
	}
	return t.one(r)
}

// predicate returns a condition on one column.
func (t *Table) predicate(r *rand.Rand) string {
	columns := slices.DeleteFunc(t.writable(), func(c *Column) bool { return c.Unordered || c.Wide })
	if len(columns) == 0 {
		return "true"
	}
	c := columns[r.IntN(len(columns))]
	value := c.Values(r)
	switch r.IntN(6) {
	case 0:
		return c.sql() + " > " + value
	case 1:
		return fmt.Sprintf("%s IN (%s, %s)", c.sql(), value, c.Values(r))
	case 2:
		if c.Nullable {
			return c.sql() + " IS NULL"
		}
	}
	return fmt.Sprintf("%s IS NOT DISTINCT FROM %s", c.sql(), value)
}

// bounded narrows a condition to the first rows that meet it, where the table wants that.
func (t *Table) bounded(where string) string {
	if t.Bound == 0 {
		return where
	}
	key := list(t.named(t.Key))
	return fmt.Sprintf("(%[1]s) IN (SELECT %[1]s FROM %[2]s WHERE %[3]s ORDER BY %[1]s LIMIT %[4]d)", key, t.sql(), where, t.Bound)
}

// group returns the columns whose update is a move.
func (t *Table) group() []*Column {
	return slices.DeleteFunc(t.named(t.Group), func(c *Column) bool { return !c.writable() })
}

// unkeyed returns the writable columns outside the key.
func (t *Table) unkeyed() []*Column {
	return slices.DeleteFunc(t.writable(), func(c *Column) bool { return slices.Contains(t.Key, c.Name) })
}

func (t *Table) unkeyedOr(others []*Column) []*Column {
	if columns := t.unkeyed(); len(columns) > 0 {
		return columns
	}
	return others
}

// wide returns the first column whose values TOAST, or nil.
func (t *Table) wide() *Column {
	for i := range t.Columns {
		if t.Columns[i].Wide {
			return &t.Columns[i]
		}
	}
	return nil
}

// narrow returns the columns that an update around the wide ones changes.
func (t *Table) narrow() []*Column {
	return slices.DeleteFunc(t.unkeyed(), func(c *Column) bool { return c.Wide })
}

func (t *Table) reversible() []*Column {
	return slices.DeleteFunc(t.writable(), func(c *Column) bool { return c.There == "" })
}

// some returns one or more of the columns, in their order.
func some(r *rand.Rand, columns []*Column) []*Column {
	must := r.IntN(len(columns))
	var picked []*Column
	for i, c := range columns {
		if i == must || r.IntN(3) == 0 {
			picked = append(picked, c)
		}
	}
	return picked
}

func prefixed(alias string, columns []*Column) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = alias + "." + c.sql()
	}
	return strings.Join(names, ", ")
}

func joined(left, right string, columns []*Column) string {
	conditions := make([]string, len(columns))
	for i, c := range columns {
		conditions[i] = fmt.Sprintf("%[1]s.%[3]s = %[2]s.%[3]s", left, right, c.sql())
	}
	return strings.Join(conditions, " AND ")
}
