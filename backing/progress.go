package backing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/ingest"
)

// Progress is the last committed round, written in that round's own transaction (INV-3).
type Progress struct {
	Snapshot ingest.Snapshot
	LSN      ingest.LSN // the stream from here on is still needed; what may be confirmed to the slot
	At       time.Time  // when it was written, by the clock of the server that holds the backing tables; set by the write
	// SystemIdentifier and Timeline are those of the source: a change is a gap.
	SystemIdentifier string
	Timeline         int64
}

// WriteProgress records the round. It belongs into the transaction that wrote the rows.
func (h *Host) WriteProgress(ctx context.Context, q Querier, p Progress) error {
	_, err := q.Exec(ctx, "INSERT INTO "+h.own("progress")+` AS g (slot, snapshot, lsn, at, system_identifier, timeline)
		VALUES ($1, $2::text::pg_snapshot, $3::text::pg_lsn, pg_catalog.clock_timestamp(), $4, $5)
		ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, lsn = excluded.lsn, at = excluded.at,
		system_identifier = excluded.system_identifier, timeline = excluded.timeline`,
		h.slot, p.Snapshot.String(), p.LSN.String(), p.SystemIdentifier, p.Timeline)
	if err != nil {
		return fmt.Errorf("record progress of slot %s: %w", h.slot, err)
	}
	return nil
}

// ReadProgress returns the last committed round, and false where there is none.
func (h *Host) ReadProgress(ctx context.Context, q Querier) (Progress, bool, error) {
	var p Progress
	var snapshot, lsn string
	err := q.QueryRow(ctx, "SELECT snapshot::text, lsn::text, at, system_identifier, timeline FROM "+h.own("progress")+
		" WHERE slot = $1", h.slot).Scan(&snapshot, &lsn, &p.At, &p.SystemIdentifier, &p.Timeline)
	if errors.Is(err, pgx.ErrNoRows) {
		return Progress{}, false, nil
	}
	if err == nil {
		p.Snapshot, p.LSN, err = parsePosition(snapshot, lsn)
	}
	if err != nil {
		return Progress{}, false, fmt.Errorf("read progress of slot %s: %w", h.slot, err)
	}
	return p, true, nil
}

// ForgetProgress removes the row of the slot, as belongs to a slot that is dropped.
func (h *Host) ForgetProgress(ctx context.Context, q Querier) error {
	if _, err := q.Exec(ctx, "DELETE FROM "+h.own("progress")+" WHERE slot = $1", h.slot); err != nil {
		return fmt.Errorf("forget progress of slot %s: %w", h.slot, err)
	}
	return nil
}

func parsePosition(snapshot, lsn string) (ingest.Snapshot, ingest.LSN, error) {
	s, err := ingest.ParseSnapshot(snapshot)
	if err != nil {
		return ingest.Snapshot{}, 0, err
	}
	l, err := pglogrepl.ParseLSN(lsn)
	return s, l, err
}
