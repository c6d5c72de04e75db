package backing

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mvsync/mvsync/ingest"
)

// Session is a connection that may write backing tables. It is used by one goroutine at a time, as its connection is.
// Settings (search_path, datestyle and the like) are the caller's to pin: results are text under them.
type Session struct {
	host  *Host
	conn  *pgx.Conn
	types types
	// temp reports whether the role may make temporary tables. Where it may not, inputs of any size are arrays.
	temp bool
	// made holds the stages known to exist, wanted those that a transaction had to make itself: made in a transaction
	// that rolls back, they are gone.
	made, wanted map[string]stage
	staged       staging
	inserted     map[int64]int64 // by view: rows that this session has inserted, roughly
	logFrom      uint64          // the log's position when the session began
	epoch        int             // of plans, see Grown
	checked      pgx.Tx          // in which constraints are immediate
}

// staging says what the stages hold in one transaction.
type staging struct {
	tx   pgx.Tx
	sets map[string][]stagedRows // by the first stage of a list of columns; the n-th set is in the n-th stage
}

// stagedRows tells rows that are shipped already from others.
type stagedRows struct {
	first *ingest.Row
	n     int
}

// Open registers the connection as one that may write backing tables (INV-11), until it ends or [Session.Close] is
// called, and switches its JIT compilation off. Only the owner of the catalog may do so. Registrations of sessions that
// have ended are removed.
func (h *Host) Open(ctx context.Context, conn *pgx.Conn) (*Session, error) {
	s := &Session{host: h, conn: conn, types: types{}, made: map[string]stage{}, wanted: map[string]stage{}, inserted: map[int64]int64{}}
	sessions := h.own("sessions")
	_, err := conn.Exec(ctx, "DELETE FROM "+sessions+" s WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity a"+
		" WHERE a.pid = s.pid AND a.backend_start = s.backend_start)")
	if err != nil {
		return nil, fmt.Errorf("open a session on catalog %s: %w", h.catalog, err)
	}
	tag, err := conn.Exec(ctx, "INSERT INTO "+sessions+" SELECT a.pid, a.backend_start FROM pg_catalog.pg_stat_activity a"+
		" WHERE a.pid = pg_catalog.pg_backend_pid() ON CONFLICT DO NOTHING")
	if err != nil {
		return nil, fmt.Errorf("open a session on catalog %s: %w", h.catalog, err)
	}
	h.log.Debug("session registered", "pid", conn.PgConn().PID(), "rows", tag.RowsAffected())
	// Inputs have no statistics, and compilation pays only where the estimates behind it are right.
	if _, err := conn.Exec(ctx, "SET jit = off"); err != nil {
		return nil, fmt.Errorf("open a session on catalog %s: %w", h.catalog, err)
	}
	err = conn.QueryRow(ctx, "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMP')").Scan(&s.temp)
	if err != nil {
		return nil, fmt.Errorf("open a session on catalog %s: %w", h.catalog, err)
	}
	if !s.temp {
		h.log.Warn("no right to make temporary tables in this database, large batches will be slower; grant TEMPORARY on it to mvsync's role")
	}
	return s, nil
}

// Close takes the connection off the list of those that may write; the connection itself stays open.
func (s *Session) Close(ctx context.Context) error {
	_, err := s.conn.Exec(ctx, "DELETE FROM "+s.host.own("sessions")+" s USING pg_catalog.pg_stat_activity a"+
		" WHERE a.pid = pg_catalog.pg_backend_pid() AND s.pid = a.pid AND s.backend_start = a.backend_start")
	if err != nil {
		return fmt.Errorf("close a session: %w", err)
	}
	return nil
}

// Conn returns the session's connection.
func (s *Session) Conn() *pgx.Conn { return s.conn }

// Idle does what belongs between rounds: it makes the temporary tables that the last rounds had to make for themselves.
// It must be called outside a transaction.
func (s *Session) Idle(ctx context.Context) error {
	s.staged = staging{}
	for name, st := range s.wanted {
		if _, err := s.conn.Exec(ctx, st.create()); err != nil {
			return fmt.Errorf("make a temporary table: %w", err)
		}
		s.made[name] = st
		delete(s.wanted, name)
	}
	return nil
}

// Immediate tells the session that the transaction has begun with SET CONSTRAINTS ALL IMMEDIATE, which holds to its end.
func (s *Session) Immediate(tx pgx.Tx) { s.checked = tx }

// immediate makes constraints immediate, once in a transaction.
func (s *Session) immediate(ctx context.Context, tx pgx.Tx) error {
	if s.checked == tx {
		return nil
	}
	_, err := tx.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE")
	if err == nil {
		s.checked = tx
	}
	return err
}

// planAge is the volume of log after which statements are planned anew, in bytes. Such a volume costs seconds to take
// over, and planning a view's statements some milliseconds.
const planAge = 256 << 20

// Grown tells the session the present position of the log, in bytes. Tables cannot have grown by more than what was
// written: plans are made anew each time that this is four times as much since the session began, and at least each
// planAge. (Postgres itself does so after it has analysed a table, which may come late or never.)
func (s *Session) Grown(log uint64) {
	if s.logFrom == 0 || log < s.logFrom {
		s.logFrom = log
	}
	written := log - s.logFrom
	s.epoch = (bits.Len64(written>>20)+1)/2 + int(written/planAge)
}

// StalePlan reports whether the error says that a prepared statement no longer fits the catalog: after a rollback,
// [Session.Forget], and the transaction may be tried again.
func StalePlan(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == pgerrcode.FeatureNotSupported || e.Code == pgerrcode.InvalidSQLStatementName)
}

// Forget drops the session's prepared statements and what it knows of types. It must be called outside a transaction.
func (s *Session) Forget(ctx context.Context) error {
	clear(s.types)
	if err := s.conn.DeallocateAll(ctx); err != nil {
		return fmt.Errorf("drop prepared statements: %w", err)
	}
	return nil
}

// inputs ships the inputs and returns their CTEs, with the arguments that follow those given. The mode is how the
// statement must be run: over staged rows its plan may not be kept, since it fits the number of rows of this one time.
func (s *Session) inputs(ctx context.Context, tx pgx.Tx, inputs []Input, args []any) ([]string, []any, pgx.QueryExecMode, error) {
	total := 0
	var names []string
	for i := range inputs {
		total += len(inputs[i].Rows)
		for _, c := range inputs[i].Columns {
			names = append(names, c.Type)
		}
	}
	for _, a := range args {
		if a, ok := a.(Array); ok {
			names = append(names, a.Type)
		}
	}
	if err := s.types.learn(ctx, tx, names); err != nil {
		return nil, nil, 0, err
	}
	all := make([]any, 0, len(args)+len(names))
	for _, a := range args {
		if a, ok := a.(Array); ok {
			all = append(all, arrayLiteral(len(a.Values), s.types.delimiter(a.Type), func(n int) ingest.Value { return a.Values[n] }))
			continue
		}
		all = append(all, a)
	}
	ctes := make([]string, len(inputs))
	mode := pgx.QueryExecModeCacheStatement
	for i := range inputs {
		in := &inputs[i]
		if total <= s.host.arrayRows || !s.temp || len(in.Rows) == 0 || len(in.Columns) == 0 {
			cte, values := in.arrayCTE(s.types, len(all)+1)
			ctes[i], all = cte, append(all, values...)
			continue
		}
		table, err := s.ship(ctx, tx, in)
		if err != nil {
			return nil, nil, 0, fmt.Errorf("ship %d rows of %s: %w", len(in.Rows), in.Name, err)
		}
		// A table needs no second copy, and its size is a better estimate than a copy's.
		ctes[i], mode = in.cteHead()+"NOT MATERIALIZED (SELECT * FROM "+table+")", pgx.QueryExecModeDescribeExec
	}
	return ctes, all, mode, nil
}

// ship copies the input's rows into a stage, unless this transaction has done so already, and returns the table.
func (s *Session) ship(ctx context.Context, tx pgx.Tx, in *Input) (string, error) {
	if s.staged.tx != tx {
		s.staged = staging{tx: tx, sets: map[string][]stagedRows{}}
	}
	key := stageOf(in.Columns, 0).table
	rows := stagedRows{first: &in.Rows[0], n: len(in.Rows)}
	sets := s.staged.sets[key]
	for n, set := range sets {
		if set == rows {
			return stageOf(in.Columns, n).table, nil
		}
	}
	st := stageOf(in.Columns, len(sets))
	if err := s.make(ctx, tx, st); err != nil {
		return "", err
	}
	if err := st.copyRows(ctx, tx.Conn(), &listFeed{rows: in.Rows}); err != nil {
		return "", err
	}
	s.staged.sets[key] = append(sets, rows)
	return st.table, nil
}

// make makes a stage inside the transaction where it is not known to exist.
func (s *Session) make(ctx context.Context, tx pgx.Tx, st stage) error {
	if _, ok := s.made[st.table]; ok {
		return nil
	}
	s.host.log.Debug("temporary table made inside a round", "table", st.table)
	s.wanted[st.table] = st
	_, err := tx.Exec(ctx, st.create())
	return err
}
