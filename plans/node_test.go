package plans

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseTree(t *testing.T) {
	t.Parallel()
	v, err := parseTree(`({QUERY :a 1 :b <> :c {VAR :varno 3 :name a\ b\(\)\\} :d (b 9 10) :e (o 23 24) :f ("x\"y" "" z)` +
		` :g 4 [ 1 0 -1 0 ] :h true :i "" :j (b)})`)
	require.NoError(t, err)
	l, ok := v.(list)
	require.True(t, ok)
	q, ok := l.items[0].(*node)
	require.True(t, ok)
	require.Equal(t, "QUERY", q.tag)
	require.Equal(t, 1, q.num("a"))
	require.False(t, q.has("b"))
	require.Equal(t, `a b()\`, q.child("c").text("name"))
	require.Equal(t, uint32(3), q.child("c").oid("varno"))
	require.Equal(t, []int{9, 10}, q.ints("d"))
	require.Equal(t, []int{23, 24}, q.ints("e"))
	require.Equal(t, []any{atom(`x"y`), atom(""), atom("z")}, q.items("f"))
	require.Equal(t, "4 [ 1 0 -1 0 ]", q.text("g"))
	require.True(t, q.is("h"))
	require.Empty(t, q.text("i"))
	require.False(t, q.has("j"))
	require.Nil(t, q.child("nothing").child("below"))
}

func TestParseTreeErrors(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", "(", "{", "{A", "{A :b", "{A b}", "{A :b )", "(1 2", "{A :b 4 [ 1 2 }", "1 2", ")", "{A :b {} }",
		strings.Repeat("(", maxTreeDepth+2),
	} {
		_, err := parseTree(in)
		require.ErrorContains(t, err, "read a stored rule", in)
	}
}

func TestWalkSkips(t *testing.T) {
	t.Parallel()
	v, err := parseTree(`{A :x {B :y {C :z 1}} :w ({C :z 2} {D :v <>})}`)
	require.NoError(t, err)
	seen := map[string]int{}
	walk(v, func(n *node) bool {
		seen[n.tag]++
		return n.tag != "B"
	})
	require.Equal(t, map[string]int{"A": 1, "B": 1, "C": 1, "D": 1}, seen)
}

// FuzzParseTree looks for panics and endless loops.
func FuzzParseTree(f *testing.F) {
	f.Add(`({QUERY :a 1 :b <> :c {VAR :varno 3} :d (b 9 10) :g 4 [ 1 0 ]})`)
	f.Add(`{A :b "x\ y" :c \}`)
	f.Fuzz(func(t *testing.T, in string) {
		v, err := parseTree(in)
		if err != nil {
			return
		}
		walk(v, func(n *node) bool {
			require.NotEmpty(t, n.tag)
			return true
		})
	})
}
