package replication

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

// TestPinned: settings of the role and the database change no text, neither in the stream nor in a query.
func TestPinned(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE TABLE t(id int PRIMARY KEY, f float8, ts timestamptz, iv interval, b bytea, m money, x date)`)
	for _, setting := range []string{
		"extra_float_digits = 0", "datestyle = 'SQL, DMY'", "intervalstyle = 'sql_standard'", "bytea_output = 'escape'",
		"timezone = 'Asia/Tokyo'", "client_encoding = 'LATIN1'", "default_transaction_read_only = on",
		"search_path = 'nowhere'", "quote_all_identifiers = on", "statement_timeout = '1ms'",
	} {
		db.Exec(t, fmt.Sprintf("ALTER DATABASE %s SET %s", db.Name, setting))
	}
	target := targetOf(t, db)
	conn, err := connectSQL(t.Context(), target.Source, Session{Timezone: "UTC"}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	var oid uint32
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT 'public.t'::regclass::oid").Scan(&oid))
	_, err = Provision(t.Context(), target, []uint32{oid}, quiet())
	require.NoError(t, err)
	r := run(t, db, target, nil)
	_, err = conn.Exec(t.Context(), `INSERT INTO public.t VALUES (1, 0.1::float8 + 0.2, '2024-07-11 12:00+00',
		'1 day 2 hours', '\x00ff', 12.5::numeric::money, '2024-07-11')`)
	require.NoError(t, err)
	want := []string{`insert t id=1 f=0.30000000000000004 ts=2024-07-11 12:00:00+00 iv=1 day 02:00:00 b=\x00ff m=$12.50 x=2024-07-11`}
	require.Equal(t, want, r.lines(t))
	results, err := conn.PgConn().Exec(t.Context(), "SELECT * FROM public.t").ReadAll()
	require.NoError(t, err)
	got := "insert t"
	for i, field := range results[0].FieldDescriptions {
		got += " " + field.Name + "=" + string(results[0].Rows[0][i])
	}
	require.Equal(t, want[0], got)
}
