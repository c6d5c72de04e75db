package backing

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// heldLocks selects from pg_locks the advisory locks of one class and catalog in this database.
const heldLocks = ` FROM pg_catalog.pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
	AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
	AND l.classid = $1::bigint::oid AND l.objid = $2::bigint::oid`

// Lead makes the connection that of the only daemon of the catalog, until it ends or [Host.Resign] is called. Where there
// is another, the error is [ErrLeader] and names its process.
func (h *Host) Lead(ctx context.Context, conn *pgx.Conn) error {
	var got bool
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_try_advisory_lock($1, $2)", leaderLock, h.lockKey()).Scan(&got); err != nil {
		return fmt.Errorf("take the leader's lock of catalog %s: %w", h.catalog, err)
	}
	if got {
		return nil
	}
	pid, err := h.Leader(ctx, conn)
	if err != nil {
		return err
	}
	return fmt.Errorf("catalog %s: %w (backend %d); stop it, or give this one another catalog and slot", h.catalog, ErrLeader, pid)
}

// Resign gives up what [Host.Lead] took.
func (h *Host) Resign(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "SELECT pg_catalog.pg_advisory_unlock($1, $2)", leaderLock, h.lockKey()); err != nil {
		return fmt.Errorf("give up the leader's lock of catalog %s: %w", h.catalog, err)
	}
	return nil
}

// Leader returns the backend of the daemon that serves the catalog, 0 where none runs.
func (h *Host) Leader(ctx context.Context, q Querier) (int32, error) {
	var pid int32
	err := q.QueryRow(ctx, "SELECT COALESCE(min(l.pid), 0)"+heldLocks, int64(uint32(leaderLock)), int64(uint32(h.lockKey()))).Scan(&pid)
	if err != nil {
		return 0, fmt.Errorf("look for the daemon of catalog %s: %w", h.catalog, err)
	}
	return pid, nil
}

// Waiters returns how many sessions wait in mvsync.wait. It is cheap enough for every few milliseconds.
func (h *Host) Waiters(ctx context.Context, q Querier) (int, error) {
	var n int
	err := q.QueryRow(ctx, "SELECT count(*)"+heldLocks, int64(uint32(waiterLock)), int64(uint32(h.lockKey()))).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("look for waiters: %w", err)
	}
	return n, nil
}
