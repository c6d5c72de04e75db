package config

import (
	"cmp"
	"time"
)

// Defaults of the configuration, in the units of the fields that they fill.
const (
	// DefaultSlot names the replication slot.
	DefaultSlot Slot = "mvsync"
	// DefaultPublication names the publication.
	DefaultPublication Name = "mvsync"
	// DefaultCatalog is the schema of mvsync's own tables.
	DefaultCatalog Name = "mvsync"
	// DefaultSchema is the schema of names that are written without one.
	DefaultSchema Name = "public"
	// DefaultTimezone is the time zone under which bodies are evaluated.
	DefaultTimezone = "UTC"
	// DefaultListen is the address of the metrics and status pages.
	DefaultListen = "127.0.0.1:9632"
	// DefaultReadyLag is the lag above which /readyz fails.
	DefaultReadyLag = Duration(60 * time.Second)
	// DefaultRoundInterval lets a round begin as soon as something commits.
	DefaultRoundInterval = Duration(0)
	// DefaultMemory is the budget for pending changes, in bytes.
	DefaultMemory = 256 * MiB
	// DefaultRebuildRowThreshold is the number of source rows above which a
	// view that only a rebuild can maintain is refused.
	DefaultRebuildRowThreshold int64 = 10_000
	// DefaultDegrade lets a batch fall back to a rebuild where it is cheaper.
	DefaultDegrade = On
	// DefaultChunkRows is the number of rows that a fill writes at a time.
	DefaultChunkRows int64 = 50_000
	// DefaultMaxRowsPerSecond does not limit the speed of a fill.
	DefaultMaxRowsPerSecond int64 = 0
)

// Config is a whole, valid configuration. Get one from [Load] or [Parse].
type Config struct {
	// The database whose tables are read.
	Source Source `yaml:"source"`
	// Where the backing tables and mvsync's own tables live.
	Backing Backing `yaml:"backing"`
	// The settings under which bodies are resolved and evaluated.
	Session Session `yaml:"session"`
	// The metrics, health and status pages.
	HTTP HTTP `yaml:"http"`
	// How often views move and how much memory pending changes may take.
	Round Round `yaml:"round"`
	// What is too costly to be accepted.
	Limits Limits `yaml:"limits"`
	// What run does where database and configuration differ: apply creates and alters, verify creates nothing and refuses.
	Provision Provision `yaml:"provision"`
	// How views are filled for the first time.
	Fill Fill `yaml:"fill"`
	// What Postgres cannot know about user functions, by signature.
	Functions map[Signature]Function `yaml:"functions"`
	// User-defined aggregates with an algebra, by signature.
	Aggregates map[Signature]Aggregate `yaml:"aggregates"`
	// The continuous audit.
	Verify Verify `yaml:"verify"`
	// The maintained views.
	Views []View `yaml:"views" jsonschema:"required"`

	file   string
	places map[string]Position
}

// Source says which database is read and how.
type Source struct {
	// The connection, as a libpq URL or keywords. PG* variables apply to what it leaves out.
	URL string `yaml:"url"`
	// The connection for the replication stream, where url goes through a pooler; url by default.
	ReplicationURL string `yaml:"replication_url"`
	// The name of the replication slot.
	Slot Slot `yaml:"slot"`
	// The name of the publication.
	Publication Name `yaml:"publication"`
	// Whether mvsync may set REPLICA IDENTITY FULL where a strategy needs it (manage) or refuses the view and says what to run (require).
	ReplicaIdentity ReplicaIdentity `yaml:"replica_identity"`
	// What happens when changes were lost: reconcile every view, or halt.
	OnGap OnGap `yaml:"on_gap"`
	// Create the slot as a failover slot (Postgres 17 and later).
	Failover bool `yaml:"failover"`
	// What only the operator knows about tables, by name.
	Tables map[Ident]Table `yaml:"tables"`
}

// StreamURL is the connection string for the replication stream:
// ReplicationURL, or URL where that is empty.
func (s Source) StreamURL() string {
	return cmp.Or(s.ReplicationURL, s.URL)
}

// Table holds what only the operator knows about a source table.
type Table struct {
	// Rows are only ever inserted, so no old images are needed.
	AppendOnly bool `yaml:"append_only"`
	// Where the table's changes come from: external means that they are reported with mvsync ingest.
	Feed Feed `yaml:"feed"`
}

// Backing says where backing tables live.
type Backing struct {
	// Another database to hold the backing tables; the source database by default.
	URL string `yaml:"url"`
	// The schema for mvsync's own tables.
	Catalog Name `yaml:"catalog"`
}

// Session holds the settings under which bodies are resolved and evaluated.
type Session struct {
	// The schemas in which the unqualified names of bodies are looked up.
	SearchPath []Name `yaml:"search_path"`
	// The time zone under which bodies are evaluated.
	Timezone string `yaml:"timezone"`
}

// HTTP configures the metrics, health and status pages.
type HTTP struct {
	// The address to listen on, as host:port; an empty one disables the pages.
	Listen string `yaml:"listen"`
	// The lag above which /readyz fails.
	ReadyLag Duration `yaml:"ready_lag"`
}

// Round configures the rounds.
type Round struct {
	// The least time between two rounds; 0s starts one as soon as something commits.
	Interval Duration `yaml:"interval"`
	// The memory budget for pending changes.
	Memory ByteSize `yaml:"memory"`
}

// Limits says what is too costly.
type Limits struct {
	// Refuse a view that only a rebuild can maintain if its sources have more rows than this; 0 means no limit.
	RebuildRowThreshold int64 `yaml:"rebuild_row_threshold"`
	// Whether a batch falls back to a rebuild where that is cheaper.
	Degrade Switch `yaml:"degrade"`
}

// Fill configures the first fill of views.
type Fill struct {
	// How many rows are written at a time.
	ChunkRows int64 `yaml:"chunk_rows"`
	// The speed limit of a fill; 0 means none.
	MaxRowsPerSecond int64 `yaml:"max_rows_per_second"`
}

// Function holds what Postgres cannot know about a user function.
type Function struct {
	// A STABLE function that may be treated as reproducible.
	Deterministic bool `yaml:"deterministic"`
}

// Aggregate is the algebra of a user-defined aggregate: functions over one
// state type, or an expression over aggregates whose algebra is known. Either
// Merge and Decode are set, and perhaps Negate, or Decompose alone is.
type Aggregate struct {
	// The function merge(state, state) that adds two states.
	Merge *Ident `yaml:"merge"`
	// The function negate(state) that gives the state which takes another one away; without it a retraction recomputes the group.
	Negate *Ident `yaml:"negate"`
	// The function decode(result) that gives the state which a stored result stands for.
	Decode *Ident `yaml:"decode"`
	// The aggregate as an SQL expression over named partial aggregates, instead of the functions.
	Decompose string `yaml:"decompose"`
}

// Verify configures the continuous audit.
type Verify struct {
	// The interval after which the next view is compared with its body; 0s turns the audit off.
	Every Duration `yaml:"every"`
}

// View declares one maintained view. Every name in it is in SQL identifier
// syntax and already folded.
type View struct {
	// The backing table, in SQL identifier syntax (Orders folds to orders, "Orders" does not); the schema is public unless given.
	Name Ident `yaml:"name" jsonschema:"required"`
	// The body: one SELECT.
	Query string `yaml:"query" jsonschema:"required"`
	// New names for all columns of the body, in order.
	Columns []Name `yaml:"columns"`
	// The columns that are asserted to be unique. An empty list asserts a view of one row.
	Key []Name `yaml:"key"`
	// Extra indexes on the backing table, each as the part of CREATE INDEX behind the table name.
	Indexes []string `yaml:"indexes"`
	// Table constraints on the derived rows.
	Constraints []string `yaml:"constraints"`
	// Storage parameters of the backing table.
	Storage map[Parameter]string `yaml:"storage"`
	// Who may read the view.
	Grants Grants `yaml:"grants"`
	// The least time between two moves of this view; 0s moves it in every round.
	Every Duration `yaml:"every"`
	// Overrides limits.rebuild_row_threshold for this view.
	RebuildRowThreshold int64 `yaml:"rebuild_row_threshold"`
	// Whether a body that is not reproducible is refused or allowed; an allowed one is exempt from verify.
	Nondeterministic Nondeterministic `yaml:"nondeterministic"`
	// What readers see while the first fill runs: nothing, or a plain view.
	ColdRead ColdRead `yaml:"cold_read"`
	// Conditions on the view's rows; those rows are filled first.
	WarmUp []string `yaml:"warm_up"`
	// This view's table may lose columns or be replaced.
	AllowDestructive bool `yaml:"allow_destructive"`

	path  string
	query *scalar
}

// Path is the view's place in the configuration, such as "views[2]". Append
// ".key" and the like for [Config.Mistake].
func (v *View) Path() string { return v.path }

// Grants lists the roles that get a privilege on a backing table.
type Grants struct {
	// The roles that may read the view.
	Select []Name `yaml:"select"`
}

// Default returns the configuration of a file that sets nothing. It declares
// no view.
func Default() *Config {
	return &Config{
		Source: Source{
			Slot:            DefaultSlot,
			Publication:     DefaultPublication,
			ReplicaIdentity: ReplicaIdentityRequire,
			OnGap:           OnGapReconcile,
		},
		Backing:   Backing{Catalog: DefaultCatalog},
		Session:   Session{SearchPath: []Name{DefaultSchema}, Timezone: DefaultTimezone},
		HTTP:      HTTP{Listen: DefaultListen, ReadyLag: DefaultReadyLag},
		Round:     Round{Interval: DefaultRoundInterval, Memory: DefaultMemory},
		Limits:    Limits{RebuildRowThreshold: DefaultRebuildRowThreshold, Degrade: DefaultDegrade},
		Provision: ProvisionApply,
		Fill:      Fill{ChunkRows: DefaultChunkRows, MaxRowsPerSecond: DefaultMaxRowsPerSecond},
	}
}

// setDefaults is called by the decoder before the fields of a view are read.
func (v *View) setDefaults() {
	v.Nondeterministic = NondeterministicReject
	v.ColdRead = ColdReadNone
	// Marks a threshold that is not set; Parse puts the general one in its
	// place, which is only known once the whole file has been read.
	v.RebuildRowThreshold = unset
}

const unset = -1 << 63
