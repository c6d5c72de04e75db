package replication

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// found runs the checks and returns the findings as "what, where", sorted.
func found(t testing.TB, target Target, tables []uint32) []string {
	t.Helper()
	findings, err := Preflight(t.Context(), target, tables)
	require.NoError(t, err)
	list := []string{}
	for _, f := range findings {
		require.NotEmpty(t, f.Why, f.What)
		require.NotEmpty(t, f.Do, f.What)
		list = append(list, f.What+", "+f.Where)
	}
	slices.Sort(list)
	return list
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	target := targetOf(t, db)
	require.Empty(t, found(t, target, oids(t, db, "t")), "nothing to say of a server that is ready")
	require.Equal(t, "0", leftovers(t, db), "nothing is changed")
	_, err := Provision(t.Context(), target, oids(t, db, "t"), quiet())
	require.NoError(t, err)
	require.Empty(t, found(t, target, oids(t, db, "t")), "nor of one that is set up")
	run(t, db, target, nil).connected(t)
	require.Equal(t, []string{"replication slot, " + target.Slot}, found(t, target, oids(t, db, "t")), "it is in use")
}

// TestPreflightTables: every table that cannot be streamed is named with what to do about it.
func TestPreflightTables(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE bare(x int); CREATE UNLOGGED TABLE unlogged(id int PRIMARY KEY);
		CREATE EXTENSION file_fdw; CREATE SERVER f FOREIGN DATA WRAPPER file_fdw;
		CREATE FOREIGN TABLE "foreign"(x int) SERVER f OPTIONS (filename '/dev/null');
		CREATE MATERIALIZED VIEW mat AS SELECT 1 AS x; CREATE VIEW v AS SELECT 1 AS x;
		CREATE TABLE p(id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE UNLOGGED TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
		CREATE TABLE q(id int) PARTITION BY RANGE (id); CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (10)`)
	require.Equal(t, []string{
		"no replica identity, public.bare", "no replica identity, public.q1",
		"table without a stream, pg_catalog.pg_class", `table without a stream, public."foreign"`,
		"table without a stream, public.mat", "table without a stream, public.p1", "table without a stream, public.unlogged",
		"table without a stream, public.v",
	}, found(t, targetOf(t, db), oids(t, db, "bare", "unlogged", `"foreign"`, "mat", "v", "p", "q", "pg_class")))
}

// TestPreflightRights: every right that is missing is named at once.
func TestPreflightRights(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, `CREATE ROLE worker LOGIN; CREATE TABLE a(id int PRIMARY KEY, v int); CREATE TABLE b(id int PRIMARY KEY);
		GRANT SELECT (id) ON a TO worker; GRANT SELECT ON b TO worker;
		CREATE TABLE p(id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
		GRANT SELECT ON p TO worker`)
	target := targetOf(t, db)
	target.Source.User = "worker"
	tables := oids(t, db, "a", "b", "p")
	require.Equal(t, []string{
		"missing right, database " + db.Name, "missing right, public.a", "missing right, public.a", "missing right, public.b",
		"missing right, public.p1", "no replication connection, source.replication_url",
	}, found(t, target, tables))

	// An administrator may make everything beforehand.
	admin := target
	admin.Source = sourceOf(t, db.URL)
	_, err := Provision(t.Context(), admin, tables, quiet())
	require.NoError(t, err)
	db.Exec(t, `ALTER ROLE worker REPLICATION; GRANT SELECT ON a TO worker`)
	require.Equal(t, []string{"missing right, publication " + target.Publication}, found(t, target, tables))
	db.Exec(t, fmt.Sprintf("GRANT CREATE ON DATABASE %s TO worker; ALTER PUBLICATION %s OWNER TO worker", db.Name, quoteName(target.Publication)))
	require.Empty(t, found(t, target, tables))
	made, err := Provision(t.Context(), target, tables, quiet())
	require.NoError(t, err)
	require.False(t, made.Membership.Changed())
	r := run(t, db, target, nil)
	db.Exec(t, "INSERT INTO b VALUES (1)")
	require.Equal(t, []string{"insert b id=1"}, r.lines(t))
}

func TestPreflightServer(t *testing.T) {
	t.Parallel()
	db := own(t, map[string]string{"wal_level": "replica", "max_wal_senders": "1"})
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	alter(t, db, "synchronous_standby_names", "a, mvsync")
	got := found(t, targetOf(t, db), oids(t, db, "t"))
	alter(t, db, "synchronous_standby_names", "") // or nothing commits any more
	require.Equal(t, []string{
		"no logical WAL, wal_level = replica", "synchronous standby, synchronous_standby_names = 'a, mvsync'",
	}, got)
}

func TestPreflightTwoServers(t *testing.T) {
	t.Parallel()
	db, other := pgtest.New(t), own(t, nil)
	target := targetOf(t, db)
	target.Replication = &sourceOf(t, other.URL).Config
	require.Equal(t, []string{"two servers, source.replication_url"}, found(t, target, nil))
}

// TestPreflightPooler: something in between that does not know the protocol is told from a refusal.
func TestPreflightPooler(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			backend := pgproto3.NewBackend(conn, conn)
			if _, err := backend.ReceiveStartupMessage(); err == nil {
				backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: replication"})
				_ = backend.Flush() // the client notices
			}
			_ = conn.Close()
		}
	}()
	target := targetOf(t, db)
	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	target.Replication = &sourceOf(t, fmt.Sprintf("postgres://x@%s:%s/x?sslmode=disable", host, port)).Config
	require.Equal(t, []string{"a pooler stands between, source.replication_url"}, found(t, target, nil))
	require.NoError(t, listener.Close())
	<-done
	require.Equal(t, []string{"no replication connection, source.replication_url"}, found(t, target, nil), "and from nobody there")
}

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]string{
		140020: "unsupported server version", 150012: "may lose changes", 150013: "can stop", 150014: "", 150020: "",
		160008: "may lose changes", 160009: "can stop", 160010: "", 170004: "may lose changes", 170005: "can stop",
		170006: "", 180000: "", 190000: "untested server version",
	} {
		findings, err := checkVersion(t.Context(), &inspection{facts: preflightFacts{version: version}})
		require.NoError(t, err)
		if want == "" {
			require.Empty(t, findings, version)
			continue
		}
		require.Len(t, findings, 1, version)
		require.True(t, strings.Contains(findings[0].String(), want), findings[0].String())
		require.Equal(t, version >= 150000, findings[0].Warning)
	}
}
