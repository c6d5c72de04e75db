package replication

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/mvsync/mvsync/ingest"
)

// decoder turns the pgoutput messages of one connection into transactions. It is used by one goroutine.
type decoder struct {
	// lineage completes a relation that the stream describes.
	lineage func(oid uint32) (lineage, error)
	// collect makes what holds the changes of a transaction until its commit.
	collect func() *collector

	tables map[uint32]*ingest.Table
	stale  map[uint32]bool // tables whose parents are to be asked for again
	last   *ingest.Table   // the table of the last row message, which the next one mostly has too

	open     bool // within a transaction
	begin    pglogrepl.BeginMessage
	skip     bool // the open transaction was received before
	changes  *collector
	rows     arena
	received ingest.LSN // commit record of the last complete transaction
	ignored  int64      // messages that were not asked for
}

func newDecoder(lineage func(uint32) (lineage, error), collect func() *collector, received ingest.LSN) *decoder {
	return &decoder{
		lineage: lineage, collect: collect, received: received, tables: map[uint32]*ingest.Table{},
	}
}

// unsolicited are the messages that frame streamed transactions. Streaming is not asked for, but some servers send a
// stray one all the same. Rows within a frame would not be skipped: they stand outside a transaction, which is an error.
const unsolicited = "SEcA"

// decode takes one message. It returns the transaction that it completes, if any. message may be reused afterwards.
func (d *decoder) decode(message []byte) (tx *ingest.Transaction, err error) {
	// pglogrepl has no bounds checks of its own.
	defer func() {
		if r := recover(); r != nil {
			if _, bounds := r.(runtime.Error); !bounds {
				panic(r)
			}
			tx, err = nil, d.broken(message, fmt.Errorf("%v", r))
		}
	}()
	if len(message) == 0 {
		return nil, d.broken(message, errTruncated)
	}
	switch pglogrepl.MessageType(message[0]) {
	case pglogrepl.MessageTypeInsert, pglogrepl.MessageTypeUpdate, pglogrepl.MessageTypeDelete:
		err = d.row(message)
	case pglogrepl.MessageTypeBegin:
		err = d.beginTransaction(message)
	case pglogrepl.MessageTypeCommit:
		tx, err = d.commit(message)
	case pglogrepl.MessageTypeRelation:
		err = d.relation(message)
	case pglogrepl.MessageTypeTruncate:
		err = d.truncate(message)
	case pglogrepl.MessageTypeOrigin, pglogrepl.MessageTypeType, pglogrepl.MessageTypeMessage:
		// Who wrote it first, what a type is called, and what an application says to others change no row.
	default:
		if !isUnsolicited(message[0]) {
			return nil, d.broken(message, fmt.Errorf("it is of no known type"))
		}
		d.ignored++
	}
	return tx, err
}

func isUnsolicited(kind byte) bool {
	for i := range len(unsolicited) {
		if unsolicited[i] == kind {
			return true
		}
	}
	return false
}

// broken is the error of a message that cannot be understood.
func (d *decoder) broken(message []byte, cause error) error {
	kind := "empty"
	if len(message) > 0 {
		kind = fmt.Sprintf("%q (0x%02x)", message[0], message[0])
	}
	return fmt.Errorf("%w: message %s of %d bytes in the transaction that commits at %s: %w",
		ErrProtocol, kind, len(message), d.begin.FinalLSN, cause)
}

// parse reads a message that is not a row by pglogrepl.
func parse[M any](d *decoder, message []byte) (M, error) {
	var none M
	parsed, err := pglogrepl.Parse(message)
	if err != nil {
		return none, d.broken(message, err)
	}
	typed, ok := parsed.(M)
	if !ok {
		return none, d.broken(message, fmt.Errorf("it parses as %T", parsed))
	}
	return typed, nil
}

func (d *decoder) beginTransaction(message []byte) error {
	begin, err := parse[*pglogrepl.BeginMessage](d, message)
	if err != nil {
		return err
	}
	if d.open {
		return d.broken(message, fmt.Errorf("transaction %d begins within transaction %d", begin.Xid, d.begin.Xid))
	}
	d.open, d.begin = true, *begin
	// Commit records come in order, so whatever is not beyond the last complete one was received before the connection
	// dropped. This holds within a process only; visibility decides across restarts.
	d.skip = begin.FinalLSN <= d.received
	d.rows = arena{}
	if !d.skip {
		d.changes = d.collect()
	}
	return nil
}

func (d *decoder) commit(message []byte) (*ingest.Transaction, error) {
	commit, err := parse[*pglogrepl.CommitMessage](d, message)
	if err != nil {
		return nil, err
	}
	if !d.open || commit.CommitLSN != d.begin.FinalLSN {
		return nil, d.broken(message, fmt.Errorf("it commits at %s", commit.CommitLSN))
	}
	d.open = false
	if d.skip {
		// Still a transaction to the caller, with nothing in it: its end is progress.
		return &ingest.Transaction{EndLSN: commit.TransactionEndLSN}, nil
	}
	collected := d.changes
	d.changes = nil
	changes, err := collected.finish()
	if err != nil {
		return nil, err
	}
	d.received = commit.CommitLSN
	return &ingest.Transaction{
		XID: d.begin.Xid, FinalLSN: d.begin.FinalLSN, EndLSN: commit.TransactionEndLSN,
		CommitTime: commit.CommitTime.In(time.UTC), Changes: changes,
	}, nil
}

// close lets go of an unfinished transaction.
func (d *decoder) close() {
	if d.changes != nil {
		d.changes.discard()
		d.changes = nil
	}
}

func (d *decoder) relation(message []byte) error {
	relation, err := parse[*pglogrepl.RelationMessage](d, message)
	if err != nil {
		return err
	}
	above, err := d.lineage(relation.RelationID)
	if err != nil {
		return err
	}
	table := &ingest.Table{
		OID: relation.RelationID, Schema: relation.Namespace, Name: relation.RelationName,
		Full:      relation.ReplicaIdentity == 'f',
		Partition: above.partition, Ancestors: above.ancestors,
		Columns: make([]ingest.Column, 0, len(relation.Columns)),
	}
	if table.Schema == "" {
		table.Schema = "pg_catalog" // the protocol's shorthand
	}
	for _, c := range relation.Columns {
		table.Columns = append(table.Columns, ingest.Column{Name: c.Name, TypeOID: c.DataType, Identity: c.Flags&1 != 0})
	}
	d.tables[relation.RelationID] = table
	delete(d.stale, relation.RelationID)
	d.last = nil
	return nil
}

// forget drops what is known of the parents of all tables; each is asked for again when the table changes next.
func (d *decoder) forget() {
	d.stale = make(map[uint32]bool, len(d.tables))
	for oid := range d.tables {
		d.stale[oid] = true
	}
	d.last = nil
}

// renew gives the changes from here on a new table with the parents that it has now.
func (d *decoder) renew(table *ingest.Table) (*ingest.Table, error) {
	above, err := d.lineage(table.OID)
	if err != nil {
		return nil, err
	}
	renewed := *table
	renewed.Partition, renewed.Ancestors = above.partition, above.ancestors
	d.tables[table.OID] = &renewed
	delete(d.stale, table.OID)
	return &renewed, nil
}

// table returns the relation of a message.
func (d *decoder) table(message []byte, oid uint32) (*ingest.Table, error) {
	if !d.open {
		return nil, d.broken(message, fmt.Errorf("it stands outside a transaction"))
	}
	if d.last != nil && d.last.OID == oid {
		return d.last, nil
	}
	table := d.tables[oid]
	if table == nil {
		return nil, d.broken(message, fmt.Errorf("relation %d was not described", oid))
	}
	if d.stale[oid] {
		var err error
		if table, err = d.renew(table); err != nil {
			return nil, err
		}
	}
	d.last = table
	return table, nil
}

func (d *decoder) row(message []byte) error {
	if d.skip {
		return nil
	}
	if len(message) < 5 {
		return d.broken(message, errTruncated)
	}
	table, err := d.table(message, binary.BigEndian.Uint32(message[1:]))
	if err != nil {
		return err
	}
	reader := newRowReader(message)
	reader.at = 5
	var c *ingest.Change
	switch message[0] {
	case 'I':
		c, err = reader.insert(table, &d.rows)
	case 'U':
		c, err = reader.update(table, &d.rows)
	default:
		c, err = reader.delete(table, &d.rows)
	}
	if err == nil && reader.at != len(message) {
		err = fmt.Errorf("%d bytes are left over", len(message)-reader.at)
	}
	if err != nil {
		return d.broken(message, fmt.Errorf("%s.%s: %w", table.Schema, table.Name, err))
	}
	return d.changes.add(c)
}

func (d *decoder) truncate(message []byte) error {
	// pglogrepl trusts the number of relations and allocates for it.
	if len(message) < 6 || int64(binary.BigEndian.Uint32(message[1:]))*4 > int64(len(message)-6) {
		return d.broken(message, errTruncated)
	}
	truncate, err := parse[*pglogrepl.TruncateMessage](d, message)
	if err != nil || d.skip {
		return err
	}
	for _, oid := range truncate.RelationIDs {
		// The server lists published relations only, and describes each before.
		table, err := d.table(message, oid)
		if err != nil {
			return err
		}
		c := d.rows.change()
		*c = ingest.Change{Table: table, Op: ingest.Truncate}
		if err := d.changes.add(c); err != nil {
			return err
		}
	}
	return nil
}
