package backing

import (
	"strings"
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func deltaLayout(name string) *Layout {
	return &Layout{
		Name: Name{"public", name}, Query: "SELECT 1", Key: []int{2, 0},
		Columns: []Column{
			{Name: "id", Type: "integer", NotNull: true},
			{Name: "weird \"name\"", Type: "text"},
			{Name: "tenant", Type: "text", NotNull: true},
			{Name: "n", Type: "numeric"},
		},
	}
}

func (f *fixture) apply(l *Layout, gone, changed, fresh [][]string) (Result, error) {
	var r Result
	err := f.tx(func(tx pgx.Tx) (err error) {
		r, err = f.session.Apply(f.t.Context(), tx, l, Delta{
			Gone: &listFeed{rows: values(gone...)}, Changed: &listFeed{rows: values(changed...)}, Fresh: &listFeed{rows: values(fresh...)},
		})
		return err
	})
	return r, err
}

func TestApply(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{ArrayRows: 1})
	l := f.create(deltaLayout("applied"))
	require.True(t, f.session.Takes(l, 2))
	require.False(t, f.session.Takes(l, 1), "a merge of arrays is as fast")

	r, err := f.apply(l, nil, nil, [][]string{{"1", "a\tb\n\\N", "x", "1.0"}, {"2", "NULL", "x", "NULL"}, {"1", "", "y", "7"}, {"3", "\\", "y", "0"}})
	require.NoError(t, err)
	require.Equal(t, Result{Inserted: 4}, r)
	before := f.rows("SELECT id, ctid FROM applied WHERE tenant = 'y' AND id = 3")

	r, err = f.apply(l, [][]string{{"x", "2"}}, [][]string{{"1", "new", "x", "1.00"}, {"3", "\\", "y", "0"}}, [][]string{{"2", "again", "y", "5"}})
	require.NoError(t, err)
	require.Equal(t, Result{Inserted: 1, Updated: 1, Deleted: 1, Unchanged: 1}, r)
	require.Equal(t, []string{"1|new|x|1.00", "1||y|7", "2|again|y|5", "3|\\|y|0"}, f.rows("SELECT * FROM applied"))
	require.Equal(t, before, f.rows("SELECT id, ctid FROM applied WHERE tenant = 'y' AND id = 3"), "a no-op writes nothing (INV-5)")

	// Several in one transaction: what an earlier one has shipped is no part of a later one.
	require.NoError(t, f.tx(func(tx pgx.Tx) error {
		for _, changed := range []string{"7.0", "7.00", "7.000"} {
			r, err := f.session.Apply(t.Context(), tx, l, Delta{
				Gone: &listFeed{}, Changed: &listFeed{rows: values([]string{"1", "", "y", changed})}, Fresh: &listFeed{},
			})
			require.NoError(t, err)
			require.Equal(t, Result{Updated: 1}, r)
		}
		return nil
	}))
	require.Equal(t, []string{"1||y|7.000"}, f.rows("SELECT * FROM applied WHERE tenant = 'y' AND id = 1"))
}

// What is not as the images say must not go by in silence.
func TestApplyNoticesOtherRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{ArrayRows: 1})
	l := f.create(deltaLayout("astray"))
	_, err := f.apply(l, nil, nil, [][]string{{"1", "a", "x", "1"}})
	require.NoError(t, err)

	_, err = f.apply(l, [][]string{{"x", "1"}, {"x", "2"}}, nil, nil)
	require.ErrorIs(t, err, ErrAstray)
	_, err = f.apply(l, nil, [][]string{{"1", "b", "x", "1"}, {"2", "b", "x", "1"}}, nil)
	require.ErrorIs(t, err, ErrAstray)
	_, err = f.apply(l, nil, nil, [][]string{{"2", "b", "x", "1"}, {"1", "b", "x", "1"}})
	require.ErrorIs(t, err, ErrDuplicateKey)
	require.Equal(t, []string{"1|a|x|1"}, f.rows("SELECT * FROM astray"), "rolled back")
}

func TestApplyObeysGuardAndConstraints(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{ArrayRows: 1})
	l := f.create(deltaLayout("guarded"))
	f.db.Exec(t, "ALTER TABLE guarded ADD CONSTRAINT small CHECK (n < 10); ALTER TABLE guarded ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED")
	_, err := f.apply(l, nil, nil, [][]string{{"1", "a", "x", "11"}})
	requireCode(t, pgerrcode.CheckViolation, err)
	_, err = f.apply(l, nil, nil, [][]string{{"1", "a", "x", "1"}, {"2", "a", "x", "1"}})
	requireCode(t, pgerrcode.UniqueViolation, err)
	require.True(t, strings.HasPrefix(err.Error(), "apply changes to "), "by a statement, not at COMMIT: %v", err)
	require.NoError(t, f.session.Close(t.Context()))
	_, err = f.apply(l, nil, nil, [][]string{{"1", "a", "x", "1"}})
	require.Error(t, err, "COPY is no way around the guard (INV-11)")
}

func TestTakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	for name, spoil := range map[string]func(*Layout){
		"hidden columns":    func(l *Layout) { l.Hidden = []Column{{Name: "h", Type: "integer"}} },
		"one row":           func(l *Layout) { l.Key = nil },
		"nullable key":      func(l *Layout) { l.Columns[0].NotNull = false },
		"hashed key":        func(l *Layout) { l.HashKey = true },
		"dependent columns": func(l *Layout) { l.Columns[3].Dependent = Representative },
	} {
		l := deltaLayout("taken")
		require.True(t, f.session.Takes(l, 100_000), name)
		spoil(l)
		require.False(t, f.session.Takes(l, 100_000), name)
	}
}
