package workload

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// shop is a schema with what the fixtures lack: composite references, domains, enums, arrays, generated columns, odd names.
const shop = `
CREATE SCHEMA "My Shop";
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN year AS integer CHECK (VALUE BETWEEN 1901 AND 2155);
CREATE DOMAIN release AS year;
CREATE TYPE pair AS (a int, b text);
CREATE TABLE artist (artist_id int PRIMARY KEY, name varchar(120), formed release);
CREATE TABLE album (
	album_id serial PRIMARY KEY,
	title text NOT NULL,
	artist_id int NOT NULL REFERENCES artist ON DELETE CASCADE,
	tags text[],
	mood mood NOT NULL DEFAULT 'ok',
	cover bytea,
	long boolean GENERATED ALWAYS AS (length(title) > 3) STORED,
	odd point
);
CREATE TABLE track (
	album_id int REFERENCES album ON DELETE CASCADE,
	"no" smallint,
	price numeric(10,2) NOT NULL DEFAULT 0.99,
	length interval,
	released timestamptz,
	doc jsonb,
	PRIMARY KEY (album_id, "no")
);
CREATE TABLE "My Shop"."Order ""Line""" (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	"group" int,
	"100%s" smallint NOT NULL,
	FOREIGN KEY ("group", "100%s") REFERENCES track ON DELETE CASCADE
);
CREATE TABLE log (at timestamptz NOT NULL, line text);
INSERT INTO artist VALUES (1, 'AC/DC', 1973), (2, 'Accept', 1976), (3, 'Aerosmith', NULL);
`

var shopTables = []string{"log", `"My Shop"."Order ""Line"""`, "track", "album", "artist"}

func TestReflect(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, shop)
	spec, err := Reflect(t.Context(), db.Pool, shopTables...)
	require.NoError(t, err)
	require.Equal(t, []string{"log", "artist", "album", "track", `Order "Line"`}, spec.names(), "parents come first")

	album := spec.Tables[2]
	want := Table{
		Schema: "public", Name: "album", Key: []string{"album_id"}, Group: []string{"artist_id"}, Cascades: true, Bound: 20,
		Parents: []ForeignKey{{Columns: []string{"artist_id"}, Schema: "public", Table: "artist", Referenced: []string{"artist_id"}, Pick: 0.8}},
		Columns: []Column{
			{Name: "album_id", Type: "integer", There: "%s + 1000", Back: "%s - 1000"},
			{Name: "title", Type: "text", Wide: true, There: "%s || '~'", Back: "left(%[1]s, length(%[1]s) - 1)"},
			{Name: "artist_id", Type: "integer", There: "%s + 1000", Back: "%s - 1000"},
			{Name: "tags", Type: "text[]", Nullable: true},
			{Name: "mood", Type: "mood"},
			{Name: "cover", Type: "bytea", Nullable: true, Wide: true},
			{Name: "long", Type: "boolean", Nullable: true, Computed: true},
			{Name: "odd", Type: "point", Nullable: true, Unordered: true},
		},
	}
	if diff := cmp.Diff(want, album, cmpopts.IgnoreFields(Column{}, "Values"), cmpopts.EquateEmpty()); diff != "" {
		t.Fatal(diff)
	}
	require.Nil(t, album.column("odd").Values, "a nullable column of an unknown type is left out")
	require.Nil(t, album.column("long").Values)

	lines := spec.Tables[4]
	require.True(t, lines.column("id").Identity)
	require.Equal(t, []string{"group", "100%s"}, lines.Group)
	require.Equal(t, []string{"album_id", "no"}, lines.Parents[0].Referenced)
	require.Empty(t, spec.Tables[0].Key)
	require.Zero(t, spec.Tables[0].Bound)
}

// TestReflectedWorkload: every kind but TRUNCATE happens to tables known from the catalog alone.
func TestReflectedWorkload(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, shop)
	spec, err := Reflect(t.Context(), db.Pool, shopTables...)
	require.NoError(t, err)
	require.NoError(t, Seed(t.Context(), db.Pool, spec, rand.New(rand.NewPCG(2, 2))))
	w, stop := start(t.Context(), t, widePool(t, db), Options{Spec: spec, Writers: 4, Seed: 21})
	err = w.Await(within(t, time.Minute), func(c Counters) bool {
		for _, kind := range Kinds() {
			if kind != Truncate && c.Kinds[kind] == 0 {
				return false
			}
		}
		return len(c.Tables) == len(spec.Tables)
	})
	require.NoError(t, err)
	require.NoError(t, stop())
	// The domain's check holds for samples only; half of the values are such.
	require.Equal(t, "t", db.Value(t, "SELECT count(*) > 0 FROM artist WHERE formed IS NOT NULL"))
}

func TestReflectRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE odd (id int PRIMARY KEY, at point NOT NULL); CREATE VIEW v AS SELECT 1 AS one")
	for _, tc := range []struct{ name, table, err string }{
		{name: "no such table", table: "nonesuch", err: "reflect table nonesuch"},
		{name: "a view", table: "v", err: "reflect table v"},
		{name: "a type without values", table: "odd", err: "column at: no values are known for type point; insert some rows first"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Reflect(t.Context(), db.Pool, tc.table)
			require.ErrorContains(t, err, tc.err)
		})
	}
	db.Exec(t, "INSERT INTO odd VALUES (1, '(1,2)')")
	spec, err := Reflect(t.Context(), db.Pool, "odd")
	require.NoError(t, err)
	require.Equal(t, "'(1,2)'::point", spec.Tables[0].column("at").Values(rand.New(rand.NewPCG(1, 1))))
}

// TestReflectFixtures: what the catalog says of the fixtures is what their own spec says.
func TestReflectFixtures(t *testing.T) {
	t.Parallel()
	db, _ := seededDB(t, nil)
	fixtures := Fixtures()
	spec, err := Reflect(t.Context(), db.Pool, fixtures.names()...)
	require.NoError(t, err)
	require.Equal(t, fixtures.names(), spec.names())
	ignored := cmp.Options{
		cmpopts.IgnoreFields(Column{}, "Values", "There", "Back", "Wide"),
		cmpopts.IgnoreFields(Table{}, "Group", "Bound", "Weight", "Leaves"),
		cmpopts.IgnoreFields(ForeignKey{}, "Pick"),
		cmpopts.EquateEmpty(),
	}
	if diff := cmp.Diff(fixtures, spec, ignored); diff != "" {
		t.Fatal(diff)
	}
	require.ElementsMatch(t, fixtures.Tables[9].Leaves, spec.Tables[9].Leaves)
}
