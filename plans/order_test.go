package plans

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOrder(t *testing.T) {
	t.Parallel()
	view := func(name, query string) Declaration { return Declaration{Name: Name{"public", name}, Query: query} }
	for _, tc := range []struct {
		name    string
		in      []Declaration
		want    []string
		refused map[string]string
	}{
		{name: "none"},
		{
			name: "chain", want: []string{"a", "b", "c"},
			in: []Declaration{view("c", "select x from b"), view("b", "select x from public.a"), view("a", "select x from t")},
		},
		{
			name: "diamond", want: []string{"a", "b", "c", "d"},
			in: []Declaration{view("d", "select * from b join c using (x)"), view("b", "select x from a"), view("c", "select x from a"), view("a", "select x from t")},
		},
		{
			name: "cycle", want: []string{"e"},
			in: []Declaration{view("a", "select x from b"), view("b", "select x from c"), view("c", "select x from a"), view("e", "select 1")},
			refused: map[string]string{
				"a": "public.a → public.b → public.c → public.a", "b": "public.a → public.b → public.c → public.a",
				"c": "public.a → public.b → public.c → public.a",
			},
		},
		{
			name: "itself", in: []Declaration{view("a", "select x from a")},
			refused: map[string]string{"a": "the view reads itself (public.a → public.a)"},
		},
		{name: "hidden by a common table expression", want: []string{"a"}, in: []Declaration{view("a", "with a as (select 1 as x) select x from a")}},
		{name: "elsewhere", want: []string{"a"}, in: []Declaration{view("a", "select x from other.a")}},
		{name: "not SQL", want: []string{"a", "b"}, in: []Declaration{view("a", "select from from b"), view("b", "select 1")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, refused := Order(tc.in, nil)
			var names []string
			for _, d := range got {
				names = append(names, d.Name.Name)
			}
			require.Equal(t, tc.want, names)
			require.Len(t, refused, len(tc.refused))
			for name, reason := range tc.refused {
				require.ErrorContains(t, refused[Name{"public", name}], reason)
			}
		})
	}
}
