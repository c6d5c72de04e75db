package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/mvsync/mvsync/e2e/oracle"
	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
	"github.com/mvsync/mvsync/replication"
)

// Options say what a test's daemon maintains; Views is required.
type Options struct {
	Views []plans.Declaration
	// Bodies to compare with, by view, where they are not the declared ones: wrong ones
	// must make the harness fail.
	Bodies map[plans.Name]string
	// Unchecked leaves the oracle out.
	Unchecked bool
	// Refused lets the daemon start although views are refused.
	Refused bool
	// Engine and Stream alter what the daemon is made of, before it is.
	Engine func(*maintain.Options)
	Stream func(*replication.Options)
	// Judged is told of each round that committed: which views moved, and what the oracle said of them.
	Judged func(views []maintain.Checked, err error)
	// Wrap replaces the stream that the engine sees, to do it wrong on purpose.
	Wrap func(maintain.Stream) maintain.Stream
	Log  io.Writer // default: the test's log
	// Level leaves out less important lines of the log; default: none.
	Level slog.Level
	// Once makes the engine bring every view to now and end.
	Once bool
	URL  string // default: the database's
}

// Daemon is a running engine with its stream.
type Daemon struct {
	t      testing.TB
	Engine *maintain.Engine
	Stream *replication.Stream
	// Tally counts what the engine did, unless Options.Engine set another observer.
	Tally *Tally

	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error

	rounds     atomic.Int64
	excused    atomic.Bool // what ended it was expected
	mu         sync.Mutex
	mismatches []error
	// found is what the oracle says of the round in hand, and moved what it looked at. It counts once the round has
	// committed: one that a changed definition makes void may well look wrong.
	found error
	moved []maintain.Checked
}

// View declares a view in schema public.
func View(name, query string) plans.Declaration {
	return plans.Declaration{Name: plans.Name{Schema: "public", Name: name}, Query: query}
}

// Start runs a daemon until [Daemon.Stop] or the end of the test. It fails the test
// where the daemon cannot start or ends by itself, or a round is not exact.
func Start(t testing.TB, db *pgtest.DB, o Options) *Daemon {
	t.Helper()
	d, err := Launch(t, db, o)
	require.NoError(t, err)
	t.Cleanup(func() { d.Stop() })
	return d
}

// Keep is Start that returns once all views are live, and leaves all but warnings out of the log.
func Keep(t testing.TB, db *pgtest.DB, o Options) *Daemon {
	t.Helper()
	o.Level = cmp.Or(o.Level, slog.LevelWarn)
	d := Start(t, db, o)
	pgtest.Eventually(t, 2*time.Minute, d.Live)
	return d
}

// Launch is Start that leaves errors of the start to the caller.
func Launch(t testing.TB, db *pgtest.DB, o Options) (*Daemon, error) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(logWriter(t, o.Log), &slog.HandlerOptions{Level: cmp.Or(o.Level, slog.LevelDebug)}))
	if o.URL == "" {
		o.URL = db.URL
	}
	config, err := pgx.ParseConfig(o.URL)
	if err != nil {
		return nil, err
	}
	session := replication.Session{}
	replication.Pin(&config.Config, session)
	d := &Daemon{t: t, done: make(chan struct{}), Tally: &Tally{}}
	ctx, cancel := context.WithCancelCause(context.Background())
	d.cancel = cancel

	target := replication.Target{Source: config, Session: session, Slot: slotOf(db), Publication: "mvsync"}
	mo := maintain.Options{
		Views: o.Views, Slot: target.Slot, Publication: target.Publication, Memory: 256 << 20, Log: log,
		Connect: func(ctx context.Context, _ string) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, config.Copy()) },
	}
	mo.Publish = publisher{connect: mo.Connect, publication: replication.Publication{Name: target.Publication}}
	d.Tally.Observe(&mo)
	if !o.Unchecked {
		mo.Check = d.check(o)
	}
	if o.Engine != nil {
		o.Engine(&mo)
	}
	mo.Observer = judge{mo.Observer, d, o.Judged}
	d.Engine = maintain.New(mo)
	if err := d.begin(ctx, o, target, log); err != nil {
		d.Engine.Close(ctx)
		cancel(nil)
		return nil, err
	}
	so := replication.Options{Source: config, Session: session, Slot: target.Slot, Publication: target.Publication}
	if o.Stream != nil {
		o.Stream(&so)
	}
	d.Stream = replication.New(so, log)
	go d.run(ctx, o)
	return d, nil
}

// slotOf names a slot of the database's own: slots belong to the whole server.
func slotOf(db *pgtest.DB) string { return "s_" + db.Name }

func (d *Daemon) begin(ctx context.Context, o Options, target replication.Target, log *slog.Logger) error {
	if _, err := d.Engine.Prepare(ctx); err != nil {
		return err
	}
	if refused := d.Engine.Refused(); len(refused) > 0 && !o.Refused {
		r := refused[0]
		return fmt.Errorf("view %s is refused: %w", r.Name, r.Refusal)
	}
	if err := d.Engine.Lead(ctx); err != nil {
		return err
	}
	made, gap, err := provision(ctx, target, d.Engine.Sources(), log)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, target.Source.Copy())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	slot, err := replication.Slot{Name: target.Slot}.State(ctx, conn)
	if err != nil {
		return err
	}
	return d.Engine.Begin(ctx, maintain.Origin{
		SystemID: made.Identity.SystemID, Timeline: made.Identity.Timeline,
		New: made.SlotCreated, Confirmed: slot.ConfirmedFlush, Gap: gap,
	})
}

// provision makes what the stream needs; an invalidated slot is dropped and made anew.
func provision(ctx context.Context, target replication.Target, tables []uint32, log *slog.Logger) (replication.Provisioned, string, error) {
	made, err := replication.Provision(ctx, target, tables, log)
	if !errors.Is(err, replication.ErrSlotLost) {
		return made, "", err
	}
	drop := target
	drop.Publication = ""
	if err := replication.Teardown(ctx, drop, func(string) {}); err != nil {
		return made, "", err
	}
	made, err = replication.Provision(ctx, target, tables, log)
	return made, "invalidated", err
}

func (d *Daemon) run(ctx context.Context, o Options) {
	defer close(d.done)
	group, ctx := errgroup.WithContext(ctx)
	streamCtx, stopStream := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		if err := d.Stream.Run(streamCtx); streamCtx.Err() == nil {
			return fmt.Errorf("stream: %w", err)
		}
		return nil // it was told to end
	})
	group.Go(func() error {
		defer stopStream() // the engine's last confirmation still needs it
		stream := Adapt(d.Stream)
		if o.Wrap != nil {
			stream = o.Wrap(stream)
		}
		if o.Once {
			return d.Engine.RunOnce(ctx, stream)
		}
		return d.Engine.Run(ctx, stream)
	})
	d.err = group.Wait()
}

// Stop ends the daemon as a signal would, and fails the test where it had failed or
// a round was not exact.
func (d *Daemon) Stop() {
	d.t.Helper()
	d.cancel(nil)
	d.Join()
}

// Quit ends the daemon whatever it found or ended it: a negative test has seen that.
func (d *Daemon) Quit() {
	d.t.Helper()
	d.cancel(nil)
	select {
	case <-d.done:
	case <-time.After(60 * time.Second):
		d.t.Fatal("the daemon does not end")
	}
	d.Excuse()
	d.excused.Store(true)
}

// Join waits for the daemon to end by itself.
func (d *Daemon) Join() {
	d.t.Helper()
	select {
	case <-d.done:
	case <-time.After(60 * time.Second):
		d.t.Fatal("the daemon does not end")
	}
	if d.err != nil && !errors.Is(d.err, context.Canceled) && !d.excused.Load() {
		d.t.Errorf("the daemon failed: %v", d.err)
	}
	for _, err := range d.Mismatches() {
		d.t.Errorf("not exact: %v", err)
	}
}

// Err is what ended the daemon; it blocks until it has.
func (d *Daemon) Err() error {
	<-d.done
	return d.err
}

// Done is closed when the daemon has ended.
func (d *Daemon) Done() <-chan struct{} { return d.done }

// Rounds is how many rounds were checked.
func (d *Daemon) Rounds() int64 { return d.rounds.Load() }

// Reach waits until so many rounds were checked. The error says that the daemon ended,
// that a round was not exact, or that the time was over.
func (d *Daemon) Reach(rounds int64, limit time.Duration) error {
	d.t.Helper()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if wrong := d.Mismatches(); len(wrong) > 0 {
			return wrong[0]
		}
		if d.Rounds() >= rounds {
			return nil
		}
		select {
		case <-tick.C:
		case <-d.done:
			return fmt.Errorf("the daemon ended after %d rounds: %w", d.Rounds(), d.err)
		case <-timeout.C:
			return fmt.Errorf("only %d of %d rounds after %s", d.Rounds(), rounds, limit)
		}
	}
}

// View returns the status of a view in schema public.
func (d *Daemon) View(name string) maintain.ViewStatus {
	d.t.Helper()
	for _, v := range d.Engine.Status().Views {
		if v.Name == (plans.Name{Schema: "public", Name: name}).String() {
			return v
		}
	}
	d.t.Fatalf("the daemon keeps no view named %s", name)
	return maintain.ViewStatus{}
}

// Live says which views are not live, and why.
func (d *Daemon) Live() error {
	views := d.Engine.Status().Views
	var not []string
	for _, v := range views {
		if v.State != maintain.Live {
			not = append(not, fmt.Sprintf("%s is %s: %v", v.Name, v.State, v.Err))
		}
	}
	if len(views) == 0 || len(not) > 0 {
		return fmt.Errorf("of %d views: %s", len(views), strings.Join(not, "; "))
	}
	return nil
}

// Settle waits until the live views include everything committed so far, and the daemon has counted the rounds that did
// it: a round is durable a moment before.
func (d *Daemon) Settle(db *pgtest.DB) {
	d.t.Helper()
	require.Equal(d.t, "t", db.Value(d.t, "SELECT mvsync.wait('300s')"))
	durable, err := strconv.ParseUint(db.Value(d.t, "SELECT coalesce((SELECT pg_snapshot_xmax(as_of) FROM mvsync.views WHERE state = 'live' ORDER BY 1 DESC NULLS LAST LIMIT 1), '0')"), 10, 64)
	require.NoError(d.t, err)
	pgtest.Eventually(d.t, time.Minute, func() error {
		if counted := d.Engine.Status().Newest.Xmax; counted < durable {
			return fmt.Errorf("a round up to %d is durable, counted up to %d", durable, counted)
		}
		return nil
	})
}

// Mismatches are the failures of the oracle so far.
func (d *Daemon) Mismatches() []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]error(nil), d.mismatches...)
}

// Excuse forgets the failures of the oracle: a negative test has seen them.
func (d *Daemon) Excuse() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mismatches = nil
}

// check compares every view that moved with its body, in the round's own snapshot.
func (d *Daemon) check(o Options) func(context.Context, *pgx.Conn, []maintain.Checked) error {
	bodies := map[plans.Name]string{}
	for _, v := range o.Views {
		bodies[v.Name] = v.Query
	}
	for name, body := range o.Bodies {
		bodies[name] = body
	}
	c := &oracle.Checker{}
	return func(ctx context.Context, conn *pgx.Conn, views []maintain.Checked) error {
		c.Views = c.Views[:0]
		for _, v := range views {
			if v.Plan.Nondeterministic {
				continue
			}
			c.Views = append(c.Views, oracle.View{Table: v.Name, Body: bodies[v.Plan.Name], Options: OracleOptions(v.Plan)})
		}
		d.rounds.Add(1)
		err := c.Check(ctx, savepoint{conn: conn})
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == pgerrcode.QueryCanceled {
			return err // the round gives way to somebody, or its session was ended
		}
		if err != nil {
			err = fmt.Errorf("round %d at %s: %w", d.rounds.Load(), snapshotOf(views), err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.found, d.moved = err, slices.Clone(views)
		return nil
	}
}

// judge takes the oracle's findings over when their round commits.
type judge struct {
	maintain.Observer
	d    *Daemon
	tell func([]maintain.Checked, error) // may be nil
}

func (j judge) RoundCommitted(took time.Duration) {
	j.d.mu.Lock()
	found, moved := j.d.found, j.d.moved
	j.d.found, j.d.moved = nil, nil
	if found != nil {
		j.d.mismatches = append(j.d.mismatches, found)
	}
	j.d.mu.Unlock()
	if j.tell != nil {
		j.tell(moved, found)
	}
	j.Observer.RoundCommitted(took)
}

func snapshotOf(views []maintain.Checked) string {
	if len(views) == 0 {
		return "?"
	}
	return views[0].Snapshot.String()
}

// OracleOptions says how a plan's view is to be compared.
func OracleOptions(p *plans.Plan) oracle.Options {
	o := oracle.Options{Coarsened: len(p.Coarsened) > 0}
	for _, k := range p.Key {
		o.Key = append(o.Key, p.Columns[k].Name)
	}
	for _, c := range p.Columns {
		switch c.Dependent {
		case plans.Representative:
			o.Representative = append(o.Representative, c.Name)
		case plans.Float:
			o.Float = append(o.Float, c.Name)
		case plans.Exact:
		}
	}
	return o
}

// publisher publishes what an engine asks for.
type publisher struct {
	connect     func(context.Context, string) (*pgx.Conn, error)
	publication replication.Publication
}

func (p publisher) Ensure(ctx context.Context, tables []uint32) (bool, error) {
	conn, err := p.connect(ctx, "publication")
	if err != nil {
		return false, err
	}
	defer conn.Close(ctx)
	m, err := p.publication.Ensure(ctx, conn, tables)
	return m.Changed(), err
}

// adapter makes a replication stream one of the engine's.
type adapter struct{ *replication.Stream }

// Adapt makes a replication stream one of the engine's.
func Adapt(s *replication.Stream) maintain.Stream { return adapter{s} }

func (a adapter) Barrier(ctx context.Context, lsn ingest.LSN) error {
	err := a.Stream.Barrier(ctx, lsn)
	switch {
	case errors.Is(err, replication.ErrBarrierTimeout):
		return errors.Join(maintain.ErrBarrier, err)
	case errors.Is(err, replication.ErrBacklog):
		return errors.Join(maintain.ErrBacklog, err)
	}
	return err
}
