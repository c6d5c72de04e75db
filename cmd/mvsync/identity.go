package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// How long the change of a replica identity is tried. Its lock keeps the table's readers waiting too, so each attempt is
// short.
const (
	identityLockTimeout = 300 * time.Millisecond
	identityPatience    = time.Minute
)

// manageIdentities gives the tables the replica identity that the plans want, as source.replica_identity: manage asks:
// one transaction a table and in one order, so that two starts do not deadlock.
func (s *service) manageIdentities(ctx context.Context) error {
	var statements []string
	for _, p := range s.engine.Plans() {
		statements = append(statements, p.Alter...)
	}
	slices.Sort(statements)
	statements = slices.Compact(statements)
	if len(statements) == 0 {
		return nil
	}
	return s.source.do(ctx, "replica identity", func(c *pgxConn) error {
		for _, statement := range statements {
			sql := strings.TrimSuffix(statement, ";")
			s.daemon.log.Info("setting a replica identity", "sql", sql)
			if err := patiently(ctx, c, sql); err != nil {
				return fmt.Errorf("set a replica identity: %w; run it yourself at a quiet time: %s", err, sql)
			}
		}
		return nil
	})
}

// patiently runs a statement that locks a table, again and again while others hold it.
func patiently(ctx context.Context, c *pgxConn, sql string) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 200*time.Millisecond, 5*time.Second
	attempt := func() (struct{}, error) {
		err := pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			limit := fmt.Sprintf("SET LOCAL lock_timeout = %d", identityLockTimeout.Milliseconds())
			if _, err := tx.Exec(ctx, limit); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sql)
			return err
		})
		if pg, ok := errors.AsType[*pgconn.PgError](err); err != nil && (!ok || pg.Code != pgerrcode.LockNotAvailable) {
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, err
	}
	_, err := backoff.Retry(ctx, attempt, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(identityPatience))
	return err
}
