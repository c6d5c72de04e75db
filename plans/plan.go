package plans

import (
	"strings"
	"time"
)

// Name is the name of a relation with its schema, folded and unquoted.
type Name struct {
	Schema, Name string
}

// String is quote_ident(schema).quote_ident(name).
func (n Name) String() string { return quoteIdent(n.Schema) + "." + quoteIdent(n.Name) }

// Strategy says how a view is kept equal to its body.
type Strategy string

// The strategies, cheapest family first.
const (
	InverseProjection Strategy = "inverse-projection"
	DeltaAggregate    Strategy = "delta-aggregate"
	ResidualRecompute Strategy = "residual-recompute"
	PrefixDelete      Strategy = "prefix-delete"
	JoinResidual      Strategy = "join-residual"
	FullRebuild       Strategy = "full-rebuild"
)

// Declaration is a view as its user declares it.
type Declaration struct {
	Name  Name
	Query string
	// Columns renames the body's columns; empty: as the body names them.
	Columns []string
	// Key is asserted: it must be provably unique. Nil: the planner chooses.
	Key []string
	// Nondeterministic accepts a body whose results Postgres does not fix.
	Nondeterministic bool
	// Every is how often the view moves at most; 0: in each round. A view with
	// Every is exempt from the rebuild threshold.
	Every time.Duration
	// RebuildRowThreshold refuses a full rebuild over more source rows than
	// this; 0: no limit.
	RebuildRowThreshold int64
	// Force, for tests, allows this strategy and the floor only, so that a view can
	// be compared with its twin; empty: the cheapest that fits.
	Force Strategy
}

// Identity says what to do where a table lacks the replica identity that a
// strategy needs.
type Identity int

// What to do about a missing replica identity.
const (
	Require Identity = iota // refuse the view and say what to run
	Manage                  // accept: the daemon alters the table
)

// Options are what a compilation knows beside the declaration.
type Options struct {
	// SearchPath resolves the names of the body; empty: public.
	SearchPath []string
	// ReplicaIdentity is Require or Manage.
	ReplicaIdentity Identity
	// AppendOnly tables have no updates and deletes.
	AppendOnly map[Name]bool
	// External tables are fed through ingest: they need no logical stream.
	External map[Name]bool
	// Deterministic functions may be used although they are not IMMUTABLE, by
	// signature as regprocedure prints it with the schema: public.vat(numeric).
	Deterministic map[string]bool
	// Aggregates declares the algebra of user-defined aggregates, by signature.
	Aggregates map[string]Declared
	// Catalog is the schema of mvsync's own tables; empty: mvsync.
	Catalog string
	// Producers are the plans of other declared views, so that a body may read
	// them before their tables exist.
	Producers map[Name]*Plan
	// Facts, which may be nil, are shared by compilations one after the other.
	Facts *Facts
	// Estimate asks for Plan.Cost, and Compare for Plan.Candidates as well.
	Estimate, Compare bool
	// Kept is the choice by which the view is maintained; nil: it is a new one.
	Kept *Kept
}

// Declared is the algebra of a user-defined aggregate: names of IMMUTABLE SQL
// functions over one state type s, as quote_ident writes them with the schema, or
// an expression.
type Declared struct {
	Merge  string // (s, s) s: the state of both
	Negate string // (s) s: takes the state out again when merged; empty: none
	Decode string // (result) s: the state that a result stands for
	// Decompose is an expression over Postgres' own aggregates of the arguments,
	// which are called as the aggregate names them, else x, or x1, x2 and so on.
	Decompose string
}

// Plan is everything that maintaining a view needs to know about it.
type Plan struct {
	Name Name
	// Body is the canonical text, giving the visible columns only.
	Body string
	// Hash identifies the body under this server's major version.
	Hash string
	// Columns are the body's, in its order and under the declared names.
	Columns []Column
	// Hidden columns are kept beside the table in the companion.
	Hidden []Column
	// Key holds indexes into Columns. Empty: the view has exactly one row.
	Key []int
	// Coarsened names the columns of the key whose collation only weakens that
	// of the source's key.
	Coarsened []string
	// KeySource says where the members of a coarsened key's classes come from; nil
	// where the key is not coarsened.
	KeySource *KeySource
	Strategy  Strategy
	// Estimate is what a round with one changed row of each source was expected to
	// cost when the strategy was chosen among several of its family; 0: there was none
	// to choose from.
	Estimate float64
	// Declined says why each cheaper strategy was not chosen.
	Declined map[Strategy]string
	// Cost is what the plan is expected to cost, Candidates are the strategies that
	// were weighed, where Options ask for them.
	Cost       *Cost
	Candidates []Candidate
	// Advice is what would make the view cheaper, as sentences or statements.
	Advice []string
	// Indexes are columns (and directions) of the backing table that are worth
	// an index, as CREATE INDEX lists them in parentheses.
	Indexes []string
	// HiddenIndexes are columns of the companion that are worth an index.
	HiddenIndexes []string
	// Sources are the tables read, the one that images stand in for first.
	Sources []Source
	// Depends are the other catalog objects that the results depend on.
	Depends []Object
	// Alter are the statements that give the sources the replica identity that
	// the strategy needs, where Options.ReplicaIdentity is Manage.
	Alter []string
	// Nondeterministic is set where the user accepted such a body.
	Nondeterministic bool
	// Eval is a SELECT giving Columns and then Hidden at the snapshot: fill,
	// reconcile and verify evaluate it.
	Eval string
	// Inlined gives Columns from base tables alone, the bodies of other declared
	// views put in their place: verify evaluates it at a snapshot at which those
	// views' tables were not yet brought up to date. Empty where the view reads no
	// other, or none together with tables.
	Inlined string
	// Laws are what the declared algebra of the body's aggregates promises.
	Laws []Law
	// At most one of these is set; none: full rebuild.
	Projection *Projection
	Aggregate  *Aggregate
	Residual   *Residual
}

// Dependence says how a column's bytes depend on the order of evaluation.
type Dependence string

// The dependences. Representative values are equal by the type's own equality,
// floats within 1e-9 relative.
const (
	Exact          Dependence = ""
	Representative Dependence = "representative"
	Float          Dependence = "float"
)

// Column is a column of a view, of its companion or of an input.
type Column struct {
	Name      string
	Type      string // as format_type prints it, with its modifier
	TypeOID   uint32
	Modifier  int32  // the type modifier, -1 for none
	Collation string // quoted and qualified; empty: the type's own default
	NotNull   bool
	Dependent Dependence
	// HasArray says that the type has an array type and is no array itself, so
	// that values can be shipped in one array parameter.
	HasArray bool
	// Equal is the equality operator by which the column is grouped and keyed,
	// as it must be spelt under an empty search path; empty: the type has none.
	Equal string
}

// Class is the system catalog of an object.
type Class string

// The classes of objects whose change can change a view's results.
const (
	Function  Class = "pg_proc"
	Operator  Class = "pg_operator"
	Type      Class = "pg_type"
	Collation Class = "pg_collation"
	Relation  Class = "pg_class" // plain views read through
)

// Object is a catalog row on which a plan depends.
type Object struct {
	Class Class
	OID   uint32
}

// Source is a table that a body reads.
type Source struct {
	OID          uint32
	Schema, Name string
	// Producer is set for the backing table of another declared view. Its OID is
	// 0 while that table does not exist.
	Producer bool
	Kind     byte // pg_class.relkind: r or p
	// Columns are those that the body reads, and the key's, in the table's order;
	// all of them for a whole-row read.
	Columns []SourceColumn
	// Key holds indexes into Columns by which changes are netted: the primary
	// key, else the columns of the replica identity. Empty: the table has FULL
	// and no key; changes are netted as a bag by whole content.
	Key        []int
	WholeRow   bool
	AppendOnly bool
	External   bool
	// Old holds indexes into Columns of those that the strategy's statements read
	// in old images. Others may be missing there, and are shipped as NULL.
	Old []int
	// Identity is the replica identity that the strategy needs: any, full, or
	// the columns that it must hold, separated by a comma and a space.
	Identity string
	// Inherits is set for an inheritance parent: its keys are unique for each
	// child only.
	Inherits bool
	// Leaves are the relations whose rows are read through this one, itself
	// included where it holds rows, in oid order.
	Leaves []uint32
}

// Table is the source's name.
func (s *Source) Table() Name { return Name{s.Schema, s.Name} }

// Column returns the index of the named column, or -1.
func (s *Source) Column(name string) int {
	for i := range s.Columns {
		if s.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// SourceColumn is a column of a source.
type SourceColumn struct {
	Num       int16
	Name      string
	Type      string
	TypeOID   uint32
	Modifier  int32
	Collation string // as in Column
	NotNull   bool
	HasArray  bool
	Generated bool // not in the stream before 18
}

// Projection is the arm of inverse-projection and prefix-delete: a changed row's
// images give the view's rows without a look at the source.
type Projection struct {
	// New gives Columns and Hidden over the CTE mvsync_new_0, whose columns are
	// Sources[0].Columns by name.
	New string
	// KeyFrom holds, for each column of the touched keys, the index into
	// Sources[0].Columns of the column that gives its value. For an
	// inverse-projection those are the columns of the view's key, -1 for one that is
	// a constant; for a prefix-delete the columns of the source's key.
	KeyFrom []int
	// KeyColumns are the columns k0, k1, ... of mvsync_keys, without constants.
	KeyColumns []Column
	// Touched is over s and the CTE mvsync_keys.
	Touched string
	// Bare is set where the view has the very rows of its source, with columns of it as
	// they are: the index into Sources[0].Columns of each of the view's columns.
	Bare []int
}

// Aggregate is the arm of delta-aggregate: signed contributions of the changed
// rows are added to the stored groups.
type Aggregate struct {
	Groups []GroupColumn
	// Delta gives DeltaColumns over the CTEs mvsync_new_0 and mvsync_old_0, one
	// row a group.
	Delta string
	// DeltaColumns are g0, g1, ..., n (net rows, bigint), the partials of each
	// aggregate, and dirty (true: the group must be run again).
	DeltaColumns []Column
	// Fold is how Go folds the same from images; nil: by Delta only.
	Fold *Fold
	// Merge gives Columns, Hidden, mvsync_residual (true: the group must be run
	// again) and mvsync_keep (false: the group is empty and goes away) over the
	// CTEs mvsync_delta and mvsync_stored. Where Fold is given, mvsync_delta may
	// hold a group twice.
	Merge string
	// Touched is over s and the CTE mvsync_delta.
	Touched string
	// KeyColumns are the columns k0, k1, ... of mvsync_keys.
	KeyColumns []Column
	// Keys gives the group keys k0, k1, ... that Merge flags as
	// mvsync_residual, from a relation mvsync_merged of Merge's rows.
	Keys string
	// Rerun gives Columns and Hidden for the groups in mvsync_keys.
	Rerun string
	// RerunTouched is over s and the CTE mvsync_keys.
	RerunTouched string
}

// GroupColumn is a column by which the body groups.
type GroupColumn struct {
	Column int // index into Plan.Columns, or len(Columns) + index into Plan.Hidden
	Type   string
	// Source is the index into Sources[0].Columns where the group is a bare
	// column, else -1.
	Source int
}

// Fold is a delta-aggregate whose groups and arguments are bare columns in exact
// domains, without a filter: it can be folded in Go.
type Fold struct {
	Groups []int // indexes into Sources[0].Columns
	Cells  []FoldCell
}

// FoldOp is what a cell of a folded group accumulates.
type FoldOp int

// The operations of a fold. Count, Sum and Squares are signed: an old image
// subtracts.
// The others come in two cells each, one over new and one over old images.
const (
	FoldCount   FoldOp = iota + 1 // images whose argument is not NULL
	FoldSum                       // NULL counts as nothing; 0 where there was none
	FoldSquares                   // the sum of the squares, likewise
	FoldMin                       // NULL where there was none, as for all below
	FoldMax
	FoldAnd
	FoldOr
	FoldBitAnd
	FoldBitOr
)

// FoldCell is one column of DeltaColumns between n and dirty.
type FoldCell struct {
	Op       FoldOp
	Argument int  // index into Sources[0].Columns
	Old      bool // over old images (Min and below)
	Integer  bool // the argument is an integer; else a numeric with a fixed scale, or a boolean
}

// Residual is the arm of the residual family: the body is run again for the slices
// that a batch touched.
type Residual struct {
	// Slices are the ways in which touched keys are derived. The keys of the i-th
	// are the input mvsync_keys_i.
	Slices []Slice
	// New gives Columns and Hidden of all slices over the inputs mvsync_keys_i, each
	// row once.
	New string
	// Touched is a condition over s and the inputs mvsync_keys_i: the stored rows of
	// all slices. It is the slices' own conditions, joined by OR.
	Touched string
	// Floor are the indexes of the sources of which any change may touch every row:
	// in such a round Eval is run instead.
	Floor []int
}

// Slice is one way to derive touched keys.
type Slice struct {
	// Keys gives the touched keys k0, k1, ..., distinct, over the CTEs
	// mvsync_new_i and mvsync_old_i of the sources named in Inputs, the CTE
	// mvsync_stored (the stored rows, if Stored) and tables.
	Keys string
	// Inputs are the indexes of the sources whose images Keys reads. Where none of
	// them changed, there are no touched keys.
	Inputs     []int
	Stored     bool
	KeyColumns []Column
	// Touched is this slice's part of the condition. By itself each can use an
	// index.
	Touched string
}

// touchedKeys names the input of the i-th slice's keys.
func touchedKeys(i int) string { return "mvsync_keys_" + itoa(i) }

// either joins the slices' conditions.
func either(slices []Slice) string {
	parts := make([]string, len(slices))
	for i := range slices {
		parts[i] = "(" + slices[i].Touched + ")"
	}
	return strings.Join(parts, "\n  OR ")
}

// quoteIdent quotes a name where it must be. It quotes every name that is not
// plain lower case, and every keyword.
func quoteIdent(name string) string {
	if isPlainIdent(name) && !keywords[name] {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// quoteAlways quotes a name whatever it is, for text that only Postgres reads.
func quoteAlways(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

func isPlainIdent(name string) bool {
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c == '_':
		case i > 0 && c >= '0' && c <= '9':
		default:
			return false
		}
	}
	return name != ""
}
