package round

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

// A round that is far ahead of the stream merges what it knows while the rest arrives.

// slow is a stream that hands out one transaction at a time: so a round has far to go, whatever the machine. The first few transactions wait for as
// many parts to be merged.
type slow struct {
	maintain.Stream
	parts *parts
	paced int // transactions that wait for as many parts
	spare int // transactions that come before, and make none

	mu     sync.Mutex
	queue  []*ingest.Transaction
	at     ingest.LSN
	handed int
}

const paced = 6

func (s *slow) Take() []*ingest.Transaction {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, s.Stream.Take()...)
	if len(s.queue) == 0 || s.parts.total() < min(s.handed-s.spare, s.paced) {
		return nil
	}
	s.handed++
	first := s.queue[:1:1]
	s.queue, s.at = s.queue[1:], first[0].EndLSN
	return first
}

func (s *slow) Position() ingest.LSN {
	at := s.Stream.Position()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, s.Stream.Take()...)
	if len(s.queue) == 0 {
		s.at = at
	}
	return s.at
}

func (s *slow) Barrier(ctx context.Context, lsn ingest.LSN) error {
	if err := s.Stream.Barrier(ctx, lsn); err != nil {
		return err
	}
	if !s.owes(lsn) {
		return nil
	}
	select { // whoever calls again at once would only spin
	case <-ctx.Done():
	case <-time.After(2 * time.Millisecond):
	}
	return maintain.ErrBacklog
}

// owes reports whether a transaction before the position was not handed out yet.
func (s *slow) owes(lsn ingest.LSN) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, s.Stream.Take()...)
	return len(s.queue) > 0 && s.queue[0].FinalLSN < lsn
}

func (s *slow) Rewind() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Stream.Rewind()
	s.queue = nil
}

func newSlow(paced int) *slow { return &slow{parts: &parts{n: map[string]int{}}, paced: paced} }

// parts counts what was merged ahead, by view, and calls on for each part.
type parts struct {
	mu sync.Mutex
	n  map[string]int
	on func(n int, part *ingest.Images)
}

func (p *parts) count(view string, part *ingest.Images) {
	p.mu.Lock()
	p.n[view]++
	p.mu.Unlock()
	if p.on != nil {
		p.on(p.total(), part)
	}
}

func (p *parts) total() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, of := range p.n {
		n += of
	}
	return n
}

func (p *parts) counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.n)
}

const bulk = `CREATE TABLE bulk (id int PRIMARY KEY, v int NOT NULL, w text NOT NULL);
ALTER TABLE bulk REPLICA IDENTITY FULL;
CREATE TABLE plain (w text NOT NULL, id int PRIMARY KEY, v int NOT NULL) PARTITION BY HASH (id);
CREATE TABLE plain_0 PARTITION OF plain FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE plain_1 (v int NOT NULL, w text NOT NULL, id int NOT NULL);
ALTER TABLE plain ATTACH PARTITION plain_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO bulk SELECT g, g % 10, repeat('x', g % 50) FROM generate_series(1, 2000) g;
INSERT INTO plain SELECT w, id, v FROM bulk;`

// Copies of a table as it is, under FULL and under the key alone, and one for which the
// stored rows must be looked at.
var bulkViews = []plans.Declaration{
	daemon.View("copy", `SELECT w, id, v FROM bulk`),
	daemon.View("key_only", `SELECT id, v, w FROM plain`),
	daemon.View("some", `SELECT id, v * 2 AS d, w FROM bulk WHERE v % 3 > 0`),
}

// writeBulk makes transactions of all kinds of changes, several megabytes in all: rows
// come, go, come back, move to other keys, and are there and back again in another one.
// Each changes more rows than make a part.
func writeBulk(t *testing.T, db *pgtest.DB, tables ...string) {
	t.Helper()
	conn := session(t, db, "SET synchronous_commit = off")
	for i := range 12 {
		for _, table := range tables {
			exec(t, conn, fmt.Sprintf(`BEGIN;
				INSERT INTO %[1]s (id, v, w) SELECT g, g %% 10, repeat('y', 100) FROM generate_series(%[2]d, %[2]d + 2999) g;
				UPDATE %[1]s SET v = v + CASE WHEN %[3]d %% 2 = 0 THEN 1 ELSE -1 END WHERE id %% 4 = 0;
				UPDATE %[1]s SET w = w || 'z' WHERE id %% 11 = %[3]d %% 11;
				DELETE FROM %[1]s WHERE id %% 13 = %[3]d %% 13;
				UPDATE %[1]s SET id = 1000000 * (%[3]d + 1) + id WHERE id %% 17 = %[3]d %% 17 AND id < 1000000;
				INSERT INTO %[1]s (id, v, w) SELECT g, 7, 'back' FROM generate_series(%[3]d, 2000, 13) g ON CONFLICT DO NOTHING;
				COMMIT`, table, 2001+3000*i, i))
		}
	}
}

// keepBulk makes the views, has the backlog written while no daemon runs, and starts one
// over a slow stream: its first round has all of the backlog before it.
func keepBulk(t *testing.T, db *pgtest.DB, s *slow, write func(), o daemon.Options) *daemon.Daemon {
	t.Helper()
	keep(t, db, o.Views...).Stop()
	write()
	more := o.Engine
	o.Engine = func(m *maintain.Options) {
		m.PartRows, m.Ahead = 2500, s.parts.count
		if more != nil {
			more(m)
		}
	}
	o.Wrap = func(inner maintain.Stream) maintain.Stream {
		s.Stream = inner
		return s
	}
	return keepWith(t, db, o)
}

// requireMaintained fails where a view was reconciled.
func requireMaintained(t *testing.T, d *daemon.Daemon, views ...plans.Declaration) {
	t.Helper()
	for _, v := range views {
		require.Empty(t, d.Tally.Reasons(v.Name.String()), v.Name)
	}
}

// TestMergesAhead: parts are merged while the stream is on its way, and what comes of it
// is exact. The oracle compares each round.
func TestMergesAhead(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, bulk)
	s := newSlow(paced)
	d := keepBulk(t, db, s, func() { writeBulk(t, db, "bulk", "plain") }, daemon.Options{Views: bulkViews})
	d.Settle(db)
	require.GreaterOrEqual(t, s.parts.total(), paced)
	require.Len(t, s.parts.counts(), len(bulkViews), "%v", s.parts.counts())
	requireMaintained(t, d, bulkViews...)
	require.Empty(t, d.Tally.Retried())
	require.Positive(t, d.Rounds())
}

// TestUndoneRoundKeepsParts: a round that fails after it has merged parts loses nothing,
// and is not evaluated anew: neither where its connection ends, nor where somebody holds
// a row.
func TestUndoneRoundKeepsParts(t *testing.T) {
	t.Parallel()
	t.Run("connection", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		db.Exec(t, bulk)
		s := newSlow(paced)
		var once sync.Once
		s.parts.on = func(n int, _ *ingest.Images) {
			if n >= 3 {
				once.Do(func() { db.Exec(t, "SELECT pg_terminate_backend(pid) FROM mvsync.sessions") })
			}
		}
		d := keepBulk(t, db, s, func() { writeBulk(t, db, "bulk", "plain") }, daemon.Options{Views: bulkViews})
		d.Settle(db)
		requireMaintained(t, d, bulkViews...)
		require.Equal(t, map[string]int{"connection": 1}, d.Tally.Retried())
	})
	t.Run("row lock", func(t *testing.T) {
		t.Parallel()
		db := own(t, nil)
		db.Exec(t, bulk)
		s := newSlow(paced)
		holder := session(t, db, "SELECT")
		d := keepBulk(t, db, s, func() {
			writeBulk(t, db, "bulk", "plain")
			// The seventh transaction is the first to change this row.
			exec(t, holder, "BEGIN; SELECT FROM copy WHERE id = 50 FOR SHARE")
		}, daemon.Options{Views: bulkViews})
		soon(t, "the view sits out", func() bool { return d.Tally.Retried()["view"] > 0 })
		require.Positive(t, s.parts.counts()["public.copy"], "parts were merged, and taken back")
		exec(t, holder, "COMMIT")
		d.Settle(db)
		requireMaintained(t, d, bulkViews...)
	})
}

// TestPartsHoldOnlyWhatIsVisible: a transaction whose commit is in the log and that is
// not visible in the round's snapshot is in no part, though later ones are.
func TestPartsHoldOnlyWhatIsVisible(t *testing.T) {
	t.Parallel()
	db := own(t, nil)
	db.Exec(t, bulk)
	s := newSlow(paced)
	s.spare = 1
	var mu sync.Mutex
	seen := 0
	s.parts.on = func(_ int, part *ingest.Images) {
		mu.Lock()
		defer mu.Unlock()
		part.Each(func(im *ingest.Image) {
			for _, row := range []ingest.Row{im.Old, im.New} {
				if row != nil && row[0].Text() == "999999999" {
					seen++
				}
			}
		})
	}
	only := bulkViews[:1]
	var h *held
	d := keepBulk(t, db, s, func() {
		holdCommits(t, db)
		h = hold(t, db, "INSERT INTO bulk VALUES (999999999, 1, '')")
		writeBulk(t, db, "bulk")
	}, daemon.Options{Views: only})
	d.Settle(db)
	require.GreaterOrEqual(t, s.parts.total(), paced)
	mu.Lock()
	require.Zero(t, seen, "it is not visible")
	mu.Unlock()
	require.Equal(t, "0", db.Value(t, "SELECT count(*) FROM copy WHERE id = 999999999"))
	letGo(t, db)
	h.await(t)
	d.Settle(db)
	require.Equal(t, "1", db.Value(t, "SELECT count(*) FROM copy WHERE id = 999999999"))
	requireMaintained(t, d, only...)
}

// TestReconcileAfterParts: where the details do not fit into the memory any more after
// parts were merged, the view is compared with its body, which mends what they left.
func TestReconcileAfterParts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, bulk)
	s := newSlow(1)
	d := keepBulk(t, db, s, func() { writeBulk(t, db, "bulk") }, daemon.Options{
		Views: bulkViews[:1], Engine: func(o *maintain.Options) { o.Memory = 1 << 20 },
	})
	d.Settle(db)
	require.Positive(t, s.parts.total())
	require.Equal(t, map[string]int{"memory": 1}, d.Tally.Reasons("public.copy"))
}
