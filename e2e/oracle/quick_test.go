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

// TestQuickSeesBytes: what is compared quickly is compared by its bytes, and as often as a row stands there.
func TestQuickSeesBytes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE src (n numeric, s text); INSERT INTO src VALUES (1.0, 'a'), (1.0, 'a'), (NULL, 'b'), (2, NULL);
		CREATE TABLE mv (n numeric, s text); INSERT INTO mv TABLE src`)
	c := &Checker{Views: []View{{Table: "public.mv", Body: "SELECT * FROM src"}}}
	conn := db.Conn(t)
	require.NoError(t, c.CheckNow(t.Context(), conn))
	for _, wrong := range []string{
		"UPDATE mv SET n = 1.00 WHERE n = 1.0",
		"UPDATE mv SET n = 0 WHERE n IS NULL",
		"UPDATE mv SET s = '' WHERE s IS NULL",
		"DELETE FROM mv WHERE ctid = (SELECT min(ctid) FROM mv WHERE n = 1)",
		"INSERT INTO mv VALUES (NULL, 'b')",
		"DELETE FROM mv WHERE n IS NULL; INSERT INTO mv VALUES (1.0, 'a')",
		"DELETE FROM mv",
	} {
		db.Exec(t, wrong)
		known, rest := c.split()
		require.Len(t, known, 1, "%s: it is not compared quickly", wrong)
		require.Empty(t, rest)
		_, ok := errors.AsType[*Mismatch](c.CheckNow(t.Context(), conn))
		require.True(t, ok, wrong)
		db.Exec(t, "DELETE FROM mv; INSERT INTO mv TABLE src")
		require.NoError(t, c.CheckNow(t.Context(), conn))
	}
}
