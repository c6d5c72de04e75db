package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
	"pgregory.net/rapid"
)

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10s": "10s", "60s": "1m", "3600s": "1h", "1h30m": "1h30m", "0s": "0s", "0": "0s", "250ms": "250ms", "90m0s": "1h30m",
		"1h0m5s": "1h0m5s",
	} {
		var d Duration
		require.NoError(t, d.UnmarshalText([]byte(text)))
		require.Equal(t, want, d.String(), text)
	}
	for _, text := range []string{"", "10", "-1s", "1.5", "ten", "1d", "999999999h", "NaN"} {
		var d Duration
		require.Error(t, d.UnmarshalText([]byte(text)), text)
	}
	require.Equal(t, time.Minute, DefaultReadyLag.Std())
}

func TestByteSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ByteSize{
		"0": 0, "1": 1, "17B": 17, "1kB": 1000, "2MB": 2e6, "3GB": 3e9, "4KiB": 4096, "256MiB": 1 << 28, "8 GiB": 8 << 30,
		"9223372036854775807": 1<<63 - 1,
	} {
		var b ByteSize
		require.NoError(t, b.UnmarshalText([]byte(text)))
		require.Equal(t, want, b, text)
	}
	for _, text := range []string{"", "MiB", "-1", "1.5MiB", "1 M", "10Mib", "9223372036854775808", "9999999999GiB"} {
		var b ByteSize
		require.Error(t, b.UnmarshalText([]byte(text)), text)
	}
	require.Equal(t, "256MiB", DefaultMemory.String())
	require.Equal(t, "1kB", KB.String())
	require.Equal(t, "1001", ByteSize(1001).String())
	require.Equal(t, "0", ByteSize(0).String())
}

func TestWhatIsWrittenIsReadAgain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type values struct {
			D Duration
			B ByteSize
			S Switch
			N Name
			I Ident
		}
		name := rapid.StringMatching(`[a-zA-Z_"é .$0-9]{1,20}`)
		want := values{
			D: Duration(rapid.Int64Min(0).Draw(t, "duration")),
			B: ByteSize(rapid.Int64Min(0).Draw(t, "size")),
			S: Switch(rapid.Bool().Draw(t, "switch")),
			N: Name(name.Draw(t, "name")),
			I: Ident{Name(name.Draw(t, "schema")), Name(name.Draw(t, "table"))},
		}
		data, err := yaml.Dump(want)
		require.NoError(t, err)
		var got values
		require.NoError(t, yaml.Load(data, &got))
		require.Equal(t, want, got, string(data))
	})
}

func TestClosest(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ written, want string }{
		{"pubication", "publication"},
		{"qurey", "query"},
		{"of", "off"},
		{"publication", "publication"},
		{"something", ""},
		{"", ""},
		{"keys", "key"},
	} {
		require.Equal(t, tc.want, closest(tc.written, []string{"publication", "query", "on", "off", "key"}), tc.written)
	}
	require.Equal(t, 1, editDistance("ab", "ba"))
	require.Equal(t, 3, editDistance("kitten", "sitting"))
	require.Equal(t, 2, editDistance("é", "abé"))
}

func TestShowHidesWhatMayBeSecret(t *testing.T) {
	t.Parallel()
	require.Equal(t, `"plain"`, show("plain"))
	require.NotContains(t, show("postgres://a:hidden@b"), "hidden")
	require.NotContains(t, show("host=a PASSWORD=hidden"), "hidden")
}

func TestExpand(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		raw, want string
		missing   []string
	}{
		{raw: "plain", want: "plain"},
		{raw: "a${LISTEN_PORT}b", want: "a9700b"},
		{raw: "${LISTEN_PORT:-1}", want: "9700"},
		{raw: "${UNSET:-1}", want: "1"},
		{raw: "${UNSET:-}", want: ""},
		{raw: "${EMPTY}", want: ""},
		{raw: "${EMPTY:-full}", want: "full"},
		{raw: "${UNSET:-a b:c#d}", want: "a b:c#d"},
		{raw: "$${LISTEN_PORT}", want: "${LISTEN_PORT}"},
		{raw: "$$${LISTEN_PORT}", want: "$${LISTEN_PORT}"},
		{raw: "$1 $$body$$ $x$", want: "$1 $$body$$ $x$"},
		{raw: `$${"a": 1}$$`, want: `$${"a": 1}$$`},
		{raw: "${UNSET}${OTHER}", want: "", missing: []string{"UNSET", "OTHER"}},
		{raw: "${INJECT}", want: "x\nviews: []"},
	} {
		got := expand(tc.raw, testEnv)
		require.Equal(t, tc.want, got.text, tc.raw)
		require.Equal(t, tc.missing, got.missing, tc.raw)
		require.False(t, brokenReference(tc.raw), tc.raw)
	}
	for _, raw := range []string{"${", "${}", "${1}", "${A", "${A-b}", "x ${a b}"} {
		require.True(t, brokenReference(raw), raw)
	}
}
