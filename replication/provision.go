package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Target names what a stream needs on the server, and how to get there.
type Target struct {
	Source      *pgx.ConnConfig
	Replication *pgconn.Config // default: the same server as Source
	Session     Session
	Slot        string
	Publication string
}

func (t Target) replication() *pgconn.Config {
	if t.Replication != nil {
		return t.Replication
	}
	return &t.Source.Config
}

// Provisioned is what [Provision] made.
type Provisioned struct {
	PublicationCreated bool
	SlotCreated        bool
	Membership         Membership
	Identity           Identity
	// IdentityErr names tables that were left out for want of a replica identity, or is nil.
	IdentityErr *IdentityError
}

// Provision brings the publication to the leaves of tables, makes the slot if there is none, and waits for the fence if
// either changed: afterwards a fill may take its snapshot. The publication comes before the slot, since a stream that
// decodes WAL from before its publication fails or loses changes.
//
// When it fails, or ctx ends, what it created is removed again. A slot that was invalidated is an [ErrSlotLost]: dropping
// it is the caller's decision.
func Provision(ctx context.Context, t Target, tables []uint32, log *slog.Logger) (Provisioned, error) {
	conn, err := connectSQL(ctx, t.Source, t.Session, nil)
	if err != nil {
		return Provisioned{}, fmt.Errorf("connect for SQL: %w", err)
	}
	made, err := provision(ctx, t, conn, tables, log)
	if err != nil {
		err = errors.Join(err, undo(ctx, t, made, log))
		made = Provisioned{}
	}
	return made, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

func provision(ctx context.Context, t Target, conn *pgx.Conn, tables []uint32, log *slog.Logger) (Provisioned, error) {
	var made Provisioned
	publication, slot := Publication{Name: t.Publication}, Slot{Name: t.Slot}
	existed, err := publication.Exists(ctx, conn)
	if err != nil {
		return made, err
	}
	state, err := slot.State(ctx, conn)
	if err != nil {
		return made, err
	}
	if state.Exists {
		if err := state.usable(t.Slot); err != nil {
			return made, err
		}
	}
	made.Membership, err = publication.Ensure(ctx, conn, tables)
	if refused, ok := errors.AsType[*IdentityError](err); ok {
		made.IdentityErr, err = refused, nil
	}
	if err != nil {
		return made, err
	}
	made.PublicationCreated = !existed
	if made.Identity, err = Identify(ctx, t.replication(), t.Session); err != nil {
		return made, err
	}
	if !state.Exists {
		if err := createSlot(ctx, t, log); err != nil {
			return made, err
		}
		made.SlotCreated = true
	}
	if made.SlotCreated || made.PublicationCreated || made.Membership.Changed() {
		return made, Fence(ctx, conn, LogBlockers(log))
	}
	return made, nil
}

// undo removes what was made. It does not use the connection that the end of ctx may have broken.
func undo(ctx context.Context, t Target, made Provisioned, log *slog.Logger) error {
	if !made.PublicationCreated && !made.SlotCreated {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	if !made.PublicationCreated {
		t.Publication = ""
	}
	if !made.SlotCreated {
		t.Slot = ""
	}
	return Teardown(ctx, t, func(what string) { log.Info("removed again", "what", what) })
}

// Teardown removes the slot and the publication, as far as they are mvsync's, and tells report of each that it removed.
// An empty name stands for nothing to remove. What is not there is no error.
func Teardown(ctx context.Context, t Target, report func(what string)) error {
	conn, err := connectSQL(ctx, t.Source, t.Session, nil)
	if err != nil {
		return fmt.Errorf("connect for SQL: %w", err)
	}
	var errs []error
	// The slot goes first: a slot without its publication holds WAL and cannot be read.
	if t.Slot != "" {
		dropped, err := Slot{Name: t.Slot}.Drop(ctx, conn)
		if dropped {
			report("slot " + t.Slot)
		}
		errs = append(errs, err)
	}
	if t.Publication != "" {
		dropped, err := Publication{Name: t.Publication}.Drop(ctx, conn)
		if dropped {
			report("publication " + t.Publication)
		}
		errs = append(errs, err)
	}
	errs = append(errs, conn.Close(context.WithoutCancel(ctx)))
	return errors.Join(errs...)
}
