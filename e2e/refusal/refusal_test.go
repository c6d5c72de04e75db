package refusal

import (
	"fmt"
	"log/slog"
	"net/url"
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
	at := db.URL
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
		case "keeper":
			var except []string
			td.ScanArgs(t, "except", &except)
			at = keeper(t, db, except)
			return ""
		case "run":
			return run(t, db, daemon.Options{Views: views, URL: at})
		}
		t.Fatalf("%s: no such command as %s", td.Pos, td.Cmd)
		return ""
	})
}

// keeper makes a role that owns all tables but some, and returns where it connects: row security hides nothing from a
// superuser.
func keeper(t *testing.T, db *pgtest.DB, except []string) string {
	t.Helper()
	db.Exec(t, fmt.Sprintf(`CREATE ROLE keeper LOGIN REPLICATION;
		GRANT CREATE ON DATABASE %[1]s TO keeper; GRANT CREATE ON SCHEMA public TO keeper; GRANT USAGE ON FOREIGN SERVER remote TO keeper;
		GRANT SELECT ON secret TO keeper; GRANT USAGE ON SEQUENCE ticket TO keeper`, db.Name))
	for _, r := range db.Query(t, `SELECT c.oid::regclass, CASE relkind WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END
		FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'm', 'f') AND relname <> ALL ($1)`, except) {
		db.Exec(t, fmt.Sprintf("ALTER %s %s OWNER TO keeper", r[1], r[0]))
	}
	u, err := url.Parse(db.URL)
	require.NoError(t, err)
	u.User = url.User("keeper")
	return u.String()
}

// run returns the refusals, each in its parts.
func run(t *testing.T, db *pgtest.DB, o daemon.Options) string {
	o.Level, o.Refused = slog.LevelError, true
	d := daemon.Start(t, db, o)
	var b strings.Builder
	for _, r := range d.Engine.Refused() {
		fmt.Fprintf(&b, "%s\n  %s: %s\n  because %s\n  instead %s\n", r.Name, r.Refusal.Code, r.Refusal.Construct, r.Refusal.Reason, r.Refusal.Suggestion)
		name := r.Name
		require.Equal(t, "t", db.Value(t, "SELECT to_regclass($1) IS NULL", name), "%s left a table", name)
		require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM mvsync.views WHERE name = $1 AND state <> 'refused'", name), "%s stands in the catalog", name)
	}
	requireEveryCode(t, d.Engine.Refused())
	accepted(t, db, d)
	requireNothingLeft(t, db, d)
	return b.String()
}

// requireEveryCode: each code is there, and each refusal says what is wrong, why, and what to do instead.
func requireEveryCode(t *testing.T, refused []maintain.Refused) {
	t.Helper()
	codes := map[plans.Code]bool{}
	for _, r := range refused {
		codes[r.Refusal.Code] = true
		require.NotEmpty(t, r.Refusal.Construct, r.Name)
		require.NotEmpty(t, r.Refusal.Reason, r.Name)
		require.NotEmpty(t, r.Refusal.Suggestion, r.Name)
	}
	for _, code := range []plans.Code{
		plans.NonDeterministic, plans.NoKey, plans.NoRelation, plans.NoSource, plans.RebuildTooLarge, plans.UnstreamableSource,
		plans.RowSecurity, plans.ReplicaIdentity, plans.SelfReference, plans.Cycle, plans.Invalid,
	} {
		require.True(t, codes[code], "no view is refused as %s", code)
	}
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
