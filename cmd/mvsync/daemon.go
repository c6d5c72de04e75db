package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/metrics"
	"github.com/mvsync/mvsync/replication"
)

// daemon is one process of mvsync run. It outlives reloads of the configuration and gaps in the stream; each of those
// ends one service and begins another.
type daemon struct {
	log     *slog.Logger
	metrics *metrics.Metrics
	// load reads the configuration again; hangup asks for it. A nil hangup never does.
	load   func() (*config.Config, error)
	hangup <-chan os.Signal
	once   bool
	// began is called each time views begin to be maintained. May be nil.
	began func(*service)

	pages *pages
	gaps  gapLimit
	now   atomic.Pointer[service]
}

// service maintains the views of one configuration over one stream.
type service struct {
	daemon *daemon
	cfg    *config.Config
	source *source
	engine *maintain.Engine
	stream *replication.Stream
	slot   atomic.Pointer[replication.SlotState]
	warned []replication.Finding
}

// errReload ends a service in favour of another configuration.
type errReload struct{ cfg *config.Config }

func (*errReload) Error() string { return "the configuration is loaded again" }

// run runs the daemon until ctx ends, which is no error.
func (d *daemon) run(ctx context.Context, cfg *config.Config) error {
	d.pages = &pages{daemon: d}
	if err := d.listen(ctx, cfg); err != nil {
		return err
	}
	d.metrics.SetLive(d.live)
	group, ctx := errgroup.WithContext(ctx)
	ctx, done := context.WithCancel(ctx)
	group.Go(func() error { return d.pages.run(ctx) })
	group.Go(func() error { return watchdog(ctx) })
	group.Go(func() error {
		defer done()
		return d.serve(ctx, cfg)
	})
	err := group.Wait()
	notify(systemd.SdNotifyStopping)
	return err
}

// serve runs one service after the other.
func (d *daemon) serve(ctx context.Context, cfg *config.Config) error {
	var fallback *config.Config // what ran before a reload, until the new one has begun
	gap := ""                   // why the slot has to be made anew
	for {
		s := &service{daemon: d, cfg: cfg}
		err := s.start(ctx, gap)
		if err == nil {
			fallback, gap = nil, ""
			err = s.maintain(ctx)
		}
		if reload, ok := errors.AsType[*errReload](err); ok {
			fallback, cfg = cfg, reload.cfg
			d.forget(cfg)
			if err := d.listen(ctx, cfg); err != nil {
				d.log.Error("the pages stay at their address", "err", err)
			}
			continue
		}
		if ctx.Err() != nil {
			return ignoreCanceled(ctx, err)
		}
		if fallback != nil && err != nil {
			d.logError("the new configuration does not start; the old one goes on", err)
			cfg, fallback = fallback, nil
			if err := d.listen(ctx, cfg); err != nil {
				d.log.Error("the pages stay at their address", "err", err)
			}
			continue
		}
		reason, isGap := gapReason(err)
		if !isGap {
			return err
		}
		if err := d.judgeGap(cfg, reason, err); err != nil {
			return err
		}
		gap = reason
	}
}

// listen puts the pages where the configuration wants them; a run that ends by itself has none.
func (d *daemon) listen(ctx context.Context, cfg *config.Config) error {
	if d.once {
		return d.pages.listen(ctx, "")
	}
	return d.pages.listen(ctx, cfg.HTTP.Listen)
}

// forget ends the metrics of views that a new configuration does not declare.
func (d *daemon) forget(cfg *config.Config) {
	s := d.now.Load()
	if s == nil {
		return
	}
	for _, p := range s.engine.Plans() {
		name := p.Name.String()
		if _, err := find(cfg, name); err != nil {
			d.metrics.ViewForgotten(name)
		}
	}
}

// ignoreCanceled drops the error of a start or a service that was asked to end.
func ignoreCanceled(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

// maintain runs the rounds until ctx ends or the service cannot go on. The stream ends after the engine, which needs it
// to finish its round and to confirm.
func (s *service) maintain(ctx context.Context) error {
	d := s.daemon
	d.now.Store(s)
	if d.began != nil {
		d.began(s)
	}
	notify(systemd.SdNotifyReady)
	streaming, endStream := context.WithCancel(context.WithoutCancel(ctx))
	defer endStream()
	working, endWork := context.WithCancelCause(ctx)
	defer endWork(nil)

	var group errgroup.Group
	group.Go(func() error {
		err := s.stream.Run(streaming)
		endWork(err)
		return err
	})
	group.Go(func() error { return s.watchSlot(working) })
	group.Go(func() error { return s.watchHangup(working, endWork) })
	err := s.work(working)
	endWork(err)
	endStream()
	streamErr := group.Wait()
	if reload, ok := errors.AsType[*errReload](context.Cause(working)); ok && streamErr == nil {
		return reload
	}
	// Why the stream ended explains why the engine did.
	if streamErr != nil {
		return streamErr
	}
	return ignoreCanceled(working, err)
}

func (s *service) work(ctx context.Context) error {
	stream := engineStream{s.stream}
	if s.daemon.once {
		return s.engine.RunOnce(ctx, stream)
	}
	return s.engine.Run(ctx, stream)
}

// watchHangup loads the configuration again when asked to. One that is not valid, or of which the database accepts no
// view, changes nothing.
func (s *service) watchHangup(ctx context.Context, end context.CancelCauseFunc) error {
	d := s.daemon
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.hangup:
		}
		notify(systemd.SdNotifyReloading)
		cfg, err := d.load()
		if err == nil {
			err = rehearse(ctx, cfg)
		}
		if err == nil {
			d.log.Info("the configuration is loaded again", "views", len(cfg.Views))
			end(&errReload{cfg})
			return nil
		}
		notify(systemd.SdNotifyReady)
		d.logError("the configuration is not taken over; the old one stays", err)
	}
}

// rehearse tries whether a configuration could start, without changing anything.
func rehearse(ctx context.Context, cfg *config.Config) error {
	src, err := newSource(cfg)
	if err != nil {
		return err
	}
	verdicts, err := src.judge(ctx)
	if err != nil {
		return err
	}
	return noneAccepted(cfg, verdicts)
}

// noneAccepted is the error of a configuration none of whose views can be kept.
func noneAccepted(cfg *config.Config, verdicts []verdict) error {
	var refused config.Mistakes
	for _, v := range verdicts {
		if v.refusal == nil {
			return nil
		}
		refused = append(refused, refusalMistake(cfg, v.view, v.refusal))
	}
	return &exitError{code: exitFailed, err: errors.Join(refused, errNoView)}
}

var errNoView = errors.New("no view is accepted: there is nothing to maintain; mend what is said above, then try mvsync check")

// watchSlot asks now and then what the slot keeps. Failing is no reason to stop: the stream notices what matters.
func (s *service) watchSlot(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		err := s.source.do(ctx, "status", func(q *pgxConn) error {
			for {
				state, err := replication.Slot{Name: string(s.cfg.Source.Slot)}.State(ctx, q)
				if err != nil {
					return err
				}
				s.slot.Store(&state)
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
				}
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		s.daemon.log.Debug("cannot ask for the state of the slot", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// logError logs each line of an error.
func (d *daemon) logError(message string, err error) {
	for _, line := range lines(err) {
		d.log.Error(message, "err", trimPrefix(line))
	}
}

// notify tells systemd, if that started us. A lost message is no reason to stop.
func notify(state string) {
	_, _ = systemd.SdNotify(false, state)
}

// watchdog tells systemd that the process lives, as often as it wants to hear it.
func watchdog(ctx context.Context) error {
	interval, err := systemd.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		return nil
	}
	tick := time.NewTicker(interval / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			notify(systemd.SdNotifyWatchdog)
		}
	}
}

// gapLimit bounds how often the views may be reconciled because of gaps: a slot that is lost again and again wants a
// person.
type gapLimit struct{ times []time.Time }

const (
	gapsAllowed = 5
	gapsWithin  = time.Hour
)

// allow counts a gap, and reports whether there were not too many.
func (g *gapLimit) allow(now time.Time) bool {
	g.times = slices.DeleteFunc(g.times, func(t time.Time) bool { return now.Sub(t) >= gapsWithin })
	g.times = append(g.times, now)
	return len(g.times) <= gapsAllowed
}

// judgeGap returns nil where the views may be reconciled behind a new slot, else why the daemon stops.
func (d *daemon) judgeGap(cfg *config.Config, reason string, cause error) error {
	if cfg.Source.OnGap == config.OnGapHalt {
		return fmt.Errorf("%w; source.on_gap is halt: the views keep their rows; set it to reconcile and start again", cause)
	}
	if !d.gaps.allow(time.Now()) {
		return fmt.Errorf("%w; that was gap %d within %s, so mvsync stops: see why the slot gets lost, then start again",
			cause, len(d.gaps.times), gapsWithin)
	}
	d.log.Warn("the stream has a gap: every view is reconciled behind a new slot", "reason", reason, "err", cause)
	return nil
}

// gapReason says whether changes were lost, in the word that the metric uses.
func gapReason(err error) (string, bool) {
	if g, ok := errors.AsType[*gapError](err); ok {
		return g.reason, true
	}
	for _, known := range []struct {
		err    error
		reason string
	}{
		{replication.ErrSlotLost, "lost"},
		{replication.ErrIdentityChanged, "identity"},
		{replication.ErrPoison, "poison"},
		{replication.ErrPublicationLost, "other"},
	} {
		if errors.Is(err, known.err) {
			return known.reason, true
		}
	}
	return "", false
}

// gapError is a gap that shows before the stream begins.
type gapError struct {
	reason string
	err    error
}

func (e *gapError) Error() string { return e.err.Error() }
func (e *gapError) Unwrap() error { return e.err }
