package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mvsync/mvsync/ingest"
)

// querier is what the catalog is asked through: a connection, a transaction or a pool.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// plugin is the output plugin of our slots.
const plugin = "pgoutput"

// Slot is a logical replication slot by name.
type Slot struct {
	Name string
}

// SlotState is what the server says of a slot.
type SlotState struct {
	Exists           bool
	Plugin           string
	Database         string // the database in which the slot was made
	CurrentDatabase  string // the database in which the question was asked
	ActivePID        int32  // the process that reads the slot, 0 if none does
	TwoPhase         bool
	ConfirmedFlush   ingest.LSN // transactions that committed before it are not sent again
	RestartLSN       ingest.LSN // the WAL from here on is retained
	WALStatus        string     // reserved, extended, unreserved or lost
	Invalidation     string     // why the slot was invalidated, "" if it was not
	RetainedBytes    int64      // WAL between RestartLSN and the server's end of the WAL
	UnconfirmedBytes int64      // WAL between ConfirmedFlush and the server's end of the WAL
	CurrentLSN       ingest.LSN // the server's write position, 0 in recovery
}

// slotStateSQL reads columns that not all versions have (invalidation_reason, conflicting) through jsonb. It never
// decodes: peeking at a slot costs as much as its backlog is long.
const slotStateSQL = `
SELECT s.plugin::text, coalesce(s.database, '')::text, pg_catalog.current_database()::text, coalesce(s.active_pid, 0),
       coalesce(s.two_phase, false), coalesce(s.confirmed_flush_lsn, '0/0')::text, coalesce(s.restart_lsn, '0/0')::text,
       coalesce(s.wal_status, ''),
       coalesce(pg_catalog.to_jsonb(s) ->> 'invalidation_reason',
                CASE WHEN (pg_catalog.to_jsonb(s) ->> 'conflicting')::bool THEN 'conflicts with recovery' END, ''),
       coalesce(pg_catalog.pg_wal_lsn_diff(here.lsn, s.restart_lsn), 0)::int8,
       coalesce(pg_catalog.pg_wal_lsn_diff(here.lsn, s.confirmed_flush_lsn), 0)::int8,
       coalesce(here.lsn, '0/0')::text
FROM pg_catalog.pg_replication_slots s,
     (SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_current_wal_lsn() END AS lsn) here
WHERE s.slot_name = $1 AND s.slot_type = 'logical'`

// State asks the server about the slot. A slot that does not exist is a state, not an error.
func (s Slot) State(ctx context.Context, q querier) (SlotState, error) {
	var state SlotState
	var confirmed, restart, current string
	err := q.QueryRow(ctx, slotStateSQL, s.Name).Scan(&state.Plugin, &state.Database, &state.CurrentDatabase,
		&state.ActivePID, &state.TwoPhase, &confirmed, &restart, &state.WALStatus, &state.Invalidation,
		&state.RetainedBytes, &state.UnconfirmedBytes, &current)
	if errors.Is(err, pgx.ErrNoRows) {
		return SlotState{}, nil
	}
	if err != nil {
		return SlotState{}, fmt.Errorf("read the state of slot %s: %w", s.Name, err)
	}
	state.Exists = true
	for _, lsn := range []struct {
		text string
		into *ingest.LSN
	}{{confirmed, &state.ConfirmedFlush}, {restart, &state.RestartLSN}, {current, &state.CurrentLSN}} {
		if *lsn.into, err = pglogrepl.ParseLSN(lsn.text); err != nil {
			return SlotState{}, fmt.Errorf("read the state of slot %s: %w", s.Name, err)
		}
	}
	return state, nil
}

// usable returns why the slot cannot be read whoever asks: [ErrSlotLost] or [ErrSlotForeign], with what to do. A slot
// that somebody else reads just now is usable.
func (st SlotState) usable(name string) error {
	switch {
	case !st.Exists:
		return fmt.Errorf("%w: slot %s does not exist; a new one is a gap", ErrSlotLost, name)
	case st.Plugin != plugin:
		return fmt.Errorf("%w: slot %s has the output plugin %s, want %s; set source.slot to another name",
			ErrSlotForeign, name, st.Plugin, plugin)
	case st.Database != st.CurrentDatabase:
		return fmt.Errorf("%w: slot %s belongs to database %s, not %s; set source.slot to another name",
			ErrSlotForeign, name, st.Database, st.CurrentDatabase)
	case st.TwoPhase:
		return fmt.Errorf("%w: slot %s is two-phase, which sends transactions before they commit; "+
			"drop it with SELECT pg_drop_replication_slot(%s) or set source.slot to another name",
			ErrSlotForeign, name, quoteText(name))
	case st.WALStatus == "lost" || st.Invalidation != "":
		reason := st.Invalidation
		if reason == "" {
			reason = "its WAL was removed, see max_slot_wal_keep_size"
		}
		return fmt.Errorf("%w: slot %s was invalidated (%s); a new one is a gap", ErrSlotLost, name, reason)
	}
	return nil
}

// Check returns why the slot cannot be read now: [ErrSlotLost], [ErrSlotForeign] or [ErrSlotInUse], each with what to do.
func (st SlotState) Check(name string) error {
	if err := st.usable(name); err != nil {
		return err
	}
	if st.ActivePID != 0 {
		return fmt.Errorf("%w: slot %s is read by process %d; stop the other mvsync, "+
			"or end it with SELECT pg_terminate_backend(%d)", ErrSlotInUse, name, st.ActivePID, st.ActivePID)
	}
	return nil
}

// createSlot makes the slot. The server waits for every transaction that is running in the whole cluster; meanwhile those
// are named in the log. When ctx ends the slot is not left behind.
func createSlot(ctx context.Context, t Target, log *slog.Logger) error {
	conn, err := connectReplication(ctx, t.replication(), t.Session, 0)
	if err != nil {
		return fmt.Errorf("connect for replication: %w", classifyConnect(err))
	}
	slot := Slot{Name: t.Slot}
	watch, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		slot.reportWait(watch, t, log)
	}()
	err = slot.create(ctx, conn)
	stop()
	<-watched
	if err != nil {
		err = fmt.Errorf("create slot %s: %w", t.Slot, err)
		if sqlState(err) != pgerrcode.DuplicateObject { // nobody else's
			err = errors.Join(err, slot.sweep(context.WithoutCancel(ctx), t))
		}
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	return errors.Join(err, conn.Close(closing))
}

// create sends the command. When ctx ends it asks the server to cancel first: a walsender that waits for a transaction
// does not notice a closed connection, and would finish the slot later.
func (s Slot) create(ctx context.Context, conn *pgconn.PgConn) error {
	done := make(chan error, 1)
	go func() {
		// No snapshot is exported: fills take theirs after the fence, from ordinary sessions.
		sql := fmt.Sprintf("CREATE_REPLICATION_SLOT %s LOGICAL %s (SNAPSHOT 'nothing')", quoteName(s.Name), plugin)
		_, err := conn.Exec(context.WithoutCancel(ctx), sql).ReadAll()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	cancelErr := conn.CancelRequest(grace)
	select {
	case err := <-done:
		return errors.Join(context.Cause(ctx), err)
	case <-grace.Done():
		// Closing the socket ends Exec.
		_ = conn.Conn().Close() // nothing more can be done with it
		return errors.Join(context.Cause(ctx), cancelErr, <-done)
	}
}

// abortTimeout bounds what is cleaned up after the caller has given up.
const abortTimeout = 10 * time.Second

// sweep drops what an aborted creation may have left, ending the process that still makes it.
func (s Slot) sweep(ctx context.Context, t Target) error {
	ctx, cancel := context.WithTimeout(ctx, abortTimeout)
	defer cancel()
	err := Teardown(ctx, Target{Source: t.Source, Session: t.Session, Slot: s.Name}, func(string) {})
	if err != nil {
		return fmt.Errorf("remove the unfinished slot %s: %w; run SELECT pg_drop_replication_slot(%s)",
			s.Name, err, quoteText(s.Name))
	}
	return nil
}

// Drop ends the process that reads the slot, if any, and removes the slot. It reports whether there was one; a slot that
// mvsync cannot have made is refused with [ErrSlotForeign].
func (s Slot) Drop(ctx context.Context, q querier) (bool, error) {
	pause := newPause(5*time.Millisecond, 200*time.Millisecond)
	for {
		state, err := s.State(ctx, q)
		if err != nil || !state.Exists {
			return false, err
		}
		if foreign := state.usable(s.Name); errors.Is(foreign, ErrSlotForeign) && !state.TwoPhase {
			return false, foreign
		}
		if state.ActivePID != 0 {
			if _, err := q.Exec(ctx, "SELECT pg_catalog.pg_terminate_backend($1)", state.ActivePID); err != nil {
				return false, fmt.Errorf("end the reader of slot %s, process %d: %w", s.Name, state.ActivePID, err)
			}
		} else {
			_, err = q.Exec(ctx, "SELECT pg_catalog.pg_drop_replication_slot($1)", s.Name)
			if code := sqlState(err); code != pgerrcode.ObjectInUse && code != pgerrcode.UndefinedObject {
				if err != nil {
					return false, fmt.Errorf("drop slot %s: %w", s.Name, err)
				}
				return true, nil
			}
		}
		// The reader takes a moment to let go.
		if err := pause.wait(ctx); err != nil {
			return false, fmt.Errorf("drop slot %s: %w", s.Name, err)
		}
	}
}

// reportWait logs what the creation waits for, once it takes noticeably long, until ctx ends.
func (s Slot) reportWait(ctx context.Context, t Target, log *slog.Logger) {
	began := time.Now()
	asking := &session{connect: func(ctx context.Context) (*pgx.Conn, error) {
		return connectSQL(ctx, t.Source, t.Session, nil)
	}}
	defer asking.close(context.WithoutCancel(ctx))
	pause := newPause(reportFirst, reportAgain)
	for pause.wait(ctx) == nil {
		var blockers []Blocker
		err := asking.do(ctx, func(conn *pgx.Conn) error {
			var err error
			blockers, err = runningTransactions(ctx, conn, nil)
			return err
		})
		if err != nil {
			if ctx.Err() == nil {
				log.Warn("cannot list what the replication slot waits for", "slot", s.Name, "err", err)
			}
			continue
		}
		log.Warn("the replication slot waits for old transactions to end", "slot", s.Name,
			"waited", time.Since(began).Round(time.Millisecond), "transactions", blockers)
	}
}
