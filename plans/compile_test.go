package plans

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// fixture is a database with the zoo's tables.
func fixture(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	text, err := os.ReadFile("testdata/fixtures.sql")
	require.NoError(t, err)
	db.Exec(t, string(text))
	return db
}

// as returns a connection that acts as another role.
func as(t *testing.T, db *pgtest.DB, role string) *pgx.Conn {
	t.Helper()
	conn := db.Conn(t)
	_, err := conn.Exec(t.Context(), "SET ROLE "+role)
	require.NoError(t, err)
	return conn
}

// role makes a role for one test.
func role(t *testing.T, db *pgtest.DB, name, grants string) {
	t.Helper()
	db.Exec(t, "CREATE ROLE "+name+"; "+grants)
	t.Cleanup(func() {
		_, err := db.Pool.Exec(context.Background(), "DROP OWNED BY "+name+" CASCADE; DROP ROLE "+name)
		require.NoError(t, err)
	})
}

func requireRefusal(t *testing.T, err error, code Code) *Refusal {
	t.Helper()
	r, ok := errors.AsType[*Refusal](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, r.Code, "%v", r)
	require.NotEmpty(t, r.Construct)
	require.NotEmpty(t, r.Reason)
	return r
}

func view(query string) Declaration { return Declaration{Name: Name{"public", "v"}, Query: query} }

// TestHugeBodies: the parser would take the process down with it.
func TestHugeBodies(t *testing.T) {
	t.Parallel()
	for name, q := range map[string]string{
		"terms":    "SELECT 1" + strings.Repeat("+1", 64_000) + " AS x FROM item",
		"parens":   "SELECT " + strings.Repeat("(", 10_000) + "1" + strings.Repeat(")", 10_000) + " AS x FROM item",
		"brackets": "SELECT " + strings.Repeat("ARRAY[", 10_000) + "1" + strings.Repeat("]", 10_000) + " FROM item",
		"length":   "SELECT '" + strings.Repeat("x", maxBodyBytes) + "' FROM item",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, r := parseDeclared(q)
			require.NotNil(t, r)
			require.Equal(t, Invalid, r.Code)
			require.Contains(t, r.Suggestion, "several views")
		})
	}
	_, r := parseDeclared("SELECT 1" + strings.Repeat("+1", 7_000) + " AS x FROM item")
	if r != nil { // deep, but alive
		require.Equal(t, Invalid, r.Code)
	}
}

func TestRowSecurity(t *testing.T) {
	t.Parallel()
	db := fixture(t)
	role(t, db, "plans_reader", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO plans_reader; ALTER TABLE item ENABLE ROW LEVEL SECURITY")
	conn := as(t, db, "plans_reader")
	_, err := Compile(t.Context(), conn, view("select pk, p from item"), Options{})
	r := requireRefusal(t, err, RowSecurity)
	require.Contains(t, r.Suggestion, "BYPASSRLS")
	require.Equal(t, len("select pk, p from "), r.Position)
	_, err = Compile(t.Context(), db.Conn(t), view("select pk, p from item"), Options{})
	require.NoError(t, err, "the owner sees every row")
}

// TestWithoutTemp: where temporary objects are denied, the analysis uses the
// catalog's schema, and leaves nothing there.
func TestWithoutTemp(t *testing.T) {
	t.Parallel()
	db := fixture(t)
	role(t, db, "plans_plain", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO plans_plain; REVOKE TEMP ON DATABASE "+
		pgx.Identifier{db.Name}.Sanitize()+" FROM PUBLIC; CREATE SCHEMA mvsync AUTHORIZATION plans_plain")
	p, err := Compile(t.Context(), as(t, db, "plans_plain"), view("select bucket, sum(p) from item group by bucket"), Options{ReplicaIdentity: Manage})
	require.NoError(t, err)
	require.Equal(t, DeltaAggregate, p.Strategy)
	var left int
	require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT count(*)::int FROM pg_class WHERE relname LIKE 'mvsync$%'").Scan(&left))
	require.Zero(t, left)
}

// TestWithoutPrivilege: a table that cannot be read refuses its view, not all.
func TestWithoutPrivilege(t *testing.T) {
	t.Parallel()
	db := fixture(t)
	role(t, db, "plans_nobody", "GRANT SELECT (pk, p) ON item TO plans_nobody")
	_, err := Compile(t.Context(), as(t, db, "plans_nobody"), view("select pk, p from item"), Options{})
	require.Contains(t, requireRefusal(t, err, UnstreamableSource).Suggestion, "GRANT SELECT ON public.item")
}

// TestPositions: positions are bytes of the declared query, whatever comes before.
func TestPositions(t *testing.T) {
	t.Parallel()
	db := fixture(t)
	conn := db.Conn(t)
	for _, tc := range []struct {
		query string
		code  Code
		at    string // the text that begins at the position
	}{
		{"-- ünï\n select pk, 'ä' as x, random() from item", NonDeterministic, "random()"},
		{"  select pk, 'ä' as x, nosuch from item", Invalid, "nosuch"},
		{"/* é */ select pk from item, nösuch", Invalid, "nösuch"},
		{"select pk, 'ä' as x, from item", Invalid, "from"},
		{"select 'ä' as x, pk from item; select 1", Invalid, "select 1"},
		{"select 'ä' as x, CURRENT_DATE as d, pk from item", NonDeterministic, "CURRENT_DATE"},
		{"select 'ä' as x, ctid, pk from only item", UnstreamableSource, "only item"},
	} {
		_, err := Compile(t.Context(), conn, view(tc.query), Options{})
		r := requireRefusal(t, err, tc.code)
		require.GreaterOrEqual(t, r.Position, 0, tc.query)
		require.True(t, strings.HasPrefix(tc.query[r.Position:], tc.at), "%s: %q", tc.query, tc.query[r.Position:])
	}
}

// TestDeterministicOverride: the operator vouches for a function by signature.
func TestDeterministicOverride(t *testing.T) {
	t.Parallel()
	db := fixture(t)
	db.Exec(t, "CREATE FUNCTION vat(numeric) RETURNS numeric STABLE LANGUAGE sql AS 'SELECT $1'")
	conn := db.Conn(t)
	body := view("select id, vat(amt) as v from loose")
	_, err := Compile(t.Context(), conn, body, Options{})
	r := requireRefusal(t, err, NonDeterministic)
	require.Contains(t, r.Suggestion, "public.vat(numeric)")
	_, err = Compile(t.Context(), conn, body, Options{Deterministic: map[string]bool{"public.vat(numeric)": true}})
	require.NoError(t, err)
}

// TestExplainJSON pins the contract's names.
func TestExplainJSON(t *testing.T) {
	t.Parallel()
	db := fixture(t)
	p, err := Compile(t.Context(), db.Conn(t), view("select bucket, sum(p) from item group by bucket"), Options{ReplicaIdentity: Manage})
	require.NoError(t, err)
	for name, e := range map[string]*Explain{
		"accepted": p.Explain([]Name{{"public", "b"}, {"public", "A"}}),
		"refused":  ExplainRefusal(Name{"public", "v"}, refuse(NoKey, "query", "why", "what")),
	} {
		text, err := json.Marshal(e)
		require.NoError(t, err)
		var got map[string]any
		require.NoError(t, json.Unmarshal(text, &got))
		for _, key := range []string{"view", "accepted", "key", "coarsened", "plan_dependent", "sources", "consumers", "declined", "advice", "statements"} {
			require.Contains(t, got, key, name)
			require.NotNil(t, got[key], "%s: %s", name, key)
		}
		if name == "refused" {
			require.Equal(t, map[string]any{"code": "no_key", "construct": "query", "reason": "why", "suggestion": "what", "position": -1.0}, got["refusal"])
			continue
		}
		require.Equal(t, "delta-aggregate", got["strategy"])
		require.Equal(t, []any{`public."A"`, "public.b"}, got["consumers"])
		require.Equal(t, []any{map[string]any{"table": "public.item", "columns": []any{"pk", "p", "bucket"}, "replica_identity_needed": "full"}}, got["sources"])
	}
}

// TestStableList: the list names nothing volatile, and what reads the clock, the
// session or the catalog is not on it.
func TestStableList(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	rows, err := db.Pool.Query(t.Context(), `SELECT proname::text, oidvectortypes(proargtypes), provolatile::text FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace AND provolatile <> 'i' AND proname = ANY ($1)`, slices.Collect(maps.Keys(stableNames)))
	require.NoError(t, err)
	type fn struct{ Name, Args, Volatile string }
	fns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[fn])
	require.NoError(t, err)
	require.NotEmpty(t, fns)
	for _, f := range fns {
		require.Equal(t, "s", f.Volatile, f.Name)
	}
	for _, name := range strings.Fields(`now transaction_timestamp statement_timestamp clock_timestamp random setseed timeofday
		current_setting current_user session_user current_schema current_database table_to_xml query_to_xml obj_description
		col_description to_regclass regclassout regclass has_table_privilege pg_get_viewdef age timetz timetz_in txid_current
		inet_client_addr version pg_backend_pid nextval currval lastval format_type row_security_active`) {
		require.False(t, stableNames[name], name)
	}
	for signature := range stableExcept {
		name, _, _ := strings.Cut(signature, "(")
		require.True(t, stableNames[name], signature)
	}
}

// TestForget: nothing of an analysis stays, not even on a connection that is in a
// transaction already.
func TestLeavesNothing(t *testing.T) {
	t.Parallel()
	db := fixture(t)
	conn := db.Conn(t)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SET LOCAL search_path = public, pg_catalog")
	require.NoError(t, err)
	a1, err := Compile(t.Context(), tx, Declaration{Name: Name{"fresh", "a1"}, Query: "select bucket, count(*) as n from item group by bucket"}, Options{ReplicaIdentity: Manage})
	require.NoError(t, err)
	p, err := Compile(t.Context(), tx, view("select n, count(*) from fresh.a1 group by n"), Options{Producers: map[Name]*Plan{a1.Name: a1}})
	require.NoError(t, err)
	require.Equal(t, DeltaAggregate, p.Strategy)
	require.True(t, p.Sources[0].Producer)
	require.Zero(t, p.Sources[0].OID)
	var path string
	var made bool
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT current_setting('search_path'), to_regnamespace('fresh') IS NOT NULL").Scan(&path, &made))
	require.Equal(t, "public, pg_catalog", path)
	require.False(t, made)
	require.NoError(t, tx.Rollback(t.Context()))
}
