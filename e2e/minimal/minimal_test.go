package minimal

import (
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/e2e/workload"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var views = []plans.Declaration{
	daemon.View("a1", `select bucket, count(*) as n, sum(p) as s from item group by bucket`),
	daemon.View("v1", `select n, count(*) from a1 group by n`),
	daemon.View("j1", `select f.id, f.dim_id, d.label from fact f join dim d on d.id = f.dim_id`),
	daemon.View("t1", `select id, length(body) as n from txt where d is not null`),
}

// TestShrink: out of a busy workload comes a short script that fails in a database of its own.
func TestShrink(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name         string
		wrong        daemon.Options
		view         string
		transactions int // at most
		rows         int
	}{
		// The harness is told another body: rows alone show it.
		{"another body", daemon.Options{Bodies: map[plans.Name]string{
			{Schema: "public", Name: "a1"}: `select bucket, count(*) as n, sum(p) as s from item where bucket <> 3 or p < 9 group by bucket`,
		}}, "a1", 1, 1},
		// Updates get lost: it takes a row and its update.
		{"lost updates", daemon.Options{Wrap: func(s maintain.Stream) maintain.Stream { return lossy{s, "dim"} }}, "j1", 1, 2},
		{"lost updates below", daemon.Options{Wrap: func(s maintain.Stream) maintain.Stream { return lossy{s, "item"} }}, "a1", 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := provoke(t, tc.wrong)
			c, err := r.Case()
			require.NoError(t, err)
			require.Equal(t, tc.view, c.Views[len(c.Views)-1].Name.Name)
			small := r.Shrink(c, 2*time.Minute)
			require.NotNil(t, small, "it does not fail again:\n%s", c)
			t.Log(small)
			require.LessOrEqual(t, len(small.Transactions), tc.transactions)
			require.LessOrEqual(t, len(strings.Join(small.Changes(), "")), 200)
			require.LessOrEqual(t, len(small.Rows), tc.rows)
			require.NotContains(t, small.Setup(), "txt")
			require.Contains(t, small.Found, tc.view+" differs")
			_, err = config.Parse("mvsync.yaml", []byte(small.Config()), func(string) (string, bool) { return "", false })
			require.NoError(t, err)
			// What made it wrong is what the script says: without it, it is right.
			r.daemon.Bodies, r.daemon.Wrap = nil, nil
			require.Empty(t, r.replay(t.Context(), small))
		})
	}
}

// provoke runs writers until a round is wrong.
func provoke(t *testing.T, o daemon.Options) *Recorder {
	t.Helper()
	db := pgtest.New(t)
	conn := db.Conn(t)
	seed := rand.Uint64N(1 << 32)
	t.Logf("seed %d", seed)
	require.NoError(t, workload.Create(t.Context(), conn, map[string]workload.Identity{"*": workload.IdentityFull}))
	require.NoError(t, workload.Seed(t.Context(), conn, workload.Fixtures(), rand.New(rand.NewPCG(seed, 0))))
	db.Exec(t, "UPDATE item SET p = 0 WHERE bucket = 3") // right at first
	r := Record(t, db, workload.Schema)
	o.Views, o.Log = views, io.Discard
	d := daemon.Keep(t, db, r.Watch(o))
	w := daemon.Write(t, db, workload.Options{Seed: seed, AsyncHalf: true, TwoPhase: true, Pause: 20 * time.Millisecond})
	pgtest.Eventually(t, 2*time.Minute, func() error {
		if _, err := r.Case(); err != nil {
			return errors.Join(err, d.Live())
		}
		return nil
	})
	w.Stop()
	d.Quit()
	return r
}

// lossy is a stream that leaves out the updates of a table.
type lossy struct {
	maintain.Stream
	table string
}

func (s lossy) Take() []*ingest.Transaction {
	taken := s.Stream.Take()
	for i, tx := range taken {
		var kept ingest.List
		for c, err := range tx.Changes.All() {
			if err != nil {
				panic(err) // nothing is on disk here
			}
			if c.Table.Name != s.table || c.Op != ingest.Update {
				kept = append(kept, c)
			}
		}
		less := *tx
		less.Changes = kept
		taken[i] = &less
	}
	return taken
}

// TestFollows: the tables in memory hold, after any workload, what the database does.
func TestFollows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	seed := rand.Uint64N(1 << 32)
	t.Logf("seed %d", seed)
	identities := map[string]workload.Identity{"item": workload.IdentityFull, "txt": workload.IdentityFull}
	require.NoError(t, workload.Create(t.Context(), conn, identities))
	require.NoError(t, workload.Seed(t.Context(), conn, workload.Fixtures(), rand.New(rand.NewPCG(seed, 0))))
	r := Record(t, db, workload.Schema)
	var all []plans.Declaration
	for _, table := range workload.Fixtures().Tables {
		all = append(all, daemon.View("all_"+table.Name, "select * from "+table.Name))
	}
	d := daemon.Keep(t, db, r.Watch(daemon.Options{Views: all}))
	w := daemon.Write(t, db, workload.Options{Seed: seed, Truncate: true, TwoPhase: true, Pause: 5 * time.Millisecond})
	require.NoError(t, d.Reach(d.Rounds()+60, time.Minute))
	w.Stop()
	d.Settle(db)
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.sources.clone()
	for _, tx := range r.pending {
		got.apply(tx)
	}
	want := readTables(t, db)
	for name := range want {
		if !strings.HasPrefix(name, "all_") {
			require.Equal(t, want[name].rows, got[name].rows, name)
		}
	}
}

// TestNeeded: of a schema, what a body reads is kept, in whatever statements that is made.
func TestNeeded(t *testing.T) {
	t.Parallel()
	schema := split(workload.Schema + `
CREATE VIEW seen AS SELECT i.pk FROM item i;
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (more text, PRIMARY KEY (id)) INHERITS (parent);
ALTER TABLE part_south REPLICA IDENTITY FULL;
`)
	for body, relations := range map[string]string{
		"select * from item": "1", "select * from seen": "2", "select * from fact": "2", "select * from loose": "1",
		"select * from parent": "2", "select * from part": "4", "select count(*) from tag": "1",
	} {
		db := pgtest.New(t)
		kept, _ := needed(schema, []string{body})
		db.Exec(t, strings.Join(kept, ";\n"))
		db.Query(t, body)
		require.Equal(t, relations, db.Value(t, "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')"), body)
	}
}
