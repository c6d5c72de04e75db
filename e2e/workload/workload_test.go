package workload

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/internal/pgserver"
)

// start runs a workload beside the test and returns a function that stops it and reports its error.
func start(ctx context.Context, t *testing.T, pool *pgxpool.Pool, opts Options) (*Workload, func() error) {
	t.Helper()
	w, err := New(pool, opts)
	require.NoError(t, err)
	var group errgroup.Group
	group.Go(func() error { return w.Run(ctx) })
	return w, func() error {
		w.Stop()
		return group.Wait()
	}
}

// within bounds a test's wait.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestEveryKindHappens(t *testing.T) {
	t.Parallel()
	db, pool := seededDB(t, nil)
	w, stop := start(t.Context(), t, pool, Options{Writers: 6, Seed: 7, AsyncHalf: true, Truncate: true, TwoPhase: true})
	err := w.Await(within(t, time.Minute), func(c Counters) bool {
		for _, kind := range Kinds() {
			if c.Kinds[kind] < 3 {
				return false
			}
		}
		for _, table := range Fixtures().Tables {
			if c.Tables[table.Name] < 20 {
				return false
			}
		}
		for _, code := range []string{pgerrcode.UniqueViolation, pgerrcode.ForeignKeyViolation, pgerrcode.DeadlockDetected, pgerrcode.SerializationFailure} {
			if c.Errors[code] == 0 {
				return false
			}
		}
		return c.Prepared > 3 && c.RolledBack > 10 && c.Failed > 3 && c.Undone > 50 && c.MultiTable > 50
	})
	require.NoError(t, err)
	require.NoError(t, stop())

	got := w.Counters()
	require.Zero(t, got.Broken, w)
	require.Greater(t, got.Committed, got.Failed+got.RolledBack, "most transactions should change something: %s", w)
	require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"))
	require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"))
}

// TestTablesStayAlive guards the balance of inserts and deletes: a workload over empty tables tests nothing.
func TestTablesStayAlive(t *testing.T) {
	t.Parallel()
	db, pool := seededDB(t, nil)
	_, err := Run(t.Context(), pool, Options{Writers: 4, Seed: 3, Transactions: 250})
	require.NoError(t, err)
	for _, table := range Fixtures().Tables {
		n := db.Value(t, "SELECT count(*) BETWEEN 3 AND 2000 FROM "+table.Name)
		require.Equal(t, "t", n, "rows of %s", table.Name)
	}
}

// TestOneWriterIsReproducible: alone, a writer leaves the same rows behind each time, byte for byte.
func TestOneWriterIsReproducible(t *testing.T) {
	t.Parallel()
	contents := func() [][]string {
		db, pool := seededDB(t, nil)
		_, err := Run(t.Context(), pool, Options{Writers: 1, Seed: 11, Transactions: 150, Truncate: true, TwoPhase: true})
		require.NoError(t, err)
		var all [][]string
		for _, table := range Fixtures().Tables {
			all = append(all, db.Query(t, "SELECT t::text FROM "+table.Name+" t ORDER BY 1")...)
		}
		return all
	}
	first := contents()
	require.NotEmpty(t, first)
	require.Equal(t, first, contents())
}

// TestJournalReplays: the scripts of the journal, run in their order, do what the workload did. A statement that fails in
// its savepoint would end a script, so there are only kinds that cannot fail.
func TestJournalReplays(t *testing.T) {
	t.Parallel()
	db, pool := seededDB(t, nil)
	w, err := New(pool, Options{
		Writers: 1, Seed: 5, Transactions: 60, Journal: 60, TwoPhase: true, Tables: []string{"item", "tag", "edge"},
		Weights: Weights{Upsert: 3, UpdatePayload: 2, UpdateGroup: 1, Swap: 1, Delete: 1, ThereAndBack: 1},
	})
	require.NoError(t, err)
	require.NoError(t, w.Run(t.Context()))
	require.Zero(t, w.Counters().Failed)
	journal := w.Journal()
	require.Len(t, journal, 60)

	again, _ := seededDB(t, nil)
	conn := again.Conn(t)
	for _, entry := range journal {
		script := entry.String()
		if entry.End == PrepareCommit || entry.End == PrepareRollback {
			// PREPARE TRANSACTION and what follows may not share a message, which psql does not do either.
			head, tail, _ := strings.Cut(script, "PREPARE TRANSACTION")
			prepare, finish, _ := strings.Cut("PREPARE TRANSACTION"+tail, "\n")
			for _, part := range []string{head, prepare, finish} {
				_, err := conn.Exec(t.Context(), part, pgx.QueryExecModeSimpleProtocol)
				require.NoError(t, err, part)
			}
			continue
		}
		_, err := conn.Exec(t.Context(), script, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err, script)
	}
	for _, table := range []string{"item", "tag", "edge"} {
		query := "SELECT t::text FROM " + table + " t ORDER BY 1"
		require.Equal(t, db.Query(t, query), again.Query(t, query))
	}
}

func TestJournalKeepsTheLast(t *testing.T) {
	t.Parallel()
	_, pool := seededDB(t, nil)
	w, err := New(pool, Options{Writers: 3, Seed: 5, Transactions: 20, Journal: 4})
	require.NoError(t, err)
	require.NoError(t, w.Run(t.Context()))
	journal := w.Journal()
	require.Len(t, journal, 12)
	byWriter := map[int][]int{}
	for i, entry := range journal {
		byWriter[entry.Writer] = append(byWriter[entry.Writer], entry.Number)
		if i > 0 {
			require.Greater(t, entry.Order, journal[i-1].Order)
		}
	}
	for writer, numbers := range byWriter {
		require.Equal(t, []int{16, 17, 18, 19}, numbers, "writer %d", writer)
	}
}

func TestRunEnds(t *testing.T) {
	t.Parallel()
	_, pool := seededDB(t, nil)

	t.Run("after a duration", func(t *testing.T) {
		counters, err := Run(t.Context(), pool, Options{Writers: 2, Duration: 200 * time.Millisecond})
		require.NoError(t, err)
		require.Positive(t, counters.Committed)
	})
	t.Run("with its context", func(t *testing.T) {
		reason := errors.New("enough")
		ctx, cancel := cancelable(t)
		w, stop := start(ctx, t, pool, Options{Writers: 2, TwoPhase: true})
		require.NoError(t, w.Await(within(t, time.Minute), func(c Counters) bool { return c.Committed > 10 }))
		cancel(reason)
		require.ErrorIs(t, stop(), reason)
	})
	t.Run("stopped in a pause", func(t *testing.T) {
		w, stop := start(t.Context(), t, pool, Options{Writers: 2, Pause: time.Hour})
		require.NoError(t, w.Await(within(t, time.Minute), func(c Counters) bool { return c.Committed+c.Failed+c.RolledBack >= 2 }))
		require.NoError(t, stop())
		require.LessOrEqual(t, w.Counters().Committed, int64(2))
	})
	t.Run("by an error that is no part of it", func(t *testing.T) {
		spec := Spec{Tables: []Table{{Schema: "public", Name: "item", Columns: []Column{{Name: "nowhere", Values: Ints(0, 1)}}}}}
		_, err := Run(t.Context(), pool, Options{Spec: spec, Seed: 42, Transactions: 5})
		require.ErrorContains(t, err, "seed 42")
		require.ErrorContains(t, err, "nowhere")
	})
	t.Run("not by such an error if it is expected", func(t *testing.T) {
		spec := Spec{Tables: []Table{{Schema: "public", Name: "item", Columns: []Column{{Name: "nowhere", Values: Ints(0, 1)}}}}}
		counters, err := Run(t.Context(), pool, Options{Spec: spec, Transactions: 5, Expected: []string{"42703"}})
		require.NoError(t, err)
		require.Positive(t, counters.Errors["42703"])
		require.Zero(t, counters.Rows)
	})
	t.Run("never, which is refused", func(t *testing.T) {
		_, err := Run(t.Context(), pool, Options{})
		require.ErrorContains(t, err, "would end it")
	})
}

// TestSurvivesCrash: writers go on after the server was killed, and no prepared transaction keeps its locks.
func TestSurvivesCrash(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, pgserver.Options{})
	db := pgtest.NewOn(t, server)
	require.NoError(t, Create(t.Context(), db.Pool, nil))
	w, stop := start(t.Context(), t, widePool(t, db), Options{Writers: 3, Seed: 9, TwoPhase: true, Reconnect: true})
	wait := within(t, time.Minute)
	require.NoError(t, w.Await(wait, func(c Counters) bool { return c.Committed > 50 }))
	require.NoError(t, server.Kill())
	require.NoError(t, server.Restart(t.Context()))
	before := w.Counters().Committed
	require.NoError(t, w.Await(wait, func(c Counters) bool { return c.Committed > before+50 && c.Broken > 0 }))
	require.NoError(t, stop())
	db.Pool.Reset() // its connections died with the server
	require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM pg_prepared_xacts"))
}

func TestLosingTheServerIsAnError(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, pgserver.Options{})
	db := pgtest.NewOn(t, server)
	require.NoError(t, Create(t.Context(), db.Pool, nil))
	w, stop := start(t.Context(), t, widePool(t, db), Options{Writers: 2})
	require.NoError(t, w.Await(within(t, time.Minute), func(c Counters) bool { return c.Committed > 5 }))
	require.NoError(t, server.Kill())
	require.Error(t, stop())
	// The pool of the database needs a server to be dropped from.
	require.NoError(t, server.Restart(t.Context()))
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, tc := range []struct {
		name string
		opts Options
		err  string
	}{
		{name: "unknown table", opts: Options{Tables: []string{"item", "nonesuch"}}, err: "nonesuch is not in the spec"},
		{name: "negative weight", opts: Options{Weights: Weights{Delete: -1}}, err: "not negative"},
		{name: "unknown kind", opts: Options{Weights: Weights{Kind(kindCount): 1}}, err: "kinds are those of Kinds"},
		{name: "nothing to do", opts: Options{Tables: []string{"item"}, Weights: Weights{Cascade: 1}}, err: "no kind of change"},
		{name: "truncate not allowed", opts: Options{Weights: Weights{Truncate: 1}}, err: "no kind of change"},
		{name: "more writers than connections", opts: Options{Writers: 1000}, err: "1000 writers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := New(db.Pool, tc.opts)
			require.ErrorContains(t, err, tc.err)
		})
	}
}
