package plans

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBare: only a view of all of a table's rows and of nothing but its columns takes rows as they are.
func TestBare(t *testing.T) {
	t.Parallel()
	db := fixture(t)
	db.Exec(t, `CREATE DOMAIN short AS varchar(10);
		CREATE TABLE plain (a int, pk int PRIMARY KEY, v varchar(10), d short, c text COLLATE "C");
		CREATE VIEW through AS SELECT pk, a FROM plain WHERE a > 0`)
	conn := db.Conn(t)
	for query, want := range map[string][]string{
		"select pk, a from plain":                            {"pk", "a"},
		"select a as pk, pk as a, v, pk as again from plain": {"a", "pk", "v", "pk"},
		"select pk, d, c from plain order by c":              {"pk", "d", "c"},
		"select pk, a from plain where a > 0":                nil,
		"select pk, a from through":                          nil,
		"select pk, a from (select pk, a from plain) x":      nil,
		"select pk, a + 0 as a from plain":                   nil,
		"select pk, v::text as v from plain":                 nil,
		"select pk, v::varchar(5) as v from plain":           nil,
		"select pk, d::varchar(10) as d from plain":          nil,
		`select pk, v collate "C" as v from plain`:           nil,
		"select pk, 1 as one from plain":                     nil,
	} {
		p, err := Compile(t.Context(), conn, view(query), Options{ReplicaIdentity: Manage})
		require.NoError(t, err, query)
		require.Equal(t, InverseProjection, p.Strategy, query)
		var got []string
		for _, i := range p.Projection.Bare {
			got = append(got, p.Sources[0].Columns[i].Name)
		}
		require.Equal(t, want, got, query)
	}
}
