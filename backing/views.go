package backing

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/ingest"
)

// State is a view's state, in the words of mvsync.views and the metrics.
type State string

// The states of a view.
const (
	Filling State = "filling"
	Live    State = "live"
	Paused  State = "paused"
	Stale   State = "stale"
	Failed  State = "failed"
	Refused State = "refused"
)

// AsOf is the snapshot whose body a view holds.
type AsOf struct {
	Snapshot ingest.Snapshot
	LSN      ingest.LSN
	Time     time.Time
}

// View is a view's row in the catalog.
type View struct {
	ID    int64
	Name  Name
	Label string // quote_ident(schema).quote_ident(name); set by reads
	State State
	// Error says why the view is not live. It may hold values of rows (INV-12).
	Error    string
	Strategy string
	// Estimate is what a round was expected to cost when the strategy was chosen, 0 where there was no choice.
	Estimate float64
	Key      []string
	Query    string // as declared
	Body     string // as Postgres prints it
	Hash     string
	// Fingerprint is what the catalog of Postgres said of everything that the view depends on.
	Fingerprint string
	// AsOf is the view's own as-of, nil while it follows the progress row.
	AsOf *AsOf
	// Confirm is the position from which on the stream is still needed by the view; 0 while it follows the progress row.
	Confirm    ingest.LSN
	Collisions int64
	Table      uint32 // oid of the backing table, 0 before it is made
	Slot       string // whose progress row it follows; set by reads
}

// AddView adds the view's row, in its state, and sets v.ID.
func (h *Host) AddView(ctx context.Context, q Querier, v *View) error {
	err := q.QueryRow(ctx, "INSERT INTO "+h.own("view")+` (schema, name, state, slot) VALUES ($1, $2, $3, $4) RETURNING id`,
		v.Name.Schema, v.Name.Name, string(v.State), h.slot).Scan(&v.ID)
	if err != nil {
		return fmt.Errorf("add view %s to the catalog: %w", v.Name, err)
	}
	return h.SaveView(ctx, q, v)
}

// SaveView writes all of the view's row but its name, collisions and table.
func (h *Host) SaveView(ctx context.Context, q Querier, v *View) error {
	return h.updateView(ctx, q, v.ID, `state = $2, error = NULLIF($3, ''), strategy = $4, key_columns = COALESCE($5, '{}'::text[]),
		query = $6, canonical = $7, query_hash = $8, as_of = $9::text::pg_snapshot, as_of_lsn = $10::text::pg_lsn, as_of_time = $11,
		confirm_lsn = $12::text::pg_lsn, slot = $13, fingerprint = $14, estimate = NULLIF($15, 0)`,
		append([]any{string(v.State), v.Error, v.Strategy, v.Key, v.Query, v.Body, v.Hash}, append(position(v.AsOf, v.Confirm), h.slot, v.Fingerprint, v.Estimate)...)...)
}

// SetState changes the view's state; reason says why it is not live.
func (h *Host) SetState(ctx context.Context, q Querier, id int64, state State, reason string) error {
	return h.updateView(ctx, q, id, "state = $2, error = NULLIF($3, '')", string(state), reason)
}

// SetAsOf gives the view an as-of of its own with the position from which on it needs the stream; nil makes it follow the
// progress row of the host's slot.
func (h *Host) SetAsOf(ctx context.Context, q Querier, id int64, asOf *AsOf, confirm ingest.LSN) error {
	return h.updateView(ctx, q, id, `as_of = $2::text::pg_snapshot, as_of_lsn = $3::text::pg_lsn, as_of_time = $4,
		confirm_lsn = $5::text::pg_lsn, slot = $6`, append(position(asOf, confirm), h.slot)...)
}

// position returns the arguments for the as-of columns and confirm_lsn.
func position(asOf *AsOf, confirm ingest.LSN) []any {
	out := []any{nil, nil, nil, nil}
	if asOf != nil {
		out = []any{asOf.Snapshot.String(), asOf.LSN.String(), asOf.Time, nil}
	}
	if confirm != 0 {
		out[3] = confirm.String()
	}
	return out
}

func (h *Host) updateView(ctx context.Context, q Querier, id int64, sets string, args ...any) error {
	tag, err := q.Exec(ctx, "UPDATE "+h.own("view")+" SET changed_at = pg_catalog.clock_timestamp(), "+sets+" WHERE id = $1",
		append([]any{id}, args...)...)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNoView
	}
	if err != nil {
		return fmt.Errorf("update view %d in the catalog: %w", id, err)
	}
	return nil
}

// ForgetView removes the view's row, its collisions and its requests. Its tables are not touched.
func (h *Host) ForgetView(ctx context.Context, q Querier, id int64) error {
	if _, err := q.Exec(ctx, "DELETE FROM "+h.own("view")+" WHERE id = $1", id); err != nil {
		return fmt.Errorf("forget view %d: %w", id, err)
	}
	return nil
}

// Views returns all views by name. The catalog may be an older one, which lacks the newer columns.
func (h *Host) Views(ctx context.Context, q Querier) ([]View, error) {
	rows, err := q.Query(ctx, `SELECT id, schema, name, quote_ident(schema) || '.' || quote_ident(name), state, COALESCE(error, ''),
		strategy, key_columns, query, canonical, query_hash, as_of::text, as_of_lsn::text, as_of_time, confirm_lsn::text,
		collisions, COALESCE(relid, 0), slot, fingerprint, COALESCE((to_jsonb(v) ->> 'estimate')::float8, 0) FROM `+h.own("view")+" v ORDER BY schema, name")
	if err != nil {
		return nil, fmt.Errorf("read the views: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanView)
	if err != nil {
		return nil, fmt.Errorf("read the views: %w", err)
	}
	return out, nil
}

func scanView(row pgx.CollectableRow) (View, error) {
	var v View
	var snapshot, lsn, confirm *string
	var at *time.Time
	err := row.Scan(&v.ID, &v.Name.Schema, &v.Name.Name, &v.Label, &v.State, &v.Error, &v.Strategy, &v.Key, &v.Query, &v.Body,
		&v.Hash, &snapshot, &lsn, &at, &confirm, &v.Collisions, &v.Table, &v.Slot, &v.Fingerprint, &v.Estimate)
	if err != nil {
		return v, err
	}
	if snapshot != nil && lsn != nil && at != nil {
		v.AsOf = &AsOf{Time: *at}
		if v.AsOf.Snapshot, v.AsOf.LSN, err = parsePosition(*snapshot, *lsn); err != nil {
			return v, err
		}
	}
	if confirm != nil {
		v.Confirm, err = pglogrepl.ParseLSN(*confirm)
	}
	return v, err
}

// Collision is one merge of a coarsened key: a source row's change that replaced another source row's image. The rows are
// JSON texts.
type Collision struct {
	Key      string
	Weakened []string
	Old, New string
	At       time.Time
}

// keptCollisions is how many collisions a view keeps.
const keptCollisions = 10_000

// AddCollisions counts collisions of a view and keeps the newest; total may be more than are given.
func (h *Host) AddCollisions(ctx context.Context, q Querier, view, total int64, newest []Collision) error {
	if err := h.updateView(ctx, q, view, "collisions = collisions + $2", total); err != nil {
		return err
	}
	newest = newest[max(0, len(newest)-keptCollisions):]
	table := h.own("collision")
	for _, c := range newest {
		_, err := q.Exec(ctx, "INSERT INTO "+table+` (view_id, key, weakened_columns, old_row, new_row, at)
			VALUES ($1, $2::text::jsonb, COALESCE($3, '{}'::text[]), NULLIF($4, '')::jsonb, NULLIF($5, '')::jsonb, $6)`,
			view, c.Key, c.Weakened, c.Old, c.New, c.At)
		if err != nil {
			return fmt.Errorf("record a collision of view %d: %w", view, err)
		}
	}
	_, err := q.Exec(ctx, "DELETE FROM "+table+" WHERE view_id = $1 AND id <= (SELECT id FROM "+table+
		" WHERE view_id = $1 ORDER BY id DESC OFFSET $2 LIMIT 1)", view, keptCollisions)
	if err != nil {
		return fmt.Errorf("trim the collisions of view %d: %w", view, err)
	}
	return nil
}
