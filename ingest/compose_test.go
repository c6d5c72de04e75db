package ingest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDetachedImagesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	im := NewImages(ImageSpec{Columns: []string{"id", "name"}, Key: []int{0}})
	add := func(lines ...string) {
		for _, c := range changes(people, lines...) {
			require.True(t, im.Add(c))
		}
	}
	add("> 1 a", "2 b > 2 c", "3 d >")
	first := im.Detach()
	require.Zero(t, im.Len())
	require.Zero(t, im.Bytes())
	add("1 a > 1 b", "2 c > 2 b", "> 3 e", "> 4 f")
	require.Equal(t, []string{" > 1 a", "2 b > 2 c", "3 d > "}, netted(first))
	require.Equal(t, []string{" > 3 e", " > 4 f", "1 a > 1 b", "2 c > 2 b"}, netted(im))

	require.True(t, first.Then(im))
	require.Equal(t, []string{" > 1 b", " > 4 f", "3 d > 3 e"}, netted(first), "row 2 is as it was (INV-5)")
	require.True(t, first.Add(changes(people, "1 b >")[0]), "the two together go on")
	require.Equal(t, []string{" > 4 f", "3 d > 3 e"}, netted(first))
}

// Sets of which one does not begin where the other ends must not be taken for one.
func TestImagesThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, first, later string }{
		{"a second row at a key", "> 1 a", "> 1 b"},
		{"a row that was gone", "1 a >", "1 a > 1 b"},
		{"a row of other content", "> 1 a", "1 b > 1 c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var sets []*Images
			for _, line := range []string{tc.first, tc.later} {
				im := NewImages(ImageSpec{Columns: []string{"id", "name"}, Key: []int{0}})
				require.True(t, im.Add(changes(people, line)[0]))
				sets = append(sets, im)
			}
			require.False(t, sets[0].Then(sets[1]))
		})
	}
}

// A row's missing value is not that of another row which stood at the key before.
func TestMissingValuesAreNotTakenFromAnotherRow(t *testing.T) {
	t.Parallel()
	im := NewImages(ImageSpec{Columns: []string{"id", "name"}, Key: []int{0}})
	require.True(t, im.Add(changes(people, "> 1 a")[0]))
	first := im.Detach()
	require.False(t, first.Lacks())
	for _, c := range changes(people, "1 ? > 3 ?", "2 ? > 1 ?") { // unchanged TOAST values
		require.True(t, im.Add(c))
	}
	require.True(t, im.Lacks())
	require.True(t, first.Then(im))
	require.True(t, first.Lacks())
	require.Equal(t, []string{" > 1 ?", " > 3 ?", "2 ? > "}, netted(first))
}

func TestRowsGiveOnePartInOrder(t *testing.T) {
	t.Parallel()
	im := NewImages(ImageSpec{Columns: []string{"name", "id"}, Key: []int{1}})
	for _, c := range changes(people, "9 a > 9 b", "> 7 c", "8 d >", "> 6 e", "7 c >", "5 f > 4 f") {
		require.True(t, im.Add(c))
	}
	counts := im.Parts()
	for part, want := range map[Part]string{Gone: "8,5", Changed: "9", Fresh: "6,4"} {
		rows := im.Rows(part, counts[part], []int{1})
		require.Equal(t, strings.Count(want, ",")+1, rows.Len())
		var got []string
		for row := rows.Next(); row != nil; row = rows.Next() {
			got = append(got, row[0].Text())
		}
		require.Equal(t, want, strings.Join(got, ","))
	}
	both := im.Rows(Changed, counts[Changed], []int{0, 1, 0})
	require.Equal(t, "b 9 b", show(both.Next()))
	require.Nil(t, both.Next())
}

// What was replaced, and rows that came and went, must not pile up.
func TestImagesLetGoOfWhatWasReplaced(t *testing.T) {
	t.Parallel()
	im := NewImages(ImageSpec{Columns: []string{"id", "name"}, Key: []int{0}})
	memory := func() int {
		n := 24*cap(im.rows.rows) + 4*cap(im.rows.table)
		for _, b := range im.rows.slab.blocks {
			n += cap(b)
		}
		return n
	}
	require.True(t, im.Add(changes(people, "> hot 0")[0]))
	most := 0
	for i := range 20_000 {
		at := fmt.Sprintf("%d %s", i, strings.Repeat("x", 100))
		lines := []string{"> " + at, at + " >", fmt.Sprintf("hot %d > hot %d", i, i+1)}
		for _, c := range changes(people, lines...) {
			require.True(t, im.Add(c))
		}
		most = max(most, memory())
	}
	require.Equal(t, []string{" > hot 20000"}, netted(im))
	require.Less(t, most, 200<<10)
	held := im.Bytes()
	for i := range 20_000 {
		require.True(t, im.Add(changes(people, fmt.Sprintf("> %d %s", i, strings.Repeat("x", 100)))[0]))
	}
	require.Less(t, int64(memory()), 3*(im.Bytes()-held)/2, "the estimate bounds what is held")
	got := netted(im)
	require.Len(t, got, 20_001)
	require.True(t, slices.Contains(got, " > 19999 "+strings.Repeat("x", 100)))
}
