package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

// shop is the life of the demo's tables: customers who order, pay and cancel, and whose requests are logged. Its
// transactions are ordinary ones, and know nothing of mvsync.
type shop struct {
	url       string
	committed atomic.Int64

	mu    sync.Mutex
	waits []time.Duration // how long recent orders took from commit to being visible in open_orders
}

const (
	shopClerks = 4
	shopPause  = 12 * time.Millisecond // between two transactions of a clerk: about 300 a second in all
	shopProbes = 32                    // how many waits are kept
)

// run lives until ctx ends, which is no error.
func (s *shop) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for n := range shopClerks {
		group.Go(guarded(func() error { return s.clerk(ctx, n) }))
	}
	group.Go(guarded(func() error { return s.probe(ctx) }))
	return group.Wait()
}

// errBored is why some transactions roll back.
var errBored = errors.New("the customer went away")

// clerk runs one transaction after the other. Every second clerk commits asynchronously.
func (s *shop) clerk(ctx context.Context, n int) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return quietly(ctx, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if n%2 == 1 {
		if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
			return quietly(ctx, err)
		}
	}
	tick := time.NewTicker(shopPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return business(ctx, tx) })
		switch {
		case err == nil:
			s.committed.Add(1)
		case errors.Is(err, errBored), deadlocked(err):
		default:
			return quietly(ctx, err)
		}
	}
}

// business is one transaction.
func business(ctx context.Context, tx pgx.Tx) error {
	run := func(sql string, args ...any) error {
		if _, err := tx.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("shop: %w", err)
		}
		return nil
	}
	const order = `INSERT INTO orders (customer_id, product_id, quantity, cents)
		SELECT 1 + floor(random() * 200)::int, p.id, q, p.cents * q
		FROM products p, (SELECT 1 + floor(random() * 3)::int AS q) n WHERE p.id = $1`
	const move = `UPDATE orders SET status = $2 WHERE id = (SELECT id FROM orders WHERE status = $1 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)`
	const visit = `INSERT INTO requests (path, status, millis)
		SELECT (ARRAY['/', '/cart', '/search', '/order'])[1 + floor(random() * 4)::int],
		       CASE WHEN random() < 0.02 THEN 500 ELSE 200 END, 1 + floor(random() * 250)::int FROM generate_series(1, $1)`
	product := 1 + rand.IntN(40)
	switch dice := rand.IntN(100); {
	case dice < 30:
		return errors.Join(run(visit, 1+rand.IntN(4)), run(order, product))
	case dice < 55:
		return run(move, "open", "paid")
	case dice < 70:
		return run(move, "paid", "shipped")
	case dice < 75:
		return run(move, "open", "cancelled")
	case dice < 88: // keeps the tables at their size
		return run(`DELETE FROM orders WHERE id = (SELECT id FROM orders WHERE status IN ('shipped', 'cancelled')
			ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)`)
	case dice < 91:
		return run("UPDATE products SET cents = greatest(100, cents + $2) WHERE id = $1", product, rand.IntN(401)-200)
	case dice < 92:
		return run("UPDATE products SET tags = array_append(tags[1:3], $2) WHERE id = $1", product, fmt.Sprintf("tag %d", rand.IntN(9)))
	case dice < 94:
		return run("UPDATE customers SET region = (ARRAY['EU', 'US', 'APAC', 'LATAM'])[1 + floor(random() * 4)::int] WHERE id = $1", 1+rand.IntN(200))
	case dice < 97:
		return errors.Join(run(order, product), errBored)
	}
	return run(visit, 1+rand.IntN(8))
}

// probe measures now and then how long a committed order takes to show in open_orders.
func (s *shop) probe(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return quietly(ctx, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	pause := time.NewTicker(300 * time.Millisecond)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		if err := s.probeOnce(ctx, conn); err != nil {
			return quietly(ctx, err)
		}
	}
}

func (s *shop) probeOnce(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('public.open_orders') IS NOT NULL").Scan(&there); err != nil || !there {
		return err
	}
	var id int64
	err := conn.QueryRow(ctx, "INSERT INTO orders (customer_id, product_id, quantity, cents) VALUES (1, 1, 1, 100) RETURNING id").Scan(&id)
	if err != nil {
		return err
	}
	began := time.Now()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	// A clerk may take the order out of the view before we have seen it.
	for seen := false; !seen && time.Since(began) < 5*time.Second; {
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM open_orders WHERE id = $1)
			OR NOT EXISTS (SELECT FROM orders WHERE id = $1 AND status = 'open')`, id).Scan(&seen)
		if err != nil {
			return err
		}
		if !seen {
			select {
			case <-ctx.Done():
				return nil
			case <-look.C:
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = append(s.waits, time.Since(began))
	s.waits = s.waits[max(0, len(s.waits)-shopProbes):]
	return nil
}

// visible is the median of the recent waits, false while there are none.
func (s *shop) visible() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waits) == 0 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(s.waits))
	return sorted[len(sorted)/2], true
}

// quietly drops an error that is only the end of ctx.
func quietly(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = nil
	}
	return err
}

func deadlocked(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == pgerrcode.DeadlockDetected || pg.Code == pgerrcode.SerializationFailure)
}

// guarded makes an error of a panic, so that whoever waits still tidies up.
func guarded(f func() error) func() error {
	return func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("internal error: %v", p)
			}
		}()
		return f()
	}
}
