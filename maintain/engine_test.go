package maintain_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/internal/pgserver"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

// eventually waits until a query gives a value.
func eventually(t *testing.T, db *pgtest.DB, want, sql string) {
	t.Helper()
	pgtest.Eventually(t, 30*time.Second, func() error {
		var got string
		if err := db.Pool.QueryRow(t.Context(), "SELECT ("+sql+")::text").Scan(&got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s: got %q, want %q", sql, got, want)
		}
		return nil
	})
}

const itemTable = `CREATE TABLE item (id int PRIMARY KEY, g int NOT NULL, v int NOT NULL); ALTER TABLE item REPLICA IDENTITY FULL;
	INSERT INTO item SELECT i, i % 3, i FROM generate_series(1, 30) i`

// chain is a view over a table, one over that view, and one that reads neither.
func chain() []plans.Declaration {
	return []plans.Declaration{
		daemon.View("groups", "SELECT g, count(*) AS n, sum(v) AS s FROM public.item GROUP BY g"),
		daemon.View("total", "SELECT sum(n) AS n, sum(s) AS s FROM public.groups"),
		daemon.View("rows", "SELECT id, v FROM public.item"),
	}
}

// TestConsumerOfPausedView pauses a view: the one that reads it stands still with it,
// keeps no log from being discarded, and nobody waits for it.
func TestConsumerOfPausedView(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, itemTable)
	d := daemon.Start(t, db, daemon.Options{Views: chain()})
	eventually(t, db, "30", "SELECT n FROM total")

	db.Exec(t, "SELECT mvsync.pause('groups')")
	pgtest.Eventually(t, 30*time.Second, func() error {
		if g, c := d.View("groups").State, d.View("total").State; g != maintain.Paused || c != maintain.Paused {
			return fmt.Errorf("%s and %s", g, c)
		}
		return nil
	})
	db.Exec(t, "INSERT INTO item VALUES (31, 1, 31)")
	eventually(t, db, "31", `SELECT count(*) FROM "rows"`)
	require.Equal(t, "30", db.Value(t, "SELECT n FROM total"))
	at := db.Value(t, "SELECT pg_current_wal_insert_lsn()")
	db.Exec(t, "INSERT INTO item VALUES (32, 1, 32)")
	eventually(t, db, "32", `SELECT count(*) FROM "rows"`)
	db.Exec(t, "UPDATE item SET v = v + 1") // a later round confirms the one before
	eventually(t, db, "true", "SELECT confirmed_flush_lsn >= '"+at+"' FROM pg_replication_slots WHERE database = current_database()")

	d.Stop()
	d = daemon.Start(t, db, daemon.Options{Views: chain()})
	db.Exec(t, "DELETE FROM item WHERE id = 1")
	eventually(t, db, "31", `SELECT count(*) FROM "rows"`)
	require.Equal(t, maintain.Paused, d.View("groups").State, "it stays paused over a restart")
	require.Equal(t, "30", db.Value(t, "SELECT n FROM total"))
	db.Exec(t, "SELECT mvsync.resume('groups')")
	eventually(t, db, "31", "SELECT n FROM total")
	require.Equal(t, db.Value(t, "SELECT sum(v) FROM item"), db.Value(t, "SELECT s FROM total"))
}

// TestSlowConsumerRestart stops the daemon while a view is behind the one that it
// reads: what led there is in no stream.
func TestSlowConsumerRestart(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, itemTable)
	views := chain()
	views[1].Every = time.Hour
	d := daemon.Start(t, db, daemon.Options{Views: views})
	eventually(t, db, "30", "SELECT n FROM total")
	db.Exec(t, "INSERT INTO item VALUES (31, 1, 31), (32, 7, 32); DELETE FROM item WHERE g = 2")
	want := db.Value(t, "SELECT count(*) FROM item")
	eventually(t, db, want, "SELECT sum(n) FROM groups")
	require.Equal(t, "30", db.Value(t, "SELECT n FROM total"))
	d.Stop()
	daemon.Start(t, db, daemon.Options{Views: views})
	eventually(t, db, want, "SELECT n FROM total")
}

// TestFenceOutlivesProcess restarts the daemon while a transaction runs whose changes
// to a new inheritance child may not be in the stream.
func TestFenceOutlivesProcess(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, pgserver.Options{}) // a new slot elsewhere would wait for the transaction
	db := pgtest.NewOn(t, server)
	db.Exec(t, "CREATE TABLE parent (id int PRIMARY KEY, v int NOT NULL); ALTER TABLE parent REPLICA IDENTITY FULL; INSERT INTO parent VALUES (1, 1)")
	views := []plans.Declaration{daemon.View("total", "SELECT count(*) AS n, sum(v) AS s FROM public.parent")}
	d := daemon.Start(t, db, daemon.Options{Views: views})
	eventually(t, db, "1", "SELECT n FROM total")

	writer := db.Conn(t)
	db.Exec(t, "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent); ALTER TABLE child REPLICA IDENTITY FULL")
	_, err := writer.Exec(t.Context(), "BEGIN; INSERT INTO child VALUES (2, 2)") // not published yet
	require.NoError(t, err)
	eventually(t, db, "1", "SELECT count(*) FROM pg_publication_tables WHERE tablename = 'child'")
	pgtest.Eventually(t, 30*time.Second, func() error {
		if d.Tally.Reasons("public.total")["fence"] == 0 {
			return errors.New("not reconciled behind the fence yet")
		}
		return nil
	})
	d.Stop()
	d = daemon.Start(t, db, daemon.Options{Views: views})
	before := d.Rounds()
	require.NoError(t, d.Reach(before+1, 30*time.Second))
	_, err = writer.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	eventually(t, db, "2 3", "SELECT n || ' ' || s FROM total")
	db.Exec(t, "INSERT INTO child VALUES (3, 3)")
	eventually(t, db, "3 6", "SELECT n || ' ' || s FROM total")
}

// TestPlanAgainOnResume changes what a paused view reads: what it reads when it is
// resumed must be published and watched.
func TestPlanAgainOnResume(t *testing.T) {
	t.Parallel()
	for _, recover := range []string{"resume", "refresh"} {
		t.Run(recover, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, itemTable+`; CREATE TABLE other (id int PRIMARY KEY, v int NOT NULL); ALTER TABLE other REPLICA IDENTITY FULL;
				INSERT INTO other VALUES (1, 1); CREATE VIEW through AS SELECT id, v FROM item`)
			views := []plans.Declaration{daemon.View("total", "SELECT count(*) AS n, sum(v) AS s FROM public.through")}
			d := daemon.Start(t, db, daemon.Options{Views: views})
			eventually(t, db, "30", "SELECT n FROM total")
			db.Exec(t, "SELECT mvsync.pause('total')")
			pgtest.Eventually(t, 30*time.Second, func() error {
				if s := d.View("total").State; s != maintain.Paused {
					return errors.New(string(s))
				}
				return nil
			})
			db.Exec(t, "CREATE OR REPLACE VIEW through AS SELECT id, v FROM other")
			db.Exec(t, "SELECT mvsync."+recover+"('total')")
			eventually(t, db, "1", "SELECT n FROM total")
			db.Exec(t, "INSERT INTO other VALUES (2, 5)")
			eventually(t, db, "2 6", "SELECT n || ' ' || s FROM total")
			db.Exec(t, "ALTER TABLE other ADD COLUMN w int DEFAULT 1; UPDATE other SET v = v + w")
			eventually(t, db, "2 8", "SELECT n || ' ' || s FROM total")
		})
	}
}

// audits counts what the continuous audit found, by view.
type audits struct {
	maintain.Observer
	mu        sync.Mutex
	clean     map[string]int
	differing map[string]int
}

func (a *audits) Verified(view string, rows int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if rows == 0 {
		a.clean[view]++
		return
	}
	a.differing[view] += rows
}

func (a *audits) counts(view string) (clean, differing int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.clean[view], a.differing[view]
}

// TestAuditWhileWriting compares views with their bodies while rounds go on, views over
// views too: no false alarm, and a true one.
func TestAuditWhileWriting(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, itemTable)
	found := &audits{clean: map[string]int{}, differing: map[string]int{}}
	views := chain()
	daemon.Start(t, db, daemon.Options{Views: views, Unchecked: true, Engine: func(o *maintain.Options) {
		found.Observer = o.Observer
		o.VerifyEvery, o.Observer = time.Millisecond, found
	}})
	eventually(t, db, "30", "SELECT n FROM total")
	labels := []string{"public.groups", "public.total", "public.rows"}
	writes := 0
	write := func() {
		writes++
		db.Exec(t, fmt.Sprintf("INSERT INTO item VALUES (%d, %d, 1); UPDATE item SET v = v + 1 WHERE g = %d; DELETE FROM item WHERE id = %d",
			1000+writes, writes%5, writes%3, 990+writes))
	}
	pgtest.Eventually(t, 60*time.Second, func() error {
		write()
		for _, label := range labels {
			clean, differing := found.counts(label)
			require.Zero(t, differing, "a false alarm about %s", label)
			if clean < 4 {
				return fmt.Errorf("%s was compared %d times", label, clean)
			}
		}
		return nil
	})

	// Somebody with the right to do so goes around the guard.
	db.Exec(t, "ALTER TABLE total DISABLE TRIGGER USER; UPDATE total SET n = n + 1")
	pgtest.Eventually(t, 30*time.Second, func() error {
		if _, differing := found.counts("public.total"); differing == 0 {
			return errors.New("not found yet")
		}
		return nil
	})
	clean, _ := found.counts("public.groups")
	pgtest.Eventually(t, 30*time.Second, func() error {
		if now, differing := found.counts("public.groups"); now == clean || differing != 0 {
			return fmt.Errorf("groups: %d more audits, %d rows differ", now-clean, differing)
		}
		return nil
	})
}
