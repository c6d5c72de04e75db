package workload

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Counters says what a workload has done. Changes are counted once they are committed.
type Counters struct {
	// Committed transactions, of which Prepared went through PREPARE TRANSACTION.
	Committed, Prepared int64
	// RolledBack transactions were meant to be; Failed ones ended by an error.
	RolledBack, Failed int64
	// Broken transactions lost their connection: whether they were committed is unknown.
	Broken int64
	// Undone savepoints were rolled back within transactions that committed.
	Undone int64
	// MultiTable transactions changed rows of several tables.
	MultiTable int64
	// Statements and Rows are those that committed.
	Statements, Rows int64
	// Kinds splits the statements that committed and changed at least one row.
	Kinds map[Kind]int64
	// Tables splits Rows.
	Tables map[string]int64
	// Errors counts the errors by SQLSTATE, those that ended a savepoint only included.
	Errors map[string]int64
}

// String returns the counters on one line.
func (c Counters) String() string {
	errors := make([]string, 0, len(c.Errors))
	for _, code := range slices.Sorted(maps.Keys(c.Errors)) {
		errors = append(errors, fmt.Sprintf("%s: %d", code, c.Errors[code]))
	}
	return fmt.Sprintf("%d committed (%d prepared), %d rolled back, %d failed, %d broken; %d statements, %d rows; errors {%s}",
		c.Committed, c.Prepared, c.RolledBack, c.Failed, c.Broken, c.Statements, c.Rows, strings.Join(errors, ", "))
}

// add adds other to c, whose maps must exist.
func (c *Counters) add(other Counters) {
	c.Committed += other.Committed
	c.Prepared += other.Prepared
	c.RolledBack += other.RolledBack
	c.Failed += other.Failed
	c.Broken += other.Broken
	c.Undone += other.Undone
	c.MultiTable += other.MultiTable
	c.Statements += other.Statements
	c.Rows += other.Rows
	merge(c.Kinds, other.Kinds)
	merge(c.Tables, other.Tables)
	merge(c.Errors, other.Errors)
}

func newCounters() Counters {
	return Counters{Kinds: map[Kind]int64{}, Tables: map[string]int64{}, Errors: map[string]int64{}}
}

func (c Counters) clone() Counters {
	c.Kinds, c.Tables, c.Errors = maps.Clone(c.Kinds), maps.Clone(c.Tables), maps.Clone(c.Errors)
	return c
}

func merge[K comparable](into, from map[K]int64) {
	for key, n := range from {
		into[key] += n
	}
}
