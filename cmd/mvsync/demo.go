package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/internal/pgserver"
	"github.com/mvsync/mvsync/metrics"
)

//go:embed demo/schema.sql
var demoSchema string

//go:embed demo/mvsync.yaml
var demoConfig []byte

func (c *cli) demoCommand() *cobra.Command {
	var length time.Duration
	cmd := &cobra.Command{
		Use:     "demo",
		GroupID: "daemon",
		Short:   "See it work: a throwaway Postgres, a busy shop, views of every strategy",
		Long: `Start a private Postgres server in a temporary folder, fill a small shop, let customers order, pay and
cancel, and maintain views of it with every strategy, live. At the end every view is compared with its
query; exit status 3 if one differs. Server and folder are removed, also on Ctrl-C.

It needs the binaries of a Postgres server (15 or later) on this machine, and nothing else.`,
		Example: "  mvsync demo\n  mvsync demo --for 20s",
		Args:    none(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if length < 0 {
				return usagef(cmd, "--for %s: want 0s (until Ctrl-C) or more", length)
			}
			return c.demo(cmd.Context(), length)
		},
	}
	cmd.Flags().DurationVar(&length, "for", 0, "stop by itself after this time (default: on Ctrl-C)")
	return cmd
}

// demo is a run of the demonstration.
type demo struct {
	cli    *cli
	paint  paint
	server *pgserver.Server
	source *source
	daemon *daemon
	shop   *shop
	began  time.Time
	notes  *notes
}

const demoDatabase = "shop"

func (c *cli) demo(ctx context.Context, length time.Duration) (err error) {
	// A terminal that closes must not leave a server behind.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.std.Hangup:
			cancel()
		case <-ctx.Done():
		}
	}()
	d := &demo{cli: c, paint: c.colours(c.std.Out), notes: &notes{}}
	d.say("Starting a private Postgres server ...")
	d.server, err = pgserver.Start(ctx, pgserver.Options{Password: rand.Text()})
	if err != nil {
		return quietly(ctx, err)
	}
	defer func() {
		// Before anything is printed about a panic, and whatever it is.
		if closeErr := d.server.Close(); closeErr != nil {
			err = errors.Join(err, closeErr)
		} else if err == nil {
			d.say("The server and its folder are gone.")
		}
	}()
	if err := d.prepare(ctx); err != nil {
		return quietly(ctx, err)
	}
	return d.run(ctx, length)
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.cli.std.Out, format+"\n", args...) }

// prepare makes the shop and the configuration.
func (d *demo) prepare(ctx context.Context) error {
	if err := execute(ctx, d.server.URL("postgres"), "CREATE DATABASE "+demoDatabase); err != nil {
		return err
	}
	url := d.server.URL(demoDatabase)
	if err := execute(ctx, url, demoSchema); err != nil {
		return err
	}
	env := map[string]string{"DATABASE_URL": url, "MVSYNC_LISTEN": freeAddress(ctx)}
	cfg, err := config.Parse("demo/mvsync.yaml", demoConfig, func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	})
	if err != nil {
		return err
	}
	if d.source, err = newSource(cfg); err != nil {
		return err
	}
	d.shop = &shop{url: url}
	d.daemon = &daemon{log: slog.New(d.notes), metrics: metrics.New(release())}
	return nil
}

// execute runs a script in a session of its own.
func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("prepare the demo: %w", err)
	}
	return nil
}

// freeAddress is where the pages go: the usual address, unless somebody is there.
func freeAddress(ctx context.Context) string {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", metrics.DefaultListen)
	if err != nil {
		return "127.0.0.1:0"
	}
	if l.Close() != nil {
		return "127.0.0.1:0"
	}
	return metrics.DefaultListen
}

// run opens the shop beside the daemon, shows what happens until it is time, then closes it and compares.
func (d *demo) run(ctx context.Context, length time.Duration) error {
	began := make(chan struct{})
	d.daemon.began = func(*service) { close(began) }
	// The daemon outlives the end of ctx: the comparison at the end needs it.
	return beside(context.WithoutCancel(ctx), func(serving context.Context) error {
		return guarded(func() error { return d.daemon.run(serving, d.source.cfg) })()
	}, func(serving context.Context) error {
		open, closeShop := context.WithCancel(serving)
		defer closeShop()
		business := make(chan error, 1)
		go func() { business <- d.shop.run(open) }()
		err := d.show(ctx, serving, began, length)
		closeShop()
		err = errors.Join(err, <-business)
		if err != nil || d.began.IsZero() { // interrupted before there was anything to compare
			return err
		}
		return d.compare(serving)
	})
}

// show prints what happens until ctx or the daemon ends, or the time is over.
func (d *demo) show(ctx, serving context.Context, began <-chan struct{}, length time.Duration) error {
	select {
	case <-ctx.Done():
		return nil
	case <-serving.Done():
		return context.Cause(serving)
	case <-began:
	}
	d.began = time.Now()
	d.introduce(length)
	var over <-chan time.Time
	if length > 0 {
		timer := time.NewTimer(length)
		defer timer.Stop()
		over = timer.C
	}
	screen := d.newScreen()
	tick := time.NewTicker(screen.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			screen.last()
			return nil
		case <-serving.Done():
			return context.Cause(serving)
		case <-over:
			screen.last()
			return nil
		case <-tick.C:
			screen.draw()
		}
	}
}

func (d *demo) introduce(length time.Duration) {
	major := d.server.Version() / 10000
	line := func(label, text string) {
		d.say("%s%s%s", d.paint.in(bold, label), strings.Repeat(" ", max(1, 14-len(label))), text)
	}
	d.say("Postgres %d runs at 127.0.0.1:%d, in %s.", major, d.server.Port(), filepath.Clean(d.server.Dir()))
	d.say("Customers order, pay and cancel in its database %s, about 300 transactions a second.", demoDatabase)
	d.say("mvsync follows with %s, each an ordinary table.\n", plural(int64(len(d.source.cfg.Views)), "view"))
	line("Look at it", fmt.Sprintf("psql '%s'", d.server.URL(demoDatabase)))
	line("", "TABLE revenue_by_region;")
	line("", "SELECT name, strategy, state, as_of_time FROM mvsync.views;")
	line("Touch it", "UPDATE customers SET region = 'MOON' WHERE id <= 20;")
	line("", "SELECT mvsync.wait();         -- now your change is in the views")
	line("", "SELECT * FROM revenue_by_region WHERE region = 'MOON';")
	if url := d.daemon.pages.url(); url != "" {
		line("In a browser", url+" and "+url+"metrics")
	}
	end := "on Ctrl-C"
	if length > 0 {
		end = "by itself after " + length.String() + ", or on Ctrl-C"
	}
	line("It ends", end)
	d.say("")
}

// compare waits until the views include everything, and compares each with its query.
func (d *demo) compare(ctx context.Context) error {
	d.say("\nThe shop is closed. Comparing every view with its query ...\n")
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("the comparison took longer than two minutes"))
	defer cancel()
	var names []string
	for i := range d.source.cfg.Views {
		names = append(names, d.source.cfg.Views[i].Name.String())
	}
	strategies, rows := map[string]string{}, map[string]int64{}
	r := &report{}
	err := d.source.do(ctx, "demo", func(conn *pgxConn) error {
		// Right after the start views may still be filling.
		reached := false
		err := waitFor(ctx, conn, d.source.host(discard()), time.Minute, names, &reached)
		if err == nil && !reached {
			err = errors.New("demo: the views did not catch up within a minute")
		}
		if err != nil {
			return err
		}
		return d.source.report(ctx, conn, r)
	})
	if err != nil {
		return err
	}
	for i := range r.Views {
		v := &r.Views[i]
		strategies[v.View] = v.Strategy
		if v.Rows != nil {
			rows[v.View] = *v.Rows
		}
	}
	found, err := d.source.compare(ctx, names, true)
	if err != nil {
		return err
	}
	g := newGrid("VIEW", "STRATEGY", "ROWS", "RESULT").numbers(2)
	wrong, skipped := int64(0), int64(0)
	for _, one := range found {
		g.add(one.View, strategies[one.View], countText(rows[one.View]), d.paint.state(one.Result)+" "+one.Why)
		switch one.Result {
		case "differs":
			wrong++
		case "skipped":
			skipped++
		}
	}
	g.print(d.cli.std.Out, d.paint)
	d.say("")
	if wrong > 0 {
		return nof("demo: %s not equal to what the query returns; that is a defect of mvsync", plural(wrong, "view"))
	}
	if skipped > 0 {
		return fmt.Errorf("demo: %s not compared; the reason stands in the table", plural(skipped, "view"))
	}
	activity := d.daemon.metrics.StreamActivity()
	d.say("%s after %s and %s: every view is what its query returns.",
		d.paint.in(green, "Exact"), plural(activity.Transactions, "transaction"), plural(activity.Rounds, "round"))
	return nil
}
