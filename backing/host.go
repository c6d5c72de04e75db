package backing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Errors that callers branch on.
var (
	// ErrNotOurs says that a relation stands where a backing table should be, and mvsync did not make it.
	ErrNotOurs = errors.New("a relation of that name exists that mvsync did not make")
	// ErrLeader says that another daemon serves the catalog.
	ErrLeader = errors.New("another mvsync daemon is running on this catalog")
	// ErrNewer says that the catalog was made by a newer mvsync.
	ErrNewer = errors.New("the catalog was made by a newer mvsync")
	// ErrDuplicateKey says that new rows held one key twice.
	ErrDuplicateKey = errors.New("two rows of one key")
	// ErrNoView says that the catalog has no such view.
	ErrNoView = errors.New("no such view")
)

// Querier runs SQL: a connection, a pool or a transaction of pgx.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Beginner starts transactions: a connection or a pool of pgx.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Name is a table's name, schema and table as they stand in the catalogs of Postgres.
type Name struct {
	Schema, Name string
}

// SQL returns the name quoted for use in a statement.
func (n Name) SQL() string { return pgx.Identifier{n.Schema, n.Name}.Sanitize() }

// String returns the name for messages.
func (n Name) String() string { return n.Schema + "." + n.Name }

// Options says how a host differs from the default; the zero value is the default.
type Options struct {
	// Catalog is the schema for mvsync's own tables (default mvsync).
	Catalog string
	// Slot names the replication slot whose progress row the views follow (default mvsync).
	Slot string
	// ArrayRows is the number of rows, summed over the inputs of a statement, up to which inputs are shipped as array
	// parameters; more go by COPY into a temporary table (default 2000).
	ArrayRows int
}

// Host is one catalog of mvsync in one database. It holds no connection and is safe for concurrent use.
type Host struct {
	catalog   string
	slot      string
	arrayRows int
	log       *slog.Logger
}

// New returns the host for a catalog. It does not touch the database: see [Host.Migrate].
func New(log *slog.Logger, opts Options) *Host {
	return &Host{
		catalog:   cmp.Or(opts.Catalog, "mvsync"),
		slot:      cmp.Or(opts.Slot, "mvsync"),
		arrayRows: cmp.Or(opts.ArrayRows, 2000),
		log:       log.With("part", "backing"),
	}
}

// Catalog returns the name of the schema that holds mvsync's own tables.
func (h *Host) Catalog() string { return h.catalog }

// Slot returns the name of the slot whose progress row the views follow.
func (h *Host) Slot() string { return h.slot }

// Channel returns the name of the channel on which requests are announced by NOTIFY.
func (h *Host) Channel() string { return fmt.Sprintf("mvsync_%08x", uint32(h.lockKey())) }

// own returns the quoted name of an object in the catalog schema.
func (h *Host) own(name string) string { return pgx.Identifier{h.catalog, name}.Sanitize() }

// Classes of the advisory locks; the second key is that of the catalog. Advisory locks are per database already.
const (
	waiterLock  int32 = 0x6d767379 + iota // held shared by mvsync.wait while it waits
	leaderLock                            // held by the daemon's session
	migrateLock                           // held by a transaction that changes the catalog
)

// lockKey tells the locks of one catalog from those of another in the same database.
func (h *Host) lockKey() int32 {
	sum := fnv.New32a()
	sum.Write([]byte(h.catalog))
	return int32(sum.Sum32())
}
