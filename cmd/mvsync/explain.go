package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/plans"
)

func (c *cli) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "explain [VIEW...]",
		GroupID: "look",
		Short:   "Show how views are maintained, and why so",
		Long: `Show the whole plan of the named views (default: all declared): key, strategy and why not a cheaper one,
what it needs of its tables, advice, and the SQL of every statement. Nothing is changed.`,
		Example: "  mvsync explain public.revenue_by_region\n  mvsync explain --output json",
		RunE:    func(cmd *cobra.Command, args []string) error { return c.explain(cmd.Context(), args) },
	}
}

func (c *cli) explain(ctx context.Context, names []string) error {
	src, err := c.source()
	if err != nil {
		return err
	}
	wanted, err := findAll(src.cfg, names)
	if err != nil {
		return err
	}
	src.weigh = true
	verdicts, err := src.judge(ctx)
	if err != nil {
		return err
	}
	explained := []*plans.Explain{}
	refused := false
	for _, v := range verdicts {
		if len(wanted) > 0 && !slices.Contains(wanted, v.view.Name.String()) {
			continue
		}
		explained = append(explained, v.explain(verdicts))
		refused = refused || v.refusal != nil
	}
	if c.output == "json" {
		err = c.printJSON(explained)
	} else {
		p := c.colours(c.std.Out)
		for i, e := range explained {
			if i > 0 {
				fmt.Fprintln(c.std.Out)
			}
			c.printExplain(e, p)
		}
	}
	if err == nil && refused {
		return answerNo()
	}
	return err
}

func (v verdict) explain(all []verdict) *plans.Explain {
	if v.refusal != nil {
		return plans.ExplainRefusal(plansName(v.view.Name), v.refusal)
	}
	return v.plan.Explain(consumers(v.plan.Name, all))
}

// consumers are the views that read a view.
func consumers(of plans.Name, all []verdict) []plans.Name {
	var out []plans.Name
	for _, v := range all {
		if v.plan == nil {
			continue
		}
		for i := range v.plan.Sources {
			if s := &v.plan.Sources[i]; s.Producer && s.Table() == of {
				out = append(out, v.plan.Name)
			}
		}
	}
	return out
}

// printExplain is the plan for people: what, why, what it wants, and the SQL.
func (c *cli) printExplain(e *plans.Explain, p paint) {
	out := c.std.Out
	name, rest, _ := strings.Cut(e.String(), "\n")
	fmt.Fprintln(out, p.in(bold, name))
	fmt.Fprint(out, rest)
	if e.Refusal != nil {
		return
	}
	for _, name := range slices.SortedFunc(maps.Keys(e.Statements), statementOrder) {
		if name == "evaluate" && e.Statements[name] == e.Statements["body"] {
			continue
		}
		fmt.Fprintf(out, "\n  %s\n%s\n", p.in(cyan, statementTitle(name)), indent(strings.TrimSpace(e.Statements[name]), "    "))
	}
}

// statementTitles say what each statement of a plan is for.
var statementTitles = []struct{ name, title string }{
	{"body", "the query, as Postgres reads it (body)"},
	{"evaluate", "to fill, reconcile and verify (evaluate)"},
	{"delta", "what a batch contributes to each group (delta)"},
	{"merge", "contributions added to the stored groups (merge)"},
	{"keys", "which keys a batch touches (keys)"},
	{"new", "the new rows (new)"},
	{"touched", "the stored rows that they replace (touched)"},
	{"rerun", "groups that have to be computed again (rerun)"},
	{"rerun_touched", "the stored rows that those replace (rerun_touched)"},
}

func statementTitle(name string) string {
	for _, s := range statementTitles {
		if s.name == unnumbered(name) {
			return s.title
		}
	}
	return name
}

// unnumbered takes off the number of a statement that there are several of.
func unnumbered(name string) string { return strings.TrimRight(name, "_0123456789") }

// statementOrder puts statements into the order in which a round runs them.
func statementOrder(a, b string) int {
	place := func(name string) int {
		return slices.IndexFunc(statementTitles, func(s struct{ name, title string }) bool {
			return s.name == unnumbered(name)
		})
	}
	if d := place(a) - place(b); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}

func (c *cli) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		GroupID: "look",
		Short:   "Print the JSON Schema of the configuration",
		Long: `Print the JSON Schema of mvsync.yaml, by which editors complete and check it. With the YAML language server:
save it and begin the file with  # yaml-language-server: $schema=mvsync.schema.json`,
		Example: "  mvsync schema > mvsync.schema.json",
		Args:    none(),
		RunE: func(*cobra.Command, []string) error {
			schema, err := config.Schema()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.std.Out, strings.TrimSpace(string(schema)))
			return err
		},
	}
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		GroupID: "look",
		Short:   "Print the version",
		Args:    none(),
		RunE: func(*cobra.Command, []string) error {
			if c.output == "json" {
				return c.printJSON(map[string]string{"version": release()})
			}
			_, err := fmt.Fprintln(c.std.Out, "mvsync "+release())
			return err
		},
	}
}
