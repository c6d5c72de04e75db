package backing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Action is what a request asks for.
type Action string

// The actions of requests.
const (
	Refresh Action = "refresh"
	Pause   Action = "pause"
	Resume  Action = "resume"
	Verify  Action = "verify"
)

// Request is something that a user asked the daemon to do with a view. It shows once the user's transaction has committed.
type Request struct {
	ID     int64
	View   int64
	Action Action
	At     time.Time
	// Done is set once the daemon has acted; Rows then says how many rows were written, or differ from the body, Error why
	// it could not be done. Detail shows some of the differing rows.
	Done   bool
	Rows   int64
	Error  string
	Detail string
}

// Ask queues a request for a view, named in SQL identifier syntax, and tells the daemon when the transaction commits.
func (h *Host) Ask(ctx context.Context, q Querier, view string, action Action) (int64, error) {
	var id int64
	if err := q.QueryRow(ctx, "SELECT "+h.own("enqueue")+"($1, $2)", view, string(action)).Scan(&id); err != nil {
		return 0, fmt.Errorf("ask to %s %s: %w", action, view, err)
	}
	return id, nil
}

const requestColumns = "id, view_id, action, requested_at, done_at IS NOT NULL, COALESCE(rows, 0), COALESCE(error, ''), COALESCE(detail, '')"

func scanRequest(row pgx.CollectableRow) (Request, error) {
	var r Request
	err := row.Scan(&r.ID, &r.View, &r.Action, &r.At, &r.Done, &r.Rows, &r.Error, &r.Detail)
	return r, err
}

// Requests returns the requests that are not done, in the order in which they were made. They stay until
// [Host.FinishRequest], so that one that a crash interrupts is taken up again.
func (h *Host) Requests(ctx context.Context, q Querier) ([]Request, error) {
	rows, err := q.Query(ctx, "SELECT "+requestColumns+" FROM "+h.own("request")+" WHERE done_at IS NULL ORDER BY id")
	if err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanRequest)
	if err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	return out, nil
}

// Request returns a request, done or not. Done ones are kept for a day; one that is gone was done, or its view forgotten,
// and is [ErrNoView].
func (h *Host) Request(ctx context.Context, q Querier, id int64) (Request, error) {
	rows, err := q.Query(ctx, "SELECT "+requestColumns+" FROM "+h.own("request")+" WHERE id = $1", id)
	if err != nil {
		return Request{}, fmt.Errorf("read request %d: %w", id, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRequest)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNoView
	}
	if err != nil {
		return Request{}, fmt.Errorf("read request %d: %w", id, err)
	}
	return r, nil
}

// FinishVerify says what a verification found: the number of differing rows, and some of them as text.
func (h *Host) FinishVerify(ctx context.Context, q Querier, id, differing int64, detail string) error {
	if _, err := q.Exec(ctx, "UPDATE "+h.own("request")+" SET detail = NULLIF($2, '') WHERE id = $1", id, detail); err != nil {
		return fmt.Errorf("finish request %d: %w", id, err)
	}
	return h.FinishRequest(ctx, q, id, differing, "")
}

// FinishRequest says that a request is done, with the number of rows written, or why it could not be done. Belonging into
// the transaction that did it, it is done once.
func (h *Host) FinishRequest(ctx context.Context, q Querier, id, rows int64, reason string) error {
	table := h.own("request")
	_, err := q.Exec(ctx, "UPDATE "+table+" SET done_at = pg_catalog.clock_timestamp(), rows = $2, error = NULLIF($3, '') WHERE id = $1", id, rows, reason)
	if err == nil {
		_, err = q.Exec(ctx, "DELETE FROM "+table+" WHERE done_at < pg_catalog.now() - interval '1 day'")
	}
	if err != nil {
		return fmt.Errorf("finish request %d: %w", id, err)
	}
	return nil
}
