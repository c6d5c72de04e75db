package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestParseIdent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want string }{
		{"orders", "public.orders"},
		{"Orders", "public.orders"},
		{`"Orders"`, `public."Orders"`},
		{`Sales . "a.b"`, `sales."a.b"`},
		{`"a""b"`, `public."a""b"`},
		{"ÄB", `public."Äb"`},
		{"_x1$", `public."_x1$"`},
		{"select", `public."select"`},
		{"name", "public.name"},
		{strings.Repeat("x", 63), "public." + strings.Repeat("x", 63)},
	} {
		got, err := ParseIdent(tc.in)
		require.NoError(t, err, tc.in)
		require.Equal(t, tc.want, got.String(), tc.in)
		again, err := ParseIdent(got.String())
		require.NoError(t, err)
		require.Equal(t, got, again)
	}
	for _, in := range []string{
		"", " ", ".", "a.", ".a", "a.b.c", "a b", "1a", "a-b", `"a`, `""`, `"a"b`, `a"b"`, "a;b", `U&"a"`, "\"a\x00\"",
		strings.Repeat("x", 64), strings.Repeat("é", 32),
	} {
		_, err := ParseIdent(in)
		require.Error(t, err, in)
	}
}

func TestSignature(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"vat(numeric)":                       "public.vat(numeric)",
		"Tax.VAT( Numeric,TEXT [] )":         "tax.vat(numeric, text [])",
		"now()":                              "public.now()",
		`"F(x)"(double  precision)`:          `public."F(x)"(double precision)`,
		`f("My Type", other."T,x", integer)`: `public.f("My Type", other."T,x", integer)`,
	} {
		var s Signature
		require.NoError(t, s.UnmarshalText([]byte(in)), in)
		require.Equal(t, want, s.String())
		var again Signature
		require.NoError(t, again.UnmarshalText([]byte(want)))
		require.Equal(t, s, again)
	}
	for _, in := range []string{"", "f", "f(", "f)", "(a)", "f(a,)", "f(,)", "f(a) b", "f(a(1))", "f(a;b)", `f("a)`, "f('a')", "1(a)"} {
		var s Signature
		require.Error(t, s.UnmarshalText([]byte(in)), in)
	}
}

func TestParameter(t *testing.T) {
	t.Parallel()
	var p Parameter
	require.NoError(t, p.UnmarshalText([]byte("Toast.Autovacuum_Enabled")))
	require.Equal(t, Parameter("toast.autovacuum_enabled"), p)
	for _, in := range []string{"", ".", "a.", "a b", "a.b.c", "a=1"} {
		require.Error(t, p.UnmarshalText([]byte(in)), in)
	}
}

// newerKeywords are those that quote_ident of an older server does not know.
var newerKeywords = wordSet(`json json_array json_arrayagg json_exists json_object json_objectagg
	json_query json_scalar json_serialize json_table json_value merge_action system_user`)

// TestNamesAreQuotedAsByTheServer compares with quote_ident over the server's
// own keywords and over awkward names.
func TestNamesAreQuotedAsByTheServer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	rows := db.Query(t, `SELECT n, quote_ident(n) FROM (
		SELECT word FROM pg_get_keywords()
		UNION ALL SELECT unnest(ARRAY['a', 'A', 'a b', 'a"b', '1a', 'a1', '_a', 'a$', 'é', 'a.b', '"', 'a''b'])
	) AS t(n)`)
	require.Greater(t, len(rows), 400)
	for _, row := range rows {
		if !newerKeywords[row[0]] {
			require.Equal(t, row[1], Name(row[0]).String())
		}
	}
}

// TestNamesFoldAsOnTheServer lets the server parse what we parsed.
func TestNamesFoldAsOnTheServer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, in := range []string{"Orders", `"Orders"`, `public."a.b"`, `PUBLIC.x1$`, `"a""b"`, "ÄB", "_É"} {
		got, err := ParseIdent(in)
		require.NoError(t, err)
		want := db.Value(t, "SELECT array_to_string(parse_ident($1), '|')", in)
		parts := strings.Split(want, "|")
		require.Equal(t, parts[len(parts)-1], string(got.Name), in)
	}
}
