package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// Options says what a workload does. The zero value is four writers over all fixtures with seed 0, until stopped.
type Options struct {
	// Spec is what is changed (default: [Fixtures]); Tables narrows it to the named tables.
	Spec   Spec
	Tables []string
	// Writers is the number of concurrent writers (default 4), each with a connection of its own.
	Writers int
	// Seed makes the transactions of each writer.
	Seed uint64
	// Weights says how often each kind of change happens (default: [DefaultWeights]).
	Weights Weights
	// AsyncHalf makes every second writer commit with synchronous_commit off.
	AsyncHalf bool
	// Truncate allows TRUNCATE, and TwoPhase PREPARE TRANSACTION.
	Truncate, TwoPhase bool
	// Transactions ends each writer after as many, and Duration the run after that time; zero means no end.
	Transactions int
	Duration     time.Duration
	// Pause is the time that a writer waits between transactions (default: none).
	Pause time.Duration
	// LockTimeout bounds each wait for a lock (default: two seconds).
	LockTimeout time.Duration
	// DeadlockTimeout is the time after which a waiting writer looks for a deadlock (default: 20 ms, since writers over small
	// key spaces deadlock all the time, and a second each would leave them idle). It needs a superuser; others keep the
	// server's setting.
	DeadlockTimeout time.Duration
	// Expected are SQLSTATEs that count as part of the workload, beyond those that always do, such as "42703" (undefined
	// column) while a test alters the tables.
	Expected []string
	// Reconnect makes writers live through lost connections and servers that are down.
	Reconnect bool
	// Journal is the number of transactions that each writer keeps for [Workload.Journal].
	Journal int
}

// Workload is a running, or to be run, set of writers. Its methods may be called concurrently.
type Workload struct {
	pool *pgxpool.Pool
	opts Options
	stop func() // closes stopped, once
	// stopped is closed when writers should end after their current transaction.
	stopped chan struct{}

	// mu guards what follows.
	mu       sync.Mutex
	counters Counters
	journals []ring
	order    int64
	// changed is closed and replaced whenever the counters have changed.
	changed chan struct{}
}

// New returns a workload on the pool's database, which must hold the tables of the spec. The pool must have a
// connection for each writer.
func New(pool *pgxpool.Pool, opts Options) (*Workload, error) {
	opts, err := opts.resolved()
	if err != nil {
		return nil, fmt.Errorf("make a workload: %w", err)
	}
	if have := int(pool.Config().MaxConns); have < opts.Writers {
		return nil, fmt.Errorf("make a workload: %d writers need as many connections, and the pool has %d", opts.Writers, have)
	}
	w := &Workload{
		pool: pool, opts: opts, stopped: make(chan struct{}), changed: make(chan struct{}),
		counters: newCounters(), journals: make([]ring, opts.Writers),
	}
	w.stop = sync.OnceFunc(func() { close(w.stopped) })
	for i := range w.journals {
		w.journals[i].size = opts.Journal
	}
	return w, nil
}

// Run makes a workload and runs it to its end, which the options must give.
func Run(ctx context.Context, pool *pgxpool.Pool, opts Options) (Counters, error) {
	if opts.Transactions == 0 && opts.Duration == 0 {
		return Counters{}, errors.New("run a workload: neither a number of transactions nor a duration would end it")
	}
	w, err := New(pool, opts)
	if err != nil {
		return Counters{}, err
	}
	err = w.Run(ctx)
	return w.Counters(), err
}

// Generate returns the first n transactions of a writer.
func Generate(opts Options, writer, n int) ([]Transaction, error) {
	opts, err := opts.resolved()
	if err != nil {
		return nil, fmt.Errorf("generate transactions: %w", err)
	}
	g := newGenerator(opts, writer)
	transactions := make([]Transaction, n)
	for i := range transactions {
		transactions[i] = g.next()
	}
	return transactions, nil
}

// Run executes transactions until the options' end, [Workload.Stop], the end of ctx (an error), or an error that is
// not part of a workload. It may be called once.
func (w *Workload) Run(ctx context.Context) error {
	if w.opts.Duration > 0 {
		timer := time.AfterFunc(w.opts.Duration, w.Stop)
		defer timer.Stop()
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range w.opts.Writers {
		group.Go(func() error {
			wr := &writer{w: w, index: i, generator: newGenerator(w.opts, i)}
			return wr.run(ctx)
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("%s: %w", w, err)
	}
	return nil
}

// Stop lets each writer finish its transaction and end. It does not wait for that; Run's return says so.
func (w *Workload) Stop() { w.stop() }

// Counters returns what was done so far.
func (w *Workload) Counters() Counters {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counters.clone()
}

// Await returns once the counters meet the condition, or ctx is done.
func (w *Workload) Await(ctx context.Context, condition func(Counters) bool) error {
	for {
		w.mu.Lock()
		counters, changed := w.counters.clone(), w.changed
		w.mu.Unlock()
		if condition(counters) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("await progress of %s: %w", w, context.Cause(ctx))
		}
	}
}

// String says what is needed to run the same again, and how far it came.
func (w *Workload) String() string {
	return fmt.Sprintf("workload with seed %d and %d writers, %s", w.opts.Seed, w.opts.Writers, w.Counters())
}

// record counts a transaction that has ended.
func (w *Workload) record(done Counters, e Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.order++
	e.Order = w.order
	w.counters.add(done)
	w.journals[e.Writer].add(e)
	close(w.changed)
	w.changed = make(chan struct{})
}

// resolved fills in the defaults and checks that there is something to do.
func (o Options) resolved() (Options, error) {
	if len(o.Spec.Tables) == 0 {
		o.Spec = Fixtures()
	}
	if len(o.Tables) > 0 {
		var err error
		if o.Spec, err = o.Spec.Only(o.Tables...); err != nil {
			return o, err
		}
	}
	o.Writers = cmp.Or(o.Writers, 4)
	o.LockTimeout = cmp.Or(o.LockTimeout, 2*time.Second)
	o.DeadlockTimeout = cmp.Or(o.DeadlockTimeout, 20*time.Millisecond)
	if o.Weights == nil {
		o.Weights = DefaultWeights()
	}
	for kind, weight := range o.Weights {
		if weight < 0 || kind < 0 || int(kind) >= kindCount {
			return o, fmt.Errorf("weight %d of kind %d: weights are not negative, and kinds are those of Kinds", weight, int(kind))
		}
	}
	if o.total() == 0 {
		return o, errors.New("no kind of change has a weight and applies to a table")
	}
	return o, nil
}

// choices returns the changes that are possible, in the order of tables and kinds.
func (o Options) choices() []choice {
	var choices []choice
	for i := range o.Spec.Tables {
		t := &o.Spec.Tables[i]
		for _, kind := range Kinds() {
			weight := o.Weights[kind] * cmp.Or(t.Weight, 1)
			if weight == 0 || !kind.applies(t) || (kind == Truncate && !o.Truncate) {
				continue
			}
			choices = append(choices, choice{table: t, kind: kind, weight: weight})
		}
	}
	return slices.Clip(choices)
}

func (o Options) total() int {
	total := 0
	for _, c := range o.choices() {
		total += c.weight
	}
	return total
}
