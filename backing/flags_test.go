package backing

import (
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/ingest"
)

// keyed is a layout of an integer key and a text.
func keyed(name string) *Layout {
	return &Layout{Name: Name{"public", name}, Key: []int{0}, Columns: []Column{
		{Name: "k", Type: "integer", NotNull: true}, {Name: "v", Type: "text"},
	}}
}

var keyedInput = []InputColumn{{"k", "integer"}, {"v", "text"}}

const allNew = "SELECT * FROM mvsync_new_0"

func (f *fixture) fill(l *Layout, rows ...[]string) {
	f.t.Helper()
	f.merge(l, Merge{New: allNew}, input("mvsync_new_0", keyedInput, rows...))
}

// TestTouchedKeepsTheRest merges under a condition: stored rows outside it stay.
func TestTouchedKeepsTheRest(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := f.create(keyed("v"))
	f.fill(l, []string{"1", "a"}, []string{"2", "b"}, []string{"3", "c"}, []string{"4", "d"})
	r := f.merge(l, Merge{
		New: allNew, Touched: "s.k = ANY ($1::integer[]) OR s.k IN (SELECT k0 FROM mvsync_keys)", Effects: true,
		Args: []any{Array{Type: "integer", Values: []ingest.Value{ingest.Text("1"), ingest.Text("9"), ingest.Null}}},
	},
		input("mvsync_new_0", keyedInput, []string{"2", "B"}, []string{"9", "z"}),
		input("mvsync_keys", []InputColumn{{"k0", "integer"}}, []string{"2"}, []string{"3"}))
	require.Equal(t, []string{"2|B", "4|d", "9|z"}, f.rows("SELECT * FROM v"))
	require.Equal(t, []string{"- -> 9|z", "1|a -> -", "2|b -> 2|B", "3|c -> -"}, lines(r.Effects))
	require.Equal(t, Result{Inserted: 1, Updated: 1, Deleted: 2, Effects: r.Effects}, r)
}

// TestFlags merges rows that are gone and rows to be evaluated otherwise, over stored ones by their names.
func TestFlags(t *testing.T) {
	t.Parallel()
	for _, effects := range []bool{false, true} {
		f := newFixture(t, Options{})
		l := &Layout{Name: Name{"public", "v"}, Key: []int{1}, Columns: []Column{
			{Name: "total", Type: "bigint"}, {Name: "g", Type: "text"},
		}, Hidden: []Column{{Name: "n", Type: "bigint", NotNull: true}}}
		f.create(l)
		delta := []InputColumn{{"g", "text"}, {"a", "bigint"}, {"n", "bigint"}, {"dirty", "boolean"}}
		m := Merge{
			New: `SELECT COALESCE(s.total, 0) + d.a, d.g, COALESCE(s.n, 0) + d.n, d.dirty, COALESCE(s.n, 0) + d.n > 0
				FROM mvsync_delta d LEFT JOIN mvsync_stored s ON ARRAY[s.g] = ARRAY[d.g]`,
			Touched: "EXISTS (SELECT FROM mvsync_delta d WHERE ARRAY[d.g] = ARRAY[s.g])",
			Flags:   true, Effects: effects,
		}
		r := f.merge(l, m, input("mvsync_delta", delta, []string{"a", "5", "1", "f"}, []string{"b", "7", "2", "f"},
			[]string{"NULL", "9", "1", "f"}, []string{"d", "1", "1", "f"}))
		require.EqualValues(t, 4, r.Inserted)
		r = f.merge(l, m, input("mvsync_delta", delta, []string{"a", "-5", "-1", "f"}, []string{"b", "3", "1", "f"},
			[]string{"NULL", "1", "0", "t"}, []string{"new", "0", "0", "f"}, []string{"other", "1", "1", "t"}))
		require.Equal(t, []string{"10|b|3", "1|d|1", "9|NULL|1"}, f.storedRows(l), "a row to be rerun stays as it is")
		require.ElementsMatch(t, []ingest.Row{{ingest.Null}, {ingest.Text("other")}}, r.Rerun)
		require.Equal(t, [3]int64{0, 1, 1}, [3]int64{r.Inserted, r.Updated, r.Deleted})
		if effects {
			require.Equal(t, []string{"5|a -> -", "7|b -> 10|b"}, lines(r.Effects))
		}
	}
}

// TestDuplicateKeys merges two rows of one key: an error, whether the key is stored or not.
func TestDuplicateKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := f.create(&Layout{Name: Name{"public", "v"}, Key: []int{0}, Columns: []Column{
		{Name: "k", Type: "text", Collation: `"public"."nocase"`}, {Name: "v", Type: "text"},
	}})
	two := input("mvsync_new_0", []InputColumn{{"k", "text"}, {"v", "text"}}, []string{"Bob", "1"}, []string{"bob", "2"})
	_, err := f.tryMerge(l, Merge{New: allNew}, two)
	require.ErrorIs(t, err, ErrDuplicateKey)
	_, err = f.tryMerge(l, Merge{New: allNew, Append: true}, two)
	require.ErrorIs(t, err, ErrDuplicateKey)
	require.NotContains(t, err.Error(), "Bob", "INV-12: no value in an error")
	f.merge(l, Merge{New: "SELECT 'BOB', 'x'"})
	_, err = f.tryMerge(l, Merge{New: allNew}, two)
	require.ErrorIs(t, err, ErrDuplicateKey)
	require.Equal(t, []string{"BOB|x"}, f.rows("SELECT * FROM v"))
}

// TestSwappedUniqueValues merges rows that swap values of a unique column, and one that takes a value that a deleted row
// frees, under a constraint and under an index over an expression.
func TestSwappedUniqueValues(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := keyed("v")
	l.Indexes = []string{"UNIQUE (v)"}
	f.create(l)
	f.fill(l, []string{"1", "a"}, []string{"2", "b"}, []string{"3", "c"})
	f.fill(l, []string{"1", "b"}, []string{"2", "a"}, []string{"4", "c"})
	require.Equal(t, []string{"1|b", "2|a", "4|c"}, f.rows("SELECT * FROM v"))
	_, err := f.tryMerge(l, Merge{New: "SELECT 1, 'a' UNION ALL SELECT 2, 'a'"})
	requireCode(t, pgerrcode.UniqueViolation, err)
	require.NotErrorIs(t, err, ErrDuplicateKey, "the user's own constraint")

	l = keyed("w")
	l.Indexes = []string{"UNIQUE (lower(v))", "(v DESC)", "USING hash (v)"}
	f.create(l)
	f.fill(l, []string{"1", "a"})
	f.fill(l, []string{"2", "A"})
	require.Equal(t, []string{"2|A"}, f.rows("SELECT * FROM w"))
}

// TestEffectLimit drops the effects above the limit, and says so.
func TestEffectLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := f.create(keyed("v"))
	for _, appending := range []bool{true, false} {
		f.merge(l, Merge{New: "SELECT 1, 'x' WHERE false"})
		m := Merge{New: "SELECT i, 'x' FROM generate_series(1, 11) i", Effects: true, EffectLimit: 10, Append: appending}
		r := f.merge(l, m)
		require.True(t, r.Overflow)
		require.Empty(t, r.Effects)
		require.EqualValues(t, 11, r.Inserted)
		f.merge(l, Merge{New: "SELECT 1, 'x' WHERE false"})
		m.EffectLimit = 11
		r = f.merge(l, m)
		require.False(t, r.Overflow)
		require.Len(t, r.Effects, 11)
	}
}

// TestUpdateKeepsReferences merges over a key that somebody's foreign key cascades from: the row survives.
func TestUpdateKeepsReferences(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := f.create(&Layout{Name: Name{"public", "v"}, Key: []int{0}, Columns: []Column{
		{Name: "k", Type: "text", Collation: `"public"."nocase"`, NotNull: true}, {Name: "v", Type: "text"},
	}})
	f.merge(l, Merge{New: "SELECT 'Bob', 'x'"})
	f.db.Exec(t, `CREATE TABLE mine (k text COLLATE nocase REFERENCES v ON DELETE CASCADE ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED);
		INSERT INTO mine VALUES ('Bob')`)
	f.merge(l, Merge{New: "SELECT 'BOB', 'y'"})
	require.Equal(t, []string{"BOB"}, f.rows("SELECT * FROM mine"))
	f.db.Exec(t, "ALTER TABLE mine DROP CONSTRAINT mine_k_fkey, ADD FOREIGN KEY (k) REFERENCES v DEFERRABLE INITIALLY DEFERRED")
	_, err := f.tryMerge(l, Merge{New: "SELECT 'ann', 'y'"})
	requireCode(t, pgerrcode.ForeignKeyViolation, err)
	require.ErrorContains(t, err, "merge into public.v", "the statement fails, not the commit")
}

// TestDroppedColumnsAndToast merges into a table that had another column, whose values are stored out of line.
func TestDroppedColumnsAndToast(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := f.create(keyed("v"))
	f.db.Exec(t, "ALTER TABLE v ADD COLUMN gone integer DEFAULT 7")
	f.merge(l, Merge{New: "SELECT 1, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 500) i)"})
	f.db.Exec(t, "ALTER TABLE v DROP COLUMN gone")
	require.Equal(t, []string{"t"}, f.rows("SELECT pg_relation_size(reltoastrelid) > 0 FROM pg_class WHERE oid = 'v'::regclass"))
	r := f.merge(l, Merge{New: "SELECT 1, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 500) i)", Effects: true})
	require.Zero(t, r.Changed())
	require.EqualValues(t, 1, r.Unchanged)
	r = f.merge(l, Merge{New: "SELECT 1, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 499) i)", Effects: true})
	require.EqualValues(t, 1, r.Updated)
	require.Len(t, r.Effects[0].Old[1].Text(), 500*32)
}

// TestReconcile evaluates a body over its source and writes what differs, hidden columns included.
func TestReconcile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.db.Exec(t, "CREATE TABLE src (g integer, x integer); INSERT INTO src SELECT i % 3, i FROM generate_series(1, 9) i; INSERT INTO src VALUES (NULL, 1)")
	l := f.create(&Layout{
		Name: Name{"public", "v"}, Key: []int{0}, Columns: []Column{{Name: "g", Type: "integer"}, {Name: "sum", Type: "bigint"}},
		Hidden: []Column{{Name: "mvsync_n", Type: "bigint", NotNull: true}},
	})
	reconcile := func() Result {
		var r Result
		require.NoError(t, f.tx(func(tx pgx.Tx) (err error) {
			r, err = f.session.Reconcile(t.Context(), tx, l, "WITH a AS (SELECT * FROM public.src) SELECT g, sum(x), count(x) FROM a GROUP BY g", true)
			return err
		}))
		return r
	}
	require.EqualValues(t, 4, reconcile().Inserted)
	f.db.Exec(t, "DELETE FROM src WHERE g = 0; UPDATE src SET x = 5 WHERE g IS NULL; INSERT INTO src VALUES (1, 0), (7, NULL)")
	r := reconcile()
	require.Equal(t, []string{"- -> 7|NULL", "0|18 -> -", "NULL|1 -> NULL|5"}, lines(r.Effects))
	require.EqualValues(t, 2, r.Unchanged, "of one of them only the hidden count changed")
	require.Equal(t, []string{"1|12|4", "2|15|3", "7|NULL|0", "NULL|5|1"}, f.storedRows(l))
}

// TestCompanionHeals merges over a row whose companion row is gone.
func TestCompanionHeals(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := keyed("v")
	l.Hidden = []Column{{Name: "n", Type: "bigint", NotNull: true}}
	f.create(l)
	m := Merge{New: "SELECT 1, 'a', 5 UNION ALL SELECT 2, 'b', 6", Effects: true}
	f.merge(l, m)
	_, err := f.session.Conn().Exec(t.Context(), "DELETE FROM "+f.host.companion(l)+" WHERE k = 1")
	require.NoError(t, err)
	r := f.merge(l, m)
	require.Zero(t, r.Changed(), "the view's own row is right")
	require.Equal(t, []string{"1|a|5", "2|b|6"}, f.storedRows(l))
}

// TestQuery runs a SELECT over inputs, in both ways of shipping them.
func TestQuery(t *testing.T) {
	t.Parallel()
	for _, mode := range []struct {
		rows int
		temp bool
	}{{2000, true}, {1, true}, {1, false}} {
		f := newFixture(t, Options{ArrayRows: mode.rows})
		require.True(t, f.session.temp)
		f.session.temp = mode.temp // as for a role without the right to make temporary tables
		err := f.tx(func(tx pgx.Tx) error {
			for range 2 {
				got, err := f.session.Query(t.Context(), tx, Select{
					With: []CTE{{Name: "more", SQL: "SELECT k + $1::integer AS k FROM mvsync_new_0"}},
					Args: []any{10},
					SQL:  "WITH x AS (SELECT k FROM more) SELECT k, NULL, true FROM x ORDER BY k",
				}, []Input{input("mvsync_new_0", keyedInput, []string{"2", "b"}, []string{"1", "NULL"})})
				require.NoError(t, err)
				require.Equal(t, []ingest.Row{
					{ingest.Text("11"), ingest.Null, ingest.Text("t")}, {ingest.Text("12"), ingest.Null, ingest.Text("t")},
				}, got)
			}
			return nil
		})
		require.NoError(t, err)
	}
}

// TestStages ships several inputs of one shape in one transaction, and again in the next, where a rollback took the
// tables away, and where they were made in between.
func TestStages(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{ArrayRows: 1})
	a := input("a", keyedInput, []string{"1", "x"}, []string{"2", "y"})
	b := input("b", keyedInput, []string{"3", "x"}, []string{"4", "y"})
	sum := func(tx pgx.Tx, inputs ...Input) string {
		got, err := f.session.Query(t.Context(), tx, Select{SQL: "SELECT (SELECT sum(k) FROM a), (SELECT sum(k) FROM b)"}, inputs)
		require.NoError(t, err)
		return line(got[0])
	}
	tables := func() string {
		var n string
		require.NoError(t, f.session.Conn().QueryRow(t.Context(),
			"SELECT count(*)::text FROM pg_class WHERE relname LIKE 'mvsync_input_%' AND pg_table_is_visible(oid)").Scan(&n))
		return n
	}
	rolledBack := f.tx(func(tx pgx.Tx) error {
		require.Equal(t, "3|7", sum(tx, a, b))
		return pgx.ErrTxClosed
	})
	require.ErrorIs(t, rolledBack, pgx.ErrTxClosed)
	require.Equal(t, "0", tables())
	require.NoError(t, f.session.Idle(t.Context()))
	require.Equal(t, "2", tables())
	for range 2 {
		require.NoError(t, f.tx(func(tx pgx.Tx) error {
			require.Equal(t, "3|7", sum(tx, a, b))
			require.Equal(t, "3|7", sum(tx, a, b), "the same rows are not shipped again")
			b.Rows = values([]string{"5", "x"}, []string{"5", "y"})
			require.Equal(t, "3|10", sum(tx, a, b))
			b.Rows = values([]string{"3", "x"}, []string{"4", "y"})
			return nil
		}))
	}
	require.NoError(t, f.session.Idle(t.Context()))
	require.Equal(t, "3", tables())
}

// TestForget changes a type under a prepared statement: the error is known, and after Forget the merge works.
func TestForget(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := f.create(keyed("v"))
	f.fill(l, []string{"1", "a"})
	f.db.Exec(t, "CREATE TABLE src (k integer, v integer)")
	q := func() error {
		return f.tx(func(tx pgx.Tx) error {
			_, err := f.session.Query(t.Context(), tx, Select{SQL: "SELECT * FROM public.src"}, nil)
			return err
		})
	}
	require.NoError(t, q())
	f.db.Exec(t, "ALTER TABLE src ADD COLUMN w integer")
	err := q()
	require.True(t, StalePlan(err), "%v", err)
	require.NoError(t, f.session.Forget(t.Context()))
	require.NoError(t, q())
	require.False(t, StalePlan(nil))
}
