package degrade

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

// started runs a daemon until every view is live, and settles.
func started(t *testing.T, db *pgtest.DB, o daemon.Options) *daemon.Daemon {
	t.Helper()
	o.Level = slog.LevelInfo
	d := daemon.Start(t, db, o)
	for _, v := range o.Views {
		require.Eventually(t, func() bool { return d.View(v.Name.Name).State == maintain.Live }, limit, 5*time.Millisecond)
	}
	d.Settle(db)
	return d
}

// TestChoiceOutlivesRestarts: a strategy and its estimate are remembered. A start goes on
// with them, without a look at the rows, until the estimate is off by a factor of ten;
// then the view gets the tables of its new strategy, and is exact all the time.
func TestChoiceOutlivesRestarts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE page (id int PRIMARY KEY, words text NOT NULL, kind int NOT NULL); INSERT INTO page SELECT i, 'a b c', i % 3 FROM generate_series(1, 3000) i; ANALYZE`)
	o := daemon.Options{Views: []plans.Declaration{
		daemon.View("spread", `SELECT p.id, w.n, w.word FROM page p CROSS JOIN LATERAL string_to_table(p.words, ' ') WITH ORDINALITY w(word, n)`),
	}}
	recorded := func() (strategy string) {
		return db.Value(t, "SELECT strategy FROM mvsync.view")
	}
	change := func(d *daemon.Daemon) {
		db.Exec(t, "UPDATE page SET words = words || ' d' WHERE id % 100 = 0; DELETE FROM page WHERE id % 100 = 1; INSERT INTO page SELECT max(id) + 1, 'x y', 0 FROM page")
		d.Settle(db)
	}
	// The strategy of an earlier mvsync, which had no other.
	d := started(t, db, daemon.Options{Views: []plans.Declaration{{Name: o.Views[0].Name, Query: o.Views[0].Query, Force: plans.JoinResidual}}})
	require.Equal(t, "join-residual", recorded())
	change(d)
	d.Stop()

	d = started(t, db, o)
	require.Equal(t, plans.JoinResidual, d.Engine.Plans()[0].Strategy)
	require.Empty(t, d.Tally.Reasons("public.spread"), "a choice that stands costs nothing")
	require.Equal(t, "t", db.Value(t, "SELECT estimate > 0 FROM mvsync.view"), "from now on it is compared")
	change(d)
	d.Stop()
	// As if the tables had been another when it was chosen.
	db.Exec(t, "UPDATE mvsync.view SET estimate = 100000")

	d = started(t, db, o)
	require.Equal(t, "prefix-delete", recorded())
	require.Equal(t, map[string]int{"create": 1}, d.Tally.Reasons("public.spread"))
	estimate := db.Value(t, "SELECT estimate FROM mvsync.view")
	change(d)
	require.Positive(t, d.Tally.Arms("public.spread"))
	d.Stop()
	db.Exec(t, "INSERT INTO page SELECT i, 'a b c', 0 FROM generate_series(10000, 12000) i; ANALYZE page")

	d = started(t, db, o)
	require.Empty(t, d.Tally.Reasons("public.spread"))
	require.Equal(t, estimate, db.Value(t, "SELECT estimate FROM mvsync.view"), "a choice that stands keeps its estimate")
	change(d)
}

// TestIndexesFollowDeclarations: tables that stand get the indexes of a changed
// declaration at the start, and those of their plan; those of nobody are dropped, and
// users' are left alone. Nothing is compared again for it.
func TestIndexesFollowDeclarations(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, tables)
	// Rows are found by big_pk, which only the companion holds.
	o := daemon.Options{Views: []plans.Declaration{daemon.View("joined", `SELECT s.id, s.x, b.p FROM side s JOIN big b ON b.pk = s.big_pk`)}}
	declare := func(indexes ...string) {
		o.Engine = func(e *maintain.Options) {
			e.Tables = map[plans.Name]maintain.TableOptions{o.Views[0].Name: {Indexes: indexes}}
		}
	}
	declare("(x)", "(x, p)")
	d := started(t, db, o)
	companion := db.Value(t, "SELECT 'mvsync.state_' || id FROM mvsync.view")
	list := func(table string) string {
		return db.Value(t, "SELECT string_agg(regexp_replace(pg_get_indexdef(indexrelid), '^.* USING btree ', ''), ' ' ORDER BY indexrelid::regclass::text COLLATE \"C\") FROM pg_index WHERE indrelid = '"+table+"'::regclass")
	}
	hidden := list(companion)
	require.Contains(t, hidden, "_pk)")
	d.Stop()
	db.Exec(t, "CREATE INDEX theirs ON joined (p DESC)")
	// An index that a newer plan asks for, and one that it does not.
	name := db.Value(t, "SELECT indexrelid::regclass FROM pg_index WHERE indrelid = '"+companion+"'::regclass AND obj_description(indexrelid) LIKE 'mvsync: %\\_pk%'")
	mark := db.Value(t, "SELECT obj_description('"+name+"'::regclass)")
	db.Exec(t, "COMMENT ON INDEX "+name+" IS 'mvsync: (of an older plan)'")
	declare("(x, p)", "UNIQUE (id, x)")

	d = started(t, db, o)
	require.Equal(t, "(id, x) (id) (x, p) (p DESC)", list("joined"))
	require.Equal(t, hidden, list(companion))
	require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM pg_index WHERE indrelid = '"+companion+"'::regclass AND obj_description(indexrelid) = '"+mark+"'"))
	require.Empty(t, d.Tally.Reasons("public.joined"), "indexes are no reason to look at the rows")
	db.Exec(t, "UPDATE big SET p = p + 1 WHERE pk < 4")
	d.Settle(db)
	require.Positive(t, d.Tally.Arms("public.joined"))
	d.Stop()

	// One that the rows do not allow: the view fails alone, and heals with the file.
	declare("UNIQUE (x)")
	d = daemon.Start(t, db, o)
	require.Eventually(t, func() bool { return d.View("joined").State == maintain.Failed }, limit, 5*time.Millisecond)
	require.ErrorContains(t, d.View("joined").Err, "could not create unique index")
	d.Stop()
	declare()
	d = started(t, db, o)
	require.Equal(t, "(id) (p DESC)", list("joined"))
	require.Empty(t, d.Mismatches())
}
