package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Finding is something that keeps mvsync from running, or, as a Warning, from running well.
type Finding struct {
	What    string // what is wrong
	Where   string // the object or setting
	Why     string // what comes of it
	Do      string // what to do, a statement where there is one
	Warning bool
}

// String is the finding on one line.
func (f Finding) String() string { return fmt.Sprintf("%s, %s: %s; %s", f.What, f.Where, f.Why, f.Do) }

// inspection is what the checks look at.
type inspection struct {
	target  Target
	tables  []uint32
	sql     *pgx.Conn
	stream  *pgconn.PgConn // nil where connecting or identifying failed
	refused error          // why it did
	system  string         // system identifier behind stream
	facts   preflightFacts
}

// preflightFacts are server settings, read once.
type preflightFacts struct {
	version                       int
	recovery                      bool
	walLevel, standbys, system    string
	slots, maxSlots               int
	senders, maxSenders           int
	role, database                string
	mayCreate, mayTakePublication bool
	slot                          SlotState
	publication                   publicationRow
}

// checks are run in this order; to add one, append a function. Each returns what it found, and an error only where it
// could not look.
var checks = []func(context.Context, *inspection) ([]Finding, error){
	checkVersion, checkRecovery, checkStream, checkWAL, checkSlot, checkPublication, checkStandbys, checkTables,
}

// Preflight looks for everything that would keep the stream over tables from working, and changes nothing. An error means
// that it could not look at all.
func Preflight(ctx context.Context, t Target, tables []uint32) ([]Finding, error) {
	conn, err := connectSQL(ctx, t.Source, t.Session, nil)
	if err != nil {
		return nil, fmt.Errorf("connect for SQL: %w", err)
	}
	closing := context.WithoutCancel(ctx)
	in := &inspection{target: t, tables: tables, sql: conn}
	findings, err := in.run(ctx)
	if in.stream != nil {
		err = errors.Join(err, in.stream.Close(closing))
	}
	return findings, errors.Join(err, conn.Close(closing))
}

func (in *inspection) run(ctx context.Context) ([]Finding, error) {
	if err := in.read(ctx); err != nil {
		return nil, err
	}
	in.tryStream(ctx)
	var all []Finding
	for _, check := range checks {
		found, err := check(ctx, in)
		if err != nil {
			return all, err
		}
		all = append(all, found...)
	}
	return all, nil
}

const preflightSQL = `
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('wal_level'),
       current_setting('synchronous_standby_names'), (SELECT system_identifier::text FROM pg_control_system()),
       (SELECT count(*)::int FROM pg_replication_slots), current_setting('max_replication_slots')::int,
       (SELECT count(*)::int FROM pg_stat_replication), current_setting('max_wal_senders')::int,
       current_user::text, current_database()::text, has_database_privilege(current_database(), 'CREATE'),
       coalesce((SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = $1), true)`

func (in *inspection) read(ctx context.Context) error {
	f := &in.facts
	err := in.sql.QueryRow(ctx, preflightSQL, in.target.Publication).Scan(&f.version, &f.recovery, &f.walLevel, &f.standbys,
		&f.system, &f.slots, &f.maxSlots, &f.senders, &f.maxSenders, &f.role, &f.database, &f.mayCreate, &f.mayTakePublication)
	if err != nil {
		return fmt.Errorf("read the server's settings: %w", err)
	}
	if f.slot, err = (Slot{Name: in.target.Slot}).State(ctx, in.sql); err != nil {
		return err
	}
	f.publication, err = Publication{Name: in.target.Publication}.read(ctx, in.sql)
	return err
}

// tryStream connects for replication and asks for a sign of life. The role's attribute would not tell: managed services
// grant the right by a role of their own, and a pooler in between may not know the protocol.
func (in *inspection) tryStream(ctx context.Context) {
	conn, err := connectReplication(ctx, in.target.replication(), in.target.Session, 0)
	if err != nil {
		in.refused = err
		return
	}
	identity, err := identify(ctx, conn)
	if err != nil {
		in.refused = errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
		return
	}
	in.stream, in.system = conn, identity.SystemID
}

// brokenMinors are minor releases, by major, up to which a table that joins a publication may lose changes of
// transactions that are running, and the one after it, in which catalog changes can exhaust the walsender's memory.
var brokenMinors = map[int]struct{ lossy, hungry int }{15: {12, 13}, 16: {8, 9}, 17: {4, 5}}

func checkVersion(_ context.Context, in *inspection) ([]Finding, error) {
	major, minor := in.facts.version/10000, in.facts.version%10000
	where := fmt.Sprintf("server %d.%d", major, minor)
	if major < 15 {
		return []Finding{{
			What: "unsupported server version", Where: where, Why: "mvsync needs 15 or later", Do: "upgrade the server",
		}}, nil
	}
	if major > 18 {
		return []Finding{{
			What: "untested server version", Where: where, Why: "mvsync was tested with 15 to 18",
			Do: "look for a newer mvsync", Warning: true,
		}}, nil
	}
	broken, known := brokenMinors[major]
	finding := Finding{What: "server with a known defect", Where: where, Do: fmt.Sprintf("upgrade to the latest %d", major), Warning: true}
	switch {
	case known && minor <= broken.lossy:
		finding.Why = "logical decoding may lose changes of transactions that run while a table joins a publication"
	case known && minor == broken.hungry:
		finding.Why = "schema changes beside long transactions can stop logical decoding (invalid memory alloc request size)"
	default:
		return nil, nil
	}
	return []Finding{finding}, nil
}

func checkRecovery(_ context.Context, in *inspection) ([]Finding, error) {
	if !in.facts.recovery {
		return nil, nil
	}
	return []Finding{{
		What: "standby", Where: "source.url", Why: "snapshots of a standby do not list running transactions",
		Do: "connect to the primary",
	}}, nil
}

func checkStream(_ context.Context, in *inspection) ([]Finding, error) {
	if in.refused == nil {
		if in.system != in.facts.system {
			return []Finding{{
				What: "two servers", Where: "source.replication_url",
				Why: "it leads to another database cluster than source.url", Do: "make both lead to the same server",
			}}, nil
		}
		return nil, nil
	}
	finding := Finding{What: "no replication connection", Where: "source.replication_url", Why: in.refused.Error()}
	denied := classifyConnect(in.refused)
	switch code := sqlState(in.refused); {
	case code == pgerrcode.InsufficientPrivilege:
		finding.Do = fmt.Sprintf("run ALTER ROLE %s REPLICATION (or grant the replication role of a managed service)", quoteName(in.facts.role))
	case errors.Is(denied, ErrDenied):
		finding.Do = "check user and password, and that pg_hba.conf lets this host connect"
	case code == pgerrcode.ProtocolViolation || code == pgerrcode.SyntaxError || code == pgerrcode.FeatureNotSupported:
		finding.What = "a pooler stands between"
		finding.Do = "set source.replication_url to the address of the server itself"
	case code == pgerrcode.TooManyConnections:
		finding.Do = "raise max_wal_senders, and restart the server"
	default:
		finding.Do = "see that source.replication_url leads to the server itself and not to a pooler"
	}
	return []Finding{finding}, nil
}

func checkWAL(_ context.Context, in *inspection) ([]Finding, error) {
	f := in.facts
	var found []Finding
	if f.walLevel != "logical" {
		found = append(found, Finding{
			What: "no logical WAL", Where: "wal_level = " + f.walLevel, Why: "changes cannot be decoded",
			Do: "run ALTER SYSTEM SET wal_level = 'logical', and restart the server",
		})
	}
	if !f.slot.Exists && f.slots >= f.maxSlots {
		found = append(found, Finding{
			What: "no free replication slot", Where: fmt.Sprintf("max_replication_slots = %d", f.maxSlots),
			Why: fmt.Sprintf("%d slots exist", f.slots), Do: "drop one that is not used, or raise the setting and restart the server",
		})
	}
	if f.slot.ActivePID == 0 && f.senders >= f.maxSenders {
		found = append(found, Finding{
			What: "no free walsender", Where: fmt.Sprintf("max_wal_senders = %d", f.maxSenders),
			Why: fmt.Sprintf("%d are running", f.senders), Do: "raise the setting and restart the server",
		})
	}
	return found, nil
}

func checkSlot(_ context.Context, in *inspection) ([]Finding, error) {
	if !in.facts.slot.Exists {
		return nil, nil
	}
	err := in.facts.slot.Check(in.target.Slot)
	if err == nil {
		return nil, nil
	}
	finding := Finding{What: "replication slot", Where: in.target.Slot, Why: err.Error(), Do: "see source.slot"}
	// A lost slot is what on_gap decides about, and the reader may be a mvsync that is about to end.
	finding.Warning = errors.Is(err, ErrSlotLost)
	return []Finding{finding}, nil
}

func checkPublication(_ context.Context, in *inspection) ([]Finding, error) {
	f := in.facts
	name := in.target.Publication
	var found []Finding
	if foreign := (Publication{Name: name}).foreign(f.publication); foreign != nil {
		found = append(found, Finding{What: "publication", Where: name, Why: foreign.Error(), Do: "see source.publication"})
	}
	if !f.publication.exists && !f.mayCreate {
		found = append(found, Finding{
			What: "missing right", Where: "database " + f.database, Why: "the publication cannot be created",
			Do: fmt.Sprintf("run GRANT CREATE ON DATABASE %s TO %s", quoteName(f.database), quoteName(f.role)),
		})
	}
	if f.publication.ours && !f.mayTakePublication {
		found = append(found, Finding{
			What: "missing right", Where: "publication " + name, Why: "its members cannot be changed",
			Do: fmt.Sprintf("run ALTER PUBLICATION %s OWNER TO %s", quoteName(name), quoteName(f.role)),
		})
	}
	return found, nil
}

func checkStandbys(_ context.Context, in *inspection) ([]Finding, error) {
	if !matchesStandby(in.facts.standbys) {
		return nil, nil
	}
	return []Finding{{
		What: "synchronous standby", Where: "synchronous_standby_names = " + quoteText(in.facts.standbys),
		Why: "it matches application_name " + ApplicationName + ": commits would wait for mvsync, and mvsync for them",
		Do:  "name the real standbys in synchronous_standby_names",
	}}, nil
}

// tablesSQL lists the tables with everything below them, parents included, since reading a parent needs rights on it.
const tablesSQL = `
WITH RECURSIVE down(oid) AS (
	SELECT r FROM unnest($1::oid[]) r
	UNION
	SELECT i.inhrelid FROM down JOIN pg_inherits i ON i.inhparent = down.oid
)
SELECT c.oid, format('%I.%I', n.nspname, c.relname), c.relkind::text, c.relpersistence::text,
       pg_has_role(c.relowner, 'USAGE'), has_table_privilege(c.oid, 'SELECT'),
       c.oid = ANY ($1), EXISTS (SELECT FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
                                 WHERE p.pubname = $2 AND r.prrelid = c.oid),
       n.nspname IN ('pg_catalog', 'information_schema', 'pg_toast')
FROM down JOIN pg_class c ON c.oid = down.oid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 2`

// tableFacts is a row of tablesSQL.
type tableFacts struct {
	oid                                    uint32
	name, kind, persistence                string
	owned, readable, named, member, system bool
}

func checkTables(ctx context.Context, in *inspection) ([]Finding, error) {
	rows, err := in.sql.Query(ctx, tablesSQL, in.tables, in.target.Publication)
	if err != nil {
		return nil, fmt.Errorf("look at the tables: %w", err)
	}
	var found []Finding
	var leaves []uint32
	var f tableFacts
	_, err = pgx.ForEachRow(rows, []any{&f.oid, &f.name, &f.kind, &f.persistence, &f.owned, &f.readable, &f.named, &f.member, &f.system}, func() error {
		streamed := f.streamed()
		if streamed != nil {
			found = append(found, *streamed)
		} else if f.kind == "r" {
			leaves = append(leaves, f.oid)
		}
		found = append(found, f.rights(in.facts.role)...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look at the tables: %w", err)
	}
	missing, err := missingIdentities(ctx, in.sql, leaves)
	for _, m := range missing {
		found = append(found, Finding{What: "no replica identity", Where: m.Table, Why: m.Why, Do: "run " + m.Do})
	}
	return found, err
}

// streamed says why the table's changes would not be in the stream.
func (f tableFacts) streamed() *Finding {
	finding := Finding{What: "table without a stream", Where: f.name}
	switch {
	case f.system:
		finding.Why, finding.Do = "system tables are not published", "leave it out of the view"
	case f.persistence == "u":
		finding.Why, finding.Do = "it is unlogged", "run ALTER TABLE "+f.name+" SET LOGGED"
	case f.persistence == "t":
		finding.Why, finding.Do = "it is temporary", "use an ordinary table"
	case f.kind == "f":
		finding.Why, finding.Do = "it is a foreign table", "copy it into an ordinary table"
	case f.kind == "r" || f.kind == "p":
		return nil
	default:
		finding.Why, finding.Do = "it is not a table", "name the tables behind it"
	}
	return &finding
}

// rights says what the role may not do with the table.
func (f tableFacts) rights(role string) []Finding {
	var found []Finding
	if !f.owned && f.kind == "r" && !f.member {
		found = append(found, Finding{
			What: "missing right", Where: f.name, Why: "only its owner can publish it",
			Do: fmt.Sprintf("let the owner run ALTER PUBLICATION ... ADD TABLE ONLY %s, or make %s a member of the owning role", f.name, quoteName(role)),
		})
	}
	// Locking a table needs the right on all of it; a right on its columns will not do. Partitions are read by the right
	// on their parent.
	if f.named && !f.readable {
		found = append(found, Finding{
			What: "missing right", Where: f.name, Why: "it cannot be read",
			Do: strings.Join([]string{"run GRANT SELECT ON", f.name, "TO", quoteName(role)}, " "),
		})
	}
	return found
}
