package metrics

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// renderedPage returns the page for a status, and its content policy.
func renderedPage(t *testing.T) (body, policy string) {
	t.Helper()
	handler := New("1.2.3").Handler(Pages{Status: func(context.Context) Status { return sample() }})
	response := ask(t, handler, http.MethodGet, "/")
	return response.Body.String(), response.Header().Get("Content-Security-Policy")
}

// between returns what stands between two marks, both of which stand once.
func between(t *testing.T, text, start, end string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, start)
	require.True(t, found, start)
	inner, _, found := strings.Cut(rest, end)
	require.True(t, found, end)
	return inner
}

func TestPageRunsOnlyItsOwnStyleAndScript(t *testing.T) {
	t.Parallel()
	body, policy := renderedPage(t)
	require.Contains(t, policy, "style-src '"+integrity(between(t, body, "<style>", "</style>"))+"'")
	require.Contains(t, policy, "script-src '"+integrity(between(t, body, "<script>", "</script>"))+"'")
	require.NotContains(t, policy, "unsafe")
	require.NotRegexp(t, regexp.MustCompile(`(?i)\son[a-z]+\s*=\s*["']|\sstyle=`), body, "the policy forbids inline handlers and styles")
}

func TestPageIsSelfContained(t *testing.T) {
	t.Parallel()
	body, _ := renderedPage(t)
	require.NotRegexp(t, regexp.MustCompile(`(?i)https?://|src=|@import|url\(`), body)
	for _, reference := range regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(body, -1) {
		require.Contains(t, []string{"data:,", "api/status", "metrics", "readyz"}, reference[1],
			"relative, so that the page works below a proxy's path")
	}
}

func TestPageEmbedsTheStatus(t *testing.T) {
	t.Parallel()
	body, _ := renderedPage(t)
	embedded := between(t, body, `<script type="application/json" id="status">`, "</script>")
	require.NotContains(t, embedded, "<")

	var status Status
	require.NoError(t, json.Unmarshal([]byte(embedded), &status))
	require.Equal(t, "1.2.3", status.Version)
	require.Equal(t, `public."</script><b>"`, status.Views[1].Name)
	require.Equal(t, "public.dice", status.Refused[0].View)
	require.Contains(t, body, `<small id="version">1.2.3</small>`)
}

// TestScriptFitsThePage keeps the script's names in step with the document and
// with the JSON: a slip of either shows as an empty page only.
func TestScriptFitsThePage(t *testing.T) {
	t.Parallel()
	for _, id := range regexp.MustCompile(`byId\("([^"]+)"\)`).FindAllStringSubmatch(pageScript, -1) {
		require.Contains(t, pageHTML, `id="`+id[1]+`"`)
	}

	encoded, err := json.Marshal(sample())
	require.NoError(t, err)
	fields := regexp.MustCompile(`\b(?:s|a|v|r|stream|slot)\.([a-z_]+)\b(\()?`).FindAllStringSubmatch(pageScript, -1)
	require.Greater(t, len(fields), 30)
	for _, field := range fields {
		// What the server always adds, and methods of strings and lists, aside.
		if field[2] == "(" || field[1] == "not_ready" {
			continue
		}
		require.Contains(t, string(encoded), `"`+field[1]+`":`)
	}
	for _, state := range states {
		require.Regexp(t, `\.`+state+`\b`, pageStyle, "every state is told apart")
	}
}

// TestScriptWritesTextOnly keeps names of views from ever becoming markup.
func TestScriptWritesTextOnly(t *testing.T) {
	t.Parallel()
	for _, dangerous := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("} {
		require.NotContains(t, pageScript, dangerous)
	}
}

func TestPageHasADarkTwin(t *testing.T) {
	t.Parallel()
	require.Contains(t, pageStyle, "color-scheme: light dark")
	light := between(t, pageStyle, ":root {", "}")
	dark := between(t, pageStyle, "@media (prefers-color-scheme: dark) {\n  :root {", "}")
	variable := regexp.MustCompile(`--[a-z]+:`)
	require.Equal(t, variable.FindAllString(light, -1), variable.FindAllString(dark, -1), "each has its dark twin")
	for _, use := range regexp.MustCompile(`var\((--[a-z]+)\)`).FindAllStringSubmatch(pageStyle, -1) {
		require.Contains(t, light, use[1]+":")
	}
}
