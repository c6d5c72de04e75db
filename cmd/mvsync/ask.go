package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/metrics"
)

func (c *cli) refreshCommand() *cobra.Command {
	return c.askCommand(backing.Refresh, &cobra.Command{
		Use:   "refresh VIEW",
		Short: "Compare a view with its query now and mend what differs",
		Long: `Have the daemon evaluate the view's query and write what differs, then print how many rows that were:
0 for a view that was right. It also brings back a view that is stale or failed, once the cause is mended.`,
		Example: "  mvsync refresh public.revenue_by_region",
	}, func(r backing.Request) string { return plural(r.Rows, "row") + " differed" })
}

func (c *cli) pauseCommand() *cobra.Command {
	return c.askCommand(backing.Pause, &cobra.Command{
		Use:     "pause VIEW",
		Short:   "Let a view stand still, say for a bulk load",
		Long:    "Let a view keep its rows as they are, while the others go on, until mvsync resume.",
		Example: "  mvsync pause public.revenue_by_region",
	}, func(backing.Request) string { return "paused" })
}

func (c *cli) resumeCommand() *cobra.Command {
	return c.askCommand(backing.Resume, &cobra.Command{
		Use:     "resume VIEW",
		Short:   "Let a paused view move again",
		Long:    "Let a paused view move again. It starts by being compared with its query.",
		Example: "  mvsync resume public.revenue_by_region",
	}, func(backing.Request) string { return "resumed" })
}

// askCommand completes a command that asks the daemon to do something with one view, and says what came of it.
func (c *cli) askCommand(action backing.Action, cmd *cobra.Command, outcome func(backing.Request) string) *cobra.Command {
	cmd.GroupID = "work"
	cmd.Args = exactly(1, "the name of a view")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		src, err := c.source()
		if err != nil {
			return err
		}
		id, err := config.ParseIdent(args[0])
		if err != nil {
			return usagef(cmd, "view %q: %v", args[0], err)
		}
		var done backing.Request
		err = src.do(ctx, string(action), func(conn *pgxConn) error {
			host := src.host(discard())
			if err := needDaemon(ctx, host, conn); err != nil {
				return err
			}
			done, err = ask(ctx, host, conn, id.String(), action)
			return err
		})
		if err != nil {
			return err
		}
		if c.output == "json" {
			return c.printJSON(map[string]any{"view": id.String(), "action": action, "rows": done.Rows})
		}
		fmt.Fprintf(c.std.Out, "%s: %s\n", id, outcome(done))
		return nil
	}
	return cmd
}

// needDaemon says what to do where no daemon could act.
func needDaemon(ctx context.Context, host *backing.Host, conn *pgxConn) error {
	if err := host.Ready(ctx, conn); err != nil {
		return err
	}
	leader, err := host.Leader(ctx, conn)
	if err == nil && leader == 0 {
		err = fmt.Errorf("no daemon serves catalog %s: nobody would act; start mvsync run", host.Catalog())
	}
	return err
}

// ask asks the daemon for something and waits until it has acted.
func ask(ctx context.Context, host *backing.Host, conn *pgxConn, view string, action backing.Action) (backing.Request, error) {
	id, err := host.Ask(ctx, conn, view, action)
	if err != nil {
		return backing.Request{}, serverSays(err)
	}
	return await(ctx, host, conn, view, id)
}

// await polls a request until it is done. The daemon may be restarted meanwhile; one that is gone for longer will not
// act.
func await(ctx context.Context, host *backing.Host, conn *pgxConn, view string, id int64) (backing.Request, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	seen := time.Now()
	for {
		r, err := host.Request(ctx, conn, id)
		switch {
		case err != nil:
			return r, err
		case r.Done && r.Error != "":
			return r, fmt.Errorf("%s %s: %s", r.Action, view, r.Error)
		case r.Done:
			return r, nil
		}
		leader, err := host.Leader(ctx, conn)
		if err != nil {
			return r, err
		}
		if leader != 0 {
			seen = time.Now()
		} else if time.Since(seen) > longest {
			return r, fmt.Errorf("%s %s: the daemon has ended before it acted; it will when it runs again", r.Action, view)
		}
		select {
		case <-ctx.Done():
			return r, errors.New("interrupted; the request stands, the daemon will act on it")
		case <-tick.C:
		}
	}
}

func (c *cli) waitCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:     "wait [VIEW...]",
		GroupID: "work",
		Short:   "Block until views include what is committed by now",
		Long: `Block until the named views (default: all live ones) include everything that was committed before
the call. Exit status 3 if that takes longer than the timeout. In SQL: SELECT mvsync.wait().`,
		Example: "  mvsync wait\n  mvsync wait public.revenue_by_region --timeout 5s",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.wait(cmd, args, timeout)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait at most")
	return cmd
}

func (c *cli) wait(cmd *cobra.Command, args []string, timeout time.Duration) error {
	ctx := cmd.Context()
	if timeout < 0 {
		return usagef(cmd, "--timeout %s: want 0s or more", timeout)
	}
	src, err := c.source()
	if err != nil {
		return err
	}
	var views []string // nil, not empty, stands for all
	for _, arg := range args {
		id, err := config.ParseIdent(arg)
		if err != nil {
			return usagef(cmd, "view %q: %v", arg, err)
		}
		views = append(views, id.String())
	}
	began := time.Now()
	var reached bool
	host := src.host(discard())
	err = src.do(ctx, "wait", func(conn *pgxConn) error {
		if err := host.Ready(ctx, conn); err != nil {
			return err
		}
		err := waitFor(ctx, conn, host, timeout, views, &reached)
		return err
	})
	if err != nil {
		return err
	}
	if c.output == "json" {
		if err := c.printJSON(map[string]any{"reached": reached, "seconds": time.Since(began).Seconds()}); err != nil {
			return err
		}
	}
	if !reached {
		return nof("wait: the views do not include what was committed before the call after %s; mvsync status says why", timeout)
	}
	return nil
}

func waitFor(ctx context.Context, conn *pgxConn, host *backing.Host, timeout time.Duration, views []string, reached *bool) error {
	sql := "SELECT " + quoted(host.Catalog(), "wait") + "($1::bigint * interval '1 microsecond', $2::text[])"
	return serverSays(conn.QueryRow(ctx, sql, timeout.Microseconds(), views).Scan(reached))
}

func (c *cli) verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "verify [VIEW...]",
		GroupID: "work",
		Short:   "Compare views with their queries at one snapshot",
		Long: `Compare the named views (default: all) with what their queries return at the same snapshot, while
writers go on, and print the rows that differ. Exit status 3 if any does. Without a running daemon the
command takes the daemon's place while it compares.`,
		Example: "  mvsync verify\n  mvsync verify public.revenue_by_region",
		RunE:    func(cmd *cobra.Command, args []string) error { return c.verify(cmd.Context(), args) },
	}
}

// comparison is what verify prints of a view.
type comparison struct {
	View      string `json:"view"`
	Result    string `json:"result"` // exact, differs or skipped
	Differing int64  `json:"differing_rows"`
	// Why says why the view was skipped.
	Why string `json:"why,omitempty"`
	// Sample shows some of the rows that differ.
	Sample string `json:"sample,omitempty"`
	exempt bool
}

func (c *cli) verify(ctx context.Context, names []string) error {
	src, err := c.source()
	if err != nil {
		return err
	}
	views, err := findAll(src.cfg, names)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		for i := range src.cfg.Views {
			views = append(views, src.cfg.Views[i].Name.String())
		}
	}
	var found []comparison
	err = src.withDaemon(ctx, func(ctx context.Context) error {
		found, err = src.compare(ctx, views, len(names) > 0)
		return err
	})
	if err != nil {
		return err
	}
	return c.printComparisons(found)
}

// compare has the daemon compare views with their queries. Only where they were named is it a failure that the daemon
// keeps no such view: a declared one may be refused.
func (s *source) compare(ctx context.Context, views []string, named bool) ([]comparison, error) {
	out := []comparison{}
	host := s.host(discard())
	err := s.do(ctx, "verify", func(conn *pgxConn) error {
		ids := make([]int64, len(views))
		asked := make([]error, len(views))
		for i, view := range views {
			ids[i], asked[i] = host.Ask(ctx, conn, view, backing.Verify)
		}
		for i, view := range views {
			r, err := backing.Request{}, serverSays(asked[i])
			if err == nil {
				r, err = await(ctx, host, conn, view, ids[i])
			}
			if ctx.Err() != nil {
				return err
			}
			one := comparison{View: view, Result: "exact", Differing: r.Rows, Sample: r.Detail}
			switch {
			case err != nil:
				one.Result, one.Why = "skipped", oneLine(err.Error())
				if r.Error != "" {
					one.Why = oneLine(r.Error)
				}
				v, findErr := find(s.cfg, view)
				one.exempt = findErr == nil && v.Nondeterministic == config.NondeterministicAllow
				if !named && unknownView(asked[i]) {
					one.exempt, one.Why = true, "it is not maintained; mvsync status says why"
				}
			case r.Rows > 0:
				one.Result = "differs"
			}
			out = append(out, one)
		}
		return nil
	})
	return out, err
}

// unknownView reports the answer that the catalog has no such view.
func unknownView(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == pgerrcode.UndefinedObject
}

func (c *cli) printComparisons(found []comparison) error {
	if c.output == "json" {
		if err := c.printJSON(found); err != nil {
			return err
		}
	} else {
		p := c.colours(c.std.Out)
		g := newGrid("VIEW", "RESULT", "DIFFERING ROWS", "").numbers(2)
		for _, one := range found {
			differing := countText(one.Differing)
			if one.Result == "skipped" {
				differing = "-"
			}
			g.add(one.View, p.state(one.Result), differing, one.Why)
		}
		g.print(c.std.Out, p)
		for _, one := range found {
			if one.Sample != "" {
				fmt.Fprintf(c.std.Out, "\n%s: rows of the query (+) and of the table (-)\n%s\n", one.View, indent(one.Sample, "  "))
			}
		}
	}
	var skipped []error
	for _, one := range found {
		switch {
		case one.Result == "differs":
			return answerNo()
		case one.Result == "skipped" && !one.exempt:
			skipped = append(skipped, fmt.Errorf("verify %s: not compared: %s", one.View, one.Why))
		}
	}
	return errors.Join(skipped...)
}

// withDaemon calls f while a daemon serves the catalog: the one that runs, or else one in this process.
func (s *source) withDaemon(ctx context.Context, f func(context.Context) error) error {
	host := s.host(discard())
	var leader int32
	err := s.do(ctx, "verify", func(conn *pgxConn) (err error) {
		if err = host.Ready(ctx, conn); err == nil {
			leader, err = host.Leader(ctx, conn)
		}
		return err
	})
	if err != nil {
		return err
	}
	if leader != 0 {
		return f(ctx)
	}
	service := &service{daemon: &daemon{log: discard(), metrics: metrics.New(release())}, cfg: s.cfg}
	if err := service.start(ctx, ""); err != nil {
		return err
	}
	return beside(ctx, service.maintain, f)
}

// beside runs f while serve runs, then ends serve.
func beside(ctx context.Context, serve, f func(context.Context) error) error {
	working, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	served := make(chan error, 1)
	go func() {
		err := serve(working)
		if err != nil {
			fail(err)
		}
		served <- err
	}()
	err := f(working)
	fail(nil)
	if serveErr := <-served; serveErr != nil {
		return serveErr // why f failed, too
	}
	return err
}
