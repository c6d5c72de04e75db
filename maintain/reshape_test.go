package maintain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

// TestColumnsThatMayBeNull lets a source's column be NULL and takes that back: what is
// kept beside the sums changes with it, and the view goes on.
func TestColumnsThatMayBeNull(t *testing.T) {
	db := pgtest.New(t)
	db.Exec(t, itemTable)
	d := daemon.Start(t, db, daemon.Options{Views: []plans.Declaration{
		daemon.View("groups", "SELECT g, sum(v) AS s FROM public.item GROUP BY g"),
		daemon.View("rows", "SELECT id, v FROM public.item"),
	}})
	eventually(t, db, "3", "SELECT count(*) FROM public.groups")
	db.Exec(t, "ALTER TABLE item ALTER v DROP NOT NULL; INSERT INTO item VALUES (100, 9, NULL)")
	eventually(t, db, "true", "SELECT s IS NULL FROM public.groups WHERE g = 9")
	eventually(t, db, "1", "SELECT count(*) FROM public.rows WHERE v IS NULL")
	db.Exec(t, "DELETE FROM item WHERE v IS NULL; ALTER TABLE item ALTER v SET NOT NULL; INSERT INTO item VALUES (101, 9, 5)")
	eventually(t, db, "5", "SELECT s FROM public.groups WHERE g = 9")
	for _, v := range d.Engine.Status().Views {
		require.Equal(t, maintain.Live, v.State, v.Problem)
	}
}

// TestDroppedTableComesBack drops a view's table under the daemon.
func TestDroppedTableComesBack(t *testing.T) {
	db := pgtest.New(t)
	db.Exec(t, itemTable)
	daemon.Start(t, db, daemon.Options{Views: []plans.Declaration{
		daemon.View("groups", "SELECT g, sum(v) AS s FROM public.item GROUP BY g"),
	}})
	eventually(t, db, "3", "SELECT count(*) FROM public.groups")
	db.Exec(t, "DROP TABLE public.groups; INSERT INTO item VALUES (100, 9, 1)")
	eventually(t, db, "4", "SELECT count(*) FROM public.groups")
}

// TestKeysTooLongForAnIndex groups by texts of which one is longer than any index
// entry may be, alone and after others, and again after a restart.
func TestKeysTooLongForAnIndex(t *testing.T) {
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE note (id int PRIMARY KEY, body text NOT NULL, n int); ALTER TABLE note REPLICA IDENTITY FULL; INSERT INTO note VALUES (1, 'short', 1)")
	o := daemon.Options{Views: []plans.Declaration{
		daemon.View("bodies", "SELECT body, sum(n) AS s FROM public.note GROUP BY body"),
	}}
	d := daemon.Start(t, db, o)
	eventually(t, db, "1", "SELECT count(*) FROM public.bodies")
	long := "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 500) i)"
	db.Exec(t, "INSERT INTO note VALUES (2, "+long+", 2), (3, "+long+", 3)")
	eventually(t, db, "5", "SELECT s FROM public.bodies WHERE length(body) > 10000")
	d.Stop()
	daemon.Start(t, db, o)
	db.Exec(t, "DELETE FROM note WHERE id = 2; INSERT INTO note VALUES (4, "+long+" || 'x', 7)")
	eventually(t, db, "3,7", "SELECT string_agg(s::text, ',' ORDER BY s) FROM public.bodies WHERE length(body) > 10000")
}
