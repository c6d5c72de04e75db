package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/replication"
)

func (c *cli) teardownCommand() *cobra.Command {
	var dropViews, destructive bool
	cmd := &cobra.Command{
		Use:     "teardown",
		GroupID: "daemon",
		Short:   "Remove slot, publication and catalog",
		Long: `Remove everything that mvsync made in the database, printing each: the replication slot, the
publication, and the schema of its catalog. Backing tables stay as ordinary tables with their rows,
unless --drop-views says otherwise. Stop the daemon first.`,
		Example: "  mvsync teardown\n  mvsync teardown --drop-views --allow-destructive",
		Args:    none(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dropViews && !destructive {
				return usagef(cmd, "--drop-views drops tables with their rows: add --allow-destructive if that is meant")
			}
			return c.teardown(cmd.Context(), dropViews)
		},
	}
	cmd.Flags().BoolVar(&dropViews, "drop-views", false, "drop the backing tables as well")
	cmd.Flags().BoolVar(&destructive, "allow-destructive", false, "allow what loses data")
	return cmd
}

func (c *cli) teardown(ctx context.Context, dropViews bool) error {
	src, err := c.source()
	if err != nil {
		return err
	}
	host := src.host(discard())
	err = src.do(ctx, "teardown", func(conn *pgxConn) error {
		leader, err := host.Leader(ctx, conn)
		if err == nil && leader != 0 {
			err = fmt.Errorf("teardown: a daemon serves catalog %s (backend %d); stop it first", host.Catalog(), leader)
		}
		return err
	})
	if err != nil {
		return err
	}
	removed := []string{}
	err = src.teardown(ctx, src.target(), host, dropViews, func(what string) {
		removed = append(removed, what)
		if c.output == "text" {
			fmt.Fprintln(c.std.Out, what)
		}
	})
	if err != nil {
		return err
	}
	if c.output == "json" {
		return c.printJSON(map[string]any{"done": removed})
	}
	if len(removed) == 0 {
		fmt.Fprintln(c.std.Out, "nothing to remove")
	}
	return nil
}

// teardown removes what is mvsync's and reports each thing in words.
func (s *source) teardown(ctx context.Context, target replication.Target, host *backing.Host, dropViews bool, report func(what string)) error {
	err := replication.Teardown(ctx, target, func(what string) { report("removed " + what) })
	return errors.Join(err, s.do(ctx, "teardown", func(conn *pgxConn) error {
		version, err := host.Version(ctx, conn)
		if err != nil || version == 0 {
			return err
		}
		var done []string
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			views, err := host.Views(ctx, tx)
			if err != nil {
				return err
			}
			for i := range views {
				said, err := letGo(ctx, tx, host, &views[i], dropViews)
				if err != nil {
					return err
				}
				if said != "" {
					done = append(done, said)
				}
			}
			done = append(done, "removed schema "+config.Name(host.Catalog()).String())
			return host.Remove(ctx, tx)
		})
		if err == nil {
			for _, said := range done {
				report(said)
			}
		}
		return err
	}))
}

// letGo drops a view's table, or makes it an ordinary one, and says so.
func letGo(ctx context.Context, tx pgx.Tx, host *backing.Host, v *backing.View, drop bool) (string, error) {
	layout := &backing.Layout{ID: v.ID, Name: v.Name, HashKey: true}
	oid, owner, err := host.Find(ctx, tx, v.Name)
	if err != nil {
		return "", err
	}
	if oid == 0 || owner != v.ID {
		return "", nil // it never got a table, or somebody else's stands there now
	}
	if drop {
		return "dropped table " + v.Label, host.Drop(ctx, tx, layout)
	}
	return "kept table " + v.Label + " as an ordinary table", host.Detach(ctx, tx, layout)
}
