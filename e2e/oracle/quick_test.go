package oracle

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// TestChecksAgain: what a checker remembers of its views hides no difference, and is forgotten when a view changes.
func TestChecksAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE src (id int PRIMARY KEY, n int); INSERT INTO src VALUES (1, 10), (2, 20);
		CREATE TABLE mv (id int PRIMARY KEY, n int); INSERT INTO mv TABLE src`)
	c := &Checker{Views: []View{{Table: "public.mv", Body: "SELECT * FROM src"}}}
	conn := db.Conn(t)
	check := func() error { return c.CheckNow(t.Context(), conn) }
	for range 8 { // beyond the number of executions after which Postgres may keep a plan
		require.NoError(t, check())
	}
	db.Exec(t, "UPDATE mv SET n = 21 WHERE id = 2")
	m, ok := errors.AsType[*Mismatch](check())
	require.True(t, ok)
	require.EqualValues(t, 1, m.Diffs[0].DifferentCount+m.Diffs[0].MissingCount)
	db.Exec(t, "UPDATE mv SET n = 20 WHERE id = 2")
	require.NoError(t, check())
	db.Exec(t, "ALTER TABLE src ADD more text; ALTER TABLE mv ADD more text")
	require.NoError(t, check())
	db.Exec(t, "UPDATE mv SET more = 'x'")
	require.Error(t, check())
	db.Exec(t, "DROP TABLE mv")
	require.ErrorContains(t, check(), "no such table")
	views, rows := c.Checks()
	require.EqualValues(t, 12, views)
	require.EqualValues(t, 24, rows)
}
