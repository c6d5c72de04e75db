package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// published lists the members of the publication of db's target.
func published(t testing.TB, db *pgtest.DB) []string {
	t.Helper()
	names := []string{}
	for _, row := range db.Query(t, "SELECT tablename FROM pg_publication_tables WHERE pubname = $1 ORDER BY 1", "My-Pub "+db.Name) {
		names = append(names, row[0])
	}
	return names
}

// leftovers counts slots and publications of db's target.
func leftovers(t testing.TB, db *pgtest.DB) string {
	t.Helper()
	return db.Value(t, `SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1) + (SELECT count(*) FROM pg_publication)`, db.Name)
}

func TestProvisionAndTeardown(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY)")
	target := targetOf(t, db)
	made, err := Provision(t.Context(), target, oids(t, db, "a"), quiet())
	require.NoError(t, err)
	require.True(t, made.SlotCreated)
	require.True(t, made.PublicationCreated)
	require.Equal(t, []string{"public.a"}, made.Membership.Added)
	require.NotEmpty(t, made.Identity.SystemID)
	require.EqualValues(t, 1, made.Identity.Timeline)
	state, err := Slot{Name: target.Slot}.State(t.Context(), db.Pool)
	require.NoError(t, err)
	require.NoError(t, state.Check(target.Slot))
	require.False(t, state.TwoPhase)
	require.Equal(t, "pgoutput", state.Plugin)
	require.Equal(t, "reserved", state.WALStatus)
	require.NotZero(t, state.ConfirmedFlush)
	require.GreaterOrEqual(t, state.CurrentLSN, state.ConfirmedFlush)

	made, err = Provision(t.Context(), target, oids(t, db, "a", "b"), quiet())
	require.NoError(t, err)
	require.False(t, made.SlotCreated)
	require.False(t, made.PublicationCreated)
	require.Equal(t, []string{"public.b"}, made.Membership.Added)
	again, err := Slot{Name: target.Slot}.State(t.Context(), db.Pool)
	require.NoError(t, err)
	require.Equal(t, state.ConfirmedFlush, again.ConfirmedFlush)

	r := run(t, db, target, nil) // teardown ends a reader
	r.connected(t)
	var removed []string
	report := func(what string) { removed = append(removed, what) }
	require.NoError(t, Teardown(t.Context(), target, report))
	require.Equal(t, []string{"slot " + target.Slot, "publication " + target.Publication}, removed)
	require.Equal(t, "0", leftovers(t, db))
	// The reader says what it misses first: the slot goes before the publication, and it may look after both have.
	ended := r.ended(t)
	require.True(t, errors.Is(ended, ErrSlotLost) || errors.Is(ended, ErrPublicationLost), "%v", ended)
	require.NoError(t, Teardown(t.Context(), target, report))
	require.Len(t, removed, 2, "nothing was left to remove")
}

// TestForeignSlots: slots and publications that are not ours are refused and not dropped.
func TestForeignSlots(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, setup string
		want        error
		text        string
	}{
		{"plugin", "SELECT pg_create_logical_replication_slot('%s', 'test_decoding')", ErrSlotForeign, "output plugin test_decoding"},
		{"two-phase", "SELECT pg_create_logical_replication_slot('%s', 'pgoutput', false, true)", ErrSlotForeign, "two-phase"},
		{"publication", `CREATE PUBLICATION "My-Pub %s"`, ErrPublicationForeign, "lacks the comment"},
		{
			"all tables", `CREATE PUBLICATION "My-Pub %[1]s" FOR ALL TABLES; COMMENT ON PUBLICATION "My-Pub %[1]s" IS 'managed by mvsync'`,
			ErrPublicationForeign, "FOR ALL TABLES",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
			db.Exec(t, fmt.Sprintf(tc.setup, db.Name))
			target := targetOf(t, db)
			before := leftovers(t, db)
			_, err := Provision(t.Context(), target, oids(t, db, "t"), quiet())
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, tc.text)
			require.Equal(t, before, leftovers(t, db))
			findings, err := Preflight(t.Context(), target, oids(t, db, "t"))
			require.NoError(t, err)
			require.Len(t, findings, 1)
			require.Contains(t, findings[0].Why, tc.text)
			if tc.name == "publication" {
				require.ErrorIs(t, Teardown(t.Context(), target, func(string) {}), tc.want)
				require.Equal(t, before, leftovers(t, db))
			}
		})
	}
	t.Run("database", func(t *testing.T) {
		t.Parallel()
		db, other := pgtest.New(t), pgtest.New(t)
		target := provisioned(t, db)
		target.Source = sourceOf(t, other.URL)
		_, err := Provision(t.Context(), target, nil, quiet())
		require.ErrorIs(t, err, ErrSlotForeign)
		require.ErrorContains(t, err, "belongs to database "+db.Name)
		require.ErrorIs(t, run(t, other, target, nil).ended(t), ErrSlotForeign)
		require.ErrorIs(t, Teardown(t.Context(), target, func(string) {}), ErrSlotForeign)
		require.Equal(t, "2", leftovers(t, db))
	})
}

func TestPublication(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE SCHEMA "S"; CREATE TABLE "S"."T 1"(id int PRIMARY KEY); CREATE TABLE plain(id int PRIMARY KEY);
		CREATE TABLE p(id int PRIMARY KEY) PARTITION BY RANGE (id);
		CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
		CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
		CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (10) TO (15);
		CREATE TABLE par(id int PRIMARY KEY); CREATE TABLE ch(PRIMARY KEY (id)) INHERITS (par);
		CREATE TABLE bare(x int); CREATE TABLE uni(x int NOT NULL UNIQUE); CREATE TABLE nothing(id int PRIMARY KEY);
		ALTER TABLE nothing REPLICA IDENTITY NOTHING; CREATE TABLE late(id int PRIMARY KEY DEFERRABLE);
		CREATE TABLE idx(id int NOT NULL CONSTRAINT idx_u UNIQUE); ALTER TABLE idx REPLICA IDENTITY USING INDEX idx_u;
		ALTER TABLE idx DROP CONSTRAINT idx_u; CREATE TABLE full_(x int); ALTER TABLE full_ REPLICA IDENTITY FULL`)
	p := Publication{Name: "My-Pub " + db.Name}
	ensure := func(tables ...string) (Membership, error) {
		return p.Ensure(t.Context(), db.Pool, oids(t, db, tables...))
	}
	exists, err := p.Exists(t.Context(), db.Pool)
	require.NoError(t, err)
	require.False(t, exists)

	done, err := ensure(`"S"."T 1"`, "p", "par", "full_")
	require.NoError(t, err)
	require.Equal(t, []string{`"S"."T 1"`, "public.ch", "public.full_", "public.p1", "public.p21", "public.par"}, done.Added)
	require.Equal(t, []string{"T 1", "ch", "full_", "p1", "p21", "par"}, published(t, db))
	exists, err = p.Exists(t.Context(), db.Pool)
	require.NoError(t, err)
	require.True(t, exists)

	// What is right is not touched: a running stream compares these rows.
	const rows = "SELECT string_agg(oid::text || xmin, ',' ORDER BY oid) FROM pg_publication_rel"
	before := db.Value(t, rows)
	done, err = ensure("p", `"S"."T 1"`, "par", "full_")
	require.NoError(t, err)
	require.False(t, done.Changed())
	require.Equal(t, before, db.Value(t, rows))

	db.Exec(t, "CREATE TABLE p22 PARTITION OF p2 FOR VALUES FROM (15) TO (20)")
	done, err = ensure("p", "plain")
	require.NoError(t, err)
	require.Equal(t, Membership{
		Added: []string{"public.p22", "public.plain"}, Removed: []string{`"S"."T 1"`, "public.ch", "public.full_", "public.par"},
	}, done)
	require.Equal(t, []string{"p1", "p21", "p22", "plain"}, published(t, db))

	// A table that would stop its own application is left out, with the statement that mends it.
	done, err = ensure("p", "plain", "bare", "uni", "nothing", "late", "idx", "par")
	refused, ok := errors.AsType[*IdentityError](err)
	require.True(t, ok, err)
	statements := map[string]string{}
	for _, m := range refused.Tables {
		statements[m.Table] = m.Do
		require.Contains(t, refused.Error(), m.Do)
	}
	require.Equal(t, map[string]string{
		"public.bare":    "ALTER TABLE public.bare REPLICA IDENTITY FULL (or ADD PRIMARY KEY (...))",
		"public.uni":     `ALTER TABLE public.uni REPLICA IDENTITY USING INDEX "uni_x_key"`,
		"public.nothing": `ALTER TABLE public.nothing REPLICA IDENTITY USING INDEX "nothing_pkey"`,
		"public.late":    "ALTER TABLE public.late REPLICA IDENTITY FULL (or ADD PRIMARY KEY (...))",
		"public.idx":     "ALTER TABLE public.idx REPLICA IDENTITY FULL (or ADD PRIMARY KEY (...))",
	}, statements)
	require.Equal(t, []string{"public.ch", "public.par"}, done.Added, "the rest is done")
	db.Exec(t, "INSERT INTO bare VALUES (1); UPDATE bare SET x = 2; INSERT INTO late VALUES (1); UPDATE late SET id = 2")
}

// TestPublicationMended: what somebody else did to our publication is undone and told.
func TestPublicationMended(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE SCHEMA s; CREATE TABLE a(id int PRIMARY KEY, v int); CREATE TABLE b(id int PRIMARY KEY); CREATE TABLE s.c(id int PRIMARY KEY)`)
	p := Publication{Name: "My-Pub " + db.Name}
	name := quoteName(p.Name)
	tables := oids(t, db, "a", "b")
	_, err := p.Ensure(t.Context(), db.Pool, tables)
	require.NoError(t, err)
	for _, tc := range []struct {
		alter string
		want  Membership
	}{
		{"SET (publish = 'insert')", Membership{Mended: []string{"options"}}},
		{"SET (publish_via_partition_root = true)", Membership{Mended: []string{"options"}}},
		{"DROP TABLE b", Membership{Added: []string{"public.b"}}},
		{"ADD TABLE s.c", Membership{Removed: []string{"s.c"}}},
		{
			"SET TABLE a (id), b", Membership{
				Added: []string{"public.a"}, Removed: []string{"public.a"}, Mended: []string{"row filter or column list of public.a"},
			},
		},
		{
			"SET TABLE a WHERE (id > 5), b", Membership{
				Added: []string{"public.a"}, Removed: []string{"public.a"}, Mended: []string{"row filter or column list of public.a"},
			},
		},
		{"ADD TABLES IN SCHEMA s", Membership{Mended: []string{"tables in schema s"}}},
	} {
		db.Exec(t, "ALTER PUBLICATION "+name+" "+tc.alter)
		done, err := p.Ensure(t.Context(), db.Pool, tables)
		require.NoError(t, err, tc.alter)
		if len(done.Added) == 0 {
			done.Added = nil
		}
		if len(done.Removed) == 0 {
			done.Removed = nil
		}
		require.Equal(t, tc.want, done, tc.alter)
		require.Equal(t, []string{"a", "b"}, published(t, db))
		require.Equal(t, [][]string{{"t", "t", "f"}}, db.Query(t,
			"SELECT pubupdate, pubtruncate, pubviaroot FROM pg_publication WHERE pubname = $1", p.Name))
	}
}

func TestLeaves(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE p(id int PRIMARY KEY) PARTITION BY RANGE (id);
		CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
		CREATE TABLE p11 PARTITION OF p1 FOR VALUES FROM (0) TO (5);
		CREATE TABLE a(id int); CREATE TABLE b(id int); CREATE TABLE ab() INHERITS (a, b); CREATE TABLE abc() INHERITS (ab)`)
	ids := map[string]uint32{}
	for _, name := range []string{"p", "p1", "p11", "a", "b", "ab", "abc"} {
		ids[name] = oids(t, db, name)[0]
	}
	for _, tc := range []struct {
		roots []string
		want  map[string][]string
	}{
		{nil, map[string][]string{}},
		{[]string{"p"}, map[string][]string{"p11": {"p", "p1"}}},
		{[]string{"p11"}, map[string][]string{"p11": {"p", "p1"}}},
		{[]string{"a"}, map[string][]string{"a": nil, "ab": {"a", "b"}, "abc": {"a", "b", "ab"}}},
		{[]string{"b", "abc"}, map[string][]string{"b": nil, "ab": {"a", "b"}, "abc": {"a", "b", "ab"}}},
	} {
		var roots []uint32
		for _, r := range tc.roots {
			roots = append(roots, ids[r])
		}
		leaves, err := Leaves(t.Context(), db.Pool, roots)
		require.NoError(t, err)
		require.Len(t, leaves, len(tc.want), tc.roots)
		for leaf, ancestors := range tc.want {
			var want []uint32
			for _, a := range ancestors {
				want = append(want, ids[a])
			}
			require.ElementsMatch(t, want, leaves[ids[leaf]], "%v: %s", tc.roots, leaf)
		}
	}
}

// TestFence: it waits for transactions that run, prepared ones included, in any database, also those that took their id
// after others ended; and it says for what.
func TestFence(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	other := pgtest.NewOn(t, db.Server)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	other.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	require.NoError(t, Fence(t.Context(), db.Pool, nil), "nothing runs")
	for _, tc := range []struct {
		name       string
		db         *pgtest.DB
		begin, end string
		text       string
	}{
		{"writer", db, "BEGIN; INSERT INTO t VALUES (1)", "COMMIT", "process "},
		{"writer in another database", other, "BEGIN; INSERT INTO t VALUES (1)", "COMMIT", " in " + other.Name},
		{"prepared", db, "BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'the gid'", "COMMIT PREPARED 'the gid'", `prepared transaction "the gid"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			holder := tc.db.Conn(t)
			_, err := holder.PgConn().Exec(t.Context(), tc.begin).ReadAll()
			require.NoError(t, err)
			reports := make(chan []Blocker, 100)
			passed := make(chan error, 1)
			conn := db.Conn(t)
			go func() { passed <- Fence(t.Context(), conn, func(b []Blocker) { reports <- b }) }()
			select {
			case err := <-passed:
				t.Fatal("it did not wait", err)
			case blockers := <-reports:
				require.Len(t, blockers, 1)
				require.Contains(t, blockers[0].String(), tc.text)
				require.Positive(t, blockers[0].Age)
			}
			// A later transaction is none of its business.
			later := db.Conn(t)
			_, err = later.Exec(t.Context(), "BEGIN")
			require.NoError(t, err)
			_, err = later.Exec(t.Context(), "SELECT pg_current_xact_id()")
			require.NoError(t, err)
			_, err = holder.Exec(t.Context(), tc.end)
			require.NoError(t, err)
			require.NoError(t, <-passed)
			_, err = later.Exec(t.Context(), "ROLLBACK")
			require.NoError(t, err)
		})
	}
	t.Run("bounded", func(t *testing.T) {
		holder := db.Conn(t)
		_, err := holder.PgConn().Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (3)").ReadAll()
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, Fence(ctx, db.Conn(t), nil), context.DeadlineExceeded)
	})
}

// TestFenceCovers: a row written by a transaction that ran while its table joined the publication may be missing from
// the stream, but then the fence waited for it.
func TestFenceCovers(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE late(id int PRIMARY KEY)")
	target := provisioned(t, db, "a")
	r := run(t, db, target, nil)
	r.connected(t)
	writer := db.Conn(t)
	_, err := writer.PgConn().Exec(t.Context(), "BEGIN; INSERT INTO late VALUES (1)").ReadAll()
	require.NoError(t, err)
	_, err = Publication{Name: target.Publication}.Ensure(t.Context(), db.Pool, oids(t, db, "a", "late"))
	require.NoError(t, err)
	passed := make(chan error, 1)
	fence := db.Conn(t)
	go func() { passed <- Fence(t.Context(), fence, nil) }()
	_, err = writer.Exec(t.Context(), "INSERT INTO late VALUES (2)")
	require.NoError(t, err)
	select {
	case err := <-passed:
		t.Fatal("the fence let a writer through", err)
	default:
	}
	_, err = writer.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	require.NoError(t, <-passed)
	r.drain(t)
	db.Exec(t, "INSERT INTO late VALUES (3)")
	require.Equal(t, []string{"insert late id=3"}, r.lines(t))
}

// TestSlotWaits: making a slot waits for old transactions, says so, and leaves nothing behind when it is given up.
func TestSlotWaits(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY)")
	target := targetOf(t, db)
	holder := db.Conn(t)
	_, err := holder.PgConn().Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'held up'").ReadAll()
	require.NoError(t, err)

	log := &logged{said: make(chan string, 100)}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	result := make(chan error, 1)
	go func() {
		_, err := Provision(ctx, target, oids(t, db, "t"), slog.New(slog.NewTextHandler(log, nil)))
		result <- err
	}()
	var said string
	for !strings.Contains(said, "waits for old transactions") {
		select {
		case said = <-log.said:
		case err := <-result:
			t.Fatal("it did not wait", err)
		}
	}
	require.Contains(t, said, "held up")
	stop := errors.New("stop it")
	cancel(stop)
	require.ErrorIs(t, <-result, stop)
	require.Equal(t, "0", leftovers(t, db), "a failed first start leaves nothing")

	_, err = holder.Exec(t.Context(), "ROLLBACK PREPARED 'held up'")
	require.NoError(t, err)
	_, err = Provision(t.Context(), target, oids(t, db, "t"), quiet())
	require.NoError(t, err)
	require.Equal(t, "2", leftovers(t, db))
}

// TestProvisionFailsBehindSlot: what was created before something else failed is removed, what was there stays.
func TestProvisionFailsBehindSlot(t *testing.T) {
	t.Parallel()
	db := own(t, map[string]string{"max_replication_slots": "1"})
	db.Exec(t, "CREATE TABLE t(id int PRIMARY KEY); SELECT pg_create_physical_replication_slot('taken')")
	target := targetOf(t, db)
	for range 3 {
		_, err := Provision(t.Context(), target, oids(t, db, "t"), quiet())
		require.Error(t, err)
		require.Equal(t, "0", leftovers(t, db))
	}
	findings, err := Preflight(t.Context(), target, oids(t, db, "t"))
	require.NoError(t, err)
	require.Len(t, findings, 1)
	require.Equal(t, "max_replication_slots = 1", findings[0].Where)
	_, err = Publication{Name: target.Publication}.Ensure(t.Context(), db.Pool, nil)
	require.NoError(t, err)
	_, err = Provision(t.Context(), target, oids(t, db, "t"), quiet())
	require.Error(t, err)
	require.Equal(t, "1", leftovers(t, db), "the publication was there before")
}

// logged hands on what is logged, line by line.
type logged struct {
	mu   sync.Mutex
	said chan string
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.said <- string(p):
	default:
	}
	return len(p), nil
}

// TestGeneratedColumns: publishing a table under FULL never makes its own application's updates fail.
func TestGeneratedColumns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE s(id int, g int GENERATED ALWAYS AS (id * 2) STORED); ALTER TABLE s REPLICA IDENTITY FULL`)
	p := Publication{Name: "My-Pub " + db.Name}
	_, err := p.Ensure(t.Context(), db.Pool, oids(t, db, "s"))
	require.NoError(t, err)
	db.Exec(t, "INSERT INTO s VALUES (1); UPDATE s SET id = 2; DELETE FROM s")
	if db.Server.Version() < 180000 {
		return // there are no virtual ones yet
	}
	db.Exec(t, `CREATE TABLE v(id int, g int GENERATED ALWAYS AS (id * 2) VIRTUAL); ALTER TABLE v REPLICA IDENTITY FULL`)
	_, err = p.Ensure(t.Context(), db.Pool, oids(t, db, "s", "v"))
	refused, ok := errors.AsType[*IdentityError](err)
	require.True(t, ok, err)
	require.Contains(t, refused.Error(), "virtual generated columns")
	require.Equal(t, []string{"s"}, published(t, db))
	db.Exec(t, "INSERT INTO v VALUES (1); UPDATE v SET id = 2; DELETE FROM v")
	name := quoteName(p.Name)
	db.Exec(t, "ALTER PUBLICATION "+name+" SET (publish_generated_columns = none)")
	done, err := p.Ensure(t.Context(), db.Pool, oids(t, db, "s"))
	require.NoError(t, err)
	require.Equal(t, []string{"options"}, done.Mended)
	db.Exec(t, "INSERT INTO s VALUES (1); UPDATE s SET id = 2")
}
