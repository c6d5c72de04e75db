package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/metrics"
	"github.com/mvsync/mvsync/replication"
)

// pages serves the HTTP pages. A reload may move them to another address.
type pages struct {
	daemon *daemon

	mu      sync.Mutex
	address string          // as configured
	server  *metrics.Server // nil: no pages, or none yet
	moved   chan struct{}   // closed when the server is to be replaced
}

// listen binds the address. Where it differs from the present one, the server moves there.
func (p *pages) listen(ctx context.Context, address string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moved != nil && p.address == address {
		return nil
	}
	var server *metrics.Server
	if address != "" {
		d := p.daemon
		var err error
		handler := d.metrics.Handler(metrics.Pages{Status: d.status, Ready: d.ready, Log: d.log})
		if server, err = metrics.Listen(ctx, address, handler, d.log); err != nil {
			return err
		}
	}
	if p.moved != nil {
		close(p.moved)
	}
	p.address, p.server, p.moved = address, server, make(chan struct{})
	return nil
}

// run serves until ctx ends.
func (p *pages) run(ctx context.Context) error {
	for ctx.Err() == nil {
		p.mu.Lock()
		server, moved := p.server, p.moved
		p.mu.Unlock()
		serving, stop := context.WithCancel(ctx)
		if server == nil {
			stop()
			select {
			case <-ctx.Done():
			case <-moved:
			}
			continue
		}
		go func() {
			select {
			case <-moved:
				stop()
			case <-serving.Done():
			}
		}()
		err := server.Run(serving)
		stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// url is where the status page is, "" if there is none.
func (p *pages) url() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return ""
	}
	return fmt.Sprintf("http://%s/", p.server.Addr())
}

// What /readyz answers while nothing is known yet, or nothing comes.
var (
	errStarting = errors.New("starting")
	errFilling  = errors.New("the first fill is not done")
)

// quiet is how long the server may say nothing: it sends a keepalive at least each half wal_sender_timeout, and answers
// our status updates at once.
const quiet = 90 * time.Second

// ready says why views cannot be relied on, nil if they can.
func (d *daemon) ready(context.Context) error {
	s := d.now.Load()
	if s == nil {
		return errStarting
	}
	stream, status := s.stream.State(), s.engine.Status()
	lag := s.cfg.HTTP.ReadyLag.Std()
	switch {
	case errors.Is(stream.Err, replication.ErrInRecovery):
		return errors.New("standby")
	case !stream.Connected:
		return errors.New("not streaming")
	case time.Since(stream.LastMessage) > quiet:
		return fmt.Errorf("no word from the server for %s", time.Since(stream.LastMessage).Round(time.Second))
	case !status.Ready:
		return errFilling
	case status.Lag > lag:
		return fmt.Errorf("lag %s is above ready_lag %s", status.Lag.Round(time.Millisecond), lag)
	}
	return nil
}

// live is what a scrape asks.
func (d *daemon) live() metrics.Live {
	live := metrics.Live{LagBytes: -1, SlotRetainedBytes: -1, ViewAge: map[string]time.Duration{}}
	s := d.now.Load()
	if s == nil {
		return live
	}
	stream, status := s.stream.State(), s.engine.Status()
	live.Lag = status.Lag
	live.PendingBytes = status.PendingBytes + stream.PendingBytes
	live.PendingTransactions = int64(status.PendingTransactions + stream.PendingTransactions)
	if slot := s.slot.Load(); slot != nil && slot.Exists {
		live.LagBytes, live.SlotRetainedBytes = slot.UnconfirmedBytes, slot.RetainedBytes
	}
	for i := range status.Views {
		if v := &status.Views[i]; !v.AsOf.IsZero() {
			live.ViewAge[v.Name] = v.Age
		}
	}
	return live
}

// status is what the status page shows.
func (d *daemon) status(context.Context) metrics.Status {
	s := d.now.Load()
	if s == nil {
		return metrics.Status{Stream: metrics.Stream{State: "connecting"}}
	}
	stream, status := s.stream.State(), s.engine.Status()
	live := d.live()
	out := metrics.Status{
		Stream: metrics.Stream{
			State: "streaming", AppliedLSN: stream.Confirmed.String(), LagSeconds: live.Lag.Seconds(),
			PendingBytes: live.PendingBytes, PendingTransactions: live.PendingTransactions,
		},
		Slot: metrics.Slot{Name: string(s.cfg.Source.Slot), ConfirmedLSN: stream.Confirmed.String()},
	}
	if !stream.Connected {
		out.Stream.State = "connecting"
	}
	if stream.Err != nil {
		out.Stream.Problem = "not connected; the log says why"
	}
	if !status.LastRound.IsZero() {
		out.Stream.LastRoundAt = &status.LastRound
	}
	if slot := s.slot.Load(); slot != nil && slot.Exists {
		out.Stream.LagBytes, out.Slot.RetainedBytes, out.Slot.WALStatus = &slot.UnconfirmedBytes, &slot.RetainedBytes, slot.WALStatus
	}
	plans := s.engine.Plans()
	for i := range status.Views {
		view := pageView(&status.Views[i])
		for _, p := range plans {
			if p.Name.String() == view.Name {
				view.Coarsened, view.NonDeterministic = p.Coarsened, p.Nondeterministic
			}
		}
		out.Views = append(out.Views, view)
	}
	for _, r := range status.Refused {
		out.Refused = append(out.Refused, metrics.Refused{
			View: r.Name, Code: string(r.Refusal.Code), Construct: r.Refusal.Construct,
			Reason: r.Refusal.Reason, Suggestion: r.Refusal.Suggestion,
		})
	}
	return out
}

func pageView(v *maintain.ViewStatus) metrics.ViewStatus {
	out := metrics.ViewStatus{Name: v.Name, State: string(v.State), Strategy: string(v.Strategy), Problem: v.Problem}
	if !v.AsOf.IsZero() {
		at, age := v.AsOfTime, v.Age.Seconds()
		out.AsOf, out.AgeSeconds = &at, &age
	}
	return out
}

// discard is a logger for commands that say what they have to say themselves.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
