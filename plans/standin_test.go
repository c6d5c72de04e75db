package plans

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMayName(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		query, identifier string
		want              bool
	}{
		{"select * from a1", "a1", true},
		{"SELECT * FROM Public.A1", "a1", true},
		{`select * from "A1"`, "A1", true},
		{`select * from "a""1"`, `a"1`, true},
		{`select * from U&"\0061\0031"`, "a1", true},
		{"select * from Éa", "Éa", true},
		{"select * from a12", "a1", true}, // too many do no harm
		{"select * from b1", "a1", false},
		{`select * from "a 1"`, "a1", false},
	} {
		require.Equal(t, tc.want, mayName(tc.query, tc.identifier), "%s in %s", tc.identifier, tc.query)
	}
}
