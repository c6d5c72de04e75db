package workload

import (
	"context"
	_ "embed" // for schema.sql
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Schema creates the tables that the tests share, in the current schema of an empty database.
//
//go:embed schema.sql
var Schema string

// Execer runs SQL; connections, pools and transactions of pgx do.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Identity is the replica identity of a table: what the stream says of the old row.
type Identity string

// The replica identities that a fixture may have.
const (
	IdentityDefault Identity = "DEFAULT" // the primary key
	IdentityFull    Identity = "FULL"    // the whole row
	IdentityNothing Identity = "NOTHING" // no updates or deletes once the table is published
)

// Create makes the fixtures in an empty database and gives the named tables a replica identity; "*" stands for all
// tables that are not named. Leaves of a partitioned table have the identity of their root, unless they are named.
func Create(ctx context.Context, db Execer, identities map[string]Identity) error {
	if _, err := db.Exec(ctx, Schema, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("create the fixtures: %w", err)
	}
	return SetIdentities(ctx, db, Fixtures(), identities)
}

// SetIdentities gives tables of the spec a replica identity, as [Create] does.
func SetIdentities(ctx context.Context, db Execer, spec Spec, identities map[string]Identity) error {
	byTable := map[[2]string]Identity{}
	known := map[string]bool{"*": true}
	for _, t := range spec.Tables {
		identity, named := identities[t.Name]
		if !named {
			identity = identities["*"]
		}
		known[t.Name] = true
		byTable[[2]string{t.Schema, t.Name}] = identity
		for _, leaf := range t.Leaves {
			known[leaf] = true
			byTable[[2]string{t.Schema, leaf}] = identity
			if own, named := identities[leaf]; named {
				byTable[[2]string{t.Schema, leaf}] = own
			}
		}
	}
	for name := range identities {
		if !known[name] {
			return fmt.Errorf("set replica identities: the spec has no table %q", name)
		}
	}
	tables := slices.SortedFunc(maps.Keys(byTable), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, table := range tables {
		if byTable[table] == "" {
			continue
		}
		statement := fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY %s", pgx.Identifier(table[:]).Sanitize(), byTable[table])
		if _, err := db.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("set replica identities: %s: %w", statement, err)
		}
	}
	return nil
}

// names are keys that a case-insensitive collation folds: three spellings of one, two of another.
var names = []string{"Bob", "bob", "BOB", "ann", "Ann", "été", "Été", "zoë", "q", "", "O'Hara", `back\slash`}

// Fixtures describes the tables of [Schema] in schema public. Values are from 0 to 10, so that groups are small and often
// empty; keys are from 0 to 40, so that about every second insert collides and groups still hold several rows.
func Fixtures() Spec {
	small, keys := Ints(0, 10), Ints(0, 40)
	number := func(name string, values Values) Column {
		return Column{Name: name, Type: "integer", Values: values, There: "%s + 1000", Back: "%s - 1000"}
	}
	text := func(name string, values Values) Column {
		return Column{Name: name, Type: "text", Values: values, There: "%s || '~'", Back: "left(%[1]s, length(%[1]s) - 1)"}
	}
	maybe := func(c Column) Column {
		c.Nullable, c.Values = true, Maybe(0.25, c.Values)
		return c
	}
	tables := []Table{
		{
			Name: "item", Key: []string{"pk"}, Group: []string{"bucket"}, Weight: 3,
			Columns: []Column{number("pk", keys), number("p", small), number("q", small), number("bucket", small)},
		},
		{
			Name: "nul", Key: []string{"pk"}, Group: []string{"bucket"}, Weight: 2,
			Columns: []Column{number("pk", keys), maybe(number("p", small)), maybe(number("q", small)), maybe(number("bucket", small))},
		},
		{
			Name: "dim", Key: []string{"id"}, Group: []string{"label"}, Weight: 2, Cascades: true,
			Columns: []Column{number("id", small), text("label", Strings(names...)), number("rank", small)},
		},
		{
			Name: "fact", Key: []string{"id"}, Group: []string{"dim_id"}, Weight: 3,
			Columns: []Column{number("id", keys), number("dim_id", small), number("amt", small)},
			Parents: []ForeignKey{{Columns: []string{"dim_id"}, Schema: "public", Table: "dim", Referenced: []string{"id"}, Pick: 0.7}},
		},
		{
			Name: "loose", Key: []string{"id"}, Group: []string{"dim_id"}, Weight: 2,
			Columns: []Column{number("id", keys), maybe(number("dim_id", Ints(0, 13))), maybe(Column{
				Name: "amt", Type: "numeric(10,2)", Values: OneOf("0", "1.5", "-2.25", "3", "10.01", "'NaN'"), There: "%s + 1", Back: "%s - 1",
			})},
		},
		{Name: "edge", Key: []string{"src", "dst"}, Columns: []Column{number("src", small), number("dst", small)}},
		{Name: "tag", Key: []string{"key"}, Columns: []Column{text("key", Strings(names...)), number("n", Ints(0, 5))}},
		{
			Name: "acct", Key: []string{"login"},
			Columns: []Column{text("login", Strings(names...)), maybe(text("email", Strings(names...)))},
		},
		texts(),
		{
			Name: "part", Key: []string{"id", "region"}, Weight: 2, Leaves: []string{"part_north", "part_south", "part_rest"},
			Columns: []Column{number("id", small), text("region", Strings("north", "south", "east", "west")), number("v", small)},
		},
	}
	for i := range tables {
		tables[i].Schema = "public"
	}
	return Spec{Tables: tables}
}

// texts describes table txt. Its floats are not negative: sums that cancel out depend on the order of addition without
// bound, and no oracle could judge them. Its documents are objects, over which set-returning functions do not fail.
func texts() Table {
	floats := OneOf("0.1", "0.2", "0.7", "1e-3", "3.3333333333333335", "1e9", "'-0'", "'NaN'", "'Infinity'")
	return Table{
		Name: "txt", Key: []string{"id"}, Group: []string{"at"}, Weight: 2,
		Columns: []Column{
			{Name: "id", Type: "bigint", Identity: true},
			{
				Name: "body", Type: "text", Nullable: true, Wide: true, There: "%s || '~'", Back: "left(%[1]s, length(%[1]s) - 1)",
				Values: Maybe(0.1, Mix(0.2, Wide(), Words(4, "a", "Bob", "bob", "cat", "dog", "", "ß", "naïve"))),
			},
			{
				Name: "j", Type: "jsonb", Nullable: true,
				Values: Maybe(0.1, Strings(`{"k": 1.0}`, `{"k": 1.00}`, `{"k": 1}`, `{"k": "x", "l": null}`, `{"k": null}`, `{}`, `{"m": [1, 2], "k": {"a": "b"}}`)),
			},
			{
				Name: "d", Type: "numeric", Nullable: true, There: "%s + 1", Back: "%s - 1",
				Values: Maybe(0.1, OneOf("0", "1", "1.0", "1.00", "-0.5", "1e-20", "123456789012345678901234567890", "'NaN'", "'Infinity'")),
			},
			{Name: "f", Type: "double precision", Nullable: true, Values: Maybe(0.1, floats)},
			{
				Name: "at", Type: "timestamp with time zone", There: "%s + interval '1 day'", Back: "%s - interval '1 day'",
				Values: Strings("2024-02-28 22:30+00", "2024-02-28 23:59:59.999999+00", "2024-02-29 00:00+00", "2024-02-29 00:30+01", "2024-03-01 12:00+00", "2024-03-31 01:30+00"),
			},
		},
	}
}

// seeded is the number of rows with which [Seed] begins a table; some collide.
const seeded = 30

// Seed fills the tables of the spec with random rows, parents first, and leaves out those that violate a constraint.
// Equal generators give equal rows.
func Seed(ctx context.Context, db Execer, spec Spec, r *rand.Rand) error {
	for i := range spec.Tables {
		t := &spec.Tables[i]
		statements := make([]string, seeded)
		for n := range statements {
			statements[n] = fmt.Sprintf("BEGIN %s; EXCEPTION WHEN integrity_constraint_violation THEN END;", t.insertRows([]string{t.row(r, true)}))
		}
		block := "DO $workload$ BEGIN\n" + strings.Join(statements, "\n") + "\nEND $workload$"
		if _, err := db.Exec(ctx, block, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("seed table %s: %w", t.Name, err)
		}
	}
	return nil
}
