package ingest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValueStates(t *testing.T) {
	t.Parallel()
	var zero Value
	for _, tc := range []struct {
		name          string
		in            Value
		text          string
		null, missing bool
	}{
		{name: "zero", in: zero, null: true},
		{name: "null", in: Null, null: true},
		{name: "missing", in: Missing, missing: true},
		{name: "empty text", in: Text("")},
		{name: "text", in: Text("a"), text: "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.text, tc.in.Text())
			require.Equal(t, tc.null, tc.in.IsNull())
			require.Equal(t, tc.missing, tc.in.IsMissing())
			switch {
			case tc.missing:
				require.PanicsWithValue(t, "ingest: a missing value has no text", func() { tc.in.Pointer() })
			case tc.null:
				require.Nil(t, tc.in.Pointer())
			default:
				require.Equal(t, tc.text, *tc.in.Pointer())
			}
		})
	}
	require.NotEqual(t, Null, Missing)
	require.NotEqual(t, Null, Text(""))
	require.NotEqual(t, Missing, Text(""))
}

func TestOpString(t *testing.T) {
	t.Parallel()
	for op, want := range map[Op]string{Insert: "insert", Update: "update", Delete: "delete", Truncate: "truncate", 0: "unknown"} {
		require.Equal(t, want, op.String())
	}
}

func TestTableReads(t *testing.T) {
	t.Parallel()
	leaf := &Table{OID: 5, Ancestors: []uint32{3, 1}}
	require.True(t, leaf.Reads(5))
	require.True(t, leaf.Reads(3))
	require.True(t, leaf.Reads(1))
	require.False(t, leaf.Reads(2))
}

func TestListIsChanges(t *testing.T) {
	t.Parallel()
	l := List{insert(people, "1", "abc"), {Table: people, Op: Delete, Old: Row{Text("1"), Missing}}}
	require.Equal(t, 2, l.Len())
	require.Equal(t, l[0].Bytes()+l[1].Bytes(), l.Bytes())
	require.Greater(t, l[0].Bytes(), l[1].Bytes())
	require.Positive(t, (&Change{Table: people, Op: Truncate}).Bytes())
	var got List
	for c, err := range l.All() {
		require.NoError(t, err)
		got = append(got, c)
		if len(got) == 1 {
			break // an iteration may end early
		}
	}
	require.Equal(t, l[:1], got)
	require.NoError(t, l.Close())
}
