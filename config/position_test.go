package config

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// at cuts the file at a position of ours, so that tests can say what follows.
func at(t require.TestingT, file string, line, column int) string {
	lines := splitLines(file)
	require.LessOrEqual(t, line, len(lines))
	runes := []rune(lines[line-1])
	require.LessOrEqual(t, column-1, len(runes))
	return string(runes[column-1:])
}

func TestQueryPosition(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, query string }{
		{"literal", "|\n      SELECT é\n\n        FROM here\n"},
		{"literal with crlf", "|\r\n      SELECT é\r\n      FROM here\r\n"},
		{"literal that begins with an empty line", "|\n\n      SELECT 1\n      FROM here\n"},
		{"literal with an indentation indicator", "|2\n       SELECT 1\n      FROM here\n"},
		{"literal that keeps line breaks", "|+ # comment\n      SELECT 1\n      FROM here\n\n\n"},
		{"literal with properties", "&q !!str |-\n      SELECT 1\n      FROM here\n"},
		{"folded", ">-\n      SELECT 1,\n      é\n\n      FROM here\n"},
		{"plain", "SELECT é FROM here\n"},
		{"plain over lines", "SELECT 1\n      FROM here\n"},
		{"plain on the next line", "\n      SELECT 1 FROM here\n"},
		{"single-quoted", "'SELECT ''é'' FROM here'\n"},
		{"single-quoted over lines", "'SELECT ''a\n\n      b'' FROM here'\n"},
		{"double-quoted", "\"SELECT '\\u00e9\\x41\\\\' AS \\\"b\\\"\\n\\tFROM here\"\n"},
		{"double-quoted with a joined line", "\"SELECT 1 F\\\n      ROM here\"\n"},
		{"environment", "SELECT '${LISTEN_PORT}${EMPTY}', '$${X}' FROM here\n"},
		{"environment in a block", "|\n      SELECT '${LISTEN_PORT}'\n      , ${UNSET:-1} FROM here\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			file := "views:\n  - name: a\n    query: " + tc.query + "    every: 1s\n"
			cfg, err := parseText(t, file)
			require.NoError(t, err)
			v := &cfg.Views[0]
			for _, word := range []string{"SELECT", "here", "FROM"} {
				offset := strings.Index(v.Query, word)
				line, column := v.QueryPosition(offset)
				text := at(t, file, line, column)
				require.True(t, strings.HasPrefix(text, word[:1]), "%s at %q", word, text)
				byChar, columnByChar := v.QueryErrorPosition(utf8.RuneCountInString(v.Query[:offset]) + 1)
				require.Equal(t, []int{line, column}, []int{byChar, columnByChar})
			}
			line, column := v.QueryPosition(len(v.Query) + 10)
			end := at(t, file, line, column-1)
			require.True(t, strings.HasPrefix(end, "e"), "the end at %q", end)
			line, column = v.QueryPosition(-1)
			require.True(t, strings.HasPrefix(at(t, file, line, column), "S") || v.Query[0] == ' ' || v.Query[0] == '\n')
		})
	}
}

func TestQueryPositionInsideAnExpandedValue(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, "views:\n  - name: a\n    query: SELECT ${INJECT} FROM t\n")
	require.NoError(t, err)
	require.Len(t, cfg.Views, 1, "a value cannot add to the structure")
	v := &cfg.Views[0]
	line, column := v.QueryPosition(strings.Index(v.Query, "[]"))
	require.Equal(t, []int{3, 19}, []int{line, column})
}

func TestQueryPositionOfAViewThatWasNotParsed(t *testing.T) {
	t.Parallel()
	v := &View{Query: "SELECT 1"}
	line, column := v.QueryPosition(3)
	require.Equal(t, []int{0, 0}, []int{line, column})
}

func TestQueryPositionOfWhiteSpace(t *testing.T) {
	t.Parallel()
	cfg, err := parseText(t, "views:\n  - name: a\n    query: |\n      SELECT 1\n        FROM t\n  - name: b\n    query: SELECT  1\n")
	require.NoError(t, err)
	for _, tc := range []struct{ view, offset, line, column int }{
		{0, 6, 4, 13}, {0, 8, 4, 15}, {0, 9, 5, 7}, {0, 10, 5, 8}, {1, 6, 7, 18}, {1, 7, 7, 19},
	} {
		line, column := cfg.Views[tc.view].QueryPosition(tc.offset)
		require.Equal(t, []int{tc.line, tc.column}, []int{line, column}, "%+v", tc)
	}
}

// TestEveryCharacterIsFound writes random bodies in each style, and looks
// every character up again.
func TestEveryCharacterIsFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[a-zé✓(*,';"\\]{1,6}`), 1, 12).Draw(t, "words")
		breaks := rapid.SliceOfN(rapid.SampledFrom([]string{" ", "\n      ", "\n\n      "}), len(words), len(words)).Draw(t, "breaks")
		style := rapid.SampledFrom([]string{"|", ">", "'", `"`}).Draw(t, "style")
		var b strings.Builder
		b.WriteString("views:\n  - name: a\n    query: ")
		quote := func(s string) string { return s }
		end := "\n"
		switch style {
		case "'":
			quote, end = strings.NewReplacer("'", "''").Replace, "'\n"
			b.WriteString("'")
		case `"`:
			quote, end = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "✓", `\u2713`).Replace, "\"\n"
			b.WriteString(`"`)
		default:
			b.WriteString(style + "\n      ")
		}
		for i, w := range words {
			if i > 0 {
				b.WriteString(breaks[i])
			}
			b.WriteString(quote(w))
		}
		b.WriteString(end)
		file := b.String()
		cfg, err := Parse("f.yaml", []byte(file), testEnv)
		require.NoError(t, err, file)
		v := &cfg.Views[0]
		for offset, r := range v.Query {
			if isSpace(r) {
				continue
			}
			line, column := v.QueryPosition(offset)
			require.True(t, strings.HasPrefix(at(t, file, line, column), quote(string(r))), "%q at %d:%d in\n%s", r, line, column, file)
		}
	})
}

func FuzzQueryPosition(f *testing.F) {
	f.Add("|\n      SELECT 1\n", 3)
	f.Add("'it''s'", 2)
	f.Add("\"a\\x41\\\n   b\"", 1)
	f.Add(">2-\n  \t a\n\n  b", 4)
	f.Add("&a !!str |\n     x", 0)
	f.Fuzz(func(t *testing.T, query string, offset int) {
		file := "views:\n  - name: a\n    query: " + query + "\n"
		cfg, err := Parse("f.yaml", []byte(file), testEnv)
		if err != nil || len(cfg.Views) == 0 {
			return
		}
		line, column := cfg.Views[0].QueryPosition(offset)
		require.Positive(t, line)
		require.Positive(t, column)
		require.LessOrEqual(t, line, len(splitLines(file))+1)
		line, column = cfg.Views[0].QueryErrorPosition(offset)
		require.Positive(t, line)
		require.Positive(t, column)
	})
}
