package round

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/plans"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestSmoke(t *testing.T) {
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE item(pk int PRIMARY KEY, p int NOT NULL, q int NOT NULL, bucket int NOT NULL); ALTER TABLE item REPLICA IDENTITY FULL")
	db.Exec(t, "INSERT INTO item SELECT g, g % 7, g % 5, g % 3 FROM generate_series(1, 20) g")
	d := daemon.Start(t, db, daemon.Options{Views: []plans.Declaration{
		daemon.View("p2", "SELECT pk, p, q FROM item WHERE bucket > 1"),
		daemon.View("f2", "SELECT pk, p FROM item ORDER BY p DESC, pk LIMIT 3"),
	}})
	pgtest.Eventually(t, 20*time.Second, func() error {
		_, err := db.Pool.Exec(t.Context(), "SELECT 1 FROM public.p2")
		return err
	})
	for range 5 {
		db.Exec(t, "UPDATE item SET p = p + 1, bucket = (bucket + 1) % 3; DELETE FROM item WHERE pk % 4 = 0; INSERT INTO item SELECT g, g % 7, g % 5, g % 3 FROM generate_series(30, 60) g ON CONFLICT (pk) DO UPDATE SET q = excluded.q + 1")
		require.Equal(t, "t", db.Value(t, "SELECT mvsync.wait()"))
	}
	require.Positive(t, d.Rounds())
	t.Log("rounds", d.Rounds(), d.Engine.Status())
}
