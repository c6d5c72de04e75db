package workload

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// End is how a transaction is meant to end. An error may roll back what should have been committed.
type End int

// The ends of a transaction.
const (
	Commit End = iota
	Rollback
	PrepareCommit   // PREPARE TRANSACTION, then COMMIT PREPARED
	PrepareRollback // PREPARE TRANSACTION, then ROLLBACK PREPARED
)

// Transaction is a generated transaction.
type Transaction struct {
	// Writer and Number identify it within a workload; both count from 0.
	Writer, Number int
	// Isolation is the level, in SQL.
	Isolation string
	// Async says that the commit does not wait for the WAL to be flushed.
	Async bool
	Steps []Step
	End   End
}

// Step is a statement, or a block of steps within a savepoint.
type Step struct {
	// Kind, Table and SQL describe the statement; SQL is empty for a block.
	Kind  Kind
	Table string
	SQL   string
	// Guarded says that the statement has a savepoint of its own, so that its failure is not that of the transaction.
	Guarded bool
	// Block holds the steps within a savepoint, which is given up at their end if Undone is set, else released.
	Block  []Step
	Undone bool
}

// String returns the transaction as a script for psql.
func (t Transaction) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "-- writer %d, transaction %d\n%s\n", t.Writer, t.Number, t.begin())
	writeSteps(&b, t.Steps, 1)
	switch t.End {
	case Commit:
		b.WriteString("COMMIT;\n")
	case Rollback:
		b.WriteString("ROLLBACK;\n")
	case PrepareCommit, PrepareRollback:
		gid := fmt.Sprintf("'workload_%d_%d'", t.Writer, t.Number)
		fmt.Fprintf(&b, "PREPARE TRANSACTION %s;\n%s PREPARED %s;\n", gid, map[bool]string{true: "COMMIT", false: "ROLLBACK"}[t.End == PrepareCommit], gid)
	}
	return b.String()
}

// begin returns the statements that open the transaction.
func (t Transaction) begin() string {
	begin := "BEGIN ISOLATION LEVEL " + t.Isolation + ";"
	if t.Async {
		begin += " SET LOCAL synchronous_commit = off;"
	}
	return begin
}

func writeSteps(b *strings.Builder, steps []Step, depth int) {
	for _, s := range steps {
		switch {
		case s.SQL == "":
			fmt.Fprintf(b, "SAVEPOINT s%d;\n", depth)
			writeSteps(b, s.Block, depth+1)
			fmt.Fprintf(b, "%s SAVEPOINT s%d;\n", map[bool]string{true: "ROLLBACK TO", false: "RELEASE"}[s.Undone], depth)
		case s.Guarded:
			fmt.Fprintf(b, "SAVEPOINT s%[1]d;\n%[2]s;\nRELEASE SAVEPOINT s%[1]d;\n", depth, s.SQL)
		default:
			b.WriteString(s.SQL + ";\n")
		}
	}
}

// choice is a change that the options allow, with its weight.
type choice struct {
	table  *Table
	kind   Kind
	weight int
}

// generator makes the transactions of one writer.
type generator struct {
	r        *rand.Rand
	writer   int
	async    bool
	twoPhase bool
	choices  []choice
	total    int // of the weights
	number   int
}

// newGenerator returns the generator of a writer. Each writer has random numbers of its own: the same whatever the
// others do, and however many they are.
func newGenerator(opts Options, writer int) *generator {
	return &generator{
		r:        rand.New(rand.NewPCG(opts.Seed, uint64(writer))),
		writer:   writer,
		async:    opts.AsyncHalf && writer%2 == 1,
		twoPhase: opts.TwoPhase,
		choices:  opts.choices(),
		total:    opts.total(),
	}
}

// How often things happen, in percent of transactions, or of steps for blocks.
const (
	percentRollback = 8
	percentPrepared = 6 // if two-phase commit is asked for
	percentRepeat   = 5 // repeatable read
	percentSerial   = 5 // serializable
	percentMany     = 1 // more subtransactions than a backend advertises (64)
	percentBlock    = 15
	percentUndone   = 50 // of the blocks
	percentGuarded  = 60 // of the statements

	manySteps = 70
	deepest   = 3
)

// next returns the next transaction.
func (g *generator) next() Transaction {
	t := Transaction{Writer: g.writer, Number: g.number, Async: g.async, Isolation: "READ COMMITTED"}
	g.number++
	switch n := g.r.IntN(100); {
	case n < percentRepeat:
		t.Isolation = "REPEATABLE READ"
	case n < percentRepeat+percentSerial:
		t.Isolation = "SERIALIZABLE"
	}
	if g.chance(percentMany) {
		for range manySteps {
			step := g.change()
			step.Guarded = true
			t.Steps = append(t.Steps, step)
		}
	} else {
		t.Steps = g.steps(1+g.r.IntN(5), 0)
	}
	t.End = g.end()
	return t
}

func (g *generator) end() End {
	if g.chance(percentRollback) {
		return Rollback
	}
	if g.twoPhase && g.chance(percentPrepared) {
		if g.chance(30) {
			return PrepareRollback
		}
		return PrepareCommit
	}
	return Commit
}

func (g *generator) steps(n, depth int) []Step {
	steps := make([]Step, n)
	for i := range steps {
		if depth < deepest && g.chance(percentBlock) {
			steps[i] = Step{Block: g.steps(1+g.r.IntN(3), depth+1), Undone: g.chance(percentUndone)}
			continue
		}
		steps[i] = g.change()
	}
	return steps
}

func (g *generator) change() Step {
	n := g.r.IntN(g.total)
	for _, c := range g.choices {
		if n -= c.weight; n < 0 {
			return Step{Kind: c.kind, Table: c.table.Name, SQL: c.table.statement(g.r, c.kind), Guarded: g.chance(percentGuarded)}
		}
	}
	panic("workload: the weights do not sum up to their total")
}

func (g *generator) chance(percent int) bool { return g.r.IntN(100) < percent }
