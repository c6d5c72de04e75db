package backing

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strconv"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mvsync/mvsync/ingest"
)

// Merge says how the rows of a view change.
type Merge struct {
	// With are further CTEs, after the inputs and before the rest. They are evaluated once.
	With []CTE
	// Args are bound to $1, $2 and so on; see [Array]. Inputs take the numbers after them.
	Args []any
	// New is a SELECT, without a semicolon, of the rows that the body gives now: the layout's columns, then its hidden ones, by position, in
	// their types. It may read the CTEs and mvsync_stored, the stored rows under Touched by their column names.
	New string
	// Touched is a condition over s, the stored row by its column names, hidden ones included: which stored rows New
	// speaks for. Those of them that New lacks are deleted. Empty means all.
	Touched string
	// TouchedBy, if set, stands in Touched's place: New speaks for the stored rows under any of the conditions. Each is
	// looked up by itself, so that each may use an index of its own.
	TouchedBy []string
	// Flags says that two boolean columns follow in New: rerun (this key must be evaluated otherwise: its stored row is
	// left alone and its key reported in [Result.Rerun]), then keep (false: there is no such row now). Neither may be NULL.
	Flags bool
	// Append says that no row of New is stored yet: they are inserted without a look. Touched and Flags have no meaning.
	Append bool
	// Effects asks for the effective changes.
	Effects bool
	// EffectLimit bounds their number (default 100,000); above it none are returned and Overflow is set.
	EffectLimit int
}

func (m *Merge) limit() int {
	if m.EffectLimit > 0 {
		return m.EffectLimit
	}
	return 100_000
}

// Effect is one effective change of a backing table: an insert has no Old, a delete no New.
type Effect struct {
	Old, New ingest.Row
}

// Result says what a merge did to the backing table.
type Result struct {
	Inserted, Updated, Deleted int64
	// Unchanged counts the stored rows that were looked at and right.
	Unchanged int64
	// Effects are the effective changes, in no particular order, if they were asked for.
	Effects []Effect
	// Overflow says that there were more effects than the limit, and none are returned.
	Overflow bool
	// Rerun holds the rows of New with the flag rerun: the columns of the key, in its order.
	Rerun []ingest.Row
}

// Changed returns the number of rows written.
func (r *Result) Changed() int64 { return r.Inserted + r.Updated + r.Deleted }

// Plus adds up what two merges of one transaction did.
func (r Result) Plus(o Result) Result {
	return Result{
		Inserted: r.Inserted + o.Inserted, Updated: r.Updated + o.Updated, Deleted: r.Deleted + o.Deleted,
		Unchanged: r.Unchanged + o.Unchanged, Effects: append(r.Effects, o.Effects...), Overflow: r.Overflow || o.Overflow,
		Rerun: append(r.Rerun, o.Rerun...),
	}
}

// Merge brings the stored rows under m.Touched to what m.New gives, in one statement, and reports what it changed. A
// stored row that is right is neither written nor locked (INV-5); a key that survives is updated in place. Two rows of New
// with one key are an error, [ErrDuplicateKey]. The transaction must be the session's own and no savepoint in it.
//
// Deferred constraints are checked by the statement, so that an error has a view to blame.
func (s *Session) Merge(ctx context.Context, tx pgx.Tx, l *Layout, m Merge, inputs []Input) (Result, error) {
	r, err := s.merge(ctx, tx, l, &m, inputs)
	if err != nil {
		return Result{}, fmt.Errorf("merge into %s: %w", l.Name, err)
	}
	return r, nil
}

// Reconcile evaluates a body and writes what differs: eval is a SELECT of the layout's columns, then its hidden ones.
func (s *Session) Reconcile(ctx context.Context, tx pgx.Tx, l *Layout, eval string, effects bool) (Result, error) {
	return s.Merge(ctx, tx, l, Merge{New: eval, Effects: effects}, nil)
}

func (s *Session) merge(ctx context.Context, tx pgx.Tx, l *Layout, m *Merge, inputs []Input) (Result, error) {
	if err := s.learn(ctx, tx, l); err != nil {
		return Result{}, err
	}
	if m.Touched == "" && len(m.TouchedBy) == 0 {
		m.Touched = "true"
	}
	ctes, args, mode, err := s.inputs(ctx, tx, inputs, m.Args)
	if err != nil {
		return Result{}, err
	}
	if err := s.immediate(ctx, tx); err != nil {
		return Result{}, err
	}
	text := s.edition(l) + s.statement(l, m).text(s.host.catalog, ctes)
	if m.Append && len(l.Hidden) == 0 && !m.Effects {
		tag, err := tx.Exec(ctx, text, append([]any{mode}, args...)...)
		s.inserted[l.ID] += tag.RowsAffected()
		return Result{Inserted: tag.RowsAffected()}, s.explain(l, err)
	}
	// Results in text: the output functions' own, whatever the type.
	args = append([]any{mode, pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)
	rows, err := tx.Query(ctx, text, args...)
	if err != nil {
		return Result{}, s.explain(l, err)
	}
	r, err := readResult(rows, l, m)
	s.inserted[l.ID] += r.Inserted
	return r, s.explain(l, err)
}

// edition returns a comment that changes whenever the session has made the table several times larger, or others may
// have made the tables that are read larger ([Session.Grown]). A prepared statement keeps its plan until the table is
// analysed: one made for the empty table would scan it as it grows.
func (s *Session) edition(l *Layout) string {
	return fmt.Sprintf("/* %d.%d */ ", (bits.Len64(uint64(s.inserted[l.ID])>>8)+1)/2, s.epoch)
}

func (s *Session) statement(l *Layout, m *Merge) *statement {
	st := &statement{layout: l, types: s.types, merge: m, table: l.Name.SQL()}
	if len(l.Hidden) > 0 {
		st.state = s.host.companion(l)
	}
	return st
}

// learn makes the types of the layout known, and refuses a key that cannot be compared.
func (s *Session) learn(ctx context.Context, q Querier, l *Layout) error {
	var types []string
	for _, c := range l.Columns {
		types = append(types, c.Type)
	}
	for _, c := range l.Hidden {
		types = append(types, c.Type)
	}
	if err := s.types.learn(ctx, q, types); err != nil {
		return err
	}
	for _, c := range l.keyColumns() {
		if s.types[c.Type].equal == "" {
			return fmt.Errorf("key column %s: type %s has no equality", c.Name, c.Type)
		}
	}
	return nil
}

// explain says of a violated key that New held it twice, which is what it means where only mvsync writes.
func (s *Session) explain(l *Layout, err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || e.Code != pgerrcode.UniqueViolation || e.TableName != l.Name.Name || e.SchemaName != l.Name.Schema {
		return err
	}
	for _, extra := range l.Indexes {
		if _, unique := cutUnique(extra); unique {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrDuplicateKey, err)
}

// readResult reads the rows of [statement.result].
func readResult(rows pgx.Rows, l *Layout, m *Merge) (Result, error) {
	defer rows.Close()
	var r Result
	var c counts
	for first := true; rows.Next(); first = false {
		raw := rows.RawValues()
		if first {
			for i, n := range []*int64{&c.stored, &c.unmatched, &c.pairs, &c.inserted, &c.updated, &c.deleted} {
				var err error
				if *n, err = strconv.ParseInt(string(raw[i]), 10, 64); err != nil {
					return r, fmt.Errorf("read counts: %w", err)
				}
			}
		}
		if len(raw) > countColumns && raw[countColumns] != nil {
			r.add(raw[countColumns:], l)
		}
	}
	if err := rows.Err(); err != nil {
		return r, err
	}
	// Each stored row has one new row or none; were there more pairs than rows with one, two new rows share a key.
	if c.pairs != c.stored-c.unmatched {
		return r, ErrDuplicateKey
	}
	r.Inserted, r.Updated, r.Deleted = c.inserted, c.updated, c.deleted
	r.Unchanged = c.stored - c.updated - c.deleted
	r.Overflow = m.Effects && r.Changed() > int64(m.limit())
	return r, nil
}

// add takes up one row: what was done, the new values, the old ones.
func (r *Result) add(raw [][]byte, l *Layout) {
	n := len(l.Columns)
	fresh := raw[1 : 1+n]
	var e Effect
	switch raw[0][0] {
	case 'R':
		row := make(ingest.Row, len(l.Key))
		for i, k := range l.Key {
			row[i] = value(fresh[k])
		}
		r.Rerun = append(r.Rerun, row)
		return
	case 'I':
		e.New = row(fresh)
	case 'D':
		e.Old = row(raw[1+n:])
	default:
		e.Old, e.New = row(raw[1+n:]), row(fresh)
	}
	r.Effects = append(r.Effects, e)
}

func value(raw []byte) ingest.Value {
	if raw == nil {
		return ingest.Null
	}
	return ingest.Text(string(raw))
}

func row(raw [][]byte) ingest.Row {
	out := make(ingest.Row, len(raw))
	for i := range raw {
		out[i] = value(raw[i])
	}
	return out
}

// Conditions returns the SQL conditions by which rows of a layout are compared, for aliases of two relations that have its
// columns by their names: key, that the two are rows of one key, over which hash and merge joins work; same, never NULL,
// that the stored row is right beside the fresh one (see [Dependence]). A view of one row has the key "true".
func (s *Session) Conditions(ctx context.Context, q Querier, l *Layout, stored, fresh string) (key, same string, err error) {
	if err := s.learn(ctx, q, l); err != nil {
		return "", "", fmt.Errorf("compare rows of %s: %w", l.Name, err)
	}
	columns := names(l.Columns)
	left := func(i int) string { return stored + "." + columns[i] }
	right := func(i int) string { return fresh + "." + columns[i] }
	return s.statement(l, &Merge{}).keyJoin(left, right), sameRow(s.types, l.Columns, left, right), nil
}

// Select is a query over inputs.
type Select struct {
	// Stored, if set, is the view whose stored rows the query reads as mvsync_stored, hidden columns included.
	Stored *Layout
	With   []CTE
	Args   []any // bound to $1, $2 and so on; inputs take the numbers after them
	SQL    string
}

// Query runs a SELECT over inputs and returns its rows as text.
func (s *Session) Query(ctx context.Context, tx pgx.Tx, q Select, inputs []Input) ([]ingest.Row, error) {
	ctes, args, mode, err := s.inputs(ctx, tx, inputs, q.Args)
	if err != nil {
		return nil, err
	}
	if q.Stored != nil {
		if err := s.learn(ctx, tx, q.Stored); err != nil {
			return nil, err
		}
		ctes = append(ctes, s.statement(q.Stored, &Merge{}).everything(s.host.catalog))
	}
	rows, err := tx.Query(ctx, fmt.Sprintf("/* %d */ ", s.epoch)+q.text(ctes), append([]any{mode, pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []ingest.Row
	for rows.Next() {
		out = append(out, row(rows.RawValues()))
	}
	return out, rows.Err()
}
