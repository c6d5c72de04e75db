package plans

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

var (
	joinBodies = flag.Int("plans.joins", 25, "random join bodies of TestRandomJoins")
	joinSeed   = flag.Uint64("plans.seed", 1, "seed of TestRandomJoins and TestStatements")
)

// joinTables are small tables with NULLs, whose columns are in no relation, under
// every kind of identity.
const joinTables = `
CREATE TABLE t0 (id int PRIMARY KEY, x int, y int);
CREATE TABLE t1 (id int PRIMARY KEY, x int, y int);
CREATE TABLE t2 (id int PRIMARY KEY, x int, y int);
CREATE TABLE t3 (id int PRIMARY KEY, x int, y int);
CREATE INDEX ON t1 (x);
`

// joinGen makes random bodies: trees of inner, outer and cross joins, with filters
// and subqueries.
type joinGen struct {
	rnd *rand.Rand
	// aliases of the tree's tables, with the tables that they are.
	aliases, tables []string
}

func (g *joinGen) pick(s ...string) string { return s[g.rnd.IntN(len(s))] }

// column of any of the aliases; id now and then, so that joins do not fan out.
func (g *joinGen) column(of []string) string {
	return g.pick(of...) + "." + g.pick("x", "y", "x", "id")
}

// tree joins the aliases.
func (g *joinGen) tree(of []string) string {
	if len(of) == 1 {
		table := g.tables[0]
		for i, a := range g.aliases {
			if a == of[0] {
				table = g.tables[i]
			}
		}
		return g.leaf(table, 0) + " " + of[0]
	}
	k := 1 + g.rnd.IntN(len(of)-1)
	l, r := of[:k], of[k:]
	left, right := g.tree(l), g.tree(r)
	kind := g.pick("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT JOIN")
	on := fmt.Sprintf("%s = %s", g.column(l), g.column(r))
	if kind != "FULL JOIN" {
		switch g.rnd.IntN(10) {
		case 8:
			on = fmt.Sprintf("%s = %s + 1 AND %s <> 1", g.column(l), g.column(r), g.column(r))
		case 9:
			on = fmt.Sprintf("'v' || %s = lower('V' || %s::text)", g.column(l), g.column(r))
		case 0:
			on += fmt.Sprintf(" AND %s = %s", g.column(l), g.column(r))
		case 1:
			on += fmt.Sprintf(" AND %s > 0", g.column(r))
		case 2:
			on = fmt.Sprintf("%s > %s", g.column(l), g.column(r))
		case 3:
			on = fmt.Sprintf("(%s OR %s = %s)", on, g.column(l), g.column(r))
		}
	}
	return fmt.Sprintf("(%s %s %s ON %s)", left, kind, right, on)
}

// leaf is a table, or a query over it that shows id, x and y.
func (g *joinGen) leaf(table string, depth int) string {
	if depth == 0 && g.rnd.IntN(2) == 0 {
		return table
	}
	from := table + " q"
	if depth < 2 && g.rnd.IntN(3) == 0 {
		from = g.leaf(table, depth+1) + " q"
	}
	switch g.rnd.IntN(12) {
	case 0:
		return fmt.Sprintf("(SELECT id, x, y FROM %s WHERE x IS DISTINCT FROM 2)", from)
	case 1:
		return fmt.Sprintf("(SELECT x AS id, x, count(y)::int AS y FROM %s GROUP BY x)", from)
	case 2:
		return fmt.Sprintf("(SELECT q.id, q.x, r.y FROM %s LEFT JOIN t2 r ON r.id = q.y)", from)
	case 3:
		return fmt.Sprintf("(SELECT y AS id, count(*)::int AS x, y FROM %s GROUP BY y HAVING count(*) < 3)", from)
	case 4:
		return fmt.Sprintf("(SELECT count(*)::int AS id, x, y FROM %s WHERE id > 0 GROUP BY x, y)", from)
	case 5:
		return fmt.Sprintf("(SELECT id, x, row_number() OVER (PARTITION BY x ORDER BY y, id)::int AS y FROM %s)", from)
	case 6:
		return fmt.Sprintf("(SELECT id, count(*) OVER (PARTITION BY x)::int AS x, y FROM %s)", from)
	case 7:
		return fmt.Sprintf("(SELECT DISTINCT x AS id, x, y FROM %s)", from)
	case 8:
		return fmt.Sprintf("(SELECT DISTINCT ON (y) id, x, y FROM %s ORDER BY y, id, x)", from)
	case 9:
		return fmt.Sprintf("(SELECT x AS id, x, y FROM %s %s SELECT y, x, y FROM t3 WHERE id < 4)", from, g.pick("UNION", "EXCEPT", "UNION ALL"))
	case 10:
		return fmt.Sprintf("(SELECT q.x AS id, max(r.y) AS x, q.x AS y FROM %s LEFT JOIN t1 r ON r.x = q.y GROUP BY q.x)", from)
	}
	return fmt.Sprintf("(SELECT id, x, y FROM %s ORDER BY id, x, y LIMIT 2)", from)
}

// filter is a random WHERE, or nothing.
func (g *joinGen) filter() string {
	t, c, inner := g.pick("t0", "t1", "t2", "t3"), g.column(g.aliases), g.pick("x", "y")
	switch g.rnd.IntN(14) {
	case 0:
		return fmt.Sprintf(" WHERE %s IS NULL", c)
	case 1:
		return fmt.Sprintf(" WHERE %s > 0", c)
	case 2:
		return fmt.Sprintf(" WHERE EXISTS (SELECT FROM %s e WHERE e.%s = %s)", t, inner, c)
	case 3:
		return fmt.Sprintf(" WHERE NOT EXISTS (SELECT FROM %s e WHERE e.%s = %s AND e.id > 1)", t, inner, c)
	case 4:
		return fmt.Sprintf(" WHERE %s IN (SELECT e.%s FROM %s e)", c, inner, t)
	case 5:
		return fmt.Sprintf(" WHERE %s NOT IN (SELECT e.%s FROM %s e WHERE e.id <> 3)", c, inner, t)
	case 6:
		return fmt.Sprintf(" WHERE (%s IN (SELECT e.%s FROM %s e)) IS NOT FALSE", c, inner, t)
	}
	return ""
}

// body makes a query over two to four tables. Full says that the keys of all
// tables are projected.
func (g *joinGen) body(full bool) string {
	var cols []string
	for i, a := range g.aliases {
		if full || i == 0 || g.rnd.IntN(3) == 0 {
			cols = append(cols, fmt.Sprintf("%s.id AS i%d", a, i))
		}
		if g.rnd.IntN(2) == 0 {
			cols = append(cols, fmt.Sprintf("%s.%s AS v%d", a, g.pick("x", "y"), i))
		}
	}
	if g.rnd.IntN(6) == 0 {
		cols = append(cols, fmt.Sprintf("(SELECT count(*) FROM %s s WHERE s.%s = %s) AS n", g.pick("t0", "t2"), g.pick("x", "y"), g.column(g.aliases)))
	}
	if g.rnd.IntN(8) == 0 {
		cols = append(cols, fmt.Sprintf("%s IN (SELECT s.%s FROM %s s) AS m", g.column(g.aliases), g.pick("x", "y"), g.pick("t1", "t3")))
	}
	return "SELECT " + join(cols) + " FROM " + g.tree(g.aliases) + g.filter()
}

// grouped makes a query that groups the rows of such a tree.
func (g *joinGen) grouped() string {
	by, sum := g.column(g.aliases), g.column(g.aliases)
	from := g.tree(g.aliases) + g.filter()
	switch g.rnd.IntN(8) {
	case 0:
		return fmt.Sprintf("SELECT DISTINCT %s AS g, %s AS s FROM %s", by, sum, from)
	case 1:
		return fmt.Sprintf("SELECT %s AS g, count(*) AS n, sum(%s) AS s FROM %s GROUP BY 1 HAVING count(%s) <> 1", by, sum, from, sum)
	case 2:
		return fmt.Sprintf("SELECT %s AS g, %s AS h, min(%s) AS s FROM %s GROUP BY 1, 2", by, g.column(g.aliases), sum, from)
	case 3:
		return fmt.Sprintf("SELECT %s AS g, %s AS s FROM %s %s SELECT x, y FROM t1", by, sum, from, g.pick("UNION", "EXCEPT", "INTERSECT"))
	case 4:
		var ids []string
		for i, a := range g.aliases {
			ids = append(ids, fmt.Sprintf("%s.id AS i%d", a, i))
		}
		return fmt.Sprintf("SELECT %s, count(%s) OVER (PARTITION BY %s) AS n FROM %s", join(ids), sum, by, from)
	case 5:
		return fmt.Sprintf("WITH c AS (SELECT %s AS g, %s AS s FROM %s) SELECT g, count(s) AS n FROM c GROUP BY g", by, sum, from)
	}
	return fmt.Sprintf("SELECT %s AS g, count(*) AS n, count(%s) AS s FROM %s GROUP BY 1", by, sum, from)
}

// start draws new aliases for one to four tables; a table may come twice.
func (g *joinGen) start() {
	g.aliases, g.tables = nil, nil
	for i := range 1 + g.rnd.IntN(4) {
		g.aliases = append(g.aliases, fmt.Sprintf("a%d", i))
		g.tables = append(g.tables, fmt.Sprintf("t%d", g.rnd.IntN(4)))
	}
}

// change is a random statement on one of the tables.
func (g *joinGen) change() string {
	val := func() string { return g.pick("NULL", "0", "1", "2", "3") }
	t, id := fmt.Sprintf("t%d", g.rnd.IntN(4)), g.rnd.IntN(6)
	switch g.rnd.IntN(5) {
	case 0:
		return fmt.Sprintf("DELETE FROM %s WHERE id = %d", t, id)
	case 1:
		return fmt.Sprintf("UPDATE %s SET x = %s WHERE id >= %d", t, val(), id)
	}
	return fmt.Sprintf("INSERT INTO %s VALUES (%d, %s, %s) ON CONFLICT (id) DO UPDATE SET x = excluded.x, y = excluded.y", t, id, val(), val())
}

// plan compiles a body, with all keys projected if it has none otherwise; nil
// where it is refused.
func (g *joinGen) plan(t *testing.T, b *bench) (*Plan, string) {
	t.Helper()
	compile := func(body string) *Plan {
		p, err := Compile(t.Context(), b.conn, Declaration{Name: Name{"public", "v"}, Query: body}, Options{ReplicaIdentity: Manage})
		if _, refused := errors.AsType[*Refusal](err); refused {
			return nil
		}
		require.NoError(t, err, body)
		return p
	}
	if g.rnd.IntN(3) == 0 {
		body := g.grouped()
		return compile(body), body
	}
	body := g.body(false)
	p := compile(body)
	if p == nil {
		body = g.body(true)
		p = compile(body)
	}
	if p == nil {
		body = strings.Replace(body, "SELECT ", "SELECT DISTINCT ", 1)
		p = compile(body)
	}
	return p, body
}

// withoutWalks cuts a slice's keys down to those of the changed rows themselves.
func withoutWalks(p *Plan) {
	for i, s := range p.Residual.Slices {
		parts := strings.Split(s.Keys, "\n  UNION ALL ")
		if len(parts) > 2 {
			s.Keys = parts[0] + "\n  UNION ALL " + parts[1] + ") u"
		}
		p.Residual.Slices[i] = s
	}
}

// TestRandomJoins is the argument of the touched keys, over random bodies and
// batches: the rows of the touched slices are all that change.
func TestRandomJoins(t *testing.T) {
	t.Parallel()
	wrong, kinds := randomJoins(t, *joinBodies, *joinSeed, nil)
	require.Empty(t, wrong)
	t.Logf("seed %d: %v", *joinSeed, kinds)
	require.Positive(t, kinds[JoinResidual])
}

// TestRandomJoinsNeedWalks is its negative twin: without the rows whose fate a
// change decides, some must be wrong.
func TestRandomJoinsNeedWalks(t *testing.T) {
	t.Parallel()
	wrong, _ := randomJoins(t, *joinBodies, *joinSeed, withoutWalks)
	require.NotEmpty(t, wrong, "nothing needed the walks: the test cannot fail")
}

// randomJoins returns the bodies that went wrong, and how many got each strategy.
func randomJoins(t *testing.T, bodies int, seed uint64, spoil func(*Plan)) (wrong []string, kinds map[Strategy]int) {
	t.Helper()
	db := pgtest.New(t)
	db.Exec(t, joinTables)
	kinds = map[Strategy]int{}
	conn := db.Conn(t)
	_, err := conn.Exec(t.Context(), "SET jit = off")
	require.NoError(t, err)
	for n := range bodies {
		g := &joinGen{rnd: rand.New(rand.NewPCG(seed, uint64(n)))}
		b := &bench{t: t, conn: conn, rnd: g.rnd}
		g.start()
		p, body := g.plan(t, b)
		if p == nil {
			continue
		}
		kinds[p.Strategy]++
		if p.Residual == nil {
			continue
		}
		if spoil != nil {
			if p.Strategy != JoinResidual {
				continue
			}
			spoil(p)
		}
		b.p = p
		if diff := b.batches(g); diff != "" {
			wrong = append(wrong, fmt.Sprintf("-plans.seed %d, body %d: %s\n%s", seed, n, body, diff))
			if spoil == nil {
				return wrong, kinds
			}
		}
	}
	return wrong, kinds
}

// batches runs random batches and returns the first difference.
func (b *bench) batches(g *joinGen) string {
	b.exec("BEGIN")
	defer b.exec("ROLLBACK")
	for range 12 {
		b.exec(g.change())
	}
	b.exec("SET LOCAL search_path = ''")
	b.fill()
	for range 5 {
		for i := range b.p.Sources {
			b.snapshot(i, "before")
		}
		b.exec("SET LOCAL search_path = public")
		var done []string
		for range 1 + g.rnd.IntN(4) {
			done = append(done, g.change())
			b.exec(done[len(done)-1])
		}
		b.exec("SET LOCAL search_path = ''")
		for i := range b.p.Sources {
			b.snapshot(i, "after")
		}
		b.apply()
		diff := b.ints(fmt.Sprintf(`SELECT count(*)::int FROM (
(SELECT * FROM stored EXCEPT ALL (%[1]s)) UNION ALL ((%[1]s) EXCEPT ALL SELECT * FROM stored)) d`, b.p.Eval))
		if diff > 0 {
			return fmt.Sprintf("%d rows differ after\n%s\n%s", diff, strings.Join(done, "\n"), showStatements(b.p))
		}
	}
	return ""
}
