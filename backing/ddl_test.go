package backing

import (
	"strings"
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestIdentifiers makes, fills, detaches and drops tables and columns with names that need care, in a catalog of such a
// name.
func TestIdentifiers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Catalog: `my "sync" $mvsync$ {catalog}`, Slot: "other"})
	long := strings.Repeat("é", 31) + "x" // 63 bytes
	f.db.Exec(t, `CREATE SCHEMA "Se.le""ct"`)
	for _, name := range []Name{
		{"public", "select"},
		{`Se.le"ct`, `a.b"c`},
		{"public", long},
		{"public", `back\slash 'quote'`},
		{"public", "Upper"},
	} {
		t.Run(name.String(), func(t *testing.T) {
			f := *f
			f.t = t
			l := &Layout{
				Name: name, Key: []int{0}, Query: `SELECT 'it''s' AS "a\b"`, Columns: []Column{
					{Name: "user", Type: "integer"}, {Name: `we"ird`, Type: "text", NotNull: true}, {Name: long, Type: "text"},
				}, Hidden: []Column{{Name: "mvsync_n", Type: "bigint"}},
				Storage: map[string]string{"fillfactor": "70", "toast.autovacuum_enabled": "off"},
				Indexes: []string{`UNIQUE ("we""ird")`},
			}
			f.create(l)
			r := f.merge(l, Merge{New: "SELECT NULL, 'a', 'b', 1", Effects: true})
			require.Equal(t, []string{"- -> NULL|a|b"}, lines(r.Effects))
			require.Equal(t, []string{"{fillfactor=70}"}, f.rows("SELECT reloptions FROM pg_class WHERE oid = "+literal(name.SQL())+"::regclass"))
			require.Contains(t, f.db.Value(t, "SELECT obj_description("+literal(name.SQL())+"::regclass)"), l.Query)
			_, view, err := f.host.Find(t.Context(), f.db.Pool, name)
			require.NoError(t, err)
			require.Equal(t, l.ID, view)
			n, err := f.host.Count(t.Context(), f.db.Pool, l)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)

			require.NoError(t, f.host.Detach(t.Context(), f.db.Pool, l))
			f.db.Exec(t, "UPDATE "+name.SQL()+" SET "+`"we""ird" = 'mine'`)
			require.ErrorIs(t, f.host.Drop(t.Context(), f.db.Pool, l), ErrNotOurs)
			require.ErrorIs(t, f.tryCreate(l), ErrNotOurs)
			f.db.Exec(t, "DROP TABLE "+name.SQL())
			f.create(l)
			require.NoError(t, f.host.Drop(t.Context(), f.db.Pool, l))
			oid, _, err := f.host.Find(t.Context(), f.db.Pool, name)
			require.NoError(t, err)
			require.Zero(t, oid)
		})
	}
	require.Equal(t, []string{"0"}, f.rows("SELECT count(*) FROM pg_class WHERE relname LIKE 'state_%'"))
}

// TestKeys looks at the keys that tables get.
func TestKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	columns := []Column{{Name: "a", Type: "integer", NotNull: true}, {Name: "b", Type: "text"}}
	for _, tc := range []struct {
		name string
		l    Layout
		want []string
		dup  string // a row that the key refuses beside (1, NULL)
	}{
		{
			"primary",
			Layout{Columns: columns, Key: []int{0}},
			[]string{"CREATE UNIQUE INDEX primary_pkey ON public.\"primary\" USING btree (a)"},
			"1, 'x'",
		},
		{
			"nullable",
			Layout{Columns: columns, Key: []int{1, 0}},
			[]string{"CREATE UNIQUE INDEX nullable_b_a_key ON public.nullable USING btree (b, a) NULLS NOT DISTINCT"},
			"1, NULL",
		},
		{
			"single",
			Layout{Columns: columns},
			[]string{"CREATE UNIQUE INDEX single_expr_idx ON public.single USING btree ((true))"},
			"2, 'y'",
		},
		{"hashed", Layout{Columns: columns, Key: []int{1, 0}, HashKey: true}, []string{
			"CREATE INDEX hashed_b_idx ON public.hashed USING hash (b)",
			"CREATE UNIQUE INDEX hashed_row_hash_idx ON public.hashed USING btree (mvsync.row_hash(ROW(b, a)))",
		}, "1, NULL"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := *f
			f.t = t
			tc.l.Name = Name{"public", tc.name}
			l := f.create(&tc.l)
			require.Equal(t, tc.want, f.rows("SELECT indexdef FROM pg_indexes WHERE tablename = "+literal(tc.name)))
			f.merge(l, Merge{New: "SELECT 1, NULL", Append: true})
			_, err := f.tryMerge(l, Merge{New: "SELECT " + tc.dup, Append: true})
			require.ErrorIs(t, err, ErrDuplicateKey)

			// Detached it is an ordinary table that needs nothing of the catalog's.
			require.NoError(t, f.host.Detach(t.Context(), f.db.Pool, l))
			require.Empty(t, f.rows("SELECT indexdef FROM pg_indexes WHERE indexdef LIKE '%row_hash%'"))
			require.Empty(t, f.rows("SELECT tgname FROM pg_trigger WHERE tgrelid = "+literal(l.Name.SQL())+"::regclass"))
			f.db.Exec(t, "DELETE FROM "+l.Name.SQL()+"; INSERT INTO "+l.Name.SQL()+" VALUES (1, 'mine')")
		})
	}
	err := f.tryCreate(&Layout{Name: Name{"public", "bad"}, Key: []int{0}, Columns: []Column{{Name: "j", Type: "json"}}})
	require.ErrorContains(t, err, "key column j: type json has no equality")
}

// TestManyKeyColumns keeps a view whose key has more columns than an index can hold.
func TestManyKeyColumns(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := &Layout{Name: Name{"public", "wide"}, HashKey: true, Hidden: []Column{{Name: "n", Type: "bigint"}}}
	for i := range 40 {
		l.Key = append(l.Key, i)
		l.Columns = append(l.Columns, Column{Name: numbered("k", i), Type: "numeric"})
	}
	f.create(l)
	body := func(last string) string { return "SELECT " + strings.Repeat("1.0, ", 38) + "NULL, " + last + ", 5" }
	r := f.merge(l, Merge{New: body("1.0") + " UNION ALL " + body("2")})
	require.EqualValues(t, 2, r.Inserted)
	r = f.merge(l, Merge{New: body("1.00"), Effects: true})
	require.Equal(t, [3]int64{0, 1, 1}, [3]int64{r.Inserted, r.Updated, r.Deleted})
	require.Len(t, f.storedRows(l), 1)
	require.True(t, strings.HasSuffix(f.storedRows(l)[0], "NULL|1.00|5"), "the companion follows the key's bytes")
}

// TestNotOurs refuses relations that mvsync did not make, whatever their kind.
func TestNotOurs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	for kind, rest := range map[string]string{"TABLE": "(k integer)", "VIEW": "AS SELECT 1 AS k", "SEQUENCE": "", "MATERIALIZED VIEW": "AS SELECT 1 AS k"} {
		f.db.Exec(t, "CREATE "+kind+" v "+rest)
		err := f.tryCreate(keyed("v"))
		require.ErrorIs(t, err, ErrNotOurs)
		require.ErrorContains(t, err, "public.v: a relation of that name exists that mvsync did not make; rename or drop it")
		f.db.Exec(t, "DROP "+kind+" v")
	}
	l := f.create(keyed("v"))
	f.db.Exec(t, "ALTER TABLE v RENAME TO mine; CREATE TABLE v (k integer)")
	require.ErrorIs(t, f.host.Drop(t.Context(), f.db.Pool, l), ErrNotOurs)
}

// TestGrants gives a role what the configuration says, and no more.
func TestGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	role := pgx.Identifier{"reader of " + f.db.Name}.Sanitize()
	f.db.Exec(t, "CREATE ROLE "+role)
	l := keyed("v")
	l.Grants = map[string][]string{"select": {"reader of " + f.db.Name}, "References": {"PUBLIC"}}
	f.create(l)
	require.Equal(t, []string{"t|f|t"}, f.rows("SELECT has_table_privilege(r, 'v', 'SELECT'), has_table_privilege(r, 'v', 'INSERT'), has_table_privilege(r, 'v', 'REFERENCES') FROM (SELECT "+
		literal("reader of "+f.db.Name)+"::text r) x"))
	l = keyed("w")
	l.Grants = map[string][]string{"insert": {"PUBLIC"}}
	require.ErrorContains(t, f.tryCreate(l), "grant insert: a backing table is read only")
}

// TestGuard refuses writes by anyone but registered sessions (INV-11), a superuser included.
func TestGuard(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := keyed("v")
	l.Hidden = []Column{{Name: "n", Type: "bigint"}}
	f.create(l)
	f.merge(l, Merge{New: "SELECT 1, 'a', 2"})
	for _, role := range []string{"origin", "replica", "local"} {
		conn := f.connect()
		require.NoError(t, exec(t.Context(), conn, "SET session_replication_role = "+role))
		for _, table := range []string{"public.v", "mvsync.state_1"} {
			for _, sql := range []string{
				"INSERT INTO %s (k) VALUES (2)", "UPDATE %s SET k = 2", "UPDATE %s SET k = 2 WHERE false", "DELETE FROM %s", "TRUNCATE %s",
				"INSERT INTO %s (k) VALUES (1) ON CONFLICT DO NOTHING",
				"MERGE INTO %s t USING (SELECT 1 AS k) s ON t.k = s.k WHEN MATCHED THEN DELETE",
				"WITH x AS (DELETE FROM %s RETURNING 1) SELECT * FROM x",
			} {
				message, hint := requireCode(t, pgerrcode.ObjectNotInPrerequisiteState, exec(t.Context(), conn, strings.ReplaceAll(sql, "%s", table)))
				require.Contains(t, message, table+" is maintained by mvsync")
				require.Contains(t, hint, "mvsync teardown")
			}
			_, err := conn.PgConn().CopyFrom(t.Context(), strings.NewReader("7\n"), "COPY "+table+" (k) FROM STDIN")
			requireCode(t, pgerrcode.ObjectNotInPrerequisiteState, err)
		}
		// Neither the locks nor the settings of a daemon help.
		require.NoError(t, exec(t.Context(), conn, "SET mvsync.writer = 'on'"))
		require.Error(t, exec(t.Context(), conn, "DELETE FROM v"))
	}
	require.Equal(t, []string{"1|a|2"}, f.storedRows(l))

	// A row of another session of the same pid does not help either.
	conn := f.connect()
	require.NoError(t, exec(t.Context(), conn, "INSERT INTO mvsync.sessions SELECT pid, backend_start - interval '1 second' FROM pg_stat_activity WHERE pid = pg_backend_pid()"))
	requireCode(t, pgerrcode.ObjectNotInPrerequisiteState, exec(t.Context(), conn, "DELETE FROM v"))

	// What is registered may write until it is closed; the next one clears what has ended.
	other := f.open()
	require.NoError(t, exec(t.Context(), other.Conn(), "UPDATE public.v SET v = 'b'"))
	require.NoError(t, other.Close(t.Context()))
	requireCode(t, pgerrcode.ObjectNotInPrerequisiteState, exec(t.Context(), other.Conn(), "UPDATE public.v SET v = 'c'"))
	f.open()
	require.Equal(t, "2", f.db.Value(t, "SELECT count(*) FROM mvsync.sessions"))
}

// TestUnprivilegedRole keeps others from the means of the guard, and shows them what the contract shows.
func TestUnprivilegedRole(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	l := f.create(keyed("v"))
	require.NoError(t, f.host.SetState(t.Context(), f.db.Pool, l.ID, Failed, "secret value"))
	role := pgx.Identifier{"user of " + f.db.Name}.Sanitize()
	f.db.Exec(t, "CREATE ROLE "+role)
	conn := f.connect()
	require.NoError(t, exec(t.Context(), conn, "SET ROLE "+role))
	for _, sql := range []string{
		"INSERT INTO mvsync.sessions SELECT pg_backend_pid(), now()", "SELECT * FROM mvsync.sessions", "SELECT error FROM mvsync.views",
		"SELECT * FROM mvsync.view", "SELECT * FROM mvsync.collisions", "SELECT * FROM mvsync.request", "SELECT mvsync.refresh('v')",
		"SELECT mvsync.pause('v')", "SELECT mvsync.resume('v')", "SELECT mvsync.enqueue('v', 'refresh')", "UPDATE mvsync.progress SET at = now()",
		"SELECT mvsync.view_id('v')", "CREATE TABLE mvsync.x ()",
	} {
		requireCode(t, pgerrcode.InsufficientPrivilege, exec(t.Context(), conn, sql))
	}
	for _, sql := range []string{"SELECT name, state, as_of, collisions FROM mvsync.views", "SELECT * FROM mvsync.progress", "SELECT mvsync.wait()"} {
		require.NoError(t, exec(t.Context(), conn, sql))
	}
}
