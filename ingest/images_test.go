package ingest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// row reads an image of a test: values between blanks, - for NULL, ? for missing.
func row(text string) Row {
	if text == "" {
		return nil
	}
	var out Row
	for _, f := range strings.Fields(text) {
		switch f {
		case "-":
			out = append(out, Null)
		case "?":
			out = append(out, Missing)
		default:
			out = append(out, Text(f))
		}
	}
	return out
}

func show(r Row) string {
	var out []string
	for _, v := range r {
		switch {
		case v.IsNull():
			out = append(out, "-")
		case v.IsMissing():
			out = append(out, "?")
		default:
			out = append(out, v.Text())
		}
	}
	return strings.Join(out, " ")
}

// changes reads lines of a stream: "1 a >" deletes, "> 1 a" inserts, "1 a > 1 b"
// updates, "truncate" is one.
func changes(t *Table, lines ...string) List {
	var out List
	for _, line := range lines {
		c := &Change{Table: t}
		before, after, ok := strings.Cut(line, ">")
		switch c.Old, c.New = row(before), row(after); {
		case !ok:
			c.Op, c.Old = Truncate, nil
		case c.Old == nil:
			c.Op = Insert
		case c.New == nil:
			c.Op = Delete
		default:
			c.Op = Update
		}
		out = append(out, c)
	}
	return out
}

// netted prints the images, in order.
func netted(im *Images) []string {
	var out []string
	im.Each(func(img *Image) { out = append(out, fmt.Sprintf("%s > %s", show(img.Old), show(img.New))) })
	slices.Sort(out)
	return out
}

func TestImagesNet(t *testing.T) {
	t.Parallel()
	three := &Table{OID: 3, Columns: []Column{{Name: "id"}, {Name: "big"}, {Name: "n"}}}
	keyed := ImageSpec{Columns: []string{"id", "big", "n"}, Key: []int{0}}
	for _, tc := range []struct {
		name   string
		spec   ImageSpec
		stream []string
		want   []string
		refuse bool // the last line
	}{
		{name: "insert", stream: []string{"> 1 a 0"}, want: []string{" > 1 a 0"}},
		{name: "update", stream: []string{"1 a 0 > 1 b 0"}, want: []string{"1 a 0 > 1 b 0"}},
		{name: "delete", stream: []string{"1 ? ? >"}, want: []string{"1 ? ? > "}},
		{name: "first old, last new", stream: []string{"1 a 0 > 1 b 0", "1 b 0 > 1 c 0", "1 c 0 > 1 d 9"}, want: []string{"1 a 0 > 1 d 9"}},
		{name: "insert, update", stream: []string{"> 1 a 0", "1 ? ? > 1 b 0"}, want: []string{" > 1 b 0"}},
		{name: "insert, delete", stream: []string{"> 1 a 0", "1 ? ? >"}},
		{name: "update, delete", stream: []string{"1 a 0 > 1 b 0", "1 b 0 >"}, want: []string{"1 a 0 > "}},
		{name: "delete, insert again", stream: []string{"1 a 0 >", "> 1 b 0"}, want: []string{"1 a 0 > 1 b 0"}},
		{name: "delete, insert the same", stream: []string{"1 a 0 >", "> 1 a 0"}},
		{name: "delete, insert perhaps the same", stream: []string{"1 ? ? >", "> 1 a 0"}, want: []string{"1 ? ? > 1 a 0"}},
		{name: "there and back", stream: []string{"1 a 0 > 1 b 0", "1 b 0 > 1 a 0"}},
		{name: "unchanged update", stream: []string{"1 a - > 1 a -"}},
		{name: "unchanged update of a value that was not sent", stream: []string{"1 ? 0 > 1 ? 0"}},
		{name: "NULL is no text", stream: []string{"1 - 0 > 1 null 0"}, want: []string{"1 - 0 > 1 null 0"}},

		{name: "missing value carried forward from the insert", stream: []string{"> 1 big 0", "1 ? ? > 1 ? 2"}, want: []string{" > 1 big 2"}},
		{name: "missing value carried forward twice", stream: []string{"1 ? ? > 1 big 0", "1 ? ? > 1 ? 2", "1 ? ? > 1 ? 3"}, want: []string{"1 ? ? > 1 big 3"}},
		{name: "missing value carried along with a new key", stream: []string{"> 1 big 0", "1 ? ? > 2 ? 0"}, want: []string{" > 2 big 0"}},
		{name: "missing value not carried from the row that was replaced", stream: []string{"> 1 big 0", "1 ? ? >", "2 ? ? > 1 ? 5"}, want: []string{" > 1 ? 5", "2 ? ? > "}},
		{name: "missing value never sent", stream: []string{"1 ? ? > 1 ? 2"}, want: []string{"1 ? ? > 1 ? 2"}},
		{name: "NULL is carried as NULL", stream: []string{"> 1 - 0", "1 ? ? > 1 ? 2"}, want: []string{" > 1 - 2"}},

		{name: "key moves", stream: []string{"1 a 0 > 2 a 0"}, want: []string{" > 2 a 0", "1 a 0 > "}},
		{name: "key moves on", stream: []string{"1 ? ? > 2 a 0", "2 ? ? > 3 a 0"}, want: []string{" > 3 a 0", "1 ? ? > "}},
		{name: "key moves there and back", stream: []string{"1 a 0 > 2 a 0", "2 a 0 > 1 a 0"}},
		{name: "key of an inserted row moves", stream: []string{"> 2 a 0", "2 ? ? > 102 a 0"}, want: []string{" > 102 a 0"}},
		{name: "key moves where a row was deleted", stream: []string{"2 x 0 >", "1 a 0 > 2 a 0"}, want: []string{"1 a 0 > ", "2 x 0 > 2 a 0"}},
		{name: "key moves where a row went away", stream: []string{"2 x 0 > 3 x 0", "1 a 0 > 2 a 0"}, want: []string{" > 3 x 0", "1 a 0 > ", "2 x 0 > 2 a 0"}},
		{name: "key is taken over by a new row", stream: []string{"1 a 0 > 2 a 0", "> 1 b 0"}, want: []string{" > 2 a 0", "1 a 0 > 1 b 0"}},
		{name: "swap through a free key", stream: []string{"1 ? ? > 100 a 0", "2 ? ? > 1 b 0", "100 ? ? > 2 a 0"}, want: []string{"1 ? ? > 1 b 0", "2 ? ? > 2 a 0"}},
		{name: "swap of values that were not sent", stream: []string{"1 ? ? > 100 ? 0", "2 ? ? > 1 ? 0", "100 ? ? > 2 ? 0"}, want: []string{"1 ? ? > 1 ? 0", "2 ? ? > 2 ? 0"}},
		{name: "swap of all that was not sent", spec: ImageSpec{Columns: []string{"id", "big"}, Key: []int{0}}, stream: []string{"1 ? ? > 100 ? 0", "2 ? ? > 1 ? 0", "100 ? ? > 2 ? 0"}, want: []string{"1 ? > 1 ?", "2 ? > 2 ?"}},
		{name: "swap and back", stream: []string{"1 a 0 > 100 a 0", "2 b 0 > 1 b 0", "100 a 0 > 2 a 0", "1 b 0 > 100 b 0", "2 a 0 > 1 a 0", "100 b 0 > 2 b 0"}},

		{name: "deferred: shift", stream: []string{"1 a 0 > 2 a 0", "2 b 0 > 3 b 0", "3 c 0 > 4 c 0"}, want: []string{" > 4 c 0", "1 a 0 > ", "2 b 0 > 2 a 0", "3 c 0 > 3 b 0"}},
		{name: "deferred: shift of rows of the same content", stream: []string{"1 a 0 > 2 a 0", "2 a 0 > 3 a 0"}, want: []string{" > 3 a 0", "1 a 0 > "}},
		{name: "deferred: swap at once", stream: []string{"1 a 0 > 2 a 0", "2 b 0 > 1 b 0"}, want: []string{"1 a 0 > 1 b 0", "2 b 0 > 2 a 0"}},
		{name: "deferred: second row deleted", stream: []string{"> 2 x 0", "2 b 0 >"}, want: []string{"2 b 0 > 2 x 0"}},
		{name: "deferred: second row first known by the batch", stream: []string{"> 2 b 0", "1 a 0 > 2 a 0"}, refuse: true},
		{name: "deferred: three rows at a key", stream: []string{"1 a 0 > 3 a 0", "2 b 0 > 3 b 0"}, refuse: true},

		{name: "deleted twice", stream: []string{"1 a 0 >", "1 a 0 >"}, refuse: true},
		{name: "inserted twice", stream: []string{"> 1 a 0", "> 1 a 0"}, refuse: true},
		{name: "key not carried by the old image", stream: []string{"? a 0 > 1 b 0"}, refuse: true},
		{name: "key not carried by a deleted row", stream: []string{"? a 0 >"}, refuse: true},
		{name: "key left alone and not sent", stream: []string{"1 a 0 > ? b 0"}, want: []string{"1 a 0 > 1 b 0"}},
		{name: "key not carried by an insert", stream: []string{"> ? b 0"}, refuse: true},
		{name: "truncate", stream: []string{"truncate"}, refuse: true},

		{name: "wide key", spec: ImageSpec{Columns: []string{"id", "big", "n"}, Key: []int{2, 0}}, stream: []string{"> 1 a 11", "> 11 a 1", "11 ? 1 >"}, want: []string{" > 1 a 11"}},
		{name: "NULL in a key", spec: ImageSpec{Columns: []string{"id", "big", "n"}, Key: []int{2, 0}}, stream: []string{"> 1 a -", "- a 1 >"}, want: []string{" > 1 a -", "- a 1 > "}},

		{name: "bag: copies", spec: ImageSpec{Columns: []string{"id", "big", "n"}}, stream: []string{"> 1 a 0", "> 1 a 0", "> 1 a 0", "1 a 0 >"}, want: []string{" > 1 a 0", " > 1 a 0"}},
		{name: "bag: copies go", spec: ImageSpec{Columns: []string{"id", "big", "n"}}, stream: []string{"1 a 0 >", "1 a 0 >", "- - - >"}, want: []string{"- - - > ", "1 a 0 > ", "1 a 0 > "}},
		{name: "bag: there and back", spec: ImageSpec{Columns: []string{"id", "big", "n"}}, stream: []string{"1 a 0 > 1 b 0", "> - - -", "1 b 0 > 1 a 0", "- - - >"}},
		{name: "bag: incomplete image", spec: ImageSpec{Columns: []string{"id", "big", "n"}}, stream: []string{"1 ? 0 >"}, refuse: true},
		{name: "bag: truncate", spec: ImageSpec{Columns: []string{"id", "big", "n"}}, stream: []string{"truncate"}, refuse: true},
		{name: "bag: relation does not matter", spec: ImageSpec{Columns: []string{"id", "big", "n"}, PerRelation: true}, stream: []string{"> 1 a 0"}, want: []string{" > 1 a 0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.spec.Columns == nil {
				tc.spec = keyed
			}
			im := NewImages(tc.spec)
			for i, c := range changes(three, tc.stream...) {
				require.Equal(t, !tc.refuse || i < len(tc.stream)-1, im.Add(c), tc.stream[i])
			}
			if !tc.refuse {
				require.Empty(t, cmp.Diff(tc.want, netted(im)))
				require.Equal(t, len(tc.want) == 0, im.Bytes() == 0, "bytes %d", im.Bytes())
			}
			im.Reset()
			require.Zero(t, im.Bytes())
			require.Zero(t, im.Len())
			require.Empty(t, netted(im))
		})
	}
}

// Images tell rows that share a key for a moment apart by their content. So the
// server must not accept such a key as an identity, which has little content.
func TestDeferrableKeyIsNoIdentity(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, n int NOT NULL);
		INSERT INTO t VALUES (1, 1), (2, 2); CREATE PUBLICATION p FOR TABLE t`)
	refused := func(sql string) {
		_, err := db.Pool.Exec(t.Context(), sql)
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr, sql)
		require.Contains(t, []string{pgerrcode.ObjectNotInPrerequisiteState, pgerrcode.FeatureNotSupported}, pgErr.Code, pgErr.Message)
	}
	refused("UPDATE t SET id = id + 1")
	refused("ALTER TABLE t REPLICA IDENTITY USING INDEX t_pkey")
	db.Exec(t, "ALTER TABLE t REPLICA IDENTITY FULL")
	require.EqualValues(t, 2, db.Exec(t, "UPDATE t SET id = id + 1"))
}

func TestImagesKeepDeclaredColumnsByName(t *testing.T) {
	t.Parallel()
	im := NewImages(ImageSpec{Columns: []string{"n", "id"}, Key: []int{1}})
	root := &Table{OID: 1, Columns: []Column{{Name: "id"}, {Name: "dropped_later"}, {Name: "n"}}}
	leaf := &Table{OID: 2, Columns: []Column{{Name: "n"}, {Name: "id"}}}
	other := &Table{OID: 2, Columns: []Column{{Name: "id"}}}
	require.True(t, im.Add(changes(root, "> 1 x 10")[0]))
	require.True(t, im.Add(changes(leaf, "> 20 2")[0]))
	require.True(t, im.Add(changes(leaf, "10 1 > 11 1")[0]), "a row that moved to another leaf keeps its key")
	require.Equal(t, []string{" > 11 1", " > 20 2"}, netted(im))
	for range 2 {
		require.False(t, im.Add(changes(other, "> 1")[0]), "a kept column is gone")
		require.False(t, im.Unchanged(changes(other, "1 > 1")[0]))
	}
	require.True(t, im.Unchanged(changes(root, "1 x 10 > 1 y 10")[0]), "only a column that is not kept")
	require.False(t, im.Unchanged(changes(root, "1 x 10 > 1 x 11")[0]))
	require.False(t, im.Unchanged(changes(root, "1 x ? > 1 x 11")[0]), "nobody knows")
	require.False(t, im.Unchanged(changes(root, "> 1 x 10")[0]))
	require.False(t, im.Unchanged(changes(root, "truncate")[0]))
}

func TestImagesPerRelation(t *testing.T) {
	t.Parallel()
	parent := &Table{OID: 1, Columns: people.Columns}
	child := &Table{OID: 1 << 24, Columns: people.Columns}
	again := *child // described anew after a change of its definition
	spec := ImageSpec{Columns: []string{"id", "name"}, Key: []int{0}, PerRelation: true}
	im := NewImages(spec)
	require.True(t, im.Add(insert(parent, "1", "a")))
	require.True(t, im.Add(insert(child, "1", "b")))
	require.Equal(t, []string{" > 1 a", " > 1 b"}, netted(im))
	require.True(t, im.Add(changes(&again, "1 b > 1 c")[0]))
	require.True(t, im.Add(changes(parent, "1 a >")[0]))
	require.Equal(t, []string{" > 1 c"}, netted(im))

	spec.PerRelation = false
	im = NewImages(spec)
	require.True(t, im.Add(insert(parent, "1", "a")))
	require.False(t, im.Add(insert(child, "1", "b")), "the key was said to be unique")
}

// The memory of a message must be free to go, and a caller may fill in what it got.
func TestImagesOwnTheirRows(t *testing.T) {
	t.Parallel()
	im := NewImages(ImageSpec{Columns: []string{"id", "name"}, Key: []int{0}})
	c := changes(people, "1 ? > 1 ?", "2 ? > 3 ?")[1]
	require.True(t, im.Add(c))
	c.New[0], c.Old[0] = Text("overwritten"), Text("overwritten")
	im.Each(func(img *Image) {
		if img.New != nil {
			img.New[1] = Text("looked up")
			require.Equal(t, "3 looked up", show(img.New))
		}
	})
	require.Equal(t, []string{" > 3 ?", "2 ? > "}, netted(im))
}

func TestImagesBytesFollowWhatIsHeld(t *testing.T) {
	t.Parallel()
	for _, key := range [][]int{{0}, nil} {
		im := NewImages(ImageSpec{Columns: []string{"id", "name"}, Key: key})
		add := func(line string) int64 {
			before := im.Bytes()
			require.True(t, im.Add(changes(people, line)[0]))
			return im.Bytes() - before
		}
		small, large := strings.Repeat("s", 10), strings.Repeat("l", 10_000)
		require.InDelta(t, 120, add("> 1 "+small), 60)
		require.InDelta(t, 9990, add("1 "+small+" > 1 "+large), 60)
		require.InDelta(t, -9990, add("1 "+large+" > 1 "+small), 60)
		add("1 " + small + " >")
		require.Zero(t, im.Bytes())
		require.Zero(t, im.Len())
		add("2 " + large + " >")
		require.Greater(t, im.Bytes(), int64(10_000), "old images count")
		add("> 2 " + large)
		require.Zero(t, im.Bytes())
	}
}

func TestImagesForgetOldDescriptions(t *testing.T) {
	t.Parallel()
	im := NewImages(ImageSpec{Columns: []string{"id", "name"}, Key: []int{0}})
	for range 1500 {
		again := *people
		require.True(t, im.Add(changes(&again, "1 a > 1 b")[0]))
		require.True(t, im.Add(changes(&again, "1 b > 1 a")[0]))
	}
	require.Zero(t, im.Len())
	im.Reset()
	require.Empty(t, im.maps)
}

// Whatever the values, packed rows differ where rows do, and give back what went in.
func TestPackedRowsRoundTrip(t *testing.T) {
	t.Parallel()
	table := &Table{OID: 1 << 31, Columns: []Column{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	value := rapid.Custom(func(t *rapid.T) Value {
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return Null
		case 1:
			return Missing
		case 2:
			return Text(strings.Repeat("x", rapid.SampledFrom([]int{0, 1, 125, 126, 127, 128, 16_381, 16_382, 1 << 21}).Draw(t, "length")))
		}
		return Text(rapid.String().Draw(t, "text"))
	})
	rows := rapid.Custom(func(t *rapid.T) Row { return Row{value.Draw(t, "a"), value.Draw(t, "b"), value.Draw(t, "c")} })
	rapid.Check(t, func(t *rapid.T) {
		im := NewImages(ImageSpec{Columns: []string{"a", "b", "c"}, Key: []int{1}, PerRelation: rapid.Bool().Draw(t, "per relation")})
		pos, ok := im.positions(table)
		require.True(t, ok)
		one, other := rows.Draw(t, "one"), rows.Draw(t, "other")
		klen, missing := im.pack(table, one, pos, "")
		first := string(im.packed)
		require.Equal(t, one[1].IsMissing(), klen == 0)
		require.Equal(t, slices.ContainsFunc(one, Value.IsMissing), missing)
		require.True(t, slices.Equal(one, im.unpack(first)))
		otherLen, _ := im.pack(table, other, pos, "")
		require.Equal(t, slices.Equal(one, other), first == string(im.packed))
		if klen > 0 && otherLen > 0 {
			require.Equal(t, one[1] == other[1], first[:klen] == string(im.packed[:otherLen]))
		}
		im.pack(table, other, pos, first)
		for i, v := range im.unpack(string(im.packed)) {
			if want := other[i]; want.IsMissing() {
				require.True(t, v == one[i], "carried forward")
			} else {
				require.True(t, v == want)
			}
		}
	})
}
