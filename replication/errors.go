package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
)

// What ends [Stream.Run]. Each comes wrapped in an error that says where and what to do.
var (
	// ErrSlotLost: the slot does not exist or was invalidated. A gap: the changes that it held are gone.
	ErrSlotLost = errors.New("replication slot lost")
	// ErrSlotInUse: another process reads the slot.
	ErrSlotInUse = errors.New("replication slot in use")
	// ErrSlotForeign: the slot of that name is not one that mvsync can read.
	ErrSlotForeign = errors.New("replication slot is not mvsync's")
	// ErrPublicationLost: the publication is missing.
	ErrPublicationLost = errors.New("publication lost")
	// ErrPublicationForeign: the publication of that name was not made by mvsync.
	ErrPublicationForeign = errors.New("publication is not mvsync's")
	// ErrInRecovery: the server is a standby. Its snapshots do not list running transactions.
	ErrInRecovery = errors.New("server is in recovery")
	// ErrIdentityChanged: the server is another cluster, or another timeline of it, than when the stream began.
	ErrIdentityChanged = errors.New("server identity changed")
	// ErrSyncStandby: the server counts the stream among its synchronous standbys, so that commits would wait for it.
	ErrSyncStandby = errors.New("mvsync is a synchronous standby")
	// ErrPoison: the server fails at the same position again and again.
	ErrPoison = errors.New("the server cannot decode a transaction")
	// ErrDenied: the server does not let this role or this host connect for replication.
	ErrDenied = errors.New("replication denied")
	// ErrProtocol: the server sent something that is not understood.
	ErrProtocol = errors.New("unexpected replication message")
)

// What [Stream.Barrier] returns where the position was not reached.
var (
	// ErrBarrierTimeout: the bound passed; the server is probably decoding a huge transaction.
	ErrBarrierTimeout = errors.New("barrier not reached in time")
	// ErrBacklog: reading is paused because what was received and not taken fills the budget. Take it, and try again.
	ErrBacklog = errors.New("received transactions wait to be taken")
)

// sqlState is the SQLSTATE of an error, "" if the server did not send it. Errors are told apart by it and never by their
// text, which is translated.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// terminal lists what no reconnection mends.
var terminal = []error{
	ErrSlotLost, ErrSlotForeign, ErrSlotInUse, ErrPublicationLost, ErrInRecovery, ErrIdentityChanged, ErrSyncStandby, ErrPoison,
	ErrDenied, ErrProtocol,
}

func isTerminal(err error) bool {
	for _, t := range terminal {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// passing reports whether a server error says something of the moment (a shutdown, too many connections) and nothing of
// what was being decoded.
func passing(code string) bool {
	switch code {
	case pgerrcode.AdminShutdown, pgerrcode.CrashShutdown, pgerrcode.CannotConnectNow, pgerrcode.QueryCanceled,
		pgerrcode.ObjectInUse, pgerrcode.LockNotAvailable:
		return true
	}
	return code == "" || pgerrcode.IsConnectionException(code) || pgerrcode.IsInsufficientResources(code)
}

// classifyConnect turns the error of a connection attempt into a terminal one where trying again is useless.
func classifyConnect(err error) error {
	switch code := sqlState(err); {
	case pgerrcode.IsInvalidAuthorizationSpecification(code):
		return fmt.Errorf("%w: %w; check the user, the password and the pg_hba.conf lines for this database", ErrDenied, err)
	case code == pgerrcode.InsufficientPrivilege:
		return fmt.Errorf("%w: %w; run ALTER ROLE ... REPLICATION (or grant the replication role of a managed service)", ErrDenied, err)
	case code == pgerrcode.InvalidCatalogName:
		return fmt.Errorf("%w: %w; check the database name", ErrDenied, err)
	}
	return err
}

// classifyStream turns the error that ended streaming into a terminal one where the catalog shows that no reconnection
// mends it. state is asked only for the codes that a lost slot or publication causes.
func classifyStream(ctx context.Context, err error, slot Slot, publication string, q querier) error {
	switch sqlState(err) {
	case pgerrcode.ObjectInUse:
		state, stateErr := slot.State(ctx, q)
		if stateErr != nil {
			return err
		}
		return &slotBusyError{pid: state.ActivePID, err: err}
	case pgerrcode.UndefinedObject, pgerrcode.ObjectNotInPrerequisiteState, pgerrcode.UndefinedFile,
		pgerrcode.InternalError:
	default:
		return err
	}
	state, stateErr := slot.State(ctx, q)
	if stateErr != nil {
		return err // not known yet; the next attempt asks again
	}
	if lost := state.usable(slot.Name); lost != nil {
		return fmt.Errorf("%w: %w", lost, err)
	}
	var exists bool
	row := q.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = $1)", publication)
	if row.Scan(&exists) == nil && !exists {
		return fmt.Errorf("%w: publication %s does not exist: %w", ErrPublicationLost, publication, err)
	}
	return err
}
