// Package collision shows what happens to rows that collide under a coarsened key.
package collision

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const schema = `CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE acct(login text PRIMARY KEY, email text); ALTER TABLE acct REPLICA IDENTITY FULL`

const body = "SELECT email, login COLLATE nocase AS login FROM acct"

// start runs a daemon with the view people over acct.
func start(t *testing.T, rows string) (*pgtest.DB, *daemon.Daemon) {
	t.Helper()
	db := pgtest.New(t)
	db.Exec(t, schema)
	if rows != "" {
		db.Exec(t, rows)
	}
	d := daemon.Start(t, db, daemon.Options{Views: []plans.Declaration{daemon.View("people", body)}})
	return db, d
}

// await waits until the view has taken over what has committed.
func await(t *testing.T, db *pgtest.DB) {
	t.Helper()
	pgtest.Eventually(t, 20*time.Second, func() error {
		_, err := db.Pool.Exec(t.Context(), "SELECT FROM people")
		return err
	})
	require.Equal(t, "t", db.Value(t, "SELECT mvsync.wait()"))
}

func TestTheMemberWrittenLastStands(t *testing.T) {
	db, _ := start(t, "INSERT INTO acct VALUES ('Ann', 'a1'), ('Bob', 'b1')")
	await(t, db)
	step := func(sql, people string, collisions string) {
		t.Helper()
		db.Exec(t, sql)
		await(t, db)
		require.Equal(t, people, db.Value(t, `SELECT string_agg(login || '=' || email, ',' ORDER BY login COLLATE "C") FROM people`), sql)
		require.Equal(t, collisions, db.Value(t, "SELECT collisions FROM mvsync.views"), sql)
	}
	step("INSERT INTO acct VALUES ('bob', 'b2')", "Ann=a1,bob=b2", "1")
	step("INSERT INTO acct VALUES ('BOB', 'b3')", "Ann=a1,BOB=b3", "2")
	step("UPDATE acct SET email = 'b4' WHERE login = 'Bob'", "Ann=a1,Bob=b4", "3")
	step("UPDATE acct SET email = 'b5' WHERE login = 'Bob'", "Ann=a1,Bob=b5", "3")
	// Three rows collide; they go one after the other, the greatest source key survives.
	step("DELETE FROM acct WHERE login = 'Bob'", "Ann=a1,bob=b2", "3")
	step("DELETE FROM acct WHERE login = 'bob'", "Ann=a1,BOB=b3", "3")
	step("DELETE FROM acct WHERE login = 'BOB'", "Ann=a1", "3")
	// A row's own change of spelling is none.
	step("UPDATE acct SET login = 'ANN' WHERE login = 'Ann'", "ANN=a1", "3")
	// Counted before folding: batching does not change the count.
	step(`BEGIN; INSERT INTO acct VALUES ('x', '1'), ('X', '2'); UPDATE acct SET email = '3' WHERE login = 'x'; DELETE FROM acct WHERE login IN ('x', 'X'); COMMIT`,
		"ANN=a1", "5")
	require.Equal(t, [][]string{
		{`{"email": "2", "login": "X"}`, `{"email": "3", "login": "x"}`, "{login}"},
		{`{"email": "1", "login": "x"}`, `{"email": "2", "login": "X"}`, "{login}"},
	}, db.Query(t, "SELECT old_row, new_row, weakened_columns FROM mvsync.collisions ORDER BY at DESC, new_row->>'email' DESC LIMIT 2"))
}

func TestReconcileKeepsAMemberAndNeverFails(t *testing.T) {
	db, _ := start(t, "INSERT INTO acct VALUES ('Bob', 'b1')")
	await(t, db)
	db.Exec(t, "INSERT INTO acct VALUES ('bob', 'b2')")
	await(t, db)
	db.Exec(t, "SELECT mvsync.refresh('people')")
	pgtest.Eventually(t, 20*time.Second, func() error {
		require.Equal(t, "bob", db.Value(t, "SELECT login FROM people"))
		if db.Value(t, "SELECT count(*) FROM mvsync.request WHERE done_at IS NULL") != "0" {
			return errPending
		}
		return nil
	})
	require.Equal(t, "1", db.Value(t, "SELECT collisions FROM mvsync.views"))
}

func TestCollisionsAtCreateAreNamed(t *testing.T) {
	db := pgtest.New(t)
	db.Exec(t, schema)
	db.Exec(t, "INSERT INTO acct VALUES ('Bob', 'b1'), ('bob', 'b2'), ('Ann', 'a')")
	d := daemon.Start(t, db, daemon.Options{
		Views:  []plans.Declaration{daemon.View("people", body), daemon.View("plain", "SELECT login, email FROM acct")},
		Engine: func(*maintain.Options) {},
	})
	pgtest.Eventually(t, 20*time.Second, func() error {
		if d.Engine.Status().Views[0].State != maintain.Failed || d.Engine.Status().Views[1].State != maintain.Live {
			return errPending
		}
		return nil
	})
	require.Regexp(t, `weakens.*\(Bob\), \(bob\)|weakens.*\(bob\), \(Bob\)`, d.Engine.Status().Views[0].Err.Error())
	// It heals once the rows are mended.
	db.Exec(t, "DELETE FROM acct WHERE login = 'bob'")
	await(t, db)
	require.Equal(t, "2", db.Value(t, "SELECT count(*) FROM people"))
}

// A view over a join keeps one member of each class as well: the one written last, and
// where it leaves the join another takes its place.
func TestClassesOverAJoin(t *testing.T) {
	db := pgtest.New(t)
	db.Exec(t, schema)
	db.Exec(t, "CREATE TABLE dim(id int PRIMARY KEY, label text NOT NULL); ALTER TABLE dim REPLICA IDENTITY FULL")
	db.Exec(t, "INSERT INTO dim VALUES (1, 'a'), (2, 'b'); INSERT INTO acct VALUES ('Bob', 'a'), ('Ann', 'c')")
	daemon.Start(t, db, daemon.Options{Views: []plans.Declaration{
		daemon.View("people", "SELECT email, login COLLATE nocase AS login FROM acct WHERE email IN (SELECT label FROM dim)"),
	}})
	await(t, db)
	step := func(sql, people, collisions string) {
		t.Helper()
		db.Exec(t, sql)
		await(t, db)
		require.Equal(t, people, db.Value(t, `SELECT coalesce(string_agg(login || '=' || email, ',' ORDER BY login COLLATE "C"), '') FROM people`), sql)
		require.Equal(t, collisions, db.Value(t, "SELECT collisions FROM mvsync.views"), sql)
	}
	step("INSERT INTO acct VALUES ('bob', 'b')", "bob=b", "1")
	step("UPDATE acct SET email = 'b' WHERE login = 'Bob'", "Bob=b", "2")
	step("DELETE FROM dim WHERE id = 2", "", "2")
	step("INSERT INTO dim VALUES (3, 'b'), (4, 'c')", "Ann=c,bob=b", "2")
	step("DELETE FROM acct WHERE login = 'bob'", "Ann=c,Bob=b", "2")
	step("INSERT INTO acct VALUES ('BOB', 'nowhere')", "Ann=c,Bob=b", "2")
}
