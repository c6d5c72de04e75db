package replication

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mvsync/mvsync/ingest"
)

// Identity tells one database cluster, at one point of its history, from all others. Positions and transaction ids of
// one identity mean nothing under another.
type Identity struct {
	SystemID string // of the cluster, kept by physical copies of it
	Timeline int32  // grows when a standby is promoted or a backup restored
}

// String returns both parts, for messages.
func (i Identity) String() string {
	return fmt.Sprintf("system %s timeline %d", i.SystemID, i.Timeline)
}

// Identify asks the server at target, by a replication connection, who it is.
func Identify(ctx context.Context, target *pgconn.Config, session Session) (Identity, error) {
	conn, err := connectReplication(ctx, target, session, 0)
	if err != nil {
		return Identity{}, fmt.Errorf("connect for replication: %w", classifyConnect(err))
	}
	identity, err := identify(ctx, conn)
	return identity, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

func identify(ctx context.Context, conn *pgconn.PgConn) (Identity, error) {
	system, err := pglogrepl.IdentifySystem(ctx, conn)
	if err != nil {
		return Identity{}, fmt.Errorf("identify the server: %w", err)
	}
	return Identity{SystemID: system.SystemID, Timeline: system.Timeline}, nil
}

// walLayout says where page headers stand in the WAL.
type walLayout struct {
	block, segment ingest.LSN // sizes in bytes
}

// The sizes of the headers of a page and of a segment's first page.
const (
	pageHeader    = 24
	segmentHeader = 40
)

// roundDown moves a position that stands just behind a page header to the page's beginning. The server's insert position
// counts a header that is not yet written, while the last record before it ends at the page's beginning: on an idle
// server nothing would ever reach the former.
func (w walLayout) roundDown(lsn ingest.LSN) ingest.LSN {
	switch {
	case w.block == 0 || w.segment == 0:
		return lsn
	case lsn%w.segment == segmentHeader:
		return lsn - segmentHeader
	case lsn%w.block == pageHeader && lsn%w.segment > segmentHeader:
		return lsn - pageHeader
	}
	return lsn
}

// serverFacts is what a new connection finds.
type serverFacts struct {
	identity      Identity
	inRecovery    bool
	senderTimeout time.Duration // 0: none
	layout        walLayout
	syncStandbys  string
	confirmed     ingest.LSN // the slot's, 0 if there is no such slot
}

// readServer asks on the replication connection itself, so that the answers are those of the server that will stream.
func readServer(ctx context.Context, conn *pgconn.PgConn, slot string) (serverFacts, error) {
	var facts serverFacts
	var err error
	if facts.identity, err = identify(ctx, conn); err != nil {
		return facts, err
	}
	row, err := simple(ctx, conn, `
SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('synchronous_standby_names'),
       (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'),
       (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_block_size'),
       (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_segment_size'),
       coalesce((SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = `+quoteText(slot)+`), '0/0')`)
	if err != nil {
		return facts, err
	}
	if len(row) != 6 {
		return facts, errors.New("the server did not answer")
	}
	facts.inRecovery, facts.syncStandbys = row[0] == "t", row[1]
	numbers := make([]uint64, 3)
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(row[2+i], 10, 63); err != nil {
			return facts, fmt.Errorf("read the server's settings: %w", err)
		}
	}
	facts.senderTimeout = time.Duration(numbers[0]) * time.Millisecond
	facts.layout = walLayout{block: ingest.LSN(numbers[1]), segment: ingest.LSN(numbers[2])}
	facts.confirmed, err = pglogrepl.ParseLSN(row[5])
	return facts, err
}
