package maintain

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/ingest"
)

func TestRowKeyTellsRowsApart(t *testing.T) {
	t.Parallel()
	text := ingest.Text
	rows := []ingest.Row{
		{},
		{ingest.Null},
		{text("")},
		{text("-")},
		{text("0:")},
		{ingest.Null, ingest.Null},
		{ingest.Null, text("")},
		{text(""), ingest.Null},
		{text("a"), text("b")},
		{text("ab"), text("")},
		{text(""), text("ab")},
		{text("a1:b")},
		{text("1:a"), text("b")},
	}
	seen := map[string]ingest.Row{}
	for _, row := range rows {
		other, ok := seen[rowKey(row)]
		require.False(t, ok, "%v and %v", row, other)
		seen[rowKey(row)] = row
	}
	require.Equal(t, rowKey(rows[8]), rowKey(ingest.Row{text("a"), text("b")}))
}
