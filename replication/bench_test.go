package replication

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// BenchmarkStream is how fast a backlog of inserts into a table of eight columns is received, beside pg_recvlogical,
// which throws the same bytes away: what the server can send at most.
func BenchmarkStream(b *testing.B) {
	const transactions, each = 300, 1000
	backlog := func(b *testing.B) (*pgtest.DB, Target) {
		db := pgtest.New(b)
		db.Exec(b, `CREATE TABLE t(id bigint PRIMARY KEY, at timestamptz, n int, price numeric(12,2), state text, void text,
			note text, flag bool)`)
		target := provisioned(b, db, "t")
		conn := db.Conn(b)
		for i := range transactions {
			_, err := conn.Exec(b.Context(), `INSERT INTO t SELECT g, now(), g % 1000, g * 0.25, 'shipped', NULL,
				'some text of a customer', g % 2 = 0 FROM generate_series($1::int, $2::int) g`, i*each, (i+1)*each-1)
			require.NoError(b, err)
		}
		return db, target
	}
	rate := func(b *testing.B, took time.Duration) {
		b.ReportMetric(float64(b.N)*transactions*each/took.Seconds(), "rows/s")
		b.ReportMetric(0, "ns/op")
	}
	b.Run("ours", func(b *testing.B) {
		db, target := backlog(b)
		var took time.Duration
		for b.Loop() {
			began := time.Now()
			// Not confirmed, so that the next pass gets the same.
			r := run(b, db, target, nil)
			rows := 0
			for rows < transactions*each {
				<-r.Ready()
				for _, tx := range r.Take() {
					rows += tx.Changes.Len()
				}
			}
			took += time.Since(began)
			require.NoError(b, r.stop())
		}
		rate(b, took)
	})
	b.Run("pg_recvlogical", func(b *testing.B) {
		db, target := backlog(b)
		end := walEnd(b, db)
		var took time.Duration
		for b.Loop() {
			copyOf := db.Name + "_copy" // pg_recvlogical confirms what it wrote
			db.Exec(b, fmt.Sprintf("SELECT pg_copy_logical_replication_slot('%s', '%s')", target.Slot, copyOf))
			began := time.Now()
			receive := db.Server.Command(b.Context(), "pg_recvlogical", "-d", db.URL, "--slot", copyOf, "--start",
				"-o", "proto_version=1", "-o", `publication_names="`+target.Publication+`"`, "-f", os.DevNull,
				"--endpos", end.String(), "--no-loop")
			out, err := receive.CombinedOutput()
			require.NoError(b, err, string(out))
			took += time.Since(began)
			db.Exec(b, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", copyOf))
		}
		rate(b, took)
	})
}
