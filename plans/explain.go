package plans

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Explain is what a view's plan says to people and their tools. It marshals to
// the object of explain --output json.
type Explain struct {
	View          string              `json:"view"`
	Accepted      bool                `json:"accepted"`
	Refusal       *Refusal            `json:"refusal,omitempty"`
	Strategy      Strategy            `json:"strategy,omitempty"`
	Key           []string            `json:"key"`
	Coarsened     []string            `json:"coarsened"`
	PlanDependent []string            `json:"plan_dependent"`
	Sources       []ExplainSource     `json:"sources"`
	Consumers     []string            `json:"consumers"`
	Declined      map[Strategy]string `json:"declined"`
	Cost          *ExplainCost        `json:"cost,omitempty"`
	Candidates    []Candidate         `json:"candidates,omitempty"`
	Advice        []string            `json:"advice"`
	Statements    map[string]string   `json:"statements"`
}

// ExplainCost is a plan's cost with what follows from it. Numbers that are infinite
// are absent.
type ExplainCost struct {
	*Cost
	// BreakEven is the number of changed rows between two refreshes above which a
	// plain REFRESH is cheaper.
	BreakEven *float64 `json:"break_even_rows,omitempty"`
	// Rebuild is the number of touched keys above which a batch is.
	Rebuild *float64 `json:"rebuild_above_keys,omitempty"`
}

// ExplainSource is a table that a view reads.
type ExplainSource struct {
	Table    string   `json:"table"`
	Columns  []string `json:"columns"`
	Identity string   `json:"replica_identity_needed"`
}

// Explain describes the plan. Consumers are the views that read this one.
func (p *Plan) Explain(consumers []Name) *Explain {
	e := &Explain{
		View: p.Name.String(), Accepted: true, Strategy: p.Strategy, Key: []string{}, Coarsened: list0(p.Coarsened),
		PlanDependent: []string{}, Sources: []ExplainSource{}, Consumers: []string{}, Declined: p.Declined,
		Advice: list0(slices.Concat(p.Advice, p.Alter)), Statements: p.Statements(),
	}
	for _, k := range p.Key {
		e.Key = append(e.Key, p.Columns[k].Name)
	}
	for _, c := range p.Columns {
		if c.Dependent != Exact {
			e.PlanDependent = append(e.PlanDependent, c.Name)
		}
	}
	for i := range p.Sources {
		s := ExplainSource{Table: p.Sources[i].Table().String(), Columns: []string{}, Identity: p.Sources[i].Identity}
		for _, c := range p.Sources[i].Columns {
			s.Columns = append(s.Columns, c.Name)
		}
		e.Sources = append(e.Sources, s)
	}
	for _, c := range consumers {
		e.Consumers = append(e.Consumers, c.String())
	}
	slices.Sort(e.Consumers)
	if p.Cost != nil {
		e.Cost = &ExplainCost{Cost: p.Cost, BreakEven: finite(p.Cost.BreakEven()), Rebuild: finite(p.Cost.Rebuild())}
		e.Candidates = p.Candidates
	}
	return e
}

func finite(x float64) *float64 {
	if math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// ExplainRefusal describes a view that is refused.
func ExplainRefusal(view Name, r *Refusal) *Explain {
	return &Explain{
		View: view.String(), Refusal: r, Key: []string{}, Coarsened: []string{}, PlanDependent: []string{}, Sources: []ExplainSource{},
		Consumers: []string{}, Declined: map[Strategy]string{}, Advice: []string{}, Statements: map[string]string{},
	}
}

// list0 is never nil, so that it marshals as a list.
func list0(l []string) []string {
	if l == nil {
		return []string{}
	}
	return l
}

// Statements are the plan's SQL by name.
func (p *Plan) Statements() map[string]string {
	out := map[string]string{"body": p.Body, "evaluate": p.Eval}
	if p.Projection != nil {
		out["new"], out["touched"] = p.Projection.New, p.Projection.Touched
	}
	if g := p.Aggregate; g != nil {
		out["delta"], out["merge"], out["touched"] = g.Delta, g.Merge, g.Touched
		out["rerun"], out["rerun_touched"] = g.Rerun, g.RerunTouched
	}
	if r := p.Residual; r != nil {
		for i := range r.Slices {
			out["keys_"+itoa(i)] = r.Slices[i].Keys
		}
		out["new"], out["touched"] = r.New, r.Touched
	}
	for name, sql := range out {
		out[name] = FewKeys(sql)
	}
	return out
}

// String is the plan for a terminal, without its statements.
func (e *Explain) String() string {
	var b strings.Builder
	line := func(label, text string) {
		if text != "" {
			b.WriteString("  " + label + strings.Repeat(" ", max(1, 16-len(label))) + text + "\n")
		}
	}
	b.WriteString(e.View + "\n")
	if e.Refusal != nil {
		line("refused", string(e.Refusal.Code))
		line("construct", e.Refusal.Construct)
		line("reason", e.Refusal.Reason)
		line("do", e.Refusal.Suggestion)
		return b.String()
	}
	line("strategy", string(e.Strategy))
	line("key", "("+join(e.Key)+")")
	line("coarsened", join(e.Coarsened))
	line("plan-dependent", join(e.PlanDependent))
	for _, s := range e.Sources {
		line("source", s.Table+" ("+join(s.Columns)+"), replica identity: "+s.Identity)
	}
	line("consumers", join(e.Consumers))
	for _, text := range e.Cost.lines() {
		line("cost", text)
	}
	for _, c := range e.lost() {
		line("not", string(c.Strategy)+": "+c.Lost)
	}
	for _, advice := range e.Advice {
		line("advice", advice)
	}
	return b.String()
}

// lost lists the strategies that were not chosen, each with the reason.
func (e *Explain) lost() []Candidate {
	var out []Candidate
	if len(e.Candidates) > 0 {
		for _, c := range e.Candidates {
			if c.Lost != "" {
				out = append(out, c)
			}
		}
		return out
	}
	for _, arm := range arms {
		if why := e.Declined[arm.strategy]; why != "" {
			out = append(out, Candidate{Strategy: arm.strategy, Lost: why})
		}
	}
	return out
}

// lines say what a plan costs.
func (c *ExplainCost) lines() []string {
	if c == nil {
		return nil
	}
	out := []string{fmt.Sprintf("evaluating the body and comparing about %.0f rows: %s (in units of Postgres' planner)", c.Rows, figure(c.Evaluate))}
	if c.Fixed == c.Evaluate {
		return append(out, "every round with a change does that; a plain REFRESH costs "+figure(c.Refresh))
	}
	for _, w := range c.Writes {
		text := "each changed row of " + w.Table + ": " + figure(w.Row)
		if first := c.Fixed + w.Fixed; first > 0 {
			text += ", and the first of a round " + figure(first) + " more"
		}
		out = append(out, text)
	}
	if len(c.Scans) > 0 {
		out = append(out, "touched keys are looked up by reading all of "+join(c.Scans))
	}
	if c.Retraction > 0 {
		out = append(out, "each group that loses its extreme: "+figure(c.Retraction)+" more")
	}
	if c.BreakEven != nil {
		out = append(out, fmt.Sprintf("a plain REFRESH (%s) is cheaper above %.0f changed rows between two of them", figure(c.Refresh), *c.BreakEven))
	}
	return out
}

// MarshalJSON writes a plan as its explanation.
func (p *Plan) MarshalJSON() ([]byte, error) { return json.Marshal(p.Explain(nil)) }
