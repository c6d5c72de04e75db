package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
)

// testEnv stands for the environment of a process in all tests.
func testEnv(name string) (string, bool) {
	value, ok := map[string]string{
		"DATABASE_URL": "postgres://app:s3cret@db.example/shop",
		"LISTEN_PORT":  "9700",
		"FAILOVER":     "false",
		"BAD_SLOT":     "s3cret Slot",
		"EMPTY":        "",
		"INJECT":       "x\nviews: []",
	}[name]
	return value, ok
}

func parseText(t *testing.T, text string) (*Config, error) {
	t.Helper()
	return Parse("mvsync.yaml", []byte(text), testEnv)
}

// mistakesOf parses a text that must be wrong.
func mistakesOf(t *testing.T, text string) Mistakes {
	t.Helper()
	_, err := parseText(t, text)
	var mistakes Mistakes
	require.ErrorAs(t, err, &mistakes)
	require.NotEmpty(t, mistakes)
	return mistakes
}

func loadGood(t *testing.T, name string) *Config {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/good", name))
	require.NoError(t, err)
	cfg, err := Parse(name, data, testEnv)
	require.NoError(t, err)
	return cfg
}

var ignoreHidden = cmpopts.IgnoreUnexported(Config{}, View{})

func TestGoodFilesParse(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/good/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		loadGood(t, filepath.Base(file))
	}
}

// TestBadFiles compares the messages for each bad file with those beside it.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			cfg, err := Parse(filepath.Base(file), data, testEnv)
			require.Nil(t, cfg)
			require.IsType(t, Mistakes{}, err)
			require.NotContains(t, err.Error(), "s3", "a secret in a message")
			got := err.Error() + "\n"
			expected := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				require.NoError(t, os.WriteFile(expected, []byte(got), 0o644))
				return
			}
			want, err := os.ReadFile(expected)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
}

func TestDefaultsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	want := &Config{
		Source:    Source{Slot: "mvsync", Publication: "mvsync", ReplicaIdentity: "require", OnGap: "reconcile"},
		Backing:   Backing{Catalog: "mvsync"},
		Session:   Session{SearchPath: []Name{"public"}, Timezone: "UTC"},
		HTTP:      HTTP{Listen: "127.0.0.1:9632", ReadyLag: Duration(time.Minute)},
		Round:     Round{Memory: 268435456},
		Limits:    Limits{RebuildRowThreshold: 10000, Degrade: true},
		Provision: "apply",
		Fill:      Fill{ChunkRows: 50000},
		Views: []View{{
			Name:                Ident{"public", "by_region"},
			Query:               "SELECT region, count(*) AS orders FROM orders GROUP BY region",
			RebuildRowThreshold: 10000,
			Nondeterministic:    "reject",
			ColdRead:            "none",
		}},
	}
	require.Empty(t, cmp.Diff(want, loadGood(t, "minimal.yaml"), ignoreHidden))
}

func TestFullFile(t *testing.T) {
	t.Parallel()
	want := Default()
	want.Source.URL = "postgres://app:s3cret@db.example/shop"
	want.Source.Tables = map[Ident]Table{{"public", "requests"}: {AppendOnly: true}}
	want.Functions = map[Signature]Function{{Function: Ident{"public", "vat"}, Args: "numeric"}: {Deterministic: true}}
	want.Aggregates = map[Signature]Aggregate{
		{Function: Ident{"public", "wsum"}, Args: "integer"}: {
			Merge: &Ident{"public", "wsum_merge"}, Negate: &Ident{"public", "wsum_negate"}, Decode: &Ident{"public", "wsum_decode"},
		},
		{Function: Ident{"public", "mean"}, Args: "bigint"}: {Decompose: "sum(x) / count(x)"},
	}
	want.Views = []View{{
		Name: Ident{"public", "by_region"},
		Query: "SELECT region, count(*) AS orders, sum(cents) AS revenue, max(cents) AS largest\n" +
			"FROM orders WHERE cents > 0 GROUP BY region\n",
		Columns:             []Name{"region", "orders", "revenue", "largest"},
		Key:                 []Name{"region"},
		Indexes:             []string{"(revenue DESC)", "USING hash (region)"},
		Constraints:         []string{},
		Storage:             map[Parameter]string{"fillfactor": "80", "autovacuum_enabled": "false"},
		Grants:              Grants{Select: []Name{"grafana", "app"}},
		Every:               Duration(5 * time.Minute),
		RebuildRowThreshold: 20000,
		Nondeterministic:    "reject",
		ColdRead:            "none",
		WarmUp:              []string{},
	}}
	got := loadGood(t, "full.yaml")
	require.Empty(t, cmp.Diff(want, got, ignoreHidden))
	require.Equal(t, got.Source.URL, got.Source.StreamURL())
	require.Equal(t, "views[0]", got.Views[0].Path())
}

func TestNamesFoldLikeSQL(t *testing.T) {
	t.Parallel()
	v := loadGood(t, "quoted-names.yaml").Views
	require.Equal(t, `reports."Daily ""Best"""`, v[0].Name.String())
	require.Equal(t, []Name{"day", "Region"}, v[0].Columns)
	require.Equal(t, []Name{"day"}, v[0].Key)
	require.Equal(t, []Name{"Team A", "public"}, v[0].Grants.Select)
	require.Equal(t, `public."Orders"`, v[1].Name.String())
	require.Nil(t, v[1].Key)
	require.Equal(t, "public.orders", v[2].Name.String())
	require.NotNil(t, v[2].Key, "an empty key asserts a view of one row")
	require.Empty(t, v[2].Key)
}

func TestViewTakesTheGeneralThreshold(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, `
views:
  - {name: a, query: SELECT 1}
  - {name: b, query: SELECT 1, rebuild_row_threshold: 0}
limits: {rebuild_row_threshold: 7}
`)
	require.NoError(t, err)
	require.EqualValues(t, 7, cfg.Views[0].RebuildRowThreshold)
	require.EqualValues(t, 0, cfg.Views[1].RebuildRowThreshold)
}

func TestAnAbsentSectionHasItsDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, "source:\nsession:\n  # nothing\nhttp:\nviews: []\n")
	require.NoError(t, err)
	want := Default()
	want.Views = []View{}
	require.Empty(t, cmp.Diff(want, cfg, ignoreHidden))
}

func TestTextStaysAsWritten(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, "session: {timezone: 0123}\nviews:\n  - name: a\n    query: SELECT 1\n    storage: {x: 1.50}\n")
	require.NoError(t, err)
	require.Equal(t, "0123", cfg.Session.Timezone)
	require.Equal(t, map[Parameter]string{"x": "1.50"}, cfg.Views[0].Storage)
}

func TestAliasesStandForTheirAnchor(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, "views:\n  - {name: a, query: &q SELECT 1, grants: &g {select: [app]}}\n  - {name: b, query: *q, grants: *g}\n")
	require.NoError(t, err)
	require.Equal(t, cfg.Views[0].Query, cfg.Views[1].Query)
	require.Equal(t, cfg.Views[0].Grants, cfg.Views[1].Grants)
	line, column := cfg.Views[1].QueryPosition(0)
	require.Equal(t, []int{2, 25}, []int{line, column}, "the place of the anchored text")
}

func TestAnAliasWithinItselfEnds(t *testing.T) {
	t.Parallel()
	require.Len(t, mistakesOf(t, "views: &v [*v]\n"), 1)
	require.Len(t, mistakesOf(t, "source: &s {tables: {a: *s}}\nviews: []\n"), 1)
}

// TestValuesFromTheEnvironmentAreNeverShown puts a secret wherever a message
// could quote a value.
func TestValuesFromTheEnvironmentAreNeverShown(t *testing.T) {
	t.Parallel()
	const file = `
source: {url: $S, replication_url: $S, slot: $S, publication: $S, replica_identity: $S, on_gap: $S, failover: $S}
backing: {url: $S, catalog: $S}
session: {search_path: [$S, $S], timezone: $S}
http: {listen: $S, ready_lag: $S}
round: {interval: $S, memory: $S}
limits: {rebuild_row_threshold: $S, degrade: $S}
provision: $S
aggregates: {"a(text)": {merge: $S, decode: $S}}
views:
  - {name: $S, query: $S, columns: [$S, $S], key: [$S, b], indexes: [$S], storage: {fillfactor: $S}, every: $S, grants: {select: [$S, $S]}}
  - {name: $S, query: $S, columns: [a, $S], key: [c], nondeterministic: $S, cold_read: $S, rebuild_row_threshold: $S}
  - {name: pg_catalog.$S, query: $S, columns: [a], key: [$S]}
`
	for _, secret := range []string{"qzx", "Qzx Wvk", "12qzxMib", "qzx://a:wvk@b:c/d", "host=qzx password=wvk sslmode=no", "\"qzx\nwvk", "qzx.wvk", "77qzx77"} {
		data := strings.ReplaceAll(file, "$S", `"${S}"`)
		data = strings.ReplaceAll(data, `pg_catalog."${S}"`, `"pg_catalog.${S}"`)
		_, err := Parse("f.yaml", []byte(data), func(string) (string, bool) { return secret, true })
		require.Error(t, err)
		for _, part := range []string{"qzx", "wvk", "Qzx", "Wvk", "'Q'", "'q'", "77"} {
			require.NotContains(t, err.Error(), part)
		}
	}
}

func TestSwitchTakesBooleans(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Switch{"on": On, "off": Off, "true": On, "false": Off, `"off"`: Off} {
		cfg, err := parseText(t, "limits: {degrade: "+text+"}\nviews: []\n")
		require.NoError(t, err)
		require.Equal(t, want, cfg.Limits.Degrade, text)
	}
}

func TestLoadReadsTheFile(t *testing.T) {
	t.Setenv("MVSYNC_TEST_SLOT", "mine")
	path := filepath.Join(t.TempDir(), "mvsync.yaml")
	require.NoError(t, os.WriteFile(path, []byte("source: {slot: '${MVSYNC_TEST_SLOT}'}\nviews: []\n"), 0o600))
	cfg, err := Load(path)
	require.NoError(t, err)
	require.EqualValues(t, "mine", cfg.Source.Slot)
}

func TestLoadSaysWhichFileIsMissing(t *testing.T) {
	t.Parallel()
	_, err := Load("no/such.yaml")
	require.EqualError(t, err, "no/such.yaml: no such file; hint: name the configuration with -c or MVSYNC_CONFIG; the README shows a first one")
	require.IsType(t, Mistakes{}, err)
	_, err = Load(t.TempDir())
	require.ErrorContains(t, err, "cannot be read: is a directory")
}

// TestInvalidEnvironmentOfThePostgresClient: PG* variables are checked where
// the file leaves the connection to them.
func TestInvalidEnvironmentOfThePostgresClient(t *testing.T) {
	t.Setenv("PGPORT", "many")
	mistakes := mistakesOf(t, "source: {slot: a}\nviews: []\n")
	require.Equal(t, Mistakes{{
		File: "mvsync.yaml", Line: 1, Column: 9, Path: "source.url",
		Message: "not a valid connection string: invalid port",
		Hint:    "a port is a number from 1 to 65535",
	}}, mistakes)
}

func TestMistakesPointIntoTheFile(t *testing.T) {
	t.Parallel()
	cfg := loadGood(t, "full.yaml")
	for path, want := range map[string]Position{
		"views[0].key":                           {69, 10},
		"views[0].key[0]":                        {69, 11},
		"views[0].grants":                        {73, 13},
		"views[0].query":                         {65, 7},
		"source.tables[public.requests]":         {19, 22},
		"source.tables[public.requests].feed":    {19, 22},
		"source.tables[public.unknown]":          {19, 5},
		"aggregates[public.wsum(integer)].merge": {55, 33},
		`source.tables[public."a.b].c"].feed`:    {19, 5},
		"nothing":                                {4, 1},
	} {
		m := cfg.Mistake(path, "wrong", "mend it")
		require.Equal(t, want, Position{m.Line, m.Column}, path)
		require.Equal(t, path, m.Path)
		require.Equal(t, "full.yaml", m.File)
	}
	v := &cfg.Views[0]
	m := cfg.QueryMistake(v, strings.Index(v.Query, "FROM"), "syntax error\nat FROM", "")
	require.Equal(t, "full.yaml:66:7: views[0].query: syntax error at FROM", m.Error())
}

func TestFieldPathsSayWhereAFieldBelongs(t *testing.T) {
	t.Parallel()
	require.Contains(t, fieldPaths["url"], "source.url")
	require.Equal(t, []string{"verify.every", "views[].every"}, fieldPaths["every"])
	require.Contains(t, fieldPaths, "append_only")
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/bad/*.yaml"} {
		files, err := filepath.Glob(pattern)
		require.NoError(f, err)
		for _, file := range files {
			data, err := os.ReadFile(file)
			require.NoError(f, err)
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Parse("f.yaml", data, testEnv)
		if err != nil {
			require.Nil(t, cfg)
			var mistakes Mistakes
			require.ErrorAs(t, err, &mistakes)
			for _, m := range mistakes {
				require.NotContains(t, m.Error(), "\n")
			}
			return
		}
		lines := splitLines(string(data))
		for i := range cfg.Views {
			v := &cfg.Views[i]
			for offset := range len(v.Query) + 2 {
				line, _ := v.QueryPosition(offset)
				require.LessOrEqual(t, line, len(lines)+1)
			}
		}
	})
}
