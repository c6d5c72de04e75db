package workload

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

func TestCreateSetsIdentities(t *testing.T) {
	t.Parallel()
	const identities = "SELECT relname, relreplident FROM pg_class WHERE relname IN ('item', 'nul', 'part', 'part_north', 'part_rest') ORDER BY 1"
	for _, tc := range []struct {
		name       string
		identities map[string]Identity
		want       [][]string
	}{
		{name: "as created", want: [][]string{{"item", "d"}, {"nul", "d"}, {"part", "d"}, {"part_north", "d"}, {"part_rest", "d"}}},
		{
			name: "all full", identities: map[string]Identity{"*": IdentityFull},
			want: [][]string{{"item", "f"}, {"nul", "f"}, {"part", "f"}, {"part_north", "f"}, {"part_rest", "f"}},
		},
		{
			name:       "all but some",
			identities: map[string]Identity{"*": IdentityFull, "item": IdentityDefault, "part": IdentityNothing, "part_north": IdentityFull},
			want:       [][]string{{"item", "d"}, {"nul", "f"}, {"part", "n"}, {"part_north", "f"}, {"part_rest", "n"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			require.NoError(t, Create(t.Context(), db.Pool, tc.identities))
			require.Equal(t, tc.want, db.Query(t, identities))
		})
	}
	t.Run("an unknown table", func(t *testing.T) {
		t.Parallel()
		err := Create(t.Context(), pgtest.New(t).Pool, map[string]Identity{"nonesuch": IdentityFull})
		require.ErrorContains(t, err, `no table "nonesuch"`)
	})
}

func TestSeed(t *testing.T) {
	t.Parallel()
	db, _ := seededDB(t, nil)
	for _, table := range Fixtures().Tables {
		require.Equal(t, "t", db.Value(t, "SELECT count(*) >= 5 FROM "+table.Name), table.Name)
	}
	require.Equal(t, "t", db.Value(t, "SELECT bool_or(octet_length(body) = 8192) FROM txt"), "a text that TOASTs")
	require.Equal(t, "t", db.Value(t, "SELECT count(*) > 0 FROM loose WHERE dim_id IS NULL"))

	again := pgtest.New(t)
	require.NoError(t, Create(t.Context(), again.Pool, nil))
	require.NoError(t, Seed(t.Context(), again.Pool, Fixtures(), rand.New(rand.NewPCG(1, 1))))
	for _, table := range Fixtures().Tables {
		query := "SELECT t::text FROM " + table.Name + " t ORDER BY 1"
		require.Equal(t, db.Query(t, query), again.Query(t, query))
	}
}

// TestFixtureTraps: the traps that the schema is meant to hold are in it.
func TestFixtureTraps(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	require.NoError(t, Create(t.Context(), db.Pool, nil))
	require.Equal(t, "t", db.Value(t, "SELECT 'Bob' COLLATE nocase = 'bob'"))
	require.Equal(t, "t", db.Value(t, "SELECT bool_or(attisdropped) FROM pg_attribute WHERE attrelid = 'loose'::regclass"))
	require.Equal(t, "v", db.Value(t, "SELECT attname FROM pg_attribute WHERE attrelid = 'part_south'::regclass AND attnum = 1"))
	require.Equal(t, "e", db.Value(t, "SELECT attstorage FROM pg_attribute WHERE attrelid = 'txt'::regclass AND attname = 'body'"))
}
