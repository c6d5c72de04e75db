package minimal

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mvsync/mvsync/plans"
)

// Case is a failure that can be replayed.
type Case struct {
	// Schema makes the tables, and Rows their rows before the views exist.
	Schema, Rows []string
	// Views are the failing one, which is the last, and what it reads.
	Views []plans.Declaration
	// Transactions are what made it wrong.
	Transactions [][]string
	// Each says that there must be a round after each of them, else all must meet in one.
	Each bool
	// Found is how the view differs.
	Found string
}

// Case returns what happened in the round that was found wrong, or an error if none was.
func (r *Recorder) Case() (*Case, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == "" {
		return nil, errors.New("no round was found wrong")
	}
	c := &Case{Views: r.reads(r.failed)}
	bodies := make([]string, len(c.Views))
	for i, v := range c.Views {
		bodies[i] = v.Query
	}
	var names map[string]bool
	c.Schema, names = needed(r.schema, bodies)
	sources := r.sources.clone()
	for name := range sources {
		if !names[name] {
			delete(sources, name)
		}
	}
	var batch []transaction
	for _, tx := range r.pending {
		switch {
		case r.since.Contains(r.since.Widen(tx.xid)):
			sources.apply(tx)
		case r.until.Contains(r.until.Widen(tx.xid)):
			batch = append(batch, tx)
		}
	}
	c.Rows = sources.inserts()
	for _, tx := range batch {
		if statements := sources.apply(tx); len(statements) > 0 {
			c.Transactions = append(c.Transactions, statements)
		}
	}
	return c, nil
}

// reads returns a view with the views that it reads, producers first.
func (r *Recorder) reads(name string) []plans.Declaration {
	want := map[string]bool{}
	var add func(d plans.Declaration)
	add = func(d plans.Declaration) {
		want[d.Name.String()] = true
		words := word.FindAllString(d.Query, -1)
		for _, p := range r.daemon.Views {
			if !want[p.Name.String()] && slices.Contains(words, p.Name.Name) {
				add(p)
			}
		}
	}
	for _, d := range r.daemon.Views {
		if d.Name.String() == name {
			add(d)
		}
	}
	var out []plans.Declaration
	for _, d := range r.daemon.Views {
		if want[d.Name.String()] && d.Name.String() != name {
			d.Every = 0
			out = append(out, d)
		}
	}
	for _, d := range r.daemon.Views {
		if d.Name.String() == name {
			d.Every = 0
			out = append(out, d)
		}
	}
	return out
}

// inserts returns statements that make all rows, in a fixed order.
func (all tables) inserts() []string {
	var out []string
	for _, tab := range all {
		for _, r := range tab.rows {
			out = append(out, tab.insert(r))
		}
	}
	slices.Sort(out)
	return out
}

// replicaRole keeps foreign keys and other triggers from doing what is in the script already.
const replicaRole = "SET session_replication_role = replica"

// Setup returns what must stand before mvsync starts, as SQL.
func (c *Case) Setup() string {
	return strings.Join(slices.Concat(c.Schema, []string{replicaRole}, c.Rows), ";\n") + ";\n"
}

// Changes returns each transaction as SQL.
func (c *Case) Changes() []string {
	out := make([]string, len(c.Transactions))
	for i, statements := range c.Transactions {
		out[i] = "BEGIN;\n" + strings.Join(statements, ";\n") + ";\nCOMMIT;\n"
	}
	return out
}

// Config returns the views as mvsync's configuration has them.
func (c *Case) Config() string {
	var b strings.Builder
	b.WriteString("views:\n")
	for _, v := range c.Views {
		fmt.Fprintf(&b, "  - name: %s.%s\n    query: |-\n      %s\n", v.Name.Schema, v.Name.Name, strings.ReplaceAll(strings.TrimSpace(v.Query), "\n", "\n      "))
	}
	return b.String()
}

// String returns the case for people: a configuration, and a script for psql.
func (c *Case) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# mvsync.yaml\n%s\n", c.Config())
	fmt.Fprintf(&b, "-- Before the first `mvsync run --once`:\n%s\n", c.Setup())
	then := "-- Then, and `mvsync run --once` again, so that one round has it all:"
	if c.Each {
		then = "-- Then, while `mvsync run` follows, with `SELECT mvsync.wait('10s')` after each transaction:"
	}
	fmt.Fprintf(&b, "%s\n%s;\n%s\n", then, replicaRole, strings.Join(c.Changes(), ""))
	fmt.Fprintf(&b, "-- Found: %s\n", strings.ReplaceAll(c.Found, "\n", "\n--   "))
	return b.String()
}
