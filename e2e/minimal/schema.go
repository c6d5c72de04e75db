package minimal

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// split takes a script apart. It is for schemas, whose statements end with their lines.
func split(script string) []string {
	var lines []string
	for line := range strings.Lines(script) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			lines = append(lines, line)
		}
	}
	var out []string
	for statement := range strings.SplitSeq(strings.Join(lines, "")+"\n", ";\n") {
		if statement = strings.TrimSpace(statement); statement != "" {
			out = append(out, statement)
		}
	}
	return out
}

// identities returns the statements by which tables got the replica identities that they have.
func identities(t testing.TB, db *pgtest.DB) []string {
	t.Helper()
	var out []string
	for _, r := range db.Query(t, `SELECT c.oid::regclass, c.relreplident, i.relname, pg_get_indexdef(i.oid)
		FROM pg_class c LEFT JOIN (pg_index x JOIN pg_class i ON i.oid = x.indexrelid) ON x.indrelid = c.oid AND x.indisreplident
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relreplident IN ('f', 'i') ORDER BY c.relname`) {
		if r[1] == "f" {
			out = append(out, "ALTER TABLE "+r[0]+" REPLICA IDENTITY FULL")
			continue
		}
		out = append(out, r[3], "ALTER TABLE "+r[0]+" REPLICA IDENTITY USING INDEX "+ident(r[2]))
	}
	return out
}

var (
	defines = regexp.MustCompile(`(?i)^(?:CREATE|ALTER) (?:UNLOGGED )?(?:TABLE|VIEW|COLLATION|FUNCTION|UNIQUE INDEX \w+ ON)(?: ONLY)? (?:public\.)?"?(\w+)`)
	belongs = regexp.MustCompile(`(?i)(?:PARTITION OF |INHERITS \(|ATTACH PARTITION )"?(\w+)`)
	word    = regexp.MustCompile(`\w+`)
)

// needed returns the statements without which the bodies cannot be read, and the names of what they make.
func needed(schema, bodies []string) ([]string, map[string]bool) {
	names := map[string]bool{} // all that the schema makes
	for _, s := range schema {
		if m := defines.FindStringSubmatch(s); m != nil {
			names[m[1]] = true
		}
	}
	want := map[string]bool{}
	mention := func(sql string) (more bool) {
		for _, w := range word.FindAllString(sql, -1) {
			if names[w] && !want[w] {
				want[w], more = true, true
			}
		}
		return more
	}
	for _, b := range bodies {
		mention(b)
	}
	keep := make([]bool, len(schema))
	for more := true; more; {
		more = false
		for i, s := range schema {
			m, of := defines.FindStringSubmatch(s), belongs.FindStringSubmatch(s)
			if (m == nil || want[m[1]] || (of != nil && want[of[1]])) && !keep[i] {
				keep[i] = true
				more = mention(s) || more
			}
		}
	}
	i := -1
	return slices.DeleteFunc(slices.Clone(schema), func(string) bool { i++; return !keep[i] }), want
}
