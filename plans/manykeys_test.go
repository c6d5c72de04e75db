package plans

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConditionsBySize(t *testing.T) {
	t.Parallel()
	a := Column{Name: "a", NotNull: true, HasArray: true, Equal: "="}
	b := Column{Name: `b "*/`, NotNull: true, HasArray: true, Equal: "="}
	one := refMatch([]string{"x.a"}, []Column{a}, "keys", []string{"k0"})
	require.Equal(t, "x.a = ANY (ARRAY(SELECT keys.k0 FROM keys))", FewKeys(one))
	require.Equal(t, "EXISTS (SELECT FROM keys mk WHERE x.a = mk.k0)", ManyKeys(one))

	pushed := keyMatch("q", []Column{a}, "keys", "k")
	require.Equal(t, pushed, ManyKeys(pushed), "a semi join is not pushed below a grouping")

	two := keyMatch("q", []Column{a, {Name: "c", NotNull: true, HasArray: true, Equal: "="}}, "keys", "k")
	require.Equal(t, `q."a" = ANY (ARRAY(SELECT keys.k0 FROM keys)) AND q."c" = ANY (ARRAY(SELECT keys.k1 FROM keys)) AND `+
		`EXISTS (SELECT FROM keys mk WHERE q."a" = mk.k0 AND q."c" = mk.k1)`, FewKeys(two))
	require.Equal(t, `EXISTS (SELECT FROM keys mk WHERE q."a" = mk.k0 AND q."c" = mk.k1)`, ManyKeys(two))
	require.Equal(t, "("+ManyKeys(two)+") OR "+ManyKeys(one), ManyKeys("("+two+") OR "+one))

	odd := keyMatch("q", []Column{a, b}, "keys", "k")
	require.Equal(t, odd, FewKeys(odd), "a name that would end a comment")
	require.Equal(t, odd, ManyKeys(odd))
}
