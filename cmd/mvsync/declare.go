package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/maintain"
	"github.com/mvsync/mvsync/plans"
)

// declarations turns the views of a configuration into what the planner takes.
func declarations(cfg *config.Config) []plans.Declaration {
	out := make([]plans.Declaration, 0, len(cfg.Views))
	for i := range cfg.Views {
		v := &cfg.Views[i]
		out = append(out, plans.Declaration{
			Name: plansName(v.Name), Query: v.Query, Columns: texts(v.Columns), Key: texts(v.Key),
			Nondeterministic:    v.Nondeterministic == config.NondeterministicAllow,
			Every:               v.Every.Std(),
			RebuildRowThreshold: v.RebuildRowThreshold,
		})
	}
	return out
}

func plansName(id config.Ident) plans.Name {
	return plans.Name{Schema: string(id.Schema), Name: string(id.Name)}
}

// texts keeps nil apart from empty: an empty key asserts a view of one row.
func texts(names []config.Name) []string {
	if names == nil {
		return nil
	}
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return out
}

func plannerOptions(cfg *config.Config) plans.Options {
	o := plans.Options{
		SearchPath:    texts(cfg.Session.SearchPath),
		AppendOnly:    map[plans.Name]bool{},
		External:      map[plans.Name]bool{},
		Deterministic: map[string]bool{},
		Aggregates:    map[string]plans.Declared{},
		Catalog:       string(cfg.Backing.Catalog),
	}
	if cfg.Source.ReplicaIdentity == config.ReplicaIdentityManage {
		o.ReplicaIdentity = plans.Manage
	}
	for name, t := range cfg.Source.Tables {
		o.AppendOnly[plansName(name)] = t.AppendOnly
		o.External[plansName(name)] = t.Feed == config.FeedExternal
	}
	for signature, f := range cfg.Functions {
		o.Deterministic[signature.String()] = f.Deterministic
	}
	for signature, a := range cfg.Aggregates {
		o.Aggregates[signature.String()] = plans.Declared{
			Merge: identText(a.Merge), Negate: identText(a.Negate), Decode: identText(a.Decode), Decompose: a.Decompose,
		}
	}
	return o
}

func identText(id *config.Ident) string {
	if id == nil {
		return ""
	}
	return id.String()
}

func tableOptions(cfg *config.Config) map[plans.Name]maintain.TableOptions {
	out := map[plans.Name]maintain.TableOptions{}
	for i := range cfg.Views {
		v := &cfg.Views[i]
		o := maintain.TableOptions{Indexes: v.Indexes, Grants: texts(v.Grants.Select), Storage: map[string]string{}}
		for parameter, value := range v.Storage {
			o.Storage[string(parameter)] = value
		}
		out[plansName(v.Name)] = o
	}
	return out
}

// verdict is what the planner says of one declared view: a plan or a refusal.
type verdict struct {
	view    *config.View
	plan    *plans.Plan
	refusal *plans.Refusal
}

// judge plans the views of a configuration, changing nothing. Verdicts come in the order of the file.
func (s *source) judge(ctx context.Context) ([]verdict, error) {
	engine := maintain.New(s.options(discard(), nil))
	defer engine.Close(ctx)
	if _, err := engine.Prepare(ctx); err != nil {
		return nil, err
	}
	byName := map[string]verdict{}
	for _, p := range engine.Plans() {
		byName[p.Name.String()] = verdict{plan: p}
	}
	for _, r := range engine.Refused() {
		byName[r.Name] = verdict{refusal: r.Refusal}
	}
	out := make([]verdict, len(s.cfg.Views))
	for i := range s.cfg.Views {
		out[i] = byName[s.cfg.Views[i].Name.String()]
		out[i].view = &s.cfg.Views[i]
	}
	return out, nil
}

// options are what the engine has to know. The observer may be nil.
func (s *source) options(log *slog.Logger, observer maintain.Observer) maintain.Options {
	cfg := s.cfg
	// The stream has a quarter of the budget for what waits to be taken, and another is in hand meanwhile.
	memory := int64(cfg.Round.Memory) / 2
	o := maintain.Options{
		Views: declarations(cfg), Planner: plannerOptions(cfg), Tables: tableOptions(cfg),
		Slot: string(cfg.Source.Slot), Publication: string(cfg.Source.Publication), Catalog: string(cfg.Backing.Catalog),
		Interval: cfg.Round.Interval.Std(), Memory: memory, VerifyEvery: cfg.Verify.Every.Std(),
		Degrade: bool(cfg.Limits.Degrade), Connect: s.connect, Publish: publisher{s}, Observer: observer, Log: log,
	}
	o.Planner.Compare = s.weigh
	if cfg.Source.OnGap == config.OnGapHalt {
		o.ByGap = maintain.Halt
	}
	return o
}

// refusalMistake puts a refusal in its place in the file.
func refusalMistake(cfg *config.Config, v *config.View, r *plans.Refusal) config.Mistake {
	what := string(r.Code)
	if r.Construct != "" && r.Construct != "query" { // the path says query already
		what += ": " + r.Construct
	}
	what += ": " + r.Reason
	hint := cmp.Or(r.Suggestion, "mend the query; names without a schema are looked up in session.search_path")
	if r.Position < 0 {
		return cfg.Mistake(v.Path()+".query", what, hint)
	}
	return cfg.QueryMistake(v, r.Position, what, hint)
}

// find returns the declared view of a name in SQL identifier syntax.
func find(cfg *config.Config, name string) (*config.View, error) {
	id, err := config.ParseIdent(name)
	if err != nil {
		return nil, fmt.Errorf("view %q: %w", name, err)
	}
	for i := range cfg.Views {
		if cfg.Views[i].Name == id {
			return &cfg.Views[i], nil
		}
	}
	return nil, fmt.Errorf("view %s: not declared in the configuration; mvsync explain without a name lists the views", id)
}

// findAll checks names given on the command line, and returns them as the catalog writes them.
func findAll(cfg *config.Config, names []string) ([]string, error) {
	var out []string
	var errs []error
	for _, name := range names {
		v, err := find(cfg, name)
		if err != nil {
			errs = append(errs, &exitError{code: exitUsage, err: err})
			continue
		}
		out = append(out, v.Name.String())
	}
	return out, errors.Join(errs...)
}

// longest bounds what is done after the caller has given up, such as removing what was made.
const longest = 15 * time.Second
