package refusal

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestRefusals starts a daemon with the views of testdata/refusals. What each refusal
// says stands there, to be read as users read it.
func TestRefusals(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var views []plans.Declaration
	datadriven.RunTest(t, "testdata/refusals", func(t *testing.T, td *datadriven.TestData) string {
		switch td.Cmd {
		case "sql":
			db.Exec(t, td.Input)
			return ""
		case "view":
			d := daemon.View(td.CmdArgs[0].Key, td.Input)
			if td.HasArg("threshold") {
				td.ScanArgs(t, "threshold", &d.RebuildRowThreshold)
			}
			views = append(views, d)
			return ""
		case "run":
			return run(t, db, views)
		}
		t.Fatalf("%s: no such command as %s", td.Pos, td.Cmd)
		return ""
	})
}

// run returns the refusals, each in its parts.
func run(t *testing.T, db *pgtest.DB, views []plans.Declaration) string {
	d := daemon.Start(t, db, daemon.Options{Views: views, Level: slog.LevelError, Refused: true})
	var b strings.Builder
	for _, r := range d.Engine.Refused() {
		fmt.Fprintf(&b, "%s\n  %s: %s\n  because %s\n  instead %s\n", r.Name, r.Refusal.Code, r.Refusal.Construct, r.Refusal.Reason, r.Refusal.Suggestion)
		name := r.Name
		require.Equal(t, "t", db.Value(t, "SELECT to_regclass($1) IS NULL", name), "%s left a table", name)
		require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM mvsync.views WHERE name = $1 AND state <> 'refused'", name), "%s stands in the catalog", name)
	}
	accepted(t, db, d)
	requireNothingLeft(t, db, d)
	return b.String()
}

// accepted: the views that were not refused are live and follow.
func accepted(t *testing.T, db *pgtest.DB, d *daemon.Daemon) {
	t.Helper()
	pgtest.Eventually(t, time.Minute, func() error {
		for _, v := range d.Engine.Status().Views {
			if v.State != maintain.Live {
				return fmt.Errorf("%s is %s: %w", v.Name, v.State, v.Err)
			}
		}
		return nil
	})
	db.Exec(t, "INSERT INTO item VALUES (1000, 1, 1, 1)")
	d.Settle(db)
	require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM accepted WHERE pk = 1000"))
	require.Equal(t, "t", db.Value(t, "SELECT sum(n) = (SELECT count(*) FROM item) FROM counted"))
}

// requireNothingLeft: what exists, and what is published, is the accepted views'.
func requireNothingLeft(t *testing.T, db *pgtest.DB, d *daemon.Daemon) {
	t.Helper()
	require.Len(t, d.Engine.Status().Views, 2)
	require.Equal(t, [][]string{{"accepted"}, {"counted"}}, db.Query(t, `SELECT relname FROM pg_class
		WHERE relkind IN ('r', 'v', 'm') AND relnamespace = 'public'::regnamespace AND oid IN (SELECT tgrelid FROM pg_trigger WHERE tgname = 'mvsync_guard') ORDER BY 1`))
	require.Equal(t, [][]string{{"item"}}, db.Query(t, "SELECT tablename FROM pg_publication_tables WHERE pubname = 'mvsync'"))
	require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM pg_class WHERE relkind = 'v' AND relname LIKE '%mvsync$%'"), "a view of the analysis is left")
}
