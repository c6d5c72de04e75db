package backing

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestPlansFollowGrowth: a plan that reads all of a small table is not kept while the table grows, though nobody
// analyses it; within a little log it is.
func TestPlansFollowGrowth(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.db.Exec(t, `CREATE TABLE src (id int PRIMARY KEY, v int) WITH (autovacuum_enabled = off);
		INSERT INTO src SELECT i, i FROM generate_series(1, 50) i; ANALYZE src`)
	_, err := f.session.Conn().Exec(t.Context(), "SET plan_cache_mode = force_generic_plan")
	require.NoError(t, err)
	l := f.create(&Layout{
		Name: Name{"public", "kept"}, Key: []int{0},
		Columns: []Column{{Name: "id", Type: "integer", NotNull: true}, {Name: "v", Type: "integer"}},
	})
	keys := Input{Name: "mvsync_keys", Columns: []InputColumn{{"k", "integer"}}, Rows: values([]string{"7"})}
	find := Select{SQL: "SELECT s.v FROM public.src s WHERE s.id IN (SELECT k FROM mvsync_keys)"}
	fresh := Merge{
		New:     "SELECT s.id, s.v FROM public.src s WHERE s.id IN (SELECT k FROM mvsync_keys)",
		Touched: "s.id IN (SELECT k FROM mvsync_keys)",
	}
	scanned := func() (rows int64) {
		t.Helper()
		const read = "SELECT seq_tup_read FROM pg_catalog.pg_stat_xact_user_tables WHERE relname = 'src'"
		require.NoError(t, f.tx(func(tx pgx.Tx) error {
			var before, after int64
			if err := tx.QueryRow(t.Context(), read).Scan(&before); err != nil {
				return err
			}
			if _, err := f.session.Query(t.Context(), tx, find, []Input{keys}); err != nil {
				return err
			}
			if _, err := f.session.Merge(t.Context(), tx, l, fresh, []Input{keys}); err != nil {
				return err
			}
			err := tx.QueryRow(t.Context(), read).Scan(&after)
			rows = after - before
			return err
		}))
		return rows
	}
	const start = 1 << 40
	f.session.Grown(start)
	require.EqualValues(t, 100, scanned())
	f.db.Exec(t, "INSERT INTO src SELECT i, i FROM generate_series(51, 20000) i")
	f.session.Grown(start + 1<<19)
	require.EqualValues(t, 40_000, scanned(), "without a new plan the table is read whole: the case is none")
	f.session.Grown(start + 6<<20)
	require.Zero(t, scanned())
	f.session.Grown(start + 7<<20)
	epoch := f.session.epoch
	f.session.Grown(start + 1<<20)
	require.Less(t, f.session.epoch, epoch, "log is counted from the session's beginning")
	f.session.Grown(start + 10*planAge)
	epoch = f.session.epoch
	f.session.Grown(start + 11*planAge)
	require.Greater(t, f.session.epoch, epoch, "however much there was before")
}
