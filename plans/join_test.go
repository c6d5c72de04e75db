package plans

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// joinFixture is a database with the shared tables and a compiler for bodies.
func joinFixture(t *testing.T) (*bench, func(query string, o Options) (*Plan, error)) {
	t.Helper()
	db := pgtest.New(t)
	fixtures, err := os.ReadFile("testdata/fixtures.sql")
	require.NoError(t, err)
	db.Exec(t, string(fixtures))
	b := &bench{t: t, conn: db.Conn(t), rnd: rand.New(rand.NewPCG(1, 1))}
	b.exec("SET jit = off")
	return b, func(query string, o Options) (*Plan, error) {
		return Compile(context.Background(), b.conn, Declaration{Name: Name{"public", "v"}, Query: query}, o)
	}
}

// TestJoinTraps runs batches that naive implementations get wrong, one after the
// other over one body.
func TestJoinTraps(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, seed, body string
		batches          []string
	}{
		{
			name: "first match replaces the NULL-extended row, the last match's removal brings it back",
			seed: "INSERT INTO dim VALUES (1, 'a', 0)",
			body: "SELECT d.id, f.id AS fid, f.amt FROM dim d LEFT JOIN fact f ON f.dim_id = d.id",
			batches: []string{
				"INSERT INTO fact VALUES (10, 1, 5)", "INSERT INTO fact VALUES (11, 1, 6)", "DELETE FROM fact WHERE id = 10", "DELETE FROM fact",
			},
		},
		{
			name: "lookup row updated together with the rows that reference it",
			seed: "INSERT INTO dim VALUES (1, 'a', 0), (2, 'b', 0); INSERT INTO fact VALUES (10, 1, 5), (11, 2, 5)",
			body: "SELECT f.id, d.label FROM fact f JOIN dim d ON d.id = f.dim_id",
			batches: []string{
				"UPDATE dim SET label = 'c' WHERE id = 2; UPDATE fact SET dim_id = 2 WHERE id = 10",
				"INSERT INTO dim VALUES (3, 'n', 0); UPDATE fact SET dim_id = 3; DELETE FROM dim WHERE id < 3",
			},
		},
		{
			name:    "NOT IN with NULL among the values, and as x",
			seed:    "INSERT INTO nul VALUES (1, 1, 0, 0), (2, NULL, 0, 0), (3, 3, 0, 0)",
			body:    "SELECT n.pk FROM nul n WHERE n.p NOT IN (SELECT l.dim_id FROM loose l)",
			batches: []string{"INSERT INTO loose VALUES (1, 1, 0)", "INSERT INTO loose VALUES (2, NULL, 0)", "DELETE FROM loose WHERE id = 2", "DELETE FROM loose"},
		},
		{
			name: "both sides changed in one batch",
			seed: "INSERT INTO item VALUES (1, 1, 1, 0); INSERT INTO nul VALUES (1, 1, 5, 0), (2, 1, 6, 0)",
			body: "SELECT i.pk, n.pk AS npk, n.q FROM item i FULL JOIN nul n ON n.p = i.p",
			batches: []string{
				"UPDATE item SET p = 2; UPDATE nul SET p = 2 WHERE pk = 1; DELETE FROM nul WHERE pk = 2",
				"DELETE FROM nul; INSERT INTO item VALUES (2, 2, 0, 0)", "INSERT INTO nul VALUES (7, NULL, 1, 0); DELETE FROM item WHERE pk = 1",
			},
		},
		{
			name:    "a table joined to itself",
			seed:    "INSERT INTO nul VALUES (1, NULL, 10, 0), (2, 1, 20, 0), (3, 1, 30, 0)",
			body:    "SELECT c.pk, p.pk AS parent, p.q FROM nul c LEFT JOIN nul p ON p.pk = c.p",
			batches: []string{"UPDATE nul SET q = 11 WHERE pk = 1", "UPDATE nul SET p = 3 WHERE pk = 2", "DELETE FROM nul WHERE pk = 3", "INSERT INTO nul VALUES (3, 3, 1, 0)"},
		},
		{
			name:    "sums of both sides moved at once",
			seed:    "INSERT INTO item VALUES (1, 1, 0, 0); INSERT INTO nul VALUES (1, 1, 5, 0), (2, 1, 6, 0)",
			body:    "SELECT i.p, count(*) AS n, sum(nul.q) AS s FROM item i JOIN nul USING (p) GROUP BY i.p",
			batches: []string{"UPDATE item SET p = 2; UPDATE nul SET p = 2 WHERE pk = 1; DELETE FROM nul WHERE pk = 2", "UPDATE nul SET p = 1"},
		},
		{
			name: "a change below a grouping reaches the rows that show it",
			seed: "INSERT INTO dim VALUES (1, 'a', 0), (2, 'b', 0); INSERT INTO fact VALUES (1, 1, 5)",
			body: "SELECT d.id, d.label, x.n FROM dim d JOIN (SELECT dim_id, count(*) AS n FROM fact GROUP BY dim_id) x ON x.dim_id = d.id",
			batches: []string{
				"INSERT INTO fact VALUES (2, 1, 5), (3, 2, 5)", "UPDATE fact SET dim_id = 2 WHERE id = 1", "DELETE FROM fact WHERE dim_id = 2",
				"UPDATE dim SET label = 'c'; DELETE FROM fact",
			},
		},
		{
			name:    "the group of rows without a match",
			seed:    "INSERT INTO dim VALUES (1, 'a', 0), (2, 'b', 0)",
			body:    "SELECT f.amt, count(*) AS n FROM dim d LEFT JOIN fact f ON f.dim_id = d.id GROUP BY f.amt",
			batches: []string{"INSERT INTO fact VALUES (1, 1, 5)", "INSERT INTO fact VALUES (2, 2, 5)", "DELETE FROM fact WHERE id = 1", "DELETE FROM fact"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b, compile := joinFixture(t)
			p, err := compile(tc.body, Options{ReplicaIdentity: Manage})
			require.NoError(t, err)
			require.NotNil(t, p.Residual)
			b.t, b.p = t, p
			b.exec(tc.seed)
			b.fill()
			for _, batch := range tc.batches {
				for i := range p.Sources {
					b.snapshot(i, "before")
				}
				b.exec(batch)
				for i := range p.Sources {
					b.snapshot(i, "after")
				}
				b.apply()
				b.compare(batch)
			}
		})
	}
}

// TestJoinIdentities: an old image is needed where the stored rows do not name what
// a change of it touched.
func TestJoinIdentities(t *testing.T) {
	t.Parallel()
	_, compile := joinFixture(t)
	for _, tc := range []struct {
		name, body, refused string
	}{
		{"inner", "SELECT f.id, d.label FROM fact f JOIN dim d ON d.id = f.dim_id WHERE d.rank > 5", ""},
		{"nullable side, by its key", "SELECT l.id, d.label FROM loose l LEFT JOIN dim d ON d.id = l.dim_id WHERE d.rank > 5", ""},
		{"nullable side, by another column", "SELECT d.id, l.id AS lid FROM dim d LEFT JOIN loose l ON l.dim_id = d.id", ""},
		{"the same under a filter on it", "SELECT d.id, l.id AS lid FROM dim d LEFT JOIN loose l ON l.dim_id = d.id WHERE l.id IS NULL", "public.loose"},
		{"the same under a filter on the other", "SELECT d.id, l.id AS lid FROM dim d LEFT JOIN loose l ON l.dim_id = d.id WHERE d.rank > 5", ""},
		{"the same under a join", "SELECT d.id, l.id AS lid, i.pk FROM dim d LEFT JOIN loose l ON l.dim_id = d.id JOIN item i ON i.pk = l.id", "public.loose"},
		{"exists", "SELECT d.id FROM dim d WHERE EXISTS (SELECT FROM fact f WHERE f.dim_id = d.id)", "public.fact"},
		{"scalar subquery", "SELECT d.id, (SELECT max(f.amt) FROM fact f WHERE f.dim_id = d.id) AS m FROM dim d", "public.fact"},
		{"below a grouping", "SELECT d.id, x.n FROM dim d JOIN (SELECT dim_id, count(*) AS n FROM fact GROUP BY dim_id) x ON x.dim_id = d.id", "public.fact"},
		{"groups", "SELECT d.label, count(*) AS n FROM fact f JOIN dim d ON d.id = f.dim_id GROUP BY d.label", "public.fact"},
	} {
		p, err := compile(tc.body, Options{ReplicaIdentity: Require})
		if tc.refused == "" {
			require.NoError(t, err, tc.name)
			require.Equal(t, JoinResidual, p.Strategy, tc.name)
			continue
		}
		r, ok := errors.AsType[*Refusal](err)
		require.True(t, ok, "%s: %v", tc.name, err)
		require.Equal(t, ReplicaIdentity, r.Code, tc.name)
		require.Equal(t, tc.refused, r.Construct, tc.name)
		require.Contains(t, r.Suggestion, "ALTER TABLE "+tc.refused+" REPLICA IDENTITY FULL;", tc.name)
	}
}

// TestJoinFloor: a source that may touch every row is named, and the others keep
// their slices.
func TestJoinFloor(t *testing.T) {
	t.Parallel()
	_, compile := joinFixture(t)
	for _, tc := range []struct {
		name, body string
		floor      []string
	}{
		{"conditions that are strict", "SELECT i.pk, n.pk AS npk FROM item i LEFT JOIN nul n ON n.p = i.p", nil},
		{"a condition that NULL satisfies", "SELECT i.pk, n.pk AS npk FROM item i LEFT JOIN nul n ON n.p IS NOT DISTINCT FROM i.p", []string{"nul"}},
		{"a condition that names no preserved table", "SELECT i.pk, n.pk AS npk FROM item i LEFT JOIN nul n ON n.p = 3", []string{"nul"}},
		{"a subquery without a correlation", "SELECT i.pk FROM item i WHERE i.p > (SELECT max(n.p) FROM nul n)", []string{"nul"}},
		{"LIMIT below a join", "SELECT i.pk, x.q FROM item i JOIN (SELECT pk, q FROM nul ORDER BY pk LIMIT 3) x ON x.pk = i.p", []string{"nul"}},
		{"a grouping joined by its group", "SELECT i.pk, x.n FROM item i JOIN (SELECT p, count(*) AS n FROM nul GROUP BY p) x ON x.p = i.p", nil},
		{"a grouping joined by a sum", "SELECT i.pk, x.p FROM item i JOIN (SELECT p, sum(q) AS s FROM nul GROUP BY p) x ON x.s = i.p", nil},
		{"the same on the nullable side", "SELECT i.pk, x.p FROM item i LEFT JOIN (SELECT p, sum(q) AS s FROM nul GROUP BY p) x ON x.s = i.p", []string{"nul"}},
		{"a lateral subquery", "SELECT i.pk, x.pk AS npk FROM item i, LATERAL (SELECT n.pk FROM nul n WHERE n.p = i.p ORDER BY n.pk LIMIT 2) x", nil},
	} {
		p, err := compile(tc.body, Options{ReplicaIdentity: Manage})
		if r, ok := errors.AsType[*Refusal](err); ok && r.Code == NoKey {
			t.Errorf("%s: %s", tc.name, r)
			continue
		}
		require.NoError(t, err, tc.name)
		require.Equal(t, JoinResidual, p.Strategy, "%s: %v", tc.name, p.Declined)
		var floor []string
		for _, i := range p.Residual.Floor {
			floor = append(floor, p.Sources[i].Name)
			require.Contains(t, strings.Join(p.Advice, "\n"), p.Sources[i].Table().String()+" may touch every row", tc.name)
		}
		require.Equal(t, tc.floor, floor, tc.name)
	}
}

// TestInlined: the bodies of other declared views stand in the place of their names
// where a body reads tables as well.
func TestInlined(t *testing.T) {
	t.Parallel()
	b, compile := joinFixture(t)
	compileAs := func(name, query string, o Options) *Plan {
		p, err := Compile(t.Context(), b.conn, Declaration{Name: Name{"public", name}, Query: query}, o)
		require.NoError(t, err)
		return p
	}
	sums := compileAs("sums", "SELECT dim_id, sum(amt) AS s FROM fact GROUP BY dim_id", Options{ReplicaIdentity: Manage})
	o := Options{ReplicaIdentity: Manage, Producers: map[Name]*Plan{sums.Name: sums}}
	big := compileAs("big", "SELECT dim_id, s FROM sums WHERE s > 5", o)
	require.Empty(t, big.Inlined, "it reads a view alone")
	o.Producers[big.Name] = big
	p, err := compile("SELECT d.id, b.s FROM dim d LEFT JOIN big b ON b.dim_id = d.id", o)
	require.NoError(t, err)
	require.Equal(t, JoinResidual, p.Strategy)
	b.exec("INSERT INTO dim SELECT i, 'l', 0 FROM generate_series(1, 3) i; INSERT INTO fact VALUES (1, 1, 9), (2, 2, 3), (3, 2, 1)")
	require.Equal(t, 1, b.ints("SELECT count(s)::int FROM ("+p.Inlined+") q"))
	require.Equal(t, 3, b.ints("SELECT count(*)::int FROM ("+p.Inlined+") q"))
	plain, err := compile("SELECT f.id, d.label FROM fact f JOIN dim d ON d.id = f.dim_id", Options{})
	require.NoError(t, err)
	require.Empty(t, plain.Inlined)
}
