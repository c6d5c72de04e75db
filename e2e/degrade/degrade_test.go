package degrade

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const limit = 120 * time.Second

// tables hold 30,000 rows, in slices of six and joined one to one.
const tables = `
CREATE TABLE big (pk int PRIMARY KEY, bucket int NOT NULL, p int NOT NULL);
CREATE TABLE side (id int PRIMARY KEY, big_pk int NOT NULL, x int NOT NULL);
CREATE INDEX ON big (bucket);
CREATE INDEX ON side (big_pk);
ALTER TABLE big REPLICA IDENTITY FULL;
INSERT INTO big SELECT i, i % 5000, i % 7 FROM generate_series(1, 30000) i;
INSERT INTO side SELECT i, i, i % 11 FROM generate_series(1, 30000) i;
ANALYZE;`

var views = []plans.Declaration{
	daemon.View("sliced", `SELECT bucket, string_agg(p::text, ',' ORDER BY pk) AS s FROM big GROUP BY bucket`),
	daemon.View("joined", `SELECT s.id, b.pk, s.x, b.p FROM side s JOIN big b ON b.pk = s.big_pk`),
	daemon.View("copied", `SELECT pk, p FROM big`),
}

func keep(t *testing.T, db *pgtest.DB, degrade bool) *daemon.Daemon {
	t.Helper()
	d := daemon.Start(t, db, daemon.Options{
		Views: views, Level: slog.LevelInfo, Engine: func(o *maintain.Options) { o.Degrade = degrade },
	})
	for _, v := range views {
		pgtest.Eventually(t, limit, func() error {
			if s := d.View(v.Name.Name); s.State != maintain.Live {
				return fmt.Errorf("%s is %s: %w", v.Name, s.State, s.Err)
			}
			return nil
		})
	}
	return d
}

// TestDegrade: a batch that touches a few keys is maintained, one that touches most of
// them evaluates the body once, and the next small one is maintained again. A strategy
// that reads no table never has a reason to. The oracle looks at each round.
func TestDegrade(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, tables)
	d := keep(t, db, true)
	few := func() {
		db.Exec(t, "UPDATE big SET p = p + 1 WHERE pk <= 3")
		d.Settle(db)
	}
	few()
	require.Empty(t, d.Tally.Rebuilt("degrade"))
	db.Exec(t, "UPDATE big SET p = p + 1 WHERE pk % 10 < 8")
	d.Settle(db)
	got := d.Tally.Rebuilt("degrade")
	require.Contains(t, got, "public.sliced")
	require.Contains(t, got, "public.joined")
	require.NotContains(t, got, "public.copied")
	few()
	require.Equal(t, got, d.Tally.Rebuilt("degrade"), "three rows are no reason to evaluate a body")
}

// TestDegradeOff: however many keys a batch touches, the arm takes it over.
func TestDegradeOff(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, tables)
	d := keep(t, db, false)
	db.Exec(t, "UPDATE big SET p = p + 1")
	d.Settle(db)
	require.Empty(t, d.Tally.Rebuilt("degrade"))
	require.Positive(t, d.Tally.Arms("public.sliced"))
}
