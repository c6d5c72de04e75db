package plans

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// TestZoo plans every body of testdata/zoo: what is pinned is the strategy, the
// key and the identity, or the refusal.
func TestZoo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	fixtures, err := os.ReadFile("testdata/fixtures.sql")
	require.NoError(t, err)
	db.Exec(t, string(fixtures))
	conn := db.Conn(t)
	producers := map[Name]*Plan{}
	spelling := spelled(t, db)
	datadriven.Walk(t, "testdata/zoo", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, spelling(func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "sql" {
				db.Exec(t, d.Input)
				return ""
			}
			require.Equal(t, "plan", d.Cmd)
			decl := Declaration{Name: Name{"public", "v"}, Query: d.Input}
			opts := Options{Producers: producers, AppendOnly: map[Name]bool{}, ReplicaIdentity: Manage}
			for _, arg := range d.CmdArgs {
				switch arg.Key {
				case "name":
					decl.Name.Name = arg.Vals[0]
				case "key":
					decl.Key = arg.Vals
				case "columns":
					decl.Columns = arg.Vals
				case "require":
					opts.ReplicaIdentity = Require
				case "append_only":
					opts.AppendOnly[Name{"public", arg.Vals[0]}] = true
				case "allow":
					decl.Nondeterministic = true
				case "threshold":
					_, err := fmt.Sscan(arg.Vals[0], &decl.RebuildRowThreshold)
					require.NoError(t, err)
				}
			}
			p, err := Compile(t.Context(), conn, decl, opts)
			if r, ok := errors.AsType[*Refusal](err); ok {
				return fmt.Sprintf("%s\nat %d\n", r, r.Position)
			}
			require.NoError(t, err)
			if d.HasArg("name") {
				producers[decl.Name] = p
			}
			if d.HasArg("statements") {
				return p.Explain(nil).String() + showStatements(p)
			}
			return p.Explain(nil).String()
		}))
	})
}

type goldenFunc = func(*testing.T, *datadriven.TestData) string

// spelled makes goldens hold on every major version: from 16 on, pg_get_viewdef qualifies no column of a body that reads
// one table. There, what differs in qualifiers alone is taken as what was expected. What else differs stands twice, with
// until=17 and since=18.
func spelled(t *testing.T, db *pgtest.DB) func(goldenFunc) goldenFunc {
	t.Helper()
	major, err := strconv.Atoi(db.Value(t, "SELECT current_setting('server_version_num')::int / 10000"))
	require.NoError(t, err)
	return func(run goldenFunc) goldenFunc {
		return func(t *testing.T, d *datadriven.TestData) string {
			since, until := 0, major
			d.MaybeScanArgs(t, "since", &since)
			d.MaybeScanArgs(t, "until", &until)
			if major < since || major > until {
				return d.Expected
			}
			got := run(t, d)
			if major >= 16 && qualifier.ReplaceAllString(got, "") == qualifier.ReplaceAllString(d.Expected, "") {
				return d.Expected
			}
			return got
		}
	}
}

// qualifier is a name with the dot behind it.
var qualifier = regexp.MustCompile(`("([^"]|"")*"|[A-Za-z_]\w*)\.`)

func showStatements(p *Plan) string {
	var b strings.Builder
	st := p.Statements()
	var names []string
	for n := range st {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		fmt.Fprintf(&b, "-- %s\n%s\n", n, st[n])
	}
	return b.String()
}
