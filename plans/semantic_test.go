package plans

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// bench runs a plan's statements by hand over random batches, as the daemon
// would, and compares the stored rows with the body.
type bench struct {
	t    *testing.T
	conn *pgx.Conn
	rnd  *rand.Rand
	p    *Plan
	many int // statements run in their form for few keys and that for many take turns
}

func (b *bench) exec(sql string) {
	b.t.Helper()
	if b.many++; b.many%3 == 0 {
		sql = ManyKeys(sql)
	}
	_, err := b.conn.Exec(context.Background(), sql)
	require.NoError(b.t, err, sql)
}

func (b *bench) ints(sql string) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.conn.QueryRow(context.Background(), sql).Scan(&n), sql)
	return n
}

// columnsOf lists a source's columns, quoted.
func columnsOf(s *Source) []string {
	var out []string
	for _, c := range s.Columns {
		out = append(out, quoteAlways(c.Name))
	}
	return out
}

// snapshot keeps a source's rows as text, before a batch.
func (b *bench) snapshot(i int, into string) {
	s := &b.p.Sources[i]
	var cols []string
	for _, c := range columnsOf(s) {
		cols = append(cols, c+"::text AS "+c)
	}
	if len(cols) == 0 {
		cols = []string{"1 AS nothing"}
	}
	b.exec(fmt.Sprintf("DROP TABLE IF EXISTS %s_%d; CREATE TEMP TABLE %[1]s_%d AS SELECT %s FROM %s.%s", into, i, join(cols), quoteAlways(s.Schema), quoteAlways(s.Name)))
}

// images turns the difference of two snapshots into images. Columns that old
// images need not carry are NULL there.
func (b *bench) images() []string {
	var ctes []string
	for i := range b.p.Sources {
		s := &b.p.Sources[i]
		b.exec(fmt.Sprintf(`DROP TABLE IF EXISTS gone_%d, fresh_%[1]d;
CREATE TEMP TABLE gone_%[1]d AS (TABLE before_%[1]d EXCEPT ALL TABLE after_%[1]d);
CREATE TEMP TABLE fresh_%[1]d AS (TABLE after_%[1]d EXCEPT ALL TABLE before_%[1]d);`, i))
		if b.rnd.IntN(2) == 0 && len(s.Columns) > 0 && b.p.Projection == nil {
			// A row that was touched and put back within the batch.
			b.exec(fmt.Sprintf(`CREATE TEMP TABLE same ON COMMIT DROP AS (TABLE before_%d INTERSECT ALL TABLE after_%[1]d LIMIT 1);
INSERT INTO gone_%[1]d TABLE same; INSERT INTO fresh_%[1]d TABLE same; DROP TABLE same`, i))
		}
		names := join(columnsOf(s))
		var fresh, gone []string
		for k, c := range s.Columns {
			cast := quoteAlways(c.Name) + "::" + c.Type
			fresh = append(fresh, cast)
			if !contains(s.Old, k) {
				cast = "NULL::" + c.Type
			}
			gone = append(gone, cast)
		}
		if len(fresh) == 0 {
			fresh, gone, names = []string{"1"}, []string{"1"}, "nothing"
		}
		ctes = append(ctes,
			fmt.Sprintf("%s(%s) AS MATERIALIZED (SELECT %s FROM fresh_%d)", newImages(i), names, join(fresh), i),
			fmt.Sprintf("%s(%s) AS MATERIALIZED (SELECT %s FROM gone_%d)", oldImages(i), names, join(gone), i))
	}
	return ctes
}

func contains(l []int, v int) bool {
	for _, x := range l {
		if x == v {
			return true
		}
	}
	return false
}

// fill makes the stored rows.
func (b *bench) fill() {
	b.exec("DROP TABLE IF EXISTS stored; CREATE TEMP TABLE stored AS " + b.p.Eval)
}

// replace deletes the stored rows that a condition touches, and inserts others.
func (b *bench) replace(ctes []string, touched string) {
	b.exec("WITH " + join(ctes) + " DELETE FROM stored s WHERE " + touched)
	b.exec("INSERT INTO stored SELECT * FROM fresh_rows")
}

// apply runs the plan's arm.
func (b *bench) apply() {
	ctes := b.images()
	cols := qualify("n", b.p.visible())
	rows := func(from string, ctes []string) {
		b.exec("DROP TABLE IF EXISTS fresh_rows; CREATE TEMP TABLE fresh_rows AS WITH " + join(ctes) + " SELECT " + cols + " FROM (" + from + ") n")
	}
	switch {
	case b.p.Projection != nil:
		var keys, kept []string
		for i, k := range b.p.Projection.KeyFrom {
			name := quoteAlways(b.p.Sources[0].Columns[k].Name)
			keys = append(keys, name+" AS k"+itoa(i))
			kept = append(kept, name)
		}
		ctes = append(ctes, "mvsync_keys AS (SELECT "+join(keys)+" FROM mvsync_new_0 UNION SELECT "+join(kept)+" FROM mvsync_old_0)")
		rows(b.p.Projection.New, ctes)
		b.replace(ctes, b.p.Projection.Touched)
	case b.p.Aggregate != nil:
		b.applyAggregate(ctes, rows)
	case b.p.Residual != nil:
		b.applyResidual(ctes, rows)
	default:
		b.fill()
	}
}

// changed reports whether any of the sources has images.
func (b *bench) changed(sources []int) bool {
	n := 0
	for _, i := range sources {
		n += b.ints(fmt.Sprintf("SELECT (SELECT count(*) FROM gone_%d)::int + (SELECT count(*) FROM fresh_%[1]d)::int", i))
	}
	return n > 0
}

func (b *bench) applyResidual(ctes []string, rows func(string, []string)) {
	r := b.p.Residual
	if b.changed(r.Floor) {
		b.fill()
		return
	}
	ctes = append(ctes, "mvsync_stored AS NOT MATERIALIZED (SELECT * FROM stored)")
	var keys []string
	for i, s := range r.Slices {
		b.exec(fmt.Sprintf("DROP TABLE IF EXISTS touched_%d; CREATE TEMP TABLE touched_%[1]d AS WITH %s SELECT * FROM (%s) q", i, join(ctes), s.Keys))
		if !b.changed(s.Inputs) {
			require.Zero(b.t, b.ints(fmt.Sprintf("SELECT count(*)::int FROM touched_%d", i)), "keys without a change of their inputs")
		}
		keys = append(keys, fmt.Sprintf("%s AS MATERIALIZED (TABLE touched_%d)", touchedKeys(i), i))
	}
	rows(r.New, keys)
	b.replace(keys, r.Touched)
}

func (b *bench) applyAggregate(ctes []string, rows func(string, []string)) {
	g := b.p.Aggregate
	b.exec("DROP TABLE IF EXISTS delta, merged, flagged; CREATE TEMP TABLE delta AS WITH " + join(ctes) + " " + g.Delta)
	delta := "mvsync_delta AS MATERIALIZED (TABLE delta)"
	if b.rnd.IntN(2) == 0 {
		// A delta may come in pieces.
		ctes = append(ctes[:1:1], strings.Replace(ctes[1], "FROM gone_0", "FROM gone_0 WHERE false", 1))
		_ = ctes
	}
	b.exec("CREATE TEMP TABLE merged AS WITH " + delta + ", mvsync_stored AS NOT MATERIALIZED (SELECT * FROM stored) " + g.Merge)
	if len(g.KeyColumns) > 0 {
		b.exec("CREATE TEMP TABLE flagged AS WITH mvsync_merged AS (TABLE merged) " + g.Keys)
	} else {
		b.exec("CREATE TEMP TABLE flagged AS SELECT FROM merged WHERE mvsync_residual")
	}
	again := b.ints("SELECT count(*)::int FROM flagged") > 0
	cols := qualify("m", b.p.visible())
	sql := "SELECT " + cols + " FROM merged m WHERE m.mvsync_keep AND NOT m.mvsync_residual"
	if again {
		sql += " UNION ALL SELECT * FROM (" + g.Rerun + ") r"
	}
	rows(sql, []string{"mvsync_keys AS MATERIALIZED (TABLE flagged)"})
	b.replace([]string{delta}, g.Touched)
}

// compare requires that the stored rows are what the body evaluates to. Columns
// that depend on the plan are compared by their own equality.
func (b *bench) compare(note string) {
	b.t.Helper()
	var exact, same []string
	for i, c := range b.p.visible() {
		name := quoteAlways(c.Name)
		switch c.Dependent {
		case Exact:
			exact = append(exact, name+"::text AS c"+itoa(i))
		case Float:
			same = append(same, "round("+name+"::numeric, 6) AS c"+itoa(i))
		default:
			same = append(same, name+" AS c"+itoa(i))
		}
	}
	cols := join(append(exact, same...))
	diff := fmt.Sprintf(`SELECT count(*)::int FROM (
(SELECT %[1]s FROM stored EXCEPT ALL SELECT %[1]s FROM (%[2]s) e) UNION ALL (SELECT %[1]s FROM (%[2]s) e EXCEPT ALL SELECT %[1]s FROM stored)) d`, cols, b.p.Eval)
	if n := b.ints(diff); n > 0 {
		var have, want string
		_ = b.conn.QueryRow(context.Background(), "SELECT string_agg(s::text, E'\n' ORDER BY s::text) FROM stored s").Scan(&have)
		_ = b.conn.QueryRow(context.Background(), "SELECT string_agg(s::text, E'\n' ORDER BY s::text) FROM ("+b.p.Eval+") s").Scan(&want)
		st := showStatements(b.p)
		require.Failf(b.t, "stored rows differ from the body", "%s\n%s\nhave\n%s\nwant\n%s", note, st, have, want)
	}
}

// mutate is a random change of the fixtures.
func (b *bench) mutate() string {
	r := func(n int) int { return b.rnd.IntN(n) }
	null := func(n int) string {
		if r(4) == 0 {
			return "NULL"
		}
		return itoa(r(n))
	}
	pick := func(s ...string) string { return s[r(len(s))] }
	lit := func(s string) string { return "'" + s + "'" }
	table := pick(b.p.Sources[r(len(b.p.Sources))].Name)
	switch table {
	case "item":
		return pick(
			fmt.Sprintf("INSERT INTO item VALUES (%d,%d,%d,%d) ON CONFLICT (pk) DO UPDATE SET p=excluded.p, bucket=excluded.bucket", r(11), r(11), r(11), r(4)),
			fmt.Sprintf("INSERT INTO item SELECT i,%d,i,%d FROM generate_series(0,10) i ON CONFLICT DO NOTHING", r(11), r(4)),
			fmt.Sprintf("UPDATE item SET p=%d, q=q+%d WHERE bucket=%d", r(11), r(3), r(4)),
			fmt.Sprintf("UPDATE item SET bucket=%d WHERE pk<%d", r(4), r(11)),
			fmt.Sprintf("UPDATE item SET pk=pk+20 WHERE pk=%d", r(11)),
			fmt.Sprintf("DELETE FROM item WHERE pk=%d OR pk>%d", r(11), 8+r(12)),
			fmt.Sprintf("DELETE FROM item WHERE bucket=%d", r(8)))
	case "nul":
		return pick(
			fmt.Sprintf("INSERT INTO nul VALUES (%d,%s,%s,%s) ON CONFLICT (pk) DO UPDATE SET p=excluded.p, bucket=excluded.bucket", r(11), null(11), null(11), null(4)),
			fmt.Sprintf("UPDATE nul SET p=%s WHERE bucket=%d OR pk=%d", null(11), r(4), r(11)),
			fmt.Sprintf("UPDATE nul SET bucket=%s WHERE pk<%d", null(4), r(11)),
			fmt.Sprintf("DELETE FROM nul WHERE pk=%d", r(11)),
			fmt.Sprintf("DELETE FROM nul WHERE bucket=%d", r(5)))
	case "loose":
		amt := pick("NULL", itoa(r(50)), fmt.Sprintf("%d.%02d", r(50), r(100)), "'NaN'", "-1.5")
		return pick(
			fmt.Sprintf("INSERT INTO loose VALUES (%d,%s,%s) ON CONFLICT (id) DO UPDATE SET amt=excluded.amt, dim_id=excluded.dim_id", r(11), null(4), amt),
			fmt.Sprintf("UPDATE loose SET dim_id=%s WHERE id<%d", null(4), r(11)),
			fmt.Sprintf("DELETE FROM loose WHERE id=%d", r(11)))
	case "txt":
		return pick(
			fmt.Sprintf("INSERT INTO txt (body,j,d,f,at) VALUES (%s,%s,%s,%s,'2024-01-0%d 0%d:30+00')", pick(lit("a b c"), lit("Xa"), "NULL", lit("")),
				pick(`'{"k":1}'`, `'{"k":1.0,"z":2}'`, `'{"q":"k"}'`, "NULL"), pick("NULL", "1.0", "1.00", "2.5", "'NaN'", "'Infinity'"), pick("1e20", "-1e20", "1", "0.1", "'NaN'", "'-0'", "0", "NULL"), 1+r(3), r(3)),
			fmt.Sprintf("UPDATE txt SET d=%s, f=%s WHERE id%%%d=0", pick("NULL", "1.000", "3"), pick("1", "-1e20", "NULL"), 2+r(4)),
			fmt.Sprintf(`UPDATE txt SET j='{"k":%s}', at=at+interval '1 hour', body='b a' WHERE id%%5=%d`, pick("1", "1.00", "2"), r(5)),
			fmt.Sprintf("DELETE FROM txt WHERE id%%4=%d", r(4)))
	case "tag":
		return pick(
			fmt.Sprintf("INSERT INTO tag VALUES (%s,%d) ON CONFLICT (key) DO UPDATE SET key=excluded.key, n=excluded.n", pick(lit("Bob"), lit("bob"), lit("ann"), lit("ANN"), lit("x")), r(5)),
			fmt.Sprintf("UPDATE tag SET n=%d WHERE key=%s", r(4), lit("bob")),
			fmt.Sprintf("DELETE FROM tag WHERE key=%s", pick(lit("BOB"), lit("x"))))
	case "acct":
		return pick(
			fmt.Sprintf("INSERT INTO acct VALUES (%s,%s) ON CONFLICT (login) DO UPDATE SET email=excluded.email", pick(lit("bob"), lit("ann"), lit("x")), pick(lit("L1"), lit("L2"), "NULL")),
			fmt.Sprintf("DELETE FROM acct WHERE login=%s", pick(lit("bob"), lit("x"))))
	case "edge":
		return pick(fmt.Sprintf("INSERT INTO edge VALUES (%d,%d) ON CONFLICT DO NOTHING", r(6), r(6)), fmt.Sprintf("DELETE FROM edge WHERE src=%d", r(6)),
			fmt.Sprintf("UPDATE edge SET dst=dst+7 WHERE src=%d", r(6)))
	case "part":
		return pick(
			fmt.Sprintf("INSERT INTO part VALUES (%d,%s,%d) ON CONFLICT DO NOTHING", r(11), pick(lit("eu"), lit("us"), lit("asia")), r(11)),
			fmt.Sprintf("UPDATE part SET v=v+%d, region=%s WHERE id=%d AND region='us'", r(4), pick(lit("us"), lit("xx")), r(11)),
			fmt.Sprintf("DELETE FROM part WHERE id=%d", r(11)))
	case "nokey":
		return pick(
			fmt.Sprintf("INSERT INTO nokey VALUES (%s,%s,%s)", null(8), null(5), pick("NULL", lit("x"), lit("y"))),
			fmt.Sprintf("UPDATE nokey SET b=%s WHERE a=%d", null(5), r(8)),
			fmt.Sprintf("DELETE FROM nokey WHERE ctid IN (SELECT ctid FROM nokey WHERE a=%d OR a IS NULL LIMIT 2)", r(8)))
	case "dim":
		return pick(
			fmt.Sprintf("INSERT INTO dim VALUES (%d,'L%d',%d) ON CONFLICT (id) DO UPDATE SET label=excluded.label, rank=excluded.rank", r(6), r(4), r(11)),
			fmt.Sprintf("UPDATE dim SET rank=%d WHERE id=%d", r(11), r(6)),
			fmt.Sprintf("DELETE FROM dim WHERE id=%d", r(8)))
	case "fact":
		return pick(
			fmt.Sprintf("INSERT INTO fact SELECT %d,id,%d FROM dim ORDER BY random() LIMIT 1 ON CONFLICT (id) DO UPDATE SET amt=excluded.amt, dim_id=excluded.dim_id", r(15), r(11)),
			fmt.Sprintf("UPDATE fact SET amt=%d WHERE id=%d", r(11), r(15)),
			fmt.Sprintf("DELETE FROM fact WHERE id=%d", r(15)))
	}
	return "SELECT 1"
}

// seeds give each fixture rows to start with.
const seeds = `
INSERT INTO item SELECT i, i*7%11, i*3%11, i%4 FROM generate_series(0,10) i;
INSERT INTO nul SELECT i, nullif(i*7%11,3), nullif(i*3%11,4), nullif(i%4,0) FROM generate_series(0,10) i;
INSERT INTO dim SELECT i, 'L'||i%3, i*5%11 FROM generate_series(0,5) i;
INSERT INTO fact SELECT i, i%6, i*7%11 FROM generate_series(0,9) i;
INSERT INTO loose SELECT i, nullif(i%9,4), i*1.25 FROM generate_series(0,9) i;
INSERT INTO edge SELECT i%5, i*3%6 FROM generate_series(0,9) i ON CONFLICT DO NOTHING;
INSERT INTO tag VALUES ('Bob',2),('ann',3);
INSERT INTO acct VALUES ('bob','L1'),('ann','L2');
INSERT INTO txt (body,j,d,f,at) SELECT 'a b '||i, '{"k":1}', i, i*0.1, '2024-01-01 00:30+00'::timestamptz+i*interval '20 min' FROM generate_series(0,9) i;
INSERT INTO nokey SELECT i%5, i%3, nullif('x', 'x') FROM generate_series(0,9) i;
INSERT INTO part SELECT i, CASE i%3 WHEN 0 THEN 'eu' WHEN 1 THEN 'us' ELSE 'asia' END, i FROM generate_series(0,10) i;
`

// bodies lists the declared bodies of the zoo's files.
func bodies(t *testing.T, files ...string) []string {
	t.Helper()
	var out []string
	for _, f := range files {
		text, err := os.ReadFile("testdata/zoo/" + f)
		require.NoError(t, err)
		for _, block := range strings.Split(string(text), "plan ")[1:] {
			head, _, ok := strings.Cut(block, "\n----")
			_, body, _ := strings.Cut(head, "\n")
			if ok && strings.Contains(block, "\npublic.") {
				out = append(out, body)
			}
		}
	}
	return out
}

// TestStatements proves each plan's SQL without the daemon.
func TestStatements(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	fixtures, err := os.ReadFile("testdata/fixtures.sql")
	require.NoError(t, err)
	db.Exec(t, string(fixtures))
	db.Exec(t, seeds)
	conn := db.Conn(t)
	only := os.Getenv("MVSYNC_BODY") // a piece of one body's text, to try it alone
	for _, body := range bodies(t, "projection", "aggregate", "residual", "more", "others", "joins", "lateral", "derived", "casts", "wide") {
		if !strings.Contains(body, only) {
			continue
		}
		b := &bench{t: t, conn: conn, rnd: rand.New(rand.NewPCG(1, 1+*joinSeed))}
		p, err := Compile(t.Context(), conn, Declaration{Name: Name{"public", "v"}, Query: body}, Options{ReplicaIdentity: Manage})
		require.NoError(t, err, body)
		b.p = p
		if p.Strategy == FullRebuild {
			continue
		}
		b.exec("BEGIN")
		b.exec("SET LOCAL search_path = ''")
		b.fill()
		for round := range 6 {
			for i := range p.Sources {
				b.snapshot(i, "before")
			}
			var done []string
			b.exec("SET LOCAL search_path = public")
			for range 1 + b.rnd.IntN(4) {
				m := b.mutate()
				if strings.HasPrefix(m, "UPDATE item SET pk") {
					b.exec("DELETE FROM item WHERE pk > 19")
				}
				b.exec(m)
				done = append(done, m)
			}
			b.exec("SET LOCAL search_path = ''")
			for i := range p.Sources {
				b.snapshot(i, "after")
			}
			b.apply()
			b.compare(fmt.Sprintf("round %d of %s\n%s", round, body, strings.Join(done, "\n")))
		}
		b.exec("ROLLBACK")
	}
}
