package minimal

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/oracle"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/maintain"
)

// Recorder keeps what is needed to see a failure again.
type Recorder struct {
	t      testing.TB
	schema []string       // statements that make the tables
	daemon daemon.Options // as the test has them

	mu sync.Mutex // guards what follows
	// sources are the rows before pending, by table.
	sources tables
	// pending are the transactions that some view has not been right with, in commit order.
	pending []transaction
	// exact is the snapshot at which each view was last right.
	exact map[string]ingest.Snapshot
	// failed is the first view found wrong, since its last right snapshot until the next.
	failed       string
	since, until ingest.Snapshot
}

// transaction is what the stream delivered of one.
type transaction struct {
	xid     uint32
	changes []*ingest.Change
}

// Record reads the tables of schema public, which the given statements have made. Nobody may write them until the daemon
// runs, and the daemon must not have made its own tables yet.
func Record(t testing.TB, db *pgtest.DB, schema string) *Recorder {
	t.Helper()
	return &Recorder{
		t: t, schema: append(split(schema), identities(t, db)...),
		sources: readTables(t, db), exact: map[string]ingest.Snapshot{},
	}
}

// Watch makes the options of a daemon such that the recorder hears what it receives and how its rounds come out.
func (r *Recorder) Watch(o daemon.Options) daemon.Options {
	r.daemon = o
	inner := o.Wrap
	o.Wrap = func(s maintain.Stream) maintain.Stream {
		s = tap{s, r}
		if inner != nil {
			s = inner(s)
		}
		return s
	}
	o.Judged = r.judged
	return o
}

// tap shows the recorder what a stream hands over.
type tap struct {
	maintain.Stream
	r *Recorder
}

func (s tap) Take() []*ingest.Transaction {
	taken := s.Stream.Take()
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.r.failed != "" {
		return taken // nothing later matters
	}
	for _, tx := range taken {
		kept := transaction{xid: tx.XID}
		for c, err := range tx.Changes.All() {
			if err != nil {
				s.r.t.Errorf("record a transaction: %v", err)
				break
			}
			kept.changes = append(kept.changes, c)
		}
		s.r.pending = append(s.r.pending, kept)
	}
	return taken
}

// judged hears of a round that committed.
func (r *Recorder) judged(views []maintain.Checked, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != "" {
		return
	}
	wrong := map[string]bool{}
	if m, ok := errors.AsType[*oracle.Mismatch](err); ok {
		for _, d := range m.Diffs {
			wrong[d.Table] = true
		}
	}
	for _, v := range views {
		name := v.Plan.Name.String()
		if !wrong[name] {
			r.exact[name] = v.Snapshot
		} else if r.failed == "" {
			r.failed, r.since, r.until = name, r.exact[name], v.Snapshot
		}
	}
	if len(r.pending) > often && r.failed == "" {
		r.fold()
	}
}

// often is how many transactions are kept at least before some are folded: each fold looks at all of them.
const often = 256

// fold applies the transactions with which every view was right.
func (r *Recorder) fold() {
	if len(r.exact) < len(r.daemon.Views) {
		return
	}
	r.pending = slices.DeleteFunc(r.pending, func(tx transaction) bool {
		for _, s := range r.exact {
			if !s.Contains(s.Widen(tx.xid)) {
				return false
			}
		}
		// One that is not applied yet changed other rows: two that change the same are visible in the order of their commits.
		r.sources.apply(tx)
		return true
	})
}
