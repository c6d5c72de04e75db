package metrics

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the table in docs/metrics.md")

const (
	docsFile   = "../docs/metrics.md"
	tableStart = "<!-- the table is written by: go test ./metrics -run Docs -update -->\n"
	tableEnd   = "<!-- end of the table -->\n"
)

// docsTable renders what the registry says of itself, in the contract's order.
func docsTable(t *testing.T) string {
	t.Helper()
	var table strings.Builder
	table.WriteString("| Metric | Type | Labels | Meaning |\n| --- | --- | --- | --- |\n")
	families := own(t, populated())
	for _, metric := range contract {
		family := families[metric.Name]
		require.NotNil(t, family, metric.Name)
		got := describe(t, family)
		labels := got.Labels
		if labels != "" {
			labels = "`" + strings.ReplaceAll(labels, ", ", "`, `") + "`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", got.Name, got.Type, labels, family.GetHelp())
	}
	return table.String()
}

func TestDocsTableIsThatOfTheRegistry(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(docsFile)
	require.NoError(t, err)
	documented := between(t, string(content), tableStart, tableEnd)
	want := docsTable(t)
	if *update {
		rewritten := strings.Replace(string(content), tableStart+documented, tableStart+want, 1)
		require.NoError(t, os.WriteFile(docsFile, []byte(rewritten), 0o644))
		return
	}
	require.Equal(t, want, documented, "run: go test ./metrics -run Docs -update")
}

// TestDocsExplainEveryWord keeps the lists of label values complete: one bullet
// a word, below the heading of its metric.
func TestDocsExplainEveryWord(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(docsFile)
	require.NoError(t, err)
	for _, tc := range []struct {
		heading string
		want    []string
	}{
		{"`reason` of `mvsync_round_retries_total`", RetryReasons()},
		{"`reason` of `mvsync_rebuilds_total`", RebuildReasons()},
		{"`reason` of `mvsync_gaps_total`", GapReasons()},
		{"`state` of `mvsync_view_state`", states},
	} {
		section := between(t, string(content)+"\n## ", "\n### "+tc.heading+"\n", "\n##")
		var got []string
		for line := range strings.Lines(section) {
			if word, isBullet := strings.CutPrefix(line, "- `"); isBullet {
				word, _, _ = strings.Cut(word, "`")
				got = append(got, word)
			}
		}
		require.ElementsMatch(t, slices.Clone(tc.want), got, tc.heading)
	}
}
