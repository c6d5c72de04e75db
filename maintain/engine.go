package maintain

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/plans"
)

// Options set up an [Engine].
type Options struct {
	Views   []plans.Declaration
	Planner plans.Options
	// Storage, Indexes and Grants of the backing tables, by view.
	Tables map[plans.Name]TableOptions

	Slot        string
	Publication string
	Catalog     string        // schema of mvsync's own tables
	Interval    time.Duration // at least this long between rounds
	Memory      int64         // bytes, for pending changes
	VerifyEvery time.Duration // continuous audit: one view each interval; 0: off
	ByGap       GapPolicy
	// Degrade evaluates the body as a whole where the touched keys of a batch would
	// cost more.
	Degrade bool

	// Connect opens a session with the pinned settings. What it is for shows in
	// its application_name.
	Connect  func(ctx context.Context, purpose string) (*pgx.Conn, error)
	Publish  Publisher
	Observer Observer
	Log      *slog.Logger
	// Check, for tests, is called in each round after all views were maintained and
	// before COMMIT, with the session in which the round runs.
	Check func(ctx context.Context, conn *pgx.Conn, views []Checked) error
	// Ahead, for tests, is called after a part of a view's changes was merged while its
	// round still waited for the stream; PartRows is how many rows make a part.
	Ahead    func(view string, part *ingest.Images)
	PartRows int
}

// TableOptions are what a declaration says of a backing table.
type TableOptions struct {
	Indexes []string
	Storage map[string]string
	Grants  []string // roles that may SELECT
}

// GapPolicy says what to do where the stream has a hole.
type GapPolicy int

// The policies for a gap.
const (
	Reconcile GapPolicy = iota // a new slot, and every view is reconciled
	Halt                       // stop and say so
)

// Checked is a view that a round has maintained, for [Options].Check.
type Checked struct {
	Name     string // the backing table, quoted, with schema
	Plan     *plans.Plan
	Snapshot ingest.Snapshot
}

// Engine runs the rounds. Make it with [New], then call [Engine.Prepare],
// [Engine.Lead], [Engine.Begin] and [Engine.Run] in this order from one goroutine. [Engine.Status]
// may be called at any time from anywhere.
type Engine struct {
	o       Options
	log     *slog.Logger
	observe Observer
	host    *backing.Host

	leads bool      // this process holds the leader's lock
	main  *pgx.Conn // rounds
	side  *pgx.Conn // everything that must not be part of a round

	stream     Stream
	views      []*view // accepted, producers first
	refused    []Refused
	batch      *ingest.Batch
	watch      watch
	known      fingerprint // what the plans were compiled against
	facts      *plans.Facts
	rewatchDue bool // a producer's table was made: it is not watched yet

	server      server
	lockTimeout time.Duration

	newest    asOf            // of the last committed round
	recorded  ingest.Snapshot // of the progress row, as far as this process knows
	gapped    ingest.Snapshot // of a progress row from which the stream does not go on; zero: none
	reached   ingest.LSN      // L of the last committed round
	lastRound time.Time       // when it committed
	confirm   confirmation
	waiters   bool              // somebody waits in mvsync.wait
	carry     time.Duration     // pause before carry-overs are looked at again
	walEnd    ingest.LSN        // the server's insert position when last asked
	drain     drain             // catching up
	pauses    map[string]int    // attempts, by reason of retry
	looked    time.Time         // when the present snapshot was last asked for
	polled    time.Time         // when requests and waiters were last looked for
	compared  time.Time         // when the catalog was last compared
	staleNext int               // index of the stale view that was compiled last
	requests  []backing.Request // to refresh, taken and not finished

	persist bool             // states changed that the catalog does not show yet
	session *backing.Session // over main

	audit auditor

	mu     sync.Mutex
	status Status // guarded by mu
}

// confirmation is a position that may be confirmed once the stream has passed the
// commit of the round that recorded it: before that a crash would leave the slot
// ahead of the progress row.
type confirmation struct {
	position ingest.LSN
	after    ingest.LSN // 0: not known yet
}

// Refused is a declared view that is not kept.
type Refused struct {
	Name    string // quoted, with schema
	Refusal *plans.Refusal
}

// New returns an engine that has not touched the database yet.
func New(o Options) *Engine {
	o.Catalog = cmp.Or(o.Catalog, "mvsync")
	o.PartRows = cmp.Or(o.PartRows, partRows)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{o: o, log: o.Log, observe: o.Observer, pauses: map[string]int{}}
	e.host = backing.New(o.Log, backing.Options{Catalog: o.Catalog, Slot: o.Slot})
	if e.observe == nil {
		e.observe = silent{}
	}
	e.batch = ingest.NewBatch(o.Memory, func(m *ingest.Member) {
		for _, v := range e.views {
			if v.member == m {
				e.log.Warn("pending changes exceed the memory budget; the view will be reconciled", "view", v.name)
			}
		}
	})
	return e
}

// Refused lists the views that [Engine.Prepare] refused.
func (e *Engine) Refused() []Refused { return slices.Clone(e.refused) }

// Plans lists the plans of the accepted views, producers first.
func (e *Engine) Plans() []*plans.Plan {
	out := make([]*plans.Plan, len(e.views))
	for i, v := range e.views {
		out[i] = v.plan
	}
	return out
}

// Sources lists the tables that the accepted views read, to be published.
func (e *Engine) Sources() []uint32 {
	var out []uint32
	for _, v := range e.views {
		for i := range v.plan.Sources {
			if s := &v.plan.Sources[i]; !s.Producer && !s.External {
				out = append(out, s.OID)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Run runs rounds until the context ends, then finishes the round in hand,
// confirms and returns nil. An error means that the daemon cannot go on: it says
// what to do.
func (e *Engine) Run(ctx context.Context, stream Stream) error {
	e.stream = stream
	defer e.Close(ctx)
	for {
		if err := e.wait(ctx); err != nil {
			return e.stopped(ctx, err)
		}
		if err := e.attempt(ctx); err != nil {
			return e.stopped(ctx, err)
		}
	}
}

// RunOnce brings every view to the moment of the call, then returns.
func (e *Engine) RunOnce(ctx context.Context, stream Stream) error {
	e.stream = stream
	defer e.Close(ctx)
	var target ingest.Snapshot
	for {
		look, err := e.look(ctx)
		if err != nil {
			return err
		}
		if target.IsZero() {
			target = look.snapshot
		}
		if e.newest.snapshot.Covers(target) && !e.unsettled() {
			return e.stopped(ctx, nil)
		}
		if err := e.near(ctx); err != nil {
			return err
		}
		if err := e.attempt(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(carryFirst): // a transaction that is not visible yet
		}
	}
}

// unsettled reports whether a view could still move by another round now.
func (e *Engine) unsettled() bool {
	now := time.Now()
	return slices.ContainsFunc(e.views, func(v *view) bool {
		return v.moves(now) && v.due() && (v.state != Failed || v.failures == 0)
	})
}

// silent is the observer of an engine without metrics.
type silent struct{}

func (silent) RoundCommitted(time.Duration)             {}
func (silent) RoundRetried(string)                      {}
func (silent) Maintained(string, string, time.Duration) {}
func (silent) RowsWritten(string, string, int)          {}
func (silent) RowsSuppressed(string, int)               {}
func (silent) ResidualKeys(string, int)                 {}
func (silent) Rebuilt(string, string)                   {}
func (silent) Collisions(string, int)                   {}
func (silent) ViewDeclared(string, string)              {}
func (silent) ViewForgotten(string)                     {}
func (silent) ViewState(string, string)                 {}
func (silent) Verified(string, int)                     {}
func (silent) Gap(string)                               {}
