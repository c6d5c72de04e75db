package plans

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// relation is what the catalog says of a relation that the body reads.
type relation struct {
	OID         uint32
	Schema      string
	Name        string
	Kind        string // relkind
	Persistence string // relpersistence
	RowSecurity bool   // rows would be hidden from this role
	Identity    string // relreplident
	Parent      bool   // has inheritance children (a plain table)
	System      bool
	Readable    bool // this role may SELECT from it and lock it
	attrs       []attribute
	uniques     []unique
	leaves      []leaf
	producer    *Plan
}

func (r *relation) name() Name { return Name{r.Schema, r.Name} }

// attribute is a column of a relation or view.
type attribute struct {
	Num       int16
	Name      string
	TypeOID   uint32
	Modifier  int32
	Type      string
	Collation uint32
	NotNull   bool
	Generated bool
}

func (r *relation) attr(num int) *attribute {
	for i := range r.attrs {
		if int(r.attrs[i].Num) == num {
			return &r.attrs[i]
		}
	}
	return nil
}

// unique is a unique index whose columns are bare and that covers every row.
type unique struct {
	Columns          []int16
	Primary          bool
	NullsNotDistinct bool
}

// leaf is a relation that holds rows read through another.
type leaf struct {
	OID      uint32
	Schema   string
	Name     string
	Kind     string
	Persist  string
	Identity string
	// Columns are the names of the columns that its replica identity carries,
	// empty for none and for FULL.
	Columns []string
	// Primary are the names of its primary key's columns.
	Primary []string
	Tuples  float64
	Pages   int64 // actual size in blocks
}

func (l *leaf) name() Name { return Name{l.Schema, l.Name} }

// typeInfo is what the catalog says of a type.
type typeInfo struct {
	OID       uint32
	Schema    string
	Name      string
	Kind      string // typtype
	Category  string
	Base      uint32 // of a domain
	Element   uint32 // of an array
	HasArray  bool
	Collation uint32 // the default
	Subtype   uint32 // of a range or multirange
	EqualIn   string // schema of the equality operator of its default btree class
	In, Out   uint32 // input and output functions
	Display   string // as format_type prints it for any modifier: bpchar, where character would be one character
}

// function is a row of pg_proc, with the operator it was reached through.
type function struct {
	OID       uint32
	Schema    string
	Name      string
	Args      string
	Volatile  string
	Kind      string
	ReturnSet bool
	Strict    bool
}

// signature is the form in which overrides and the allow-list name it.
func (f *function) signature() string {
	return quoteIdent(f.Schema) + "." + quoteIdent(f.Name) + "(" + f.Args + ")"
}

type operator struct {
	OID      uint32
	Name     string
	Function uint32
	Equality bool
	Schema   string
}

type collation struct {
	OID           uint32
	Schema, Name  string
	Deterministic bool
}

// catalog answers questions about catalog rows, each asked once.
type catalog struct {
	tx         pgx.Tx
	version    int // server_version_num
	relations  map[uint32]*relation
	types      map[uint32]*typeInfo
	functions  map[uint32]*function
	operators  map[uint32]*operator
	collations map[uint32]*collation
	facts      *Facts
}

func newCatalog(ctx context.Context, tx pgx.Tx, facts *Facts) (*catalog, error) {
	if facts == nil {
		facts = &Facts{}
	}
	c := &catalog{
		tx: tx, facts: facts, relations: map[uint32]*relation{}, types: map[uint32]*typeInfo{},
		functions: map[uint32]*function{}, operators: map[uint32]*operator{}, collations: map[uint32]*collation{},
	}
	err := tx.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&c.version)
	if err != nil {
		return nil, fmt.Errorf("ask for the server's version: %w", err)
	}
	return c, nil
}

// collect runs a query and reads its rows into structs by position.
func collect[T any](ctx context.Context, tx pgx.Tx, what, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return out, nil
}

// load fetches the rows of the oids that are not yet known.
func load[T any](ctx context.Context, tx pgx.Tx, known, shared map[uint32]*T, oids []uint32, what, sql string, oid func(*T) uint32) error {
	var missing []uint32
	for _, o := range oids {
		if _, ok := known[o]; ok || o == 0 {
			continue
		}
		known[o] = shared[o]
		if known[o] == nil {
			missing = append(missing, o)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	rows, err := collect[T](ctx, tx, what, sql, missing)
	if err != nil {
		return err
	}
	for i := range rows {
		o := oid(&rows[i])
		known[o] = &rows[i]
		if o < firstNormalOID && shared != nil {
			shared[o] = &rows[i]
		}
	}
	return nil
}

const typesSQL = `
SELECT t.oid, n.nspname, t.typname, t.typtype::text, t.typcategory::text, t.typbasetype,
       CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END,
       t.typarray <> 0 AND t.typcategory <> 'A', t.typcollation,
       coalesce((SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid LIMIT 1), 0),
       coalesce((SELECT en.nspname
                 FROM (SELECT t.oid
                       UNION SELECT CASE WHEN t.typtype = 'e' THEN 'anyenum'::regtype WHEN t.typtype = 'r' THEN 'anyrange'::regtype
                                         WHEN t.typtype = 'm' THEN 'anymultirange'::regtype WHEN t.typtype = 'c' THEN 'record'::regtype
                                         WHEN t.typcategory = 'A' THEN 'anyarray'::regtype END
                       UNION SELECT k.casttarget FROM pg_cast k
                       WHERE k.castsource = t.oid AND k.castmethod = 'b' AND k.castcontext = 'i') x(oid)
                 JOIN pg_opclass c ON c.opcintype = x.oid
                 JOIN pg_amop a ON a.amopfamily = c.opcfamily AND a.amoplefttype = c.opcintype
                               AND a.amoprighttype = c.opcintype AND a.amopstrategy = 3
                 JOIN pg_operator o ON o.oid = a.amopopr
                 JOIN pg_namespace en ON en.oid = o.oprnamespace
                 WHERE c.opcmethod = 403 AND c.opcdefault
                 ORDER BY c.opcintype = t.oid DESC LIMIT 1), ''),
       t.typinput::oid, t.typoutput::oid, format_type(t.oid, -1)
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE t.oid = ANY ($1::oid[])`

// loadTypes fetches types, and the types that they are made of.
func (c *catalog) loadTypes(ctx context.Context, oids []uint32) error {
	for len(oids) > 0 {
		if err := load(ctx, c.tx, c.types, c.facts.types, oids, "read types", typesSQL, func(t *typeInfo) uint32 { return t.OID }); err != nil {
			return err
		}
		var next []uint32
		for _, o := range oids {
			t := c.types[o]
			if t == nil {
				continue
			}
			for _, part := range []uint32{t.Base, t.Element, t.Subtype} {
				if _, known := c.types[part]; part != 0 && !known {
					next = append(next, part)
				}
			}
		}
		oids = next
	}
	return nil
}

func (c *catalog) loadFunctions(ctx context.Context, oids []uint32) error {
	return load(ctx, c.tx, c.functions, c.facts.functions, oids, "read functions", `
SELECT p.oid, n.nspname, p.proname, oidvectortypes(p.proargtypes), p.provolatile::text, p.prokind::text, p.proretset, p.proisstrict
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = ANY ($1::oid[])`,
		func(f *function) uint32 { return f.OID })
}

func (c *catalog) loadOperators(ctx context.Context, oids []uint32) error {
	return load(ctx, c.tx, c.operators, c.facts.operators, oids, "read operators", `
SELECT o.oid, o.oprname, o.oprcode::oid, o.oprname = '=' AND (o.oprcanmerge OR o.oprcanhash), n.nspname
FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE o.oid = ANY ($1::oid[])`,
		func(o *operator) uint32 { return o.OID })
}

func (c *catalog) loadCollations(ctx context.Context, oids []uint32) error {
	return load(ctx, c.tx, c.collations, c.facts.collations, oids, "read collations", `
SELECT l.oid, n.nspname, l.collname, l.collisdeterministic
FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = ANY ($1::oid[])`,
		func(l *collation) uint32 { return l.OID })
}

// attributes reads the live columns of a relation.
func (c *catalog) attributes(ctx context.Context, rel uint32) ([]attribute, error) {
	attrs, err := collect[attribute](ctx, c.tx, "read columns", `
SELECT attnum, attname, atttypid, atttypmod, format_type(atttypid, atttypmod), attcollation, attnotnull, attgenerated <> ''
FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, rel)
	if err != nil {
		return nil, err
	}
	var types, collations []uint32
	for _, a := range attrs {
		types = append(types, a.TypeOID)
		collations = append(collations, a.Collation)
	}
	if err := c.loadTypes(ctx, types); err != nil {
		return nil, err
	}
	return attrs, c.loadCollations(ctx, collations)
}

// loadRelation reads what a body's strategy depends on.
func (c *catalog) loadRelation(ctx context.Context, oid uint32) (*relation, error) {
	if r, ok := c.relations[oid]; ok {
		return r, nil
	}
	rows, err := collect[relation](ctx, c.tx, "read a source", `
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, row_security_active(c.oid), c.relreplident::text,
       c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid),
       n.nspname IN ('pg_catalog', 'information_schema', 'pg_toast'), has_table_privilege(c.oid, 'SELECT')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1`, oid)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("read a source: relation %d is gone", oid)
	}
	r := &rows[0]
	if r.attrs, err = c.attributes(ctx, oid); err != nil {
		return nil, err
	}
	if r.uniques, err = c.uniques(ctx, oid); err != nil {
		return nil, err
	}
	if r.leaves, err = c.leaves(ctx, oid); err != nil {
		return nil, err
	}
	c.relations[oid] = r
	return r, nil
}

// uniques reads the unique indexes that hold for every row. A deferred
// constraint counts: no snapshot sees a transaction that has not met it.
func (c *catalog) uniques(ctx context.Context, rel uint32) ([]unique, error) {
	nullsNotDistinct := "false"
	if c.version >= 150000 {
		nullsNotDistinct = "i.indnullsnotdistinct"
	}
	return collect[unique](ctx, c.tx, "read unique indexes", strings.ReplaceAll(`
SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1], i.indisprimary, NND
FROM pg_index i
WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indislive AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid`, "NND", nullsNotDistinct), rel)
}

// leaves lists the relations that hold the rows, itself included.
func (c *catalog) leaves(ctx context.Context, rel uint32) ([]leaf, error) {
	return collect[leaf](ctx, c.tx, "read partitions", `
WITH RECURSIVE tree(oid) AS (
  SELECT $1::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON i.inhparent = t.oid)
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text,
       coalesce((SELECT array_agg(a.attname::text ORDER BY a.attnum)
                 FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                 WHERE i.indrelid = c.oid AND i.indisvalid
                   AND (c.relreplident = 'd' AND i.indisprimary OR c.relreplident = 'i' AND i.indisreplident)), '{}'),
       coalesce((SELECT array_agg(a.attname::text ORDER BY a.attnum)
                 FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                 WHERE i.indrelid = c.oid AND i.indisvalid AND i.indisprimary), '{}'),
       c.reltuples::float8, coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int
FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind <> 'p' ORDER BY c.oid`, rel)
}

// baseType follows domains.
func (c *catalog) baseType(oid uint32) *typeInfo {
	for range 64 {
		t := c.types[oid]
		if t == nil || t.Kind != "d" {
			return t
		}
		oid = t.Base
	}
	return nil
}

// collationName spells a collation that is not the type's default, else "".
func (c *catalog) collationName(oid, typeOID uint32) string {
	l := c.collations[oid]
	if t := c.types[typeOID]; l == nil || t == nil || t.Collation == oid {
		return ""
	}
	return quoteAlways(l.Schema) + "." + quoteAlways(l.Name)
}

// equal spells the type's equality operator, "" for none.
func (c *catalog) equal(typeOID uint32) string {
	t := c.baseType(typeOID)
	if t == nil || t.EqualIn == "" {
		return ""
	}
	if t.Element != 0 && c.equal(t.Element) == "" {
		return ""
	}
	if t.EqualIn == "pg_catalog" {
		return "="
	}
	return "OPERATOR(" + quoteAlways(t.EqualIn) + ".=)"
}

// Types whose values are equal only where their printed forms are.
const exactTypes = " bool bytea char name int8 int2 int4 text oid xid xid8 cid tid varchar date time timestamp timestamptz timetz " +
	"uuid money macaddr macaddr8 inet cidr bit varbit pg_lsn oidvector int2vector tsvector "

// exact reports whether values that are equal are the same bytes, for grouping
// and keys.
func (c *catalog) exact(typeOID uint32, modifier int32, collationOID uint32) bool {
	t := c.types[typeOID]
	if t != nil && t.Kind == "d" {
		return t.Base != 0 && c.exact(t.Base, c.domainModifier(modifier), collationOID)
	}
	if l := c.collations[collationOID]; collationOID != 0 && (l == nil || !l.Deterministic) {
		return false
	}
	switch {
	case t == nil:
		return false
	case t.Kind == "e":
		return true
	case t.Element != 0:
		return c.exact(t.Element, modifier, collationOID)
	case t.Subtype != 0:
		return c.exact(t.Subtype, -1, collationOID)
	case t.Schema != "pg_catalog":
		return false
	case t.Name == "numeric" || t.Name == "bpchar":
		return modifier >= 0
	}
	return strings.Contains(exactTypes, " "+t.Name+" ")
}

// domainModifier: a domain's own modifier is not on its columns, so that a
// domain over numeric counts as one without a scale.
func (c *catalog) domainModifier(int32) int32 { return -1 }
