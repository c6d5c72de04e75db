package plans

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// statements lists what a connection sends.
type statements struct {
	mu   sync.Mutex
	list []string
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, d.SQL)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// count is how many statements contain a piece of text, and forgets them.
func (s *statements) count(pieces ...string) (n int, of []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of = make([]int, len(pieces))
	for _, sql := range s.list {
		for i, p := range pieces {
			if strings.Contains(sql, p) {
				of[i]++
			}
		}
	}
	n, s.list = len(s.list), nil
	return n, of
}

func traced(t *testing.T, db *pgtest.DB) (*pgx.Conn, *statements) {
	t.Helper()
	config, err := pgx.ParseConfig(db.URL)
	require.NoError(t, err)
	seen := &statements{}
	config.Tracer = seen
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn, seen
}

// TestStatementsOfACompilation: compiling a view asks for little, and what the server
// brought along only once.
func TestStatementsOfACompilation(t *testing.T) {
	t.Parallel()
	conn, seen := traced(t, fixture(t))
	facts := NewFacts()
	var first []*Plan
	for round := range 2 {
		for i, tc := range []struct {
			query string
			most  int
		}{
			{"select pk, p from item where bucket > 5", 24},
			{"select bucket, count(*) as n, max(p) from item group by bucket", 42},
			{"select bucket, string_agg(p::text, ',' order by pk) from item group by bucket", 42},
			{"select f.id, d.label from fact f join dim d on d.id = f.dim_id", 36},
		} {
			p, err := Compile(t.Context(), conn, view(tc.query), Options{ReplicaIdentity: Manage, Facts: facts})
			require.NoError(t, err)
			n, of := seen.count("FROM pg_type", "FROM pg_proc", "FROM pg_operator", "FROM pg_collation")
			require.LessOrEqual(t, n, tc.most, tc.query)
			if round == 0 {
				first = append(first, p)
				continue
			}
			require.Equal(t, []int{0, 0, 0, 0}, of, tc.query)
			require.Empty(t, cmp.Diff(first[i], p), tc.query)
		}
	}
}

// TestFactsLeaveUsersObjectsAlone: what users made may change between compilations.
func TestFactsLeaveUsersObjectsAlone(t *testing.T) {
	t.Parallel()
	db := fixture(t)
	conn, _ := traced(t, db)
	facts := NewFacts()
	db.Exec(t, "CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2'")
	o := Options{Facts: facts}
	_, err := Compile(t.Context(), conn, view("SELECT pk, twice(p) AS p FROM item"), o)
	require.NoError(t, err)
	db.Exec(t, "ALTER FUNCTION twice(int) VOLATILE")
	_, err = Compile(t.Context(), conn, view("SELECT pk, twice(p) AS p FROM item"), o)
	require.Contains(t, requireRefusal(t, err, NonDeterministic).Construct, "twice")
}
