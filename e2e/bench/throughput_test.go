package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/oracle"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/internal/pgserver"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
	"github.com/mvsync/mvsync/replication"
)

// reader reads a backlog from a slot that it made before.
type reader struct {
	name string
	// goal is the share of the ceiling that it should reach; 0: none.
	goal float64
	// prepare makes the slot, before the first backlog; drain reads up to the position.
	prepare func(t *testing.T, r *rig)
	drain   func(t *testing.T, r *rig, until pglogrepl.LSN, c *clock)
}

// clock measures a reader from the moment at which it begins to read to the one from which on everybody sees all of it.
type clock struct {
	servers []*pgserver.Server
	began   time.Time
	watch   *cpu
	took    time.Duration
	used    map[string]float64
}

func (c *clock) start() {
	c.watch = watchCPU(c.servers...)
	c.began = time.Now()
}

// shown may be called again; the last time counts.
func (c *clock) shown() {
	c.took = time.Since(c.began)
	c.used = c.watch.used()
}

// rig is where one reader is measured: a database of its own, so that no reader has to read what another one wrote.
type rig struct {
	db     *pgtest.DB
	server *pgserver.Server
	other  *pgserver.Server // a second server, for the native subscription
	copyDB *pgtest.DB       // there
	views  []plans.Declaration
}

const native = "native subscription, second server"

var readers = []reader{
	{name: native, prepare: subscribe, drain: applySubscription},
	{name: "mvsync, delta-aggregate", goal: 0.8, prepare: keep(aggregate()), drain: runOnce},
	{name: "mvsync, inverse-projection", prepare: keep(projection()), drain: runOnce},
	{name: "mvsync, both", prepare: keep(aggregate(), projection()), drain: runOnce},
}

// figure is what was measured of one reader and one backlog.
type figure struct {
	ceiling, took time.Duration
	cpu           map[string]float64 // seconds, by role
	ceilingCPU    map[string]float64
}

// share is the speed as a share of the ceiling.
func (f figure) share() float64 { return f.ceiling.Seconds() / f.took.Seconds() }

// busiest is the same by CPU time: what the busiest process needed for the ceiling, beside what it needs here. Where
// others use the machine too, it says more than the clock.
func (f figure) busiest() float64 { return most(f.ceilingCPU) / most(f.cpu) }

func most(used map[string]float64) float64 {
	top := 0.01
	for _, seconds := range used {
		top = max(top, seconds)
	}
	return top
}

// TestThroughput drains two backlogs by each reader, and for each of these by pg_recvlogical to nowhere, just before:
// that is the ceiling of what one slot gives.
func TestThroughput(t *testing.T) {
	server, other := newServer(t), newServer(t)
	rows := [][]string{{"reader, backlog", "ceiling rows/s", "rows/s", "share", "by CPU", "CPU"}}
	shares := map[string][]float64{}
	for _, r := range readers {
		if !strings.Contains(r.name, *only) {
			continue
		}
		rig := &rig{db: pgtest.NewOn(t, server), server: server, other: other}
		rig.db.Exec(t, schema)
		r.prepare(t, rig)
		for _, b := range backlogs {
			f := rig.measure(t, r, b)
			shares[b.name] = append(shares[b.name], f.share())
			rows = append(rows, []string{
				r.name + ", " + b.name, perSecond(f.ceiling), perSecond(f.took),
				fmt.Sprintf("%.2f", f.share()), fmt.Sprintf("%.2f", f.busiest()), "  " + describe(f.cpu),
			})
			if *goals && r.goal > 0 {
				require.GreaterOrEqual(t, f.share(), r.goal, "%s, %s", r.name, b.name)
			}
		}
	}
	t.Logf("%d changes%s", *changes, table(rows))
	if *goals && *only == "" {
		for b, s := range shares {
			require.GreaterOrEqual(t, s[2], s[0], "inverse-projection beside the native subscription, %s", b)
		}
	}
}

func perSecond(d time.Duration) string { return fmt.Sprintf("%.0f", float64(*changes)/d.Seconds()) }

// measure writes the backlog, drains it to nowhere, then by the reader, and compares what that made of it.
func (r *rig) measure(t *testing.T, by reader, b backlog) figure {
	t.Helper()
	if len(r.views) > 0 {
		runOnce(t, r, 0, &clock{}) // so that its slot is past what it wrote itself
	}
	makeSlot(t, r.db, "ceiling")
	until := b.write(t, r.db)
	var f figure
	watch := watchCPU(r.server)
	f.ceiling = receive(t, r, until)
	f.ceilingCPU = watch.end()
	dropSlot(t, r.db, "ceiling")
	stop := profiled(t, by.name+" "+b.name)
	c := &clock{servers: []*pgserver.Server{r.server, r.other}}
	by.drain(t, r, until, c)
	f.took, f.cpu = c.took, c.used
	stop()
	if r.copyDB == nil {
		delete(f.ceilingCPU, "own")
	} else {
		delete(f.cpu, "own")
	}
	r.compare(t)
	return f
}

// profiled writes a CPU profile of this process until the returned function is called.
func profiled(t *testing.T, name string) func() {
	t.Helper()
	if *profile == "" {
		return func() {}
	}
	file, err := os.Create(filepath.Join(*profile, strings.ReplaceAll(strings.ReplaceAll(name, ",", ""), " ", "-")+".pprof"))
	require.NoError(t, err)
	require.NoError(t, pprof.StartCPUProfile(file))
	return func() {
		pprof.StopCPUProfile()
		require.NoError(t, file.Close())
	}
}

// receive drains the slot "ceiling" to nowhere.
func receive(t *testing.T, r *rig, until pglogrepl.LSN) time.Duration {
	t.Helper()
	if len(r.views) == 0 && r.copyDB == nil {
		require.Fail(t, "nothing published")
	}
	cmd := r.server.Command(t.Context(), "pg_recvlogical", "-d", r.db.Name, "-S", "ceiling", "--start", "--no-loop", "-f", os.DevNull,
		"-o", "proto_version=1", "-o", "publication_names=mvsync", "--endpos", until.String())
	var out bytes.Buffer
	cmd.Stderr = &out
	began := time.Now()
	require.NoError(t, cmd.Run(), "pg_recvlogical: %s", &out)
	return time.Since(began)
}

// keep makes the views, and with them the slot and the publication.
func keep(views ...plans.Declaration) func(*testing.T, *rig) {
	return func(t *testing.T, r *rig) {
		r.views = views
		runOnce(t, r, 0, &clock{})
	}
}

// runOnce brings the views to now. Compiling them is no part of what is measured. They are shown from the commit of the round that has all of it: what comes after that,
// until the daemon has ended, is that the server decodes the daemon's own writes, which a subscription's server does not
// have to wait for either.
func runOnce(t *testing.T, r *rig, _ pglogrepl.LSN, c *clock) {
	t.Helper()
	d, err := daemon.Launch(t, r.db, daemon.Options{
		Views: r.views, Unchecked: true, Once: true, Log: &bytes.Buffer{},
		// Enough for all details of the backlog: a reconcile is not what is measured.
		Engine: func(o *maintain.Options) {
			o.Memory = max(o.Memory, int64(*changes)*2048)
			o.Observer = commitClock{o.Observer, c}
		},
		Stream: func(*replication.Options) { c.start() }, // the last that happens before it is opened
	})
	require.NoError(t, err)
	<-d.Done()
	c.watch.end()
	require.NoError(t, d.Err())
	for _, v := range r.views {
		reasons := d.Tally.Reasons(v.Name.String())
		delete(reasons, "create")
		require.Empty(t, reasons, "a reconcile is no measure of maintenance")
	}
}

// commitClock reads the clock at each committed round.
type commitClock struct {
	maintain.Observer
	clock *clock
}

func (c commitClock) RoundCommitted(took time.Duration) {
	c.clock.shown()
	c.Observer.RoundCommitted(took)
}

// subscribe makes a publication, a slot and a subscription that waits on the second server.
func subscribe(t *testing.T, r *rig) {
	r.db.Exec(t, "CREATE PUBLICATION mvsync FOR TABLE request")
	makeSlot(t, r.db, "native")
	r.copyDB = pgtest.NewOn(t, r.other)
	r.copyDB.Exec(t, schema)
	r.copyDB.Exec(t, fmt.Sprintf("CREATE SUBSCRIPTION native CONNECTION '%s' PUBLICATION mvsync WITH (create_slot = false, enabled = false, copy_data = false, slot_name = native)", r.db.URL))
	t.Cleanup(func() { // the test's context has ended
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, r.copyDB.URL)
		require.NoError(t, err)
		defer conn.Close(ctx)
		for _, sql := range []string{"DISABLE", "SET (slot_name = NONE)"} {
			_, err = conn.Exec(ctx, "ALTER SUBSCRIPTION native "+sql)
			require.NoError(t, err)
		}
		_, err = conn.Exec(ctx, "DROP SUBSCRIPTION native")
		require.NoError(t, err)
	})
}

// applySubscription lets the subscription run until it has applied everything.
func applySubscription(t *testing.T, r *rig, until pglogrepl.LSN, c *clock) {
	t.Helper()
	c.start()
	r.copyDB.Exec(t, "ALTER SUBSCRIPTION native ENABLE")
	pgtest.Eventually(t, 10*time.Minute, func() error {
		var done bool
		err := r.copyDB.Pool.QueryRow(t.Context(), "SELECT coalesce(latest_end_lsn >= $1::text::pg_lsn, false) FROM pg_stat_subscription WHERE subname = 'native' AND relid IS NULL",
			until.String()).Scan(&done)
		if err == nil && !done {
			err = fmt.Errorf("not at %s yet", until)
		}
		return err
	})
	c.shown()
	c.watch.end()
	r.copyDB.Exec(t, "ALTER SUBSCRIPTION native DISABLE")
}

// compare asks whether the reader's work is right.
func (r *rig) compare(t *testing.T) {
	t.Helper()
	if r.copyDB != nil {
		const digest = "SELECT count(*) || ' ' || coalesce(sum(id * 31 + ms), 0) FROM request"
		require.Equal(t, r.db.Value(t, digest), r.copyDB.Value(t, digest))
		return
	}
	checker := &oracle.Checker{}
	for _, v := range r.views {
		checker.Views = append(checker.Views, oracle.View{Table: v.Name.String(), Body: v.Query})
	}
	require.NoError(t, checker.CheckNow(t.Context(), r.db.Pool))
}
