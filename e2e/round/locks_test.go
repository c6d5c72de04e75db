package round

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
)

// TestLockedTable: views over a table that somebody has locked sit rounds out, and the
// status names the table; the others go on (INV-7).
func TestLockedTable(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, items)
	db.Exec(t, "CREATE TABLE other (id int PRIMARY KEY, n int NOT NULL)")
	others := daemon.View("others", "SELECT id, n FROM other")
	d := keep(t, db, top, others)
	d.Settle(db)

	locker := session(t, db, "BEGIN")
	db.Exec(t, "UPDATE item SET p = p + 1") // top has to read it
	d.Settle(db)
	db.Exec(t, "UPDATE item SET p = p + 1 WHERE pk < 5")
	exec(t, locker, "LOCK TABLE item IN ACCESS EXCLUSIVE MODE")
	asOf := d.View("others").AsOf
	for i := range 3 {
		db.Exec(t, "INSERT INTO other VALUES ($1, 1)", i)
		require.Equal(t, "t", db.Value(t, "SELECT mvsync.wait('30s', ARRAY['others'])"))
	}
	soon(t, "others moves", func() bool { return d.View("others").AsOf.String() != asOf.String() })
	require.Equal(t, "3", db.Value(t, "SELECT count(*) FROM others"))

	exec(t, locker, "INSERT INTO item VALUES (300, 70, 1, 1)") // and so it has something to read
	exec(t, locker, "COMMIT")
	d.Settle(db)
	require.Equal(t, maintain.Live, d.View("top").State)
	require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM top WHERE pk = 300"))
}

// TestLockIsNamed: while a view waits for a lock, its status says for which table.
func TestLockIsNamed(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, items)
	d := keep(t, db, top)
	d.Settle(db)
	async, locker := session(t, db, "SET synchronous_commit = off"), session(t, db, "BEGIN")
	exec(t, locker, "LOCK TABLE item IN SHARE MODE")
	exec(t, async, "SELECT mvsync.refresh('top')")
	d.Settle(db) // a SHARE lock is not in the way
	exec(t, locker, "LOCK TABLE item IN ACCESS EXCLUSIVE MODE")
	exec(t, async, "SELECT mvsync.refresh('top')")
	pgtest.Eventually(t, limit, func() error {
		if v := d.View("top"); v.Problem == "" {
			return errors.New("the status does not say what is in the way")
		}
		return nil
	})
	require.Contains(t, d.View("top").Problem, `"public"."item"`)
	exec(t, locker, "ROLLBACK")
	d.Settle(db)
	soon(t, "no problem", func() bool { return d.View("top").Problem == "" })
}

// TestTruncate: a TRUNCATE between rounds empties the views; one that is taken back,
// or followed by rows in the same transaction, is no other.
func TestTruncate(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	d := keep(t, db, filtered, grouped, top)
	for _, sql := range []string{
		"TRUNCATE item",
		"INSERT INTO item VALUES (1, 1, 1, 1), (2, 2, 2, 2)",
		"BEGIN; TRUNCATE item; ROLLBACK",
		"BEGIN; TRUNCATE item; INSERT INTO item VALUES (3, 3, 3, 1); COMMIT",
		"BEGIN; INSERT INTO item VALUES (4, 3, 3, 1); SAVEPOINT s; TRUNCATE item; ROLLBACK TO s; UPDATE item SET p = 9; COMMIT",
		"BEGIN; INSERT INTO item VALUES (5, 3, 3, 1); TRUNCATE item; INSERT INTO item VALUES (5, 4, 4, 2); COMMIT",
	} {
		db.Exec(t, sql)
		d.Settle(db)
	}
	require.Equal(t, [][]string{{"5", "4", "4"}}, db.Query(t, "TABLE filtered"))
	soon(t, "rebuilt", func() bool { return d.Tally.Rebuilt("truncate")["public.grouped"] > 0 })
}

// TestWriterIsNeverTheVictim: where our delete waits for a row that a user's foreign
// key holds, and the user then waits for a table that we have locked, we give way.
func TestWriterIsNeverTheVictim(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, items)
	d := keep(t, db, top)
	db.Exec(t, "CREATE TABLE pick (pk int REFERENCES top)")
	d.Settle(db)
	first := db.Value(t, "SELECT min(pk) FROM top")
	user := session(t, db, "BEGIN")
	exec(t, user, "INSERT INTO pick VALUES ("+first+")")            // holds the backing row
	db.Exec(t, "DELETE FROM item WHERE pk = $1", mustInt(t, first)) // which is to be deleted now
	pgtest.Eventually(t, limit, func() error {
		if d.View("top").Problem == "" {
			return errors.New("no round has met the held row yet")
		}
		return nil
	})
	exec(t, user, "TRUNCATE item") // in the way of which no round stands for long
	exec(t, user, "ROLLBACK")
	d.Settle(db)
	require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM top WHERE pk = "+first))
}

func mustInt(t *testing.T, text string) int {
	t.Helper()
	var n int
	_, err := fmt.Sscan(text, &n)
	require.NoError(t, err)
	return n
}

// TestForeignKeyRefuses: a user's foreign key that forbids a delete sets that view
// aside, whether it is checked at once or at the end of the transaction; the others go
// on, and it heals.
func TestForeignKeyRefuses(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"NOT DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, items)
			d := keep(t, db, filtered, grouped)
			db.Exec(t, "CREATE TABLE pick (pk int PRIMARY KEY REFERENCES filtered "+when+"); INSERT INTO pick VALUES (1)")
			db.Exec(t, "DELETE FROM item WHERE pk = 1")
			becomes(t, d, "filtered", maintain.Failed)
			require.NotContains(t, d.View("filtered").Problem, "(1)", "a row value in what anybody may read")
			d.Settle(db)
			require.Equal(t, "19", db.Value(t, "SELECT sum(n) FROM grouped"))
			require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM filtered WHERE pk = 1"), "a failed view serves its last snapshot")
			db.Exec(t, "DELETE FROM pick")
			db.Exec(t, "SELECT mvsync.refresh('filtered')")
			becomes(t, d, "filtered", maintain.Live)
			d.Settle(db)
			require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM filtered WHERE pk = 1"))
		})
	}
}

// TestDeferredConstraint: a deferred constraint of a user's on a backing table fails at
// a statement of its view, not at the COMMIT of everybody's round.
func TestDeferredConstraint(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	d := keep(t, db, filtered, grouped)
	db.Exec(t, "ALTER TABLE filtered ADD CONSTRAINT one_p UNIQUE (pk, p) DEFERRABLE INITIALLY DEFERRED")
	db.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.p = 99 THEN RAISE EXCEPTION 'no such p'; END IF; RETURN NEW; END $$`)
	db.Exec(t, `CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON filtered DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	db.Exec(t, "UPDATE item SET p = 99 WHERE pk = 1")
	becomes(t, d, "filtered", maintain.Failed)
	d.Settle(db)
	require.Equal(t, "20", db.Value(t, "SELECT sum(n) FROM grouped"))
	db.Exec(t, "UPDATE item SET p = 1 WHERE pk = 1")
	becomes(t, d, "filtered", maintain.Live) // it is tried again by itself
	d.Settle(db)
}

// TestFailingRow: a body that fails for one row fails its view and no other; once the
// row is mended the view heals by itself.
func TestFailingRow(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	ratio := daemon.View("ratio", "SELECT pk, 100 / p AS r FROM item WHERE bucket = 1")
	db.Exec(t, "UPDATE item SET p = 1 WHERE p = 0")
	d := keep(t, db, ratio, grouped, daemon.View("over", "SELECT r, count(*) AS n FROM ratio GROUP BY r"))
	db.Exec(t, "UPDATE item SET p = 0 WHERE pk = 1")
	v := becomes(t, d, "ratio", maintain.Failed)
	require.ErrorContains(t, v.Err, "division by zero")
	require.Equal(t, "failed", db.Value(t, "SELECT state FROM mvsync.views WHERE name = 'public.ratio'"))
	d.Settle(db)
	require.Equal(t, "0", db.Value(t, "SELECT min(p) FROM item"))
	soon(t, "the consumer waits", func() bool { return strings.Contains(d.View("over").Problem, "public.ratio") })
	db.Exec(t, "UPDATE item SET bucket = 2 WHERE pk = 2") // the others move
	d.Settle(db)
	db.Exec(t, "UPDATE item SET p = 5 WHERE pk = 1")
	becomes(t, d, "ratio", maintain.Live)
	d.Settle(db)
	soon(t, "no problem", func() bool { return d.View("over").Problem == "" })
}

// TestIdleInTransaction: sessions that idle in a transaction, with and without an id,
// and prepared transactions hold nothing up.
func TestIdleInTransaction(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, items)
	d := keep(t, db, filtered, grouped, top)
	for i := range 20 {
		exec(t, session(t, db, "BEGIN"), fmt.Sprintf("INSERT INTO item VALUES (%d, 1, 1, 1); SELECT count(*) FROM filtered", 1000+i))
	}
	exec(t, session(t, db, "BEGIN"), "INSERT INTO item VALUES (999, 1, 1, 1); PREPARE TRANSACTION 'left'")
	for i := range 20 {
		db.Exec(t, "INSERT INTO item VALUES ($1, 2, 2, 2)", 2000+i)
		d.Settle(db)
	}
	db.Exec(t, "COMMIT PREPARED 'left'")
	d.Settle(db)
	require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM filtered WHERE pk = 999"))
	require.Empty(t, d.Tally.Gaps())
}

// TestBarrierBehindHugeTransaction: while the server decodes somebody's huge
// transaction rounds wait, and are exact.
func TestBarrierBehindHugeTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, items)
	db.Exec(t, "CREATE TABLE huge (id int, t text)")
	d := keep(t, db, filtered, grouped)
	done := make(chan struct{})
	conn := db.Conn(t)
	go func() {
		defer close(done)
		for range 3 {
			_, _ = conn.Exec(t.Context(), "INSERT INTO huge SELECT g, 'x' FROM generate_series(1, 60000) g") // its end is all we need
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(5 * time.Millisecond):
		}
		db.Exec(t, "UPDATE item SET p = p + 1 WHERE pk = 3")
		d.Settle(db)
	}
}
