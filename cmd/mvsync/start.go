package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/ingest"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/metrics"
	"github.com/mvsync/mvsync/replication"
)

// pgxConn is a connection, by a name that does not clash with the variables called after what they are.
type pgxConn = pgx.Conn

// start brings a service to where rounds can begin. Everything is checked before anything is created; when it fails on a
// database that mvsync had not touched before, nothing is left there. A gap that is not empty makes the slot anew.
func (s *service) start(ctx context.Context, gap string) error {
	var err error
	if s.source, err = newSource(s.cfg); err != nil {
		return err
	}
	if err := s.source.awaitSlot(ctx, s.daemon.log); err != nil {
		return err
	}
	if err := s.check(ctx, nil); err != nil {
		return err
	}
	s.engine = maintain.New(s.source.options(s.daemon.log, s.daemon.metrics))
	err = s.prepare(ctx)
	if err == nil {
		err = s.create(ctx, gap)
	}
	if err != nil {
		s.engine.Close(ctx)
	}
	return err
}

// check looks for what would keep the stream from working. Warnings are logged, all else is one error.
func (s *service) check(ctx context.Context, tables []uint32) error {
	findings, err := replication.Preflight(ctx, s.source.target(), tables)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range findings {
		if f.Warning {
			if !slices.Contains(s.warned, f) { // the checks run before and after planning
				s.daemon.log.Warn(f.What, "where", f.Where, "why", f.Why, "do", f.Do)
				s.warned = append(s.warned, f)
			}
			continue
		}
		errs = append(errs, errors.New(f.String()))
	}
	return errors.Join(errs...)
}

// prepare plans the views and checks what they read.
func (s *service) prepare(ctx context.Context) error {
	accepted, err := s.engine.Prepare(ctx)
	if err != nil {
		return err
	}
	var mistakes config.Mistakes
	for _, r := range s.engine.Refused() {
		v, err := find(s.cfg, r.Name)
		if err != nil {
			return err
		}
		mistakes = append(mistakes, refusalMistake(s.cfg, v, r.Refusal))
	}
	if accepted == 0 {
		return &exitError{code: exitFailed, err: errors.Join(mistakes, errNoView)}
	}
	for _, m := range mistakes {
		s.daemon.log.Error("a view is refused; the others run", "err", m.Error())
	}
	if s.cfg.Source.ReplicaIdentity == config.ReplicaIdentityManage {
		if err := s.manageIdentities(ctx); err != nil {
			return err
		}
	}
	return s.check(ctx, s.engine.Sources())
}

// create makes what is missing: catalog, publication, slot. Then it decides what the views go on from.
func (s *service) create(ctx context.Context, gap string) (err error) {
	host := s.source.host(s.daemon.log)
	before := found{}
	if err := s.source.do(ctx, "start", func(c *pgxConn) (err error) {
		before, err = s.look(ctx, host, c)
		return err
	}); err != nil {
		return err
	}
	if gap == "" {
		if g := before.gap(); g != nil {
			return g
		}
	}
	if err := s.engine.Lead(ctx); err != nil {
		return err
	}
	// From here on the catalog is ours alone, so what is there now was not made by another daemon meanwhile.
	var made replication.Provisioned
	defer func() {
		if err != nil && before.untouched() {
			err = errors.Join(err, s.undo(ctx, host, made))
		}
	}()
	if gap != "" && before.slot.Exists {
		if err := s.source.do(ctx, "start", func(c *pgxConn) error {
			_, err := replication.Slot{Name: string(s.cfg.Source.Slot)}.Drop(ctx, c)
			return err
		}); err != nil {
			return err
		}
	}
	made, err = replication.Provision(ctx, s.source.target(), s.engine.Sources(), s.daemon.log)
	if err != nil {
		return err
	}
	if made.IdentityErr != nil {
		return made.IdentityErr
	}
	return s.begin(ctx, before, made, gap)
}

// begin hands the stream to the engine.
func (s *service) begin(ctx context.Context, before found, made replication.Provisioned, gap string) error {
	log := s.daemon.log
	for _, table := range made.Membership.Added {
		log.Info("published", "table", table)
	}
	origin := maintain.Origin{
		SystemID: made.Identity.SystemID, Timeline: made.Identity.Timeline,
		New: made.SlotCreated, Confirmed: before.slot.ConfirmedFlush, Gap: gap,
	}
	if err := s.engine.Begin(ctx, origin); err != nil {
		return err
	}
	if err := s.fence(ctx, made); err != nil {
		return err
	}
	s.declareTables()
	s.stream = replication.New(replication.Options{
		Source: s.source.sql, Replication: s.source.replication, Session: s.source.session,
		Slot: string(s.cfg.Source.Slot), Publication: string(s.cfg.Source.Publication),
		Identity: made.Identity, Budget: int64(s.cfg.Round.Memory) / 4, Observer: streamObserver{s.daemon.metrics},
	}, log)
	return nil
}

// fence waits, before views are filled, for transactions that an earlier start may have left unfenced: one that ended
// between a change of the publication, or the making of the slot, and the end of its own fence.
func (s *service) fence(ctx context.Context, made replication.Provisioned) error {
	fenced := made.SlotCreated || made.PublicationCreated || made.Membership.Changed()
	filling := slices.ContainsFunc(s.engine.Status().Views, func(v maintain.ViewStatus) bool { return v.State == maintain.Filling })
	if fenced || !filling {
		return nil
	}
	return s.source.do(ctx, "fence", func(c *pgxConn) error {
		return replication.Fence(ctx, c, replication.LogBlockers(s.daemon.log))
	})
}

// declareTables starts the counters of the tables that are read at 0. Those of partitions begin with their first change.
func (s *service) declareTables() {
	for _, p := range s.engine.Plans() {
		for i := range p.Sources {
			if src := &p.Sources[i]; !src.Producer && slices.Contains(src.Leaves, src.OID) {
				s.daemon.metrics.TableDeclared(src.Table().String())
			}
		}
	}
}

// found is what a start finds on the server.
type found struct {
	catalog     bool // mvsync's schema exists
	publication bool
	slot        replication.SlotState
	progress    bool
	recorded    backing.Progress
	identity    replication.Identity
}

// untouched reports whether mvsync has nothing on the server yet.
func (f found) untouched() bool { return !f.catalog && !f.publication && !f.slot.Exists }

func (s *service) look(ctx context.Context, host *backing.Host, c *pgxConn) (found, error) {
	var f found
	version, err := host.Version(ctx, c)
	if err != nil {
		return f, err
	}
	f.catalog = version > 0
	if f.publication, err = (replication.Publication{Name: string(s.cfg.Source.Publication)}).Exists(ctx, c); err != nil {
		return f, err
	}
	if f.slot, err = (replication.Slot{Name: string(s.cfg.Source.Slot)}).State(ctx, c); err != nil {
		return f, err
	}
	if f.identity, err = replication.Identify(ctx, s.source.replication, s.source.session); err != nil {
		return f, err
	}
	if f.catalog {
		f.recorded, f.progress, err = host.ReadProgress(ctx, c)
	}
	return f, err
}

// gap says why the stream cannot go on from the recorded progress, nil where it can or nothing is recorded.
func (f found) gap() error {
	slot := f.slot
	gone := slot.Exists && (slot.WALStatus == "lost" || slot.Invalidation != "")
	switch {
	case gone:
		return &gapError{"invalidated", fmt.Errorf("%w: the server invalidated it (%s)", replication.ErrSlotLost, slot.WALStatus)}
	case slot.Exists && !f.publication:
		// The slot would decode WAL from before the publication, which fails or loses changes.
		return &gapError{"other", replication.ErrPublicationLost}
	case !f.progress:
		return nil
	case !slot.Exists:
		return &gapError{"lost", fmt.Errorf("%w: it does not exist, though rounds were recorded", replication.ErrSlotLost)}
	case f.recorded.SystemIdentifier != f.identity.SystemID:
		return &gapError{"identity", fmt.Errorf("%w: rounds were recorded for another cluster", replication.ErrIdentityChanged)}
	case f.recorded.Timeline != int64(f.identity.Timeline):
		return &gapError{"timeline", fmt.Errorf("%w: rounds were recorded on timeline %d, the server is on %d",
			replication.ErrIdentityChanged, f.recorded.Timeline, f.identity.Timeline)}
	case slot.ConfirmedFlush > f.recorded.LSN:
		return &gapError{"ahead", fmt.Errorf("%w: it is at %s, ahead of the recorded %s: somebody moved or made it",
			replication.ErrSlotLost, slot.ConfirmedFlush, f.recorded.LSN)}
	}
	return nil
}

// undo removes what a failed first start has made. Provision has tidied up after itself where it failed.
func (s *service) undo(ctx context.Context, host *backing.Host, made replication.Provisioned) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancel()
	// The engine's session holds locks in the catalog.
	s.engine.Close(ctx)
	target := s.source.target()
	if !made.SlotCreated {
		target.Slot = ""
	}
	if !made.PublicationCreated {
		target.Publication = ""
	}
	return s.source.teardown(ctx, target, host, true, func(string) {})
}

// host is the catalog of the configuration.
func (s *source) host(log *slog.Logger) *backing.Host {
	return backing.New(log, backing.Options{Catalog: string(s.cfg.Backing.Catalog), Slot: string(s.cfg.Source.Slot)})
}

// slotPatience is how long a start waits for a slot that somebody reads: a daemon that was just killed, or is about to
// end, lets go of it within that time.
const slotPatience = 5 * time.Second

func (s *source) awaitSlot(ctx context.Context, log *slog.Logger) error {
	return s.do(ctx, "start", func(c *pgxConn) error {
		deadline := time.Now().Add(slotPatience)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		said := false
		for {
			state, err := replication.Slot{Name: string(s.cfg.Source.Slot)}.State(ctx, c)
			if err != nil || state.ActivePID == 0 || time.Now().After(deadline) {
				return err // who still reads it is for the checks to say
			}
			if !said {
				log.Warn("the replication slot is in use; waiting", "slot", s.cfg.Source.Slot, "pid", state.ActivePID, "at_most", slotPatience)
				said = true
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
			}
		}
	})
}

// engineStream gives the engine the stream in the words that it declares.
type engineStream struct{ *replication.Stream }

// Barrier translates the two ways in which a barrier is put off.
func (e engineStream) Barrier(ctx context.Context, lsn ingest.LSN) error {
	err := e.Stream.Barrier(ctx, lsn)
	switch {
	case errors.Is(err, replication.ErrBarrierTimeout):
		return fmt.Errorf("%w: %w", maintain.ErrBarrier, err)
	case errors.Is(err, replication.ErrBacklog):
		return fmt.Errorf("%w: %w", maintain.ErrBacklog, err)
	}
	return err
}

// publisher adds tables to the publication for the engine.
type publisher struct{ source *source }

// Ensure implements [maintain.Publisher].
func (p publisher) Ensure(ctx context.Context, tables []uint32) (added bool, err error) {
	err = p.source.do(ctx, "publish", func(c *pgxConn) error {
		changed, err := replication.Publication{Name: string(p.source.cfg.Source.Publication)}.Ensure(ctx, c, tables)
		added = len(changed.Added)+len(changed.Mended) > 0
		return err
	})
	return added, err
}

// streamObserver counts what arrives.
type streamObserver struct{ *metrics.Metrics }

// Changes implements [replication.Observer].
func (o streamObserver) Changes(table *ingest.Table, op ingest.Op, n int) {
	o.Metrics.Changes(config.Ident{Schema: config.Name(table.Schema), Name: config.Name(table.Name)}.String(), op.String(), n)
}

// accepted returns the sources of the plans among the verdicts, for the checks.
func accepted(verdicts []verdict) []uint32 {
	var out []uint32
	for _, v := range verdicts {
		if v.plan == nil {
			continue
		}
		for i := range v.plan.Sources {
			if src := &v.plan.Sources[i]; !src.Producer && !src.External {
				out = append(out, src.OID)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
