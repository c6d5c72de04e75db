package plans

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSplitSelect(t *testing.T) {
	t.Parallel()
	const sql = ` WITH c AS ( SELECT 1 AS "from" FROM public.t), d AS (SELECT 2)
 SELECT DISTINCT ON (a.x, (f(1, 2))) a.x,
    count(*) FILTER (WHERE (a.y > ','::text)) AS "GROUP BY",
    percentile_cont((0.5)::double precision) WITHIN GROUP (ORDER BY a.z) AS p,
    (a.at)::timestamp with time zone AS at,
    EXTRACT(year FROM a.at) AS "ünï ""q""",
    rank() OVER (PARTITION BY a.x ORDER BY a.y) AS r,
    CASE WHEN (a.x IS DISTINCT FROM 3) THEN ARRAY[1, 2] ELSE NULL::integer[] END AS c
   FROM (public.a
     JOIN c ON ((a.x = c."from")))
  WHERE (a.y <> ALL (ARRAY['WHERE'::text, ' GROUP BY '::text]))
  GROUP BY a.x, (f(1, 2)), a.y
 HAVING (count(*) > 1)
  WINDOW w AS (ORDER BY a.x)
  ORDER BY a.x, (f(1, 2)) DESC`
	s, ok := splitSelect(sql)
	require.True(t, ok)
	var names, exprs []string
	for _, tg := range s.targets {
		names = append(names, tg.name)
		exprs = append(exprs, tg.expr.of(sql))
	}
	require.Equal(t, []string{"x", "GROUP BY", "p", "at", `ünï "q"`, "r", "c"}, names)
	require.Equal(t, "a.x", exprs[0])
	require.Equal(t, "count(*) FILTER (WHERE (a.y > ','::text))", exprs[1])
	require.Equal(t, "(a.at)::timestamp with time zone", exprs[3])
	require.Equal(t, "DISTINCT ON (a.x, (f(1, 2)))", s.distinct.of(sql))
	require.True(t, strings.HasPrefix(s.from.of(sql), "(public.a"))
	require.Equal(t, "(a.y <> ALL (ARRAY['WHERE'::text, ' GROUP BY '::text]))", s.where.of(sql))
	require.Len(t, s.groups, 3)
	require.Equal(t, "(f(1, 2))", s.groups[1].of(sql))
	require.Equal(t, "(count(*) > 1)", s.having.of(sql))
	require.Equal(t, "w AS (ORDER BY a.x)", s.window.of(sql))
	require.Equal(t, "a.x, (f(1, 2)) DESC", s.order.of(sql))
	require.False(t, s.limit)
	require.True(t, strings.HasPrefix(s.with.of(sql), "WITH c AS"))

	calls := s.calls(s.list, map[string]bool{"count": true, "percentile_cont": true, "rank": true})
	require.Len(t, calls, 3)
	require.Equal(t, "*", calls[0].args.of(sql))
	require.Equal(t, " FILTER (WHERE (a.y > ','::text))", calls[0].suffix.of(sql))
	require.Equal(t, "percentile_cont((0.5)::double precision) WITHIN GROUP (ORDER BY a.z)", calls[1].of(sql))
	require.True(t, calls[2].over)
	require.Equal(t, []string{"a.x"}, s.partitions())
}

func TestSplitSelectSaysNo(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"", "SELECT 1", "SELECT a FROM t UNION SELECT b FROM u", "VALUES (1)", "SELECT 'open", "SELECT a FROM t FOR UPDATE",
	} {
		_, ok := splitSelect(sql)
		require.False(t, ok, sql)
	}
}

func TestWithoutOrder(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"SELECT a FROM t\n  ORDER BY a, b":            "SELECT a FROM t",
		"SELECT a FROM t":                             "SELECT a FROM t",
		"SELECT a FROM t ORDER BY a LIMIT 3":          "SELECT a FROM t ORDER BY a LIMIT 3",
		"SELECT DISTINCT ON (a) a FROM t ORDER BY a":  "SELECT DISTINCT ON (a) a FROM t ORDER BY a",
		"SELECT rank() OVER (ORDER BY a) AS r FROM t": "SELECT rank() OVER (ORDER BY a) AS r FROM t",
	} {
		require.Equal(t, want, withoutOrder(in))
	}
}

func TestTableRefs(t *testing.T) {
	t.Parallel()
	const sql = `SELECT 'ünï'::text AS x FROM ONLY "Sch ema"."T ""q""", public.item i(a, b) WHERE EXISTS ( SELECT FROM c JOIN public.item ON true)`
	refs, err := tableRefs(sql)
	require.NoError(t, err)
	require.Len(t, refs, 4)
	require.Equal(t, Name{"Sch ema", `T "q"`}, refs[0].name)
	require.Equal(t, `ONLY "Sch ema"."T ""q"""`, sql[refs[0].start:refs[0].end])
	require.True(t, refs[1].alias && refs[1].columns)
	require.Equal(t, Name{"", "c"}, refs[2].name)
	require.Equal(t, "public.item", sql[refs[3].start:refs[3].end])
	require.False(t, refs[3].alias)
}

func TestLegSpans(t *testing.T) {
	t.Parallel()
	const sql = "( SELECT a FROM t UNION SELECT b FROM (SELECT 1 UNION SELECT 2) u) EXCEPT ALL SELECT c FROM v ORDER BY 1"
	toks, err := scan(sql)
	require.NoError(t, err)
	var spans []span
	legSpans(toks, &spans)
	var got []string
	for _, s := range spans {
		got = append(got, s.of(sql))
	}
	require.Equal(t, []string{"SELECT a FROM t", "SELECT b FROM (SELECT 1 UNION SELECT 2) u", "SELECT c FROM v"}, got)
}

// TestQuoting: what quoteIdent writes is one token that reads back as the name,
// whatever the name is.
func TestQuoting(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-zA-Z0-9_ ."'ünï\-()]{1,63}`).Draw(t, "name")
		for _, q := range []string{quoteIdent(name), quoteAlways(name)} {
			toks, err := scan("SELECT " + q + " FROM t")
			require.NoError(t, err)
			require.Len(t, toks, 4, q)
			require.Equal(t, name, unquoteIdent(toks[1].text))
		}
	})
	for name := range keywords {
		require.Equal(t, `"`+name+`"`, quoteIdent(name))
	}
}

// TestSplice: edits that do not overlap apply in any order.
func TestSplice(t *testing.T) {
	t.Parallel()
	const in = "abcdefgh"
	edits := []edit{{span{6, 8}, "Z"}, {span{0, 1}, ""}, {span{3, 3}, "-"}}
	require.Equal(t, "bc-defZ", splice(in, edits...))
	require.Equal(t, in, splice(in))
	require.Equal(t, 6, edits[0].start, "the caller's slice stays as it is")
}
