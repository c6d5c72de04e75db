package noop

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

// TestUniqueValuesSwapped: rows of a view may exchange the values of a further unique
// index within a batch. A value that really stands twice fails the view alone, until
// it does not.
func TestUniqueValuesSwapped(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE seat (id int PRIMARY KEY, place int NOT NULL, hall int NOT NULL);
		CREATE TABLE hall (id int PRIMARY KEY, name text NOT NULL);
		ALTER TABLE seat REPLICA IDENTITY FULL; ALTER TABLE hall REPLICA IDENTITY FULL;
		INSERT INTO hall SELECT i, 'hall ' || i FROM generate_series(1, 8) i;
		INSERT INTO seat SELECT i, i * 10, i FROM generate_series(1, 8) i`)
	views := []plans.Declaration{
		daemon.View("projected", "SELECT id, place AS x FROM seat"),
		daemon.View("added", "SELECT hall, sum(place) AS x FROM seat GROUP BY hall"),
		daemon.View("averaged", "SELECT hall, avg(place) AS x FROM seat GROUP BY hall"),
		daemon.View("listed", "SELECT hall, string_agg(place::text, ',' ORDER BY place) AS x FROM seat GROUP BY hall"),
		daemon.View("joined", "SELECT s.id, h.name, s.place AS x FROM seat s JOIN hall h ON h.id = s.hall"),
		daemon.View("rebuilt", "SELECT id, place AS x FROM seat ORDER BY place, id LIMIT 100"),
	}
	d := daemon.Start(t, db, daemon.Options{Views: views, Level: slog.LevelError, Engine: func(o *maintain.Options) {
		o.Tables = map[plans.Name]maintain.TableOptions{}
		for _, v := range views {
			o.Tables[v.Name] = maintain.TableOptions{Indexes: []string{"UNIQUE (x)"}}
		}
	}})
	pgtest.Eventually(t, time.Minute, func() error { return live(d) })
	for _, change := range []string{
		"UPDATE seat SET place = CASE id WHEN 1 THEN 20 ELSE 10 END WHERE id IN (1, 2)",
		"UPDATE seat SET place = CASE id WHEN 3 THEN 40 WHEN 4 THEN 50 ELSE 30 END WHERE id IN (3, 4, 5)",
		"UPDATE seat SET place = place + 10",                                                             // each takes the value of the next
		"BEGIN; DELETE FROM seat WHERE id = 8; INSERT INTO seat VALUES (9, 90, 9), (0, 1000, 6); COMMIT", // a new row takes over a value
		"BEGIN; DELETE FROM seat WHERE id = 0; INSERT INTO hall VALUES (9, 'hall 9'); COMMIT",
		"UPDATE seat SET id = CASE id WHEN 6 THEN 107 ELSE 106 END, hall = CASE id WHEN 6 THEN 7 ELSE 6 END WHERE id IN (6, 7)",
	} {
		db.Exec(t, change)
		require.Equal(t, "t", db.Value(t, "SELECT mvsync.wait('60s')"), change)
		require.NoError(t, live(d), change)
	}
	for _, v := range views {
		name := v.Name.String()
		require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM pg_index WHERE indrelid = $1::regclass AND indisunique AND NOT indisprimary AND indpred IS NULL AND indkey::text = (SELECT attnum::text FROM pg_attribute WHERE attrelid = $1::regclass AND attname = 'x')", name), name)
		if v.Name.Name != "rebuilt" {
			require.Positive(t, d.Tally.Arms(name), name)
		}
	}

	db.Exec(t, "UPDATE seat SET place = (SELECT place FROM seat WHERE id = 1) WHERE id = 2")
	pgtest.Eventually(t, time.Minute, func() error {
		if s := d.View("projected"); s.State != maintain.Failed {
			return errPending
		}
		return nil
	})
	db.Exec(t, "UPDATE seat SET place = 5 WHERE id = 2")
	pgtest.Eventually(t, time.Minute, func() error { return live(d) })
}

var errPending = errors.New("the view has not failed yet")
