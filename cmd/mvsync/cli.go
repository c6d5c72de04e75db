package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mvsync/mvsync/config"
)

// The exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2 // a usage or configuration error: nothing was created
	exitNo     = 3 // the answer is no
)

// Streams is what a command has of the world around it.
type Streams struct {
	Out, Err io.Writer
	// Env looks up environment variables; nil: there are none.
	Env func(string) (string, bool)
	// Hangup receives SIGHUP: the daemon reloads, the demo ends. May be nil.
	Hangup <-chan os.Signal
	// Unhook gives signals back their default effect, so that a second one ends the process at once. May be nil.
	Unhook func()
}

// Run runs the command line and returns the exit status. It ends early when ctx does.
func Run(ctx context.Context, args []string, std Streams) int {
	if std.Env == nil {
		std.Env = func(string) (string, bool) { return "", false }
	}
	c := &cli{std: std}
	root := c.root() //nolint:contextcheck // commands take the context of ExecuteContext below
	root.SetArgs(args)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	return c.exit(root.ExecuteContext(ctx))
}

// cli holds the flags that all commands share.
type cli struct {
	std    Streams
	config string // path of the configuration
	output string // text or json
}

const long = `mvsync keeps declared views of a Postgres database equal to their queries.

It reads the database's logical replication stream and maintains each declared view, an ordinary
table, so that after every round all of them show what their queries return at one snapshot.

To see it work without any set-up:   mvsync demo
To run it on a database of yours:    write mvsync.yaml, then mvsync check, then mvsync run`

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "mvsync",
		Short:         "Keep declared views of a Postgres database equal to their queries",
		Long:          long,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
	}
	root.PersistentFlags().StringVarP(&c.config, "config", "c", "", "the configuration file (default $MVSYNC_CONFIG, then ./mvsync.yaml)")
	root.PersistentFlags().StringVar(&c.output, "output", "text", "how to print: text or json")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef(cmd, "%s", strings.ReplaceAll(err.Error(), "\n", " "))
	})
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if c.output != "text" && c.output != "json" {
			return usagef(cmd, "--output %q: want text or json", c.output)
		}
		return nil
	}
	root.AddGroup(&cobra.Group{ID: "daemon", Title: "The daemon:"}, &cobra.Group{ID: "look", Title: "Look before you run:"},
		&cobra.Group{ID: "work", Title: "While it runs:"})
	root.SetHelpCommandGroupID("look")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		c.runCommand(), c.demoCommand(), c.teardownCommand(),
		c.checkCommand(), c.explainCommand(), c.schemaCommand(), c.versionCommand(),
		c.statusCommand(), c.verifyCommand(), c.waitCommand(), c.refreshCommand(), c.pauseCommand(), c.resumeCommand(),
	)
	return root
}

func unknownCommand(root *cobra.Command, name string) error {
	root.SuggestionsMinimumDistance = 2
	if near := root.SuggestionsFor(name); len(near) > 0 {
		return usagef(root, "unknown command %q, did you mean %s", name, strings.Join(near, " or "))
	}
	return usagef(root, "unknown command %q", name)
}

// load reads the configuration that the flag, the environment or the default names.
func (c *cli) load() (*config.Config, error) {
	path := c.configPath()
	data, err := os.ReadFile(path)
	if err != nil {
		_, err = config.Load(path) // puts why into the form of a mistake
		if err == nil {
			err = fmt.Errorf("configuration %s: it changed while it was read; try again", path)
		}
		return nil, err
	}
	return config.Parse(path, data, c.std.Env)
}

func (c *cli) configPath() string {
	if c.config != "" {
		return c.config
	}
	if path, ok := c.std.Env("MVSYNC_CONFIG"); ok && path != "" {
		return path
	}
	return "mvsync.yaml"
}

// exitError carries an exit status other than 1 with an error.
type exitError struct {
	code int
	err  error // nil: everything has been said
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// answerNo is the error of a command whose answer, already printed, is no.
func answerNo() error { return &exitError{code: exitNo} }

// nof is answerNo with an explanation.
func nof(format string, args ...any) error {
	return &exitError{code: exitNo, err: fmt.Errorf(format, args...)}
}

// usagef is the error of a command line that makes no sense.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	return &exitError{code: exitUsage, err: fmt.Errorf("%s; see %s --help", what, cmd.CommandPath())}
}

// exit prints the error of a command and returns the status that it stands for.
func (c *cli) exit(err error) int {
	if err == nil {
		return exitDone
	}
	for _, line := range lines(err) {
		fmt.Fprintln(c.std.Err, line)
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if _, ok := errors.AsType[config.Mistakes](err); ok {
		return exitUsage
	}
	return exitFailed
}

// lines gives an error as lines, one for each thing that is wrong: a mistake in the configuration in its own form, all
// else as "mvsync: ...".
func lines(err error) []string {
	switch e := err.(type) { //nolint:errorlint // the outermost error alone decides how it is printed
	case nil:
		return nil
	case *exitError:
		return lines(e.err)
	case config.Mistakes:
		var out []string
		for _, m := range e {
			out = append(out, m.Error())
		}
		return out
	case config.Mistake:
		return []string{e.Error()}
	case interface{ Unwrap() []error }:
		if joined(err) {
			var out []string
			for _, one := range e.Unwrap() {
				out = append(out, lines(one)...)
			}
			return out
		}
	}
	return []string{"mvsync: " + oneLine(err.Error())}
}

// joined reports whether the error is a list made by errors.Join, not one sentence that wraps several.
func joined(err error) bool {
	parts := err.(interface{ Unwrap() []error }).Unwrap()
	texts := make([]string, len(parts))
	for i, part := range parts {
		texts[i] = part.Error()
	}
	return err.Error() == strings.Join(texts, "\n")
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// exactly and atMost check the number of arguments, in our words.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef(cmd, "%s takes %s, got %d arguments", cmd.CommandPath(), what, len(args))
		}
		return nil
	}
}

func none() cobra.PositionalArgs { return exactly(0, "no arguments") }
