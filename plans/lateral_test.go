package plans

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fanned applies changes one by one by the plan's statements, and compares after each.
func fanned(t *testing.T, schema, body string, changes ...string) *Plan {
	t.Helper()
	db := fixture(t)
	db.Exec(t, schema)
	conn := db.Conn(t)
	p, err := Compile(t.Context(), conn, view(body), Options{})
	require.NoError(t, err)
	require.Equal(t, PrefixDelete, p.Strategy, p.Declined)
	b := &bench{t: t, conn: conn, rnd: rand.New(rand.NewPCG(1, 2)), p: p}
	b.exec("SET search_path = ''")
	b.fill()
	for _, sql := range changes {
		b.snapshot(0, "before")
		b.exec(sql)
		b.snapshot(0, "after")
		b.apply()
		b.compare(sql)
	}
	return p
}

// TestSliceKeptBeside: the view is keyed by another unique column than the one that old
// images carry, which is kept in the companion, with an index to find it by.
func TestSliceKeptBeside(t *testing.T) {
	t.Parallel()
	p := fanned(t, "CREATE TABLE two (a int PRIMARY KEY, b int NOT NULL UNIQUE DEFERRABLE, n int NOT NULL); INSERT INTO two VALUES (1, 10, 2), (2, 20, 3), (3, 30, 0)",
		"SELECT t.b, g.n FROM two t, generate_series(1, t.n) g(n)",
		"UPDATE public.two SET n = n + 1 WHERE a = 1",
		"UPDATE public.two SET b = 30 - b WHERE a < 3", // swaps the visible key
		"UPDATE public.two SET a = a + 5",
		"DELETE FROM public.two WHERE b = 10",
		"INSERT INTO public.two VALUES (9, 10, 4)",
		"UPDATE public.two SET a = 100 - a, b = b + 1, n = 2",
	)
	require.Len(t, p.Hidden, 1)
	require.Equal(t, []string{`"` + p.Hidden[0].Name + `"`}, p.HiddenIndexes)
	require.Equal(t, "any", p.Sources[0].Identity)
	require.Contains(t, strings.Join(p.Advice, "\n"), "project as well: t.a")
}

// TestCaseOfTheKey: a key that only changes its case under a collation that does not
// tell cases apart gives its slice the new spelling.
func TestCaseOfTheKey(t *testing.T) {
	t.Parallel()
	fanned(t, "INSERT INTO tag VALUES ('Bob', 2), ('ann', 3)", "SELECT t.key, g.n FROM tag t CROSS JOIN LATERAL generate_series(1, t.n) g(n)",
		"UPDATE public.tag SET key = 'BOB' WHERE key = 'Bob'",
		"UPDATE public.tag SET key = lower(key), n = n + 1",
		"BEGIN; DELETE FROM public.tag WHERE key = 'BOB'; INSERT INTO public.tag VALUES ('bOb', 1); COMMIT",
		"UPDATE public.tag SET n = 0",
	)
}

// TestFansThatFit: which bodies a row's image alone gives, and which not.
func TestFansThatFit(t *testing.T) {
	t.Parallel()
	conn := fixture(t).Conn(t)
	for body, declined := range map[string]string{
		"SELECT i.pk, g FROM item i LEFT JOIN generate_series(1, 3) g ON g < i.p":                                    "",
		"SELECT i.pk, g FROM generate_series(1, 3) g CROSS JOIN item i":                                              "",
		"SELECT i.pk, g FROM generate_series(1, 3) g LEFT JOIN item i ON g < i.p":                                    "where the table has none",
		"SELECT i.pk, g FROM generate_series(1, 3) g FULL JOIN item i ON g = i.p":                                    "where the table has none",
		"SELECT i.pk, g FROM item i, generate_series(1, i.p) g WHERE i.q > (SELECT min(q) FROM item)":                "more than one table",
		"SELECT i.pk, g FROM item i, generate_series(1, i.p) g, dim d WHERE d.id = i.p":                              "joins tables",
		"SELECT i.pk, g, rank() OVER (ORDER BY i.pk, g) AS r FROM item i, generate_series(1, i.p) g":                 "window",
		"SELECT DISTINCT i.pk, g FROM item i, generate_series(1, i.p) g":                                             "DISTINCT",
		"SELECT i.pk, count(*) AS n FROM item i, generate_series(1, i.p) g GROUP BY i.pk":                            "groups",
		"SELECT i.pk, g FROM item i, generate_series(1, i.p) g ORDER BY i.pk, g LIMIT 5":                             "LIMIT",
		"SELECT i.pk, g, i.tableoid AS o FROM item i, generate_series(1, i.p) g":                                     "tableoid",
		"WITH x AS (SELECT pk, p FROM item) SELECT x.pk, g FROM x, generate_series(1, (SELECT max(y.p) FROM x y)) g": "",
	} {
		p, err := Compile(t.Context(), conn, view(body), Options{ReplicaIdentity: Manage})
		require.NoError(t, err, body)
		if declined == "" && !strings.HasPrefix(body, "WITH") {
			require.Equal(t, PrefixDelete, p.Strategy, fmt.Sprintf("%s: %v", body, p.Declined))
			continue
		}
		require.NotEqual(t, PrefixDelete, p.Strategy, body)
		if reason := p.Declined[PrefixDelete]; reason != "" { // else a cheaper one fits
			require.Contains(t, reason, declined, body)
		}
	}
}
