package bench

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/internal/pgserver"
	"github.com/mvsync/mvsync/plans"
)

var (
	changes = flag.Int("bench.changes", 20_000, "changes to read, for each of two backlogs: inserts, then updates and deletes")
	only    = flag.String("bench.only", "", "measure the readers whose name holds this")
	goals   = flag.Bool("bench.goals", false, "fail where a figure misses its goal")
	profile = flag.String("bench.profile", "", "folder for CPU profiles of mvsync, one a measurement")
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// schema is a log of requests, with a row of some 60 bytes.
const schema = `CREATE TABLE request (id bigint PRIMARY KEY, country int NOT NULL, status int NOT NULL, ms int NOT NULL,
		at timestamptz NOT NULL, path text NOT NULL);
	ALTER TABLE request REPLICA IDENTITY FULL`

// The views that are measured: one that folds into twenty groups, and one that has every row.
func aggregate() plans.Declaration {
	return daemon.View("by_country", "SELECT country, count(*) AS n, sum(ms) AS ms, count(status) AS statuses FROM request GROUP BY country")
}

func projection() plans.Declaration {
	return daemon.View("requests", "SELECT id, country, status, ms, path FROM request")
}

// newServer starts a server that is large enough for its caches not to matter.
func newServer(t *testing.T) *pgserver.Server {
	t.Helper()
	return pgtest.NewServer(t, pgserver.Options{Settings: map[string]string{
		"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off", "synchronous_commit": "off",
		// A subscription that was enabled a moment ago is started again at once.
		"wal_retrieve_retry_interval": "10ms",
	}})
}

// backlog is a load of changes that several readers then read, each from a slot of its own.
type backlog struct {
	name string
	sql  string // with the number of changes as %[1]d
}

// Single-row statements, ten a transaction.
var backlogs = []backlog{
	{"inserts", `FOR i IN 1..%[1]d LOOP
		INSERT INTO request VALUES (i, i %% 20, 200 + i %% 4, i %% 1000, '2024-01-01'::timestamptz + i * interval '1 second', '/shop/item/' || i %% 5000);
		IF i %% 10 = 0 THEN COMMIT; END IF;
	END LOOP`},
	{"updates and deletes", `FOR i IN 1..%[1]d LOOP
		IF i %% 4 = 0 THEN DELETE FROM request WHERE id = i;
		ELSE UPDATE request SET ms = ms + 1, status = 500 WHERE id = i; END IF;
		IF i %% 10 = 0 THEN COMMIT; END IF;
	END LOOP`},
}

// write makes the changes, and returns the position behind them.
func (b backlog) write(t *testing.T, db *pgtest.DB) pglogrepl.LSN {
	t.Helper()
	db.Exec(t, "DO $backlog$ BEGIN "+fmt.Sprintf(b.sql, *changes)+"; COMMIT; END $backlog$")
	// A commit that is flushed has flushed the asynchronous ones before it. The setting counts when the transaction ends.
	db.Exec(t, "BEGIN; SET LOCAL synchronous_commit = on; SELECT pg_logical_emit_message(true, 'bench', ''); COMMIT")
	lsn, err := pglogrepl.ParseLSN(db.Value(t, "SELECT pg_current_wal_flush_lsn()"))
	require.NoError(t, err)
	return lsn
}

func makeSlot(t *testing.T, db *pgtest.DB, name string) {
	t.Helper()
	db.Exec(t, "SELECT pg_create_logical_replication_slot('"+name+"', 'pgoutput')")
}

func dropSlot(t *testing.T, db *pgtest.DB, name string) {
	t.Helper()
	db.Exec(t, "SELECT pg_drop_replication_slot('"+name+"')")
}

// table prints rows of cells in columns.
func table(rows [][]string) string {
	var b strings.Builder
	for _, row := range rows {
		b.WriteString("\n")
		for i, cell := range row {
			if i == 0 {
				fmt.Fprintf(&b, "%-42s", cell)
				continue
			}
			fmt.Fprintf(&b, "%14s", cell)
		}
	}
	return b.String()
}
