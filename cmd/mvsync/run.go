package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/mvsync/mvsync/metrics"
)

func (c *cli) runCommand() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:     "run",
		GroupID: "daemon",
		Short:   "Maintain the declared views",
		Long: `Run the daemon: create what is missing, fill the views, then keep them equal to their queries.

Everything is checked before anything is created, and a first start that fails leaves nothing behind.
A view that cannot be kept is logged and listed by mvsync status; the others run. SIGTERM and Ctrl-C
finish the round in hand, a second signal ends the process at once. SIGHUP loads the configuration again.`,
		Example: "  mvsync run -c mvsync.yaml\n  mvsync run --once   # bring every view to now, then exit",
		Args:    none(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context(), once) },
	}
	cmd.Flags().BoolVar(&once, "once", false, "bring every view to now, then exit")
	return cmd
}

func (c *cli) run(ctx context.Context, once bool) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if c.std.Unhook != nil {
		defer context.AfterFunc(ctx, c.std.Unhook)()
	}
	log := c.logger()
	d := &daemon{log: log, metrics: metrics.New(release()), load: c.load, hangup: c.std.Hangup, once: once}
	d.began = func(s *service) {
		log.Info("maintaining", "views", len(s.engine.Plans()), "refused", len(s.engine.Refused()), "version", release())
	}
	return d.run(ctx, cfg)
}

// source reads the configuration and where it leads.
func (c *cli) source() (*source, error) {
	cfg, err := c.load()
	if err != nil {
		return nil, err
	}
	return newSource(cfg)
}
