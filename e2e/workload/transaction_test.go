package workload

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestGenerateIsDeterministic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		opts := Options{
			Seed: rapid.Uint64().Draw(t, "seed"), Truncate: rapid.Bool().Draw(t, "truncate"), TwoPhase: rapid.Bool().Draw(t, "two-phase"),
			AsyncHalf: true, Writers: rapid.IntRange(1, 8).Draw(t, "writers"),
		}
		writer := rapid.IntRange(0, 7).Draw(t, "writer")
		first, err := Generate(opts, writer, 15)
		require.NoError(t, err)
		opts.Writers = 1 // how many others there are makes no difference
		again, err := Generate(opts, writer, 15)
		require.NoError(t, err)
		if diff := cmp.Diff(first, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestGenerateDiffersBySeedAndWriter(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for seed := range uint64(5) {
		for writer := range 5 {
			transactions, err := Generate(Options{Seed: seed}, writer, 5)
			require.NoError(t, err)
			var script strings.Builder
			for _, tx := range transactions {
				// Without the line that names the writer.
				_, rest, _ := strings.Cut(tx.String(), "\n")
				script.WriteString(rest)
			}
			require.False(t, seen[script.String()], "seed %d, writer %d repeats another", seed, writer)
			seen[script.String()] = true
		}
	}
}

// TestGenerateCoversTheShapes: what transactions may look like all happens within a few hundred of them.
func TestGenerateCoversTheShapes(t *testing.T) {
	t.Parallel()
	transactions, err := Generate(Options{Seed: 1, Truncate: true, TwoPhase: true, AsyncHalf: true}, 1, 600)
	require.NoError(t, err)
	kinds, ends, levels := map[Kind]int{}, map[End]int{}, map[string]int{}
	deepest, undone, many := 0, 0, 0
	var walk func(steps []Step, depth int)
	walk = func(steps []Step, depth int) {
		deepest = max(deepest, depth)
		for _, s := range steps {
			if s.SQL == "" {
				require.NotEmpty(t, s.Block)
				walk(s.Block, depth+1)
				if s.Undone {
					undone++
				}
				continue
			}
			kinds[s.Kind]++
		}
	}
	for _, tx := range transactions {
		require.True(t, tx.Async)
		ends[tx.End]++
		levels[tx.Isolation]++
		walk(tx.Steps, 0)
		if len(tx.Steps) > 64 {
			many++
		}
	}
	for _, kind := range Kinds() {
		require.Positive(t, kinds[kind], kind)
	}
	require.Len(t, ends, 4)
	require.Len(t, levels, 3)
	require.GreaterOrEqual(t, deepest, 2)
	require.Positive(t, undone)
	require.Positive(t, many)
	require.Greater(t, ends[Commit], 400)
}

func TestOptionsNarrow(t *testing.T) {
	t.Parallel()
	transactions, err := Generate(Options{
		Tables: []string{"tag", "edge"}, Weights: Weights{InsertRow: 1, Truncate: 1, Delete: 2},
	}, 1, 200)
	require.NoError(t, err)
	var walk func(steps []Step)
	walk = func(steps []Step) {
		for _, s := range steps {
			if s.SQL == "" {
				walk(s.Block)
				continue
			}
			require.Contains(t, []string{"tag", "edge"}, s.Table)
			require.Contains(t, []Kind{InsertRow, Delete}, s.Kind, "truncate is not allowed unless asked for")
		}
	}
	for _, tx := range transactions {
		require.False(t, tx.Async)
		require.Contains(t, []End{Commit, Rollback}, tx.End)
		walk(tx.Steps)
	}
}

func TestTransactionString(t *testing.T) {
	t.Parallel()
	tx := Transaction{
		Writer: 2, Number: 7, Isolation: "READ COMMITTED", Async: true, End: PrepareCommit,
		Steps: []Step{
			{SQL: "DELETE FROM a"},
			{Block: []Step{{SQL: "DELETE FROM b", Guarded: true}, {Block: []Step{{SQL: "DELETE FROM c"}}}}, Undone: true},
		},
	}
	require.Equal(t, `-- writer 2, transaction 7
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off;
DELETE FROM a;
SAVEPOINT s1;
SAVEPOINT s2;
DELETE FROM b;
RELEASE SAVEPOINT s2;
SAVEPOINT s2;
DELETE FROM c;
RELEASE SAVEPOINT s2;
ROLLBACK TO SAVEPOINT s1;
PREPARE TRANSACTION 'workload_2_7';
COMMIT PREPARED 'workload_2_7';
`, tx.String())
}

func TestQuote(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":      `''`,
		"Bob":   `'Bob'`,
		"O'H":   `'O''H'`,
		`a\b'c`: ` E'a\\b''c'`,
	} {
		require.Equal(t, want, quote(text))
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[string]int{}
	for range 400 {
		seen[Maybe(0.5, Ints(3, 5))(r)]++
	}
	require.Len(t, seen, 4)
	require.Greater(t, seen["NULL"], 100)
	for _, value := range []string{"3", "4", "5"} {
		require.Positive(t, seen[value])
	}
	require.Equal(t, "'1 day'::interval", Typed("interval", "1 day")(r))
	for range 20 {
		require.LessOrEqual(t, strings.Count(Words(3, "a", "b")(r), " "), 2)
	}
}
