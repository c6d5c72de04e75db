package plans

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Cost is what maintaining a view is expected to cost, in the unit of Postgres'
// planner, for tables in memory. It is the planner's own estimate of
// the plan's statements, from the statistics and indexes that there are at the time,
// and a rate for each stored row that is compared or written.
type Cost struct {
	// Evaluate is the body as a whole, and the comparison with every stored row: what
	// a rebuild costs.
	Evaluate float64 `json:"evaluate"`
	// Refresh is the body as a whole, and every row written: what REFRESH
	// MATERIALIZED VIEW would cost.
	Refresh float64 `json:"refresh"`
	// Rows are those of the view.
	Rows float64 `json:"rows"`
	// Fixed is what a round pays for the first touched key: the tables in Scans are
	// read from end to end.
	Fixed float64 `json:"fixed"`
	// Key is what each touched key costs: a row, a group or a slice.
	Key float64 `json:"key"`
	// Retraction is what a group costs that has to be run again, since it lost its
	// extreme; 0: no group ever has.
	Retraction float64 `json:"retraction,omitempty"`
	// Scans name the tables that touched keys are looked up in by reading all of them.
	Scans []string `json:"scans"`
	// Writes say what a change of each source costs, in the order of Plan.Sources.
	Writes []WriteCost `json:"writes"`
}

// WriteCost is what the changed rows of one source cost in a round.
type WriteCost struct {
	Table string `json:"table"`
	// Fixed is for the first changed row, on top of Cost.Fixed.
	Fixed float64 `json:"fixed"`
	// Row is for each changed row, the keys that it touches included.
	Row float64 `json:"row"`
	// Keys is how many a changed row touches.
	Keys float64 `json:"keys"`
}

// The rates for stored rows, as measured beside the planner's unit over 100,000 rows in
// memory.
const (
	compareCost = 0.05 // a stored row read in sequence and compared
	findCost    = 0.1  // a stored row found by its key and compared
	writeCost   = 0.3  // a row written by key, with its index and WAL
	loadCost    = 0.05 // a row written with all others
	// sampleRows are how many images and keys the statements are planned for. Postgres
	// counts on ten elements where it does not know an array.
	sampleRows = 10
	// bulkShare is what a key among thousands costs of what it costs among ten: look-ups
	// share pages. As measured, like the rates.
	bulkShare = 1.0 / 3
	// cachedPage is the cost of a page that is in memory.
	cachedPage = "0.1"
)

// Exceeds reports whether running the body again for so many touched keys costs
// more than evaluating it once.
func (c *Cost) Exceeds(keys int) bool {
	return c != nil && c.Fixed+c.Key*bulkShare*float64(keys) > c.Evaluate
}

// Batch is what a round costs that takes over so many changed rows of each source.
func (c *Cost) Batch(rows float64) float64 {
	total := c.Fixed
	for _, w := range c.Writes {
		total += w.Fixed + w.Row*rows
	}
	return total
}

// BreakEven is the number of changed rows between two refreshes, spread evenly over
// the sources, above which REFRESH would be the cheaper way; infinite where it never
// is.
func (c *Cost) BreakEven() float64 {
	var fixed, row float64
	for _, w := range c.Writes {
		fixed = max(fixed, w.Fixed)
		row += w.Row / float64(len(c.Writes))
	}
	switch left := c.Refresh - c.Fixed - fixed; {
	case left <= 0:
		return 0
	case row == 0:
		return math.Inf(1)
	default:
		return math.Floor(left / row)
	}
}

// Rebuild is the number of touched keys above which evaluating the body is cheaper
// for a batch; infinite where it never is.
func (c *Cost) Rebuild() float64 {
	if c.Key == 0 {
		return math.Inf(1)
	}
	return max(0, math.Floor((c.Evaluate-c.Fixed)/(c.Key*bulkShare)))
}

// Estimate asks the planner anew what the plan costs. The tables that it reads must
// be there. It leaves settings of the transaction as they are.
func Estimate(ctx context.Context, tx pgx.Tx, p *Plan) (*Cost, error) {
	return estimateCost(ctx, &estimate{tx: tx, p: p, cost: &Cost{Scans: []string{}}})
}

// EstimateKeys is Estimate without Writes: what [Cost.Exceeds] needs.
func EstimateKeys(ctx context.Context, tx pgx.Tx, p *Plan) (*Cost, error) {
	return estimateCost(ctx, &estimate{tx: tx, p: p, cost: &Cost{Scans: []string{}}, keysOnly: true})
}

func estimateCost(ctx context.Context, e *estimate) (*Cost, error) {
	if err := e.settled(ctx); err != nil {
		return nil, fmt.Errorf("estimate the cost of %s: %w", e.p.Name, err)
	}
	return e.cost, nil
}

// estimate gathers the planner's figures for one plan.
type estimate struct {
	tx       pgx.Tx
	p        *Plan
	cost     *Cost
	keysOnly bool // leave Writes out
}

// settled runs the estimate under the settings that fit it: pages of tables in use
// are in memory, and statements that write have no parallel workers.
func (e *estimate) settled(ctx context.Context) error {
	var seq, random, workers string
	err := e.tx.QueryRow(ctx, "SELECT current_setting('seq_page_cost'), current_setting('random_page_cost'), current_setting('max_parallel_workers_per_gather')").
		Scan(&seq, &random, &workers)
	if err != nil {
		return err
	}
	const set = "SELECT set_config('seq_page_cost', $1, true), set_config('random_page_cost', $2, true), set_config('max_parallel_workers_per_gather', $3, true)"
	if _, err := e.tx.Exec(ctx, set, cachedPage, cachedPage, "0"); err != nil {
		return err
	}
	if err := e.run(ctx); err != nil {
		return err
	}
	_, err = e.tx.Exec(ctx, set, seq, random, workers)
	return err
}

func (e *estimate) run(ctx context.Context) error {
	whole, err := e.explain(ctx, e.p.Eval)
	if err != nil {
		return err
	}
	c := e.cost
	c.Rows = whole.Rows
	c.Evaluate = whole.Total + whole.Rows*compareCost*e.tables()
	c.Refresh = whole.Total + whole.Rows*loadCost
	switch {
	case e.p.Projection != nil:
		err = e.projection(ctx)
	case e.p.Aggregate != nil:
		err = e.aggregate(ctx)
	case e.p.Residual != nil:
		err = e.residual(ctx)
	default:
		e.floor()
	}
	slices.Sort(c.Scans)
	c.Scans = slices.Compact(c.Scans)
	return err
}

// tables is 2 where a stored row has a part in the companion, else 1.
func (e *estimate) tables() float64 {
	if len(e.p.Hidden) > 0 {
		return 2
	}
	return 1
}

// stored is the cost of bringing rows up to date.
func (e *estimate) stored(rows float64) float64 { return rows * (findCost + writeCost) * e.tables() }

// projection: new rows come from images alone.
func (e *estimate) projection(ctx context.Context) error {
	plan, err := e.explain(ctx, e.p.Projection.New, e.images(newImages(0), 0, sampleRows))
	if err != nil {
		return err
	}
	e.cost.Key = plan.Total/sampleRows + e.stored(max(plan.Rows/sampleRows, 1))
	e.writes(1)
	return nil
}

// aggregate: a changed row adds to its group, or takes from it.
func (e *estimate) aggregate(ctx context.Context) error {
	g := e.p.Aggregate
	plan, err := e.explain(ctx, g.Delta, e.images(newImages(0), 0, sampleRows), e.images(oldImages(0), 0, sampleRows))
	if err != nil {
		return err
	}
	e.cost.Key = plan.Total/sampleRows + e.stored(1)
	e.writes(1)
	if !e.p.mayRerun() {
		return nil
	}
	again, err := e.explain(ctx, g.Rerun, keysSample("mvsync_keys", g.KeyColumns))
	if err != nil {
		return err
	}
	e.cost.Retraction = again.Total / sampleRows
	if len(g.KeyColumns) == 0 {
		e.cost.Retraction = again.Total
	}
	return nil
}

// mayRerun reports an aggregate that a retraction can send back to the source.
func (p *Plan) mayRerun() bool {
	return slices.ContainsFunc(p.Aggregate.DeltaColumns, func(c Column) bool {
		return strings.HasSuffix(c.Name, "_r") || strings.HasSuffix(c.Name, "_i")
	})
}

// residual: keys are derived from images, and the body is run again for them.
func (e *estimate) residual(ctx context.Context) error {
	r, c := e.p.Residual, e.cost
	keys := make([]sample, len(r.Slices))
	for i := range r.Slices {
		keys[i] = keysSample(touchedKeys(i), r.Slices[i].KeyColumns)
	}
	plan, err := e.explain(ctx, r.New, keys...)
	if err != nil {
		return err
	}
	fixed, n := e.scans(plan), float64(len(r.Slices))
	c.Fixed += fixed
	rows := 1.0
	if !e.oneRow() {
		rows = max(plan.Rows/sampleRows/n, 1)
	}
	c.Key += max(plan.Total-fixed, 0)/sampleRows/n + e.stored(rows)
	for i := range e.p.Sources {
		if e.keysOnly {
			break
		}
		if err := e.write(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// oneRow reports slices that hold one stored row each: they are found by all of its
// key.
func (e *estimate) oneRow() bool {
	return !slices.ContainsFunc(e.p.keyed(), func(c Column) bool {
		return !strings.Contains(e.p.Residual.Touched, "s."+quoteAlways(c.Name)+" ")
	})
}

// write is what changes of one source cost while the others stay as they are.
func (e *estimate) write(ctx context.Context, changed int) error {
	w := WriteCost{Table: e.p.Sources[changed].Table().String()}
	in := []sample{{"mvsync_stored", e.p.visible(), sampleRows}}
	for i := range e.p.Sources {
		rows := 0
		if i == changed {
			rows = sampleRows
		}
		in = append(in, e.images(newImages(i), i, rows), e.images(oldImages(i), i, rows))
	}
	for _, s := range e.p.Residual.Slices {
		if !slices.Contains(s.Inputs, changed) {
			continue
		}
		plan, err := e.explain(ctx, s.Keys, in...)
		if err != nil {
			return err
		}
		keys, fixed := plan.Rows/sampleRows/2, e.scans(plan)
		w.Keys += keys
		w.Fixed += fixed
		w.Row += max(plan.Total-fixed, 0)/sampleRows + keys*e.cost.Key
	}
	if slices.Contains(e.p.Residual.Floor, changed) {
		w.Fixed = e.cost.Evaluate
	}
	e.cost.Writes = append(e.cost.Writes, w)
	return nil
}

// writes are those of a plan whose sources are not read.
func (e *estimate) writes(keys float64) {
	for i := range e.p.Sources {
		e.cost.Writes = append(e.cost.Writes, WriteCost{Table: e.p.Sources[i].Table().String(), Row: keys * e.cost.Key, Keys: keys})
	}
}

// floor: every round with a change evaluates the body, however much changed.
func (e *estimate) floor() {
	e.cost.Fixed = e.cost.Evaluate
	e.writes(0)
}

// scans adds up the tables that a plan reads from end to end, and notes their names.
func (e *estimate) scans(plan *planNode) float64 {
	var sum float64
	plan.scans(func(n *planNode) {
		name := Name{n.Schema, n.Relation}
		if i := slices.IndexFunc(e.p.Sources, func(s Source) bool { return s.Table() == name }); i < 0 {
			name = e.parent(name)
		}
		e.cost.Scans = append(e.cost.Scans, name.String())
		sum += n.Total
	})
	return sum
}

// parent is the one table that a partition can belong to, itself where that is not
// known.
func (e *estimate) parent(leaf Name) Name {
	if len(e.p.Sources) == 1 {
		return e.p.Sources[0].Table()
	}
	return leaf
}

// planNode is a node of EXPLAIN (FORMAT JSON).
type planNode struct {
	Node      string     `json:"Node Type"`
	Schema    string     `json:"Schema"`
	Relation  string     `json:"Relation Name"`
	IndexCond string     `json:"Index Cond"`
	Total     float64    `json:"Total Cost"`
	Rows      float64    `json:"Plan Rows"`
	Plans     []planNode `json:"Plans"`
}

// scans visits the nodes that read all of a table.
func (n *planNode) scans(visit func(*planNode)) {
	if n.whole() {
		visit(n)
		return
	}
	for i := range n.Plans {
		// A node that costs more than what is above it is not read to its end: a merge
		// join stops early.
		if c := &n.Plans[i]; c.Total <= n.Total {
			c.scans(visit)
		}
	}
}

// whole reports a node that reads all of a table, if it is read to its end.
func (n *planNode) whole() bool {
	switch n.Node {
	case "Seq Scan":
		return n.Relation != ""
	case "Index Scan", "Index Only Scan":
		return n.IndexCond == ""
	}
	return false
}

// sample is an input of a statement, for the planner: rows whose values it does not
// know.
type sample struct {
	name string
	cols []Column
	rows int
}

func (e *estimate) images(name string, source, rows int) sample {
	in := imagesInput(name, &e.p.Sources[source])
	return sample{in.name, in.cols, rows}
}

func keysSample(name string, cols []Column) sample { return sample{name, cols, sampleRows} }

// sql defines the input. Materialized, its values are hidden from the planner, as
// those of parameters are.
func (s sample) sql() string {
	nulls := make([]string, len(s.cols))
	names := make([]string, len(s.cols))
	for i, c := range s.cols {
		nulls[i], names[i] = "NULL::"+c.Type, quoteAlways(c.Name)
	}
	from := " FROM pg_catalog.generate_series(1, " + itoa(s.rows) + ")"
	if s.rows == 0 {
		from = " WHERE false"
	}
	if len(s.cols) == 0 {
		return s.name + " AS MATERIALIZED (SELECT" + from + ")"
	}
	return s.name + "(" + join(names) + ") AS MATERIALIZED (SELECT " + join(nulls) + from + ")"
}

// explain asks the planner about a statement over inputs.
func (e *estimate) explain(ctx context.Context, sql string, in ...sample) (*planNode, error) {
	var with string
	if len(in) > 0 {
		ctes := make([]string, len(in))
		for i, s := range in {
			ctes[i] = s.sql()
		}
		with = "WITH " + join(ctes) + " "
	}
	var text []byte
	err := e.tx.QueryRow(ctx, "EXPLAIN (VERBOSE, FORMAT JSON) "+with+"SELECT * FROM ("+sql+") q", pgx.QueryExecModeExec).Scan(&text)
	if err != nil {
		return nil, err
	}
	var out []struct {
		Plan planNode `json:"Plan"`
	}
	if err := json.Unmarshal(text, &out); err != nil || len(out) != 1 {
		return nil, fmt.Errorf("read a plan of Postgres: %w", err)
	}
	return &out[0].Plan, nil
}
