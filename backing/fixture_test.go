package backing

import (
	"context"
	"flag"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
)

func TestMain(m *testing.M) {
	// A check is several transactions, over each kind of key; -rapid.checks=N asks for more of them.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

// fixture is a database with a catalog and a session that may write backing tables.
type fixture struct {
	t       testing.TB
	db      *pgtest.DB
	host    *Host
	session *Session
}

// testTypes are types that tests use beside the builtin ones.
const testTypes = `
CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE DOMAIN amount AS numeric(12,2) CHECK (VALUE > -1000000);
CREATE DOMAIN ints AS integer[];
CREATE TYPE point2 AS (x integer, y integer);
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE EXTENSION citext;`

func newFixture(t testing.TB, opts Options) *fixture {
	t.Helper()
	f := &fixture{t: t, db: pgtest.New(t), host: New(slog.New(slog.DiscardHandler), opts)}
	f.db.Exec(t, testTypes)
	require.NoError(t, f.host.Migrate(t.Context(), f.db.Pool))
	f.session = f.open()
	return f
}

// open returns a registered session under the settings that a daemon pins.
func (f *fixture) open() *Session {
	f.t.Helper()
	conn := f.db.Conn(f.t)
	_, err := conn.Exec(f.t.Context(), "SET search_path = ''; SET timezone = 'UTC'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'",
		pgx.QueryExecModeSimpleProtocol)
	require.NoError(f.t, err)
	s, err := f.host.Open(f.t.Context(), conn)
	require.NoError(f.t, err)
	return s
}

// tx runs f in a transaction of the session, under the round's isolation level, and commits.
func (f *fixture) tx(do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(f.t.Context(), f.session.Conn(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, do)
}

// create adds a live view with the layout to the catalog and makes its table.
func (f *fixture) create(l *Layout) *Layout {
	f.t.Helper()
	require.NoError(f.t, f.tryCreate(l))
	return l
}

func (f *fixture) tryCreate(l *Layout) error {
	return f.tx(func(tx pgx.Tx) error {
		v := View{Name: l.Name, State: Live}
		if err := f.host.AddView(f.t.Context(), tx, &v); err != nil {
			return err
		}
		l.ID = v.ID
		return f.session.Create(f.t.Context(), tx, l)
	})
}

// merge merges in a transaction of its own.
func (f *fixture) merge(l *Layout, m Merge, inputs ...Input) Result {
	f.t.Helper()
	r, err := f.tryMerge(l, m, inputs...)
	require.NoError(f.t, err)
	return r
}

func (f *fixture) tryMerge(l *Layout, m Merge, inputs ...Input) (Result, error) {
	var r Result
	err := f.tx(func(tx pgx.Tx) (err error) {
		r, err = f.session.Merge(f.t.Context(), tx, l, m, inputs)
		return err
	})
	return r, err
}

// rows returns the rows of a query as lines, ordered.
func (f *fixture) rows(query string) []string {
	f.t.Helper()
	out := []string{}
	for _, r := range f.db.Query(f.t, query) {
		out = append(out, strings.Join(r, "|"))
	}
	slices.Sort(out)
	return out
}

// values makes rows of text; the word NULL is the NULL.
func values(rows ...[]string) []ingest.Row {
	out := make([]ingest.Row, len(rows))
	for i, r := range rows {
		for _, s := range r {
			v := ingest.Text(s)
			if s == "NULL" {
				v = ingest.Null
			}
			out[i] = append(out[i], v)
		}
	}
	return out
}

// line returns a row as [fixture.rows] does, "-" for none.
func line(r []ingest.Value) string {
	if r == nil {
		return "-"
	}
	parts := make([]string, len(r))
	for i, v := range r {
		parts[i] = v.Text()
		if v.IsNull() {
			parts[i] = "NULL"
		}
	}
	return strings.Join(parts, "|")
}

// lines returns effects as "old -> new", ordered.
func lines(effects []Effect) []string {
	out := []string{}
	for _, e := range effects {
		out = append(out, line(e.Old)+" -> "+line(e.New))
	}
	slices.Sort(out)
	return out
}

// input makes an input whose columns have the types.
func input(name string, columns []InputColumn, rows ...[]string) Input {
	return Input{Name: name, Columns: columns, Rows: values(rows...)}
}

// requireCode requires that the error comes from Postgres with the code, and returns what it says.
func requireCode(t testing.TB, code string, err error) (message, hint string) {
	t.Helper()
	var e *pgconn.PgError
	require.ErrorAs(t, err, &e)
	require.Equal(t, code, e.Code, e.Message)
	return e.Message, e.Hint
}

// connect returns a connection of somebody who is not mvsync.
func (f *fixture) connect() *pgx.Conn { return f.db.Conn(f.t) }

func exec(ctx context.Context, q Querier, sql string) error {
	_, err := q.Exec(ctx, sql)
	return err
}
