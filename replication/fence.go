package replication

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// How long something is waited for before the log says for what, and how often it is said again.
const (
	reportFirst = time.Second
	reportAgain = 30 * time.Second
)

// Blocker is a transaction that something of ours waits for.
type Blocker struct {
	PID      int32         // 0 for a prepared transaction
	GID      string        // of a prepared transaction
	Database string        // any database of the cluster
	User     string        // the role that runs or prepared it
	Age      time.Duration // since it began or was prepared; 0 where that may not be seen
}

// String says which transaction it is and how to end it.
func (b Blocker) String() string {
	var s strings.Builder
	if b.PID != 0 {
		fmt.Fprintf(&s, "process %d of %s in %s", b.PID, b.User, b.Database)
	} else {
		fmt.Fprintf(&s, "prepared transaction %q of %s in %s (COMMIT or ROLLBACK PREPARED)", b.GID, b.User, b.Database)
	}
	if b.Age > 0 {
		fmt.Fprintf(&s, ", running for %s", b.Age.Round(time.Millisecond))
	}
	return s.String()
}

// Fence waits until every transaction that could have begun before now has ended. After a table joined the publication,
// or a slot was made, only then is every later change in the stream, and only then may a fill take its snapshot.
//
// It takes a transaction id of its own, X, and waits until the oldest running one is beyond X. The snapshot's xmax would
// not do: it is the last *completed* id plus one, and running ids above it are not listed. Nor would pg_stat_activity,
// which does not know prepared transactions. conn must not be in a transaction. Writers are not held up.
//
// report is told what is waited for after a second, and again from time to time; it may be nil.
func Fence(ctx context.Context, conn querier, report func([]Blocker)) error {
	var own string
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_current_xact_id()::text").Scan(&own); err != nil {
		return fmt.Errorf("take a transaction id for the fence: %w", err)
	}
	poll := newPause(2*time.Millisecond, 200*time.Millisecond)
	nextReport, interval := time.Now().Add(reportFirst), reportFirst
	for {
		var passed bool
		err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) > $1::text::xid8`,
			own).Scan(&passed)
		if err != nil {
			return fmt.Errorf("look whether the fence has passed: %w", err)
		}
		if passed {
			return nil
		}
		if report != nil && time.Now().After(nextReport) {
			blockers, err := runningTransactions(ctx, conn, &own)
			if err != nil {
				return err
			}
			report(blockers)
			interval = min(2*interval, reportAgain)
			nextReport = time.Now().Add(interval)
		}
		if err := poll.wait(ctx); err != nil {
			return fmt.Errorf("wait for older transactions to end: %w", err)
		}
	}
}

// LogBlockers is a report for [Fence] that logs.
func LogBlockers(log *slog.Logger) func([]Blocker) {
	return func(blockers []Blocker) {
		log.Warn("waiting for older transactions to end", "transactions", blockers)
	}
}

// runningSQL lists transactions that hold an id, those not older than $1 left out unless it is null. Ids are compared by
// age, since the catalogs show only their low 32 bits.
const runningSQL = `
WITH bound AS (SELECT CASE WHEN $1::text IS NULL THEN 0 ELSE pg_catalog.age($1::text::xid8::xid) END AS age)
SELECT a.pid, '', coalesce(a.datname, '')::text, coalesce(a.usename, '')::text,
       coalesce(extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start), 0)::float8
FROM pg_catalog.pg_stat_activity a, bound
WHERE a.backend_xid IS NOT NULL AND pg_catalog.age(a.backend_xid) >= bound.age AND a.pid <> pg_catalog.pg_backend_pid()
UNION ALL
SELECT 0, p.gid, p.database::text, p.owner::text,
       extract(epoch FROM pg_catalog.clock_timestamp() - p.prepared)::float8
FROM pg_catalog.pg_prepared_xacts p, bound
WHERE pg_catalog.age(p.transaction) >= bound.age
ORDER BY 5 DESC`

func runningTransactions(ctx context.Context, q querier, before *string) ([]Blocker, error) {
	rows, err := q.Query(ctx, runningSQL, before)
	if err != nil {
		return nil, fmt.Errorf("list running transactions: %w", err)
	}
	blockers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Blocker, error) {
		var b Blocker
		var seconds float64
		err := row.Scan(&b.PID, &b.GID, &b.Database, &b.User, &seconds)
		b.Age = time.Duration(seconds * float64(time.Second))
		return b, err
	})
	if err != nil {
		return nil, fmt.Errorf("list running transactions: %w", err)
	}
	return blockers, nil
}
