package backing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mvsync/mvsync/ingest"
)

// Feed gives rows one after the other: how many in all, and the next one, which is valid until the next call, or nil.
type Feed interface {
	Len() int
	Next() ingest.Row
}

// Delta says how the rows of a view change where that is known beforehand, key by key: the view's rows are rows of a
// table as they are, and the images of each say whether it stood before. No look at the stored rows is needed to tell
// what is to be done, and what is inserted goes straight into the backing table.
type Delta struct {
	Gone    Feed // the keys, in the key's order, of stored rows that go away
	Changed Feed // all columns of rows that are stored already
	Fresh   Feed // all columns of rows that are not
}

// ErrAstray says that the rows which are stored are not those that a [Delta] is about; the view must be reconciled.
var ErrAstray = errors.New("the stored rows are not those that the changes are about")

// Takes reports whether Apply can be used for the layout, and pays for so many rows: below, a merge is as fast. Keys whose
// equality is not that of their bytes are the caller's to leave out.
func (s *Session) Takes(l *Layout, rows int) bool {
	return s.temp && rows > s.host.arrayRows && len(l.Key) > 0 && len(l.Hidden) == 0 && !l.HashKey && !l.nullableKey() &&
		!slices.ContainsFunc(l.Columns, func(c Column) bool { return c.Dependent != Exact })
}

// Apply writes a delta and reports what it changed. A stored row that is right already is not written (INV-5), and a key
// that survives is updated in place. It returns [ErrAstray], having written, where a stored row is missing.
func (s *Session) Apply(ctx context.Context, tx pgx.Tx, l *Layout, d Delta) (Result, error) {
	r, err := s.apply(ctx, tx, l, d)
	if err != nil {
		return Result{}, fmt.Errorf("apply changes to %s: %w", l.Name, s.explain(l, err))
	}
	s.inserted[l.ID] += r.Inserted
	return r, nil
}

func (s *Session) apply(ctx context.Context, tx pgx.Tx, l *Layout, d Delta) (Result, error) {
	if err := s.learn(ctx, tx, l); err != nil {
		return Result{}, err
	}
	var r Result
	conn := tx.Conn().PgConn()
	if d.Gone.Len()+d.Changed.Len() > 0 {
		var err error
		if r, err = s.amend(ctx, tx, l, d); err != nil {
			return r, err
		}
	}
	if d.Fresh.Len() == 0 {
		return r, nil
	}
	if _, err := conn.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE").ReadAll(); err != nil {
		return r, err
	}
	tag, err := conn.CopyFrom(ctx, &copyReader{rows: d.Fresh}, "COPY "+l.Name.SQL()+" ("+list(names(l.Columns))+") FROM STDIN")
	r.Inserted = tag.RowsAffected()
	return r, err
}

// amend deletes and updates.
func (s *Session) amend(ctx context.Context, tx pgx.Tx, l *Layout, d Delta) (Result, error) {
	gone, changed := deltaStage("gone", l.keyColumns()), deltaStage("changed", l.Columns)
	for _, x := range []struct {
		stage stage
		rows  Feed
	}{{gone, d.Gone}, {changed, d.Changed}} {
		if err := s.make(ctx, tx, x.stage); err != nil {
			return Result{}, err
		}
		if x.rows.Len() == 0 {
			continue
		}
		if err := x.stage.copyRows(ctx, tx.Conn(), x.rows); err != nil {
			return Result{}, err
		}
	}
	st := s.statement(l, &Merge{})
	results, err := tx.Conn().PgConn().Exec(ctx, st.amendText(gone, changed)).ReadAll()
	if err != nil {
		return Result{}, err
	}
	r := Result{Deleted: tagged(results, "DELETE"), Updated: tagged(results, "UPDATE")}
	r.Unchanged = int64(d.Changed.Len()) - r.Updated
	if r.Deleted != int64(d.Gone.Len()) {
		return r, ErrAstray
	}
	if r.Unchanged > 0 {
		var found int64
		err := tx.QueryRow(ctx, st.foundText(changed), pgx.QueryExecModeExec).Scan(&found)
		if err == nil && found != int64(d.Changed.Len()) {
			err = ErrAstray
		}
		if err != nil {
			return r, err
		}
	}
	// For the next delta of this transaction: the end of the transaction alone would empty them later.
	_, err = tx.Conn().PgConn().Exec(ctx, "TRUNCATE "+gone.table+", "+changed.table).ReadAll()
	return r, err
}

// tagged adds up the rows of the commands of a kind.
func tagged(results []*pgconn.Result, command string) (n int64) {
	for _, r := range results {
		if strings.HasPrefix(r.CommandTag.String(), command) {
			n += r.CommandTag.RowsAffected()
		}
	}
	return n
}

func deltaStage(what string, columns []Column) stage {
	in := make([]InputColumn, len(columns))
	for i, c := range columns {
		in[i].Type = c.Type
	}
	st := stageOf(in, 0)
	st.table = strings.Replace(st.table, "mvsync_input", "mvsync_"+what, 1)
	return st
}

// indexed has the rows found by the key's index: a batch is a small part of a large table, or its rows lie close together,
// since they come in the order in which they were written. By its default, meant for disks that turn, the planner
// would rather scan a table of a million rows and spill a hash of it, twice as slow, for each of the batches.
const indexed = "SET LOCAL random_page_cost = 1.1"

// amendText deletes first, so that a unique index of the user's finds a freed value free.
func (s *statement) amendText(gone, changed stage) string {
	columns := names(s.layout.Columns)
	stored := func(i int) string { return "b." + columns[i] }
	fresh := func(i int) string { return numbered("d.c", i) }
	at := func(i int) string { return numbered("d.c", slices.Index(s.layout.Key, i)) }
	text := []string{
		"SET CONSTRAINTS ALL IMMEDIATE", indexed,
		"DELETE FROM " + s.table + " b USING " + gone.table + " d WHERE " + s.keyJoin(stored, at),
	}
	var sets []string
	for i, c := range columns {
		if !slices.Contains(s.layout.Key, i) {
			sets = append(sets, c+" = "+fresh(i))
		}
	}
	if len(sets) > 0 {
		text = append(text, "UPDATE "+s.table+" b SET "+strings.Join(sets, ", ")+" FROM "+changed.table+" d WHERE "+
			s.keyJoin(stored, fresh)+" AND NOT ("+sameRow(s.types, s.layout.Columns, stored, fresh)+")")
	}
	return strings.Join(append(text, "SET LOCAL random_page_cost TO DEFAULT"), "; ")
}

// foundText counts the rows to be changed that are stored.
func (s *statement) foundText(changed stage) string {
	columns := names(s.layout.Columns)
	return "SELECT count(*) FROM " + s.table + " b JOIN " + changed.table + " d ON " +
		s.keyJoin(func(i int) string { return "b." + columns[i] }, func(i int) string { return numbered("d.c", i) })
}
