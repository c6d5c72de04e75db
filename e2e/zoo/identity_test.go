package zoo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/minimal"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
)

// weakRounds is how many rounds each group of identities gets; the arms are the same
// as in TestZoo, what differs is what the images carry.
const weakRounds = 25

// TestWeakestIdentities runs each shape over tables that have no more than the replica
// identity which its strategy needs: first where that is any, then group by group.
func TestWeakestIdentities(t *testing.T) {
	t.Parallel()
	for _, g := range groups(shapes) {
		t.Run(g.name(), func(t *testing.T) {
			t.Parallel()
			db := fixtures(t, nil)
			for table, identity := range g.identities {
				identify(t, db, table, identity)
			}
			requireStrategies(t, db, g.shapes) // a strategy that wants more is refused
			r := minimal.Record(t, db, workload.Schema+extra)
			d := daemon.Keep(t, db, r.Watch(daemon.Options{Views: views(g.shapes, false)}))
			run(t, db, d, weakRounds, workload.Options{Pause: writerPause}, r)
		})
	}
}

// group is a set of shapes that need the same identity of each table that they share.
type group struct {
	identities map[string]string // by table; "": any
	shapes     []shape
}

func (g *group) name() string {
	var names []string
	for _, s := range g.shapes {
		names = append(names, s.name)
	}
	if len(names) > 4 {
		names = append(names[:4], "and more")
	}
	return strings.Join(names, ",")
}

// groups packs shapes together as far as their identities agree. A consumer goes with
// its producers.
func groups(list []shape) []*group {
	var out []*group
	for _, s := range list {
		i := slices.IndexFunc(out, func(g *group) bool { return g.fits(&s) })
		if i < 0 {
			out = append(out, &group{identities: map[string]string{}})
			i = len(out) - 1
		}
		maps.Copy(out[i].identities, s.identities())
		out[i].shapes = append(out[i].shapes, s)
	}
	return out
}

func (g *group) fits(s *shape) bool {
	for table, identity := range s.identities() {
		if have, ok := g.identities[table]; ok && have != identity {
			return false
		}
	}
	for _, p := range s.producers() {
		if !slices.ContainsFunc(g.shapes, func(x shape) bool { return x.name == p }) {
			return false
		}
	}
	return true
}

// producers lists the shapes that the body reads.
func (s *shape) producers() []string {
	var out []string
	for _, p := range shapes {
		if slices.Contains(tokens(s.body), p.name) {
			out = append(out, p.name)
		}
	}
	return out
}

// identities lists the tables that the body reads, with what the strategy needs.
func (s *shape) identities() map[string]string {
	out := map[string]string{}
	for _, table := range []string{"item", "nul", "dim", "fact", "loose", "edge", "tag", "acct", "txt", "part", "parent"} {
		if slices.Contains(tokens(s.body), table) {
			out[table] = ""
		}
	}
	if !s.arm() {
		return out // the floor needs any
	}
	for part := range strings.SplitSeq(s.identity, ";") {
		if table, needs, ok := strings.Cut(strings.TrimSpace(part), ": "); ok {
			out[table] = needs
		}
	}
	return out
}

func tokens(sql string) []string {
	return strings.FieldsFunc(sql, func(r rune) bool { return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') })
}

// identify gives a table an identity that holds the named columns and no others but
// the primary key's: an index, which nullable columns do not allow. Those take the
// whole row.
func identify(t *testing.T, db *pgtest.DB, table, identity string) {
	t.Helper()
	if identity == "" {
		return
	}
	nullable := db.Value(t, `SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = ANY (string_to_array($2, ', ')) AND NOT attnotnull)`, table, identity)
	leaves := db.Query(t, `SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r'
		AND (oid = $1::text::regclass OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = $1::text::regclass))`, table)
	for _, leaf := range leaves {
		name := leaf[0]
		if identity == "full" || nullable == "t" {
			db.Exec(t, fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY FULL", name))
			continue
		}
		key := db.Value(t, `SELECT string_agg(a.attname, ', ') FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
			WHERE i.indrelid = $1::text::regclass AND i.indisprimary AND NOT a.attname = ANY (string_to_array($2, ', '))`, name, identity)
		columns := identity
		if key != "NULL" {
			columns += ", " + key
		}
		db.Exec(t, fmt.Sprintf("CREATE UNIQUE INDEX weak_%[1]s ON %[1]s (%[2]s); ALTER TABLE %[1]s REPLICA IDENTITY USING INDEX weak_%[1]s", name, columns))
	}
}
