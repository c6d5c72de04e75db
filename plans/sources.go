package plans

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// firstLowAttribute is the offset of column numbers in a privilege bitmap.
const firstLowAttribute = -7

// tableoid is the one system column that does not change by itself.
const tableoid = -6

// reads are the columns that the whole tree reads of a relation, and how often
// the relation stands in it.
type reads struct {
	columns  map[int]bool // attribute numbers; 0 is the whole row
	places   int
	all      bool // an alias renames the columns, so that they stand for all
	onlySelf bool // ONLY in every place
}

// readsOf finds what the tree reads of a relation, from the bitmaps by which
// Postgres checks privileges.
func (a *analysis) readsOf(oid uint32) reads { return readsIn(a.top.q, oid) }

// readsIn is readsOf for any query tree.
func readsIn(tree *node, oid uint32) reads {
	r := reads{columns: map[int]bool{}, onlySelf: true}
	walk(tree, func(n *node) bool {
		if n.tag != "QUERY" {
			return true
		}
		infos := n.nodes("rteperminfos") // since 16; before, the entry itself has the bitmap
		for _, rte := range n.nodes("rtable") {
			if kind(rte) != rteRelation || rte.oid("relid") != oid || !rte.is("inFromCl") {
				continue
			}
			r.places++
			r.onlySelf = r.onlySelf && !rte.is("inh")
			r.all = r.all || rte.child("alias").has2("colnames")
			bits := rte
			if i := rte.num("perminfoindex"); i >= 1 && i <= len(infos) {
				bits = infos[i-1]
			}
			for _, b := range bits.ints("selectedCols") {
				r.columns[b+firstLowAttribute] = true
			}
		}
		return true
	})
	return r
}

// has2 is has on a node that may be absent.
func (n *node) has2(field string) bool { return n != nil && n.has(field) }

// checkSources refuses what has no stream.
func (a *analysis) checkSources() *Refusal {
	if len(a.sources) == 0 {
		r := refuse(NoSource, "query", "it reads no table, so that nothing can change it", "select from a table")
		r.Position = skipSpace(a.d.Query, a.stmt.start)
		return r
	}
	for _, s := range a.sources {
		if s.name() == a.d.Name {
			return a.selfReference()
		}
	}
	for _, s := range a.sources {
		if r := a.checkStream(s); r != nil {
			r.Position = a.findTable(s)
			return r
		}
	}
	return nil
}

func (a *analysis) checkStream(s *relation) *Refusal {
	name := s.name().String()
	for col := range a.readsOf(s.OID).columns {
		if col < 0 && col != tableoid {
			return refuse(UnstreamableSource, name, "the body reads a system column that changes without a change of the row",
				"leave xmin, xmax, cmin, cmax and ctid out")
		}
	}
	if s.RowSecurity {
		return refuse(RowSecurity, name, "its row security hides rows from mvsync, while the stream carries all rows",
			"run ALTER ROLE "+a.role()+" BYPASSRLS;")
	}
	if !s.Readable {
		return refuse(UnstreamableSource, name, "mvsync's role may not read it, or only some of its columns, so that it cannot lock it either",
			"run GRANT SELECT ON "+name+" TO "+a.role()+";")
	}
	if a.o.External[s.name()] {
		return nil
	}
	if s.Schema == a.catalogSchema() {
		return refuse(UnstreamableSource, name, "it belongs to mvsync itself", "read the application's tables")
	}
	if why := unstreamed(s.Kind, s.Persistence, s.System); why != "" {
		return refuse(UnstreamableSource, name, why.reason(), why.suggestion(s.name()))
	}
	for _, l := range s.leaves {
		if why := unstreamed(l.Kind, l.Persist, false); why != "" {
			return refuse(UnstreamableSource, l.name().String(), "this part of "+name+" has no stream: "+why.reason(), why.suggestion(l.name()))
		}
	}
	return nil
}

// role is the name of mvsync's role.
func (a *analysis) role() string { return quoteIdent(a.tx.Conn().Config().User) }

func (a *analysis) catalogSchema() string {
	if a.o.Catalog == "" {
		return "mvsync"
	}
	return a.o.Catalog
}

// unstreamable is a reason why a relation's changes are not in the stream.
type unstreamable string

func unstreamed(kind, persistence string, system bool) unstreamable {
	switch {
	case system:
		return "system"
	case kind == "m", kind == "f":
		return unstreamable(kind)
	case persistence == "u", persistence == "t":
		return unstreamable(persistence)
	case kind != "r" && kind != "p":
		return "other"
	}
	return ""
}

func (u unstreamable) reason() string {
	switch u {
	case "system":
		return "Postgres does not replicate its system tables"
	case "m":
		return "a materialized view of Postgres changes by REFRESH, which the stream does not show"
	case "f":
		return "a foreign table changes elsewhere, which the stream does not show"
	case "u":
		return "an unlogged table is not in the WAL"
	case "t":
		return "a temporary table is not in the WAL"
	}
	return "it is no table"
}

func (u unstreamable) suggestion(n Name) string {
	switch u {
	case "m":
		return "declare its query as a view of mvsync, and read that"
	case "f":
		return "report its changes through ingest: source.tables: " + n.String() + ": {feed: external}"
	case "u":
		return "run ALTER TABLE " + n.String() + " SET LOGGED;"
	case "t":
		return "make it an ordinary table"
	}
	return "read ordinary tables"
}

// findTable returns the byte offset of a table's name in the declared query, -1
// where it stands elsewhere.
func (a *analysis) findTable(r *relation) int {
	refs, err := tableRefs(a.stmt.text)
	if err != nil {
		return -1
	}
	for _, ref := range refs {
		if ref.name.Name == r.Name && (ref.name.Schema == "" || ref.name.Schema == r.Schema) {
			return a.stmt.start + ref.start
		}
	}
	return -1
}

// source describes a relation to the arms.
func (a *analysis) source(r *relation) Source {
	read := a.readsOf(r.OID)
	s := Source{
		OID: r.OID, Schema: r.Schema, Name: r.Name, Producer: r.producer != nil, Kind: r.Kind[0], WholeRow: read.columns[0],
		AppendOnly: a.o.AppendOnly[r.name()], External: a.o.External[r.name()], Inherits: r.Parent && !read.onlySelf, Identity: "any",
	}
	key := a.netKey(r)
	for _, at := range r.attrs {
		wanted := read.columns[0] || read.all || read.columns[int(at.Num)] || slices.Contains(key, at.Name) || len(key) == 0
		if !wanted {
			continue
		}
		c := SourceColumn{
			Num: at.Num, Name: at.Name, Type: at.Type, TypeOID: at.TypeOID, Modifier: at.Modifier,
			Collation: a.collationName(at.Collation, at.TypeOID), NotNull: at.NotNull, Generated: at.Generated,
		}
		if t := a.types[at.TypeOID]; t != nil {
			c.HasArray = t.HasArray
		}
		s.Columns = append(s.Columns, c)
	}
	for _, k := range key {
		s.Key = append(s.Key, s.Column(k))
	}
	for _, l := range r.leaves {
		if l.OID == r.OID || !read.onlySelf {
			s.Leaves = append(s.Leaves, l.OID)
		}
	}
	return s
}

// netKey names the columns by which changes of a relation are netted: the
// primary key, else what the replica identity of every leaf carries.
func (a *analysis) netKey(r *relation) []string {
	if r.producer != nil {
		var key []string
		for _, k := range r.producer.Key {
			key = append(key, r.producer.Columns[k].Name)
		}
		return key
	}
	if len(r.leaves) == 0 {
		return nil
	}
	// Leaves may have their columns in another order.
	differ := func(x, y []string) bool { return len(x) != len(y) || !subset(x, y) }
	pk := r.leaves[0].Primary
	if len(pk) > 0 && !slices.ContainsFunc(r.leaves, func(l leaf) bool { return differ(l.Primary, pk) }) {
		return pk
	}
	id := r.leaves[0].Columns
	if len(id) > 0 && !slices.ContainsFunc(r.leaves, func(l leaf) bool { return differ(l.Columns, id) }) {
		return id
	}
	return nil
}

// needs are the columns that a strategy must find in old images, by source; a
// nil set asks for no more than an identity.
type needs struct {
	full    bool
	columns []string
}

// requireIdentity says what replica identity a source needs, and refuses the
// view where a leaf does not have it.
func (a *analysis) requireIdentity(p *Plan, i int, n needs) *Refusal {
	src := &p.Sources[i]
	r := a.relations[src.OID]
	src.Old = src.indexes(n)
	if src.Producer || src.External {
		return nil
	}
	if src.AppendOnly {
		n = needs{}
	}
	var alter, missing []string
	for _, l := range r.leaves {
		if !slices.Contains(src.Leaves, l.OID) {
			continue
		}
		if n.full || !subset(n.columns, l.Columns) && !subset(n.columns, l.Primary) {
			src.Identity = "full"
		}
		identity := l.Identity == "f" || len(l.Columns) > 0
		if identity && (l.Identity == "f" || !n.full && subset(n.columns, l.Columns)) {
			continue
		}
		if !identity {
			missing = append(missing, l.name().String())
		}
		alter = append(alter, "ALTER TABLE "+l.name().String()+" REPLICA IDENTITY FULL;")
	}
	if len(alter) == 0 {
		return nil
	}
	if a.o.ReplicaIdentity == Manage {
		p.Alter = append(p.Alter, alter...)
		return nil
	}
	reason := fmt.Sprintf("%s needs old images of %s, which its replica identity does not carry", p.Strategy, strings.Join(wanted(n), ", "))
	suggestion := "run " + strings.Join(alter, " ")
	if len(missing) > 0 {
		reason = fmt.Sprintf("%s has neither a primary key nor another replica identity: once published, its own updates and deletes would fail",
			strings.Join(missing, ", "))
		suggestion = "add a primary key, or " + suggestion
	}
	ref := refuse(ReplicaIdentity, src.Table().String(), reason, suggestion)
	ref.Position = a.findTable(r)
	return ref
}

// indexes are the columns that old images must carry.
func (s *Source) indexes(n needs) []int {
	var out []int
	for i, c := range s.Columns {
		if n.full || slices.Contains(n.columns, c.Name) {
			out = append(out, i)
		}
	}
	return out
}

func wanted(n needs) []string {
	if n.full || len(n.columns) == 0 {
		return []string{"the whole row"}
	}
	return n.columns
}

func subset(part, whole []string) bool {
	return !slices.ContainsFunc(part, func(c string) bool { return !slices.Contains(whole, c) })
}

// countLimit is the largest threshold for which rows are counted; above it
// Postgres' own estimate decides.
const countLimit = 1_000_000

// checkSize refuses a full rebuild over more rows than the threshold.
func (a *analysis) checkRebuild(ctx context.Context, p *Plan) error {
	limit := a.d.RebuildRowThreshold
	if limit == 0 || a.d.Every > 0 || p.Strategy != FullRebuild {
		return nil
	}
	rows, err := a.sourceRows(ctx, p, limit)
	if err != nil || rows <= limit {
		return err
	}
	var names []string
	for i := range p.Sources {
		names = append(names, p.Sources[i].Table().String())
	}
	return refusef(RebuildTooLarge, strings.Join(names, ", "),
		fmt.Sprintf("raise rebuild_row_threshold for the view, or give it an every, such as 1m, so that it moves less often; %s", why(p)),
		"the body can only be evaluated as a whole, over more than %d source rows each time", limit)
}

// why sums up what kept a plan from a cheaper strategy.
func why(p *Plan) string {
	for _, s := range []Strategy{ResidualRecompute, DeltaAggregate, JoinResidual, PrefixDelete, InverseProjection} {
		if r := p.Declined[s]; r != "" {
			return "not " + string(s) + " because " + r
		}
	}
	return "no cheaper strategy fits"
}

// sourceRows counts the rows of all sources, up to the limit and one more.
func (a *analysis) sourceRows(ctx context.Context, p *Plan, limit int64) (int64, error) {
	var estimate float64
	var parts []string
	for i := range p.Sources {
		for _, l := range a.relations[p.Sources[i].OID].leaves {
			if slices.Contains(p.Sources[i].Leaves, l.OID) {
				estimate += max(l.Tuples, float64(l.Pages))
				parts = append(parts, "(SELECT FROM ONLY "+quoteAlways(l.Schema)+"."+quoteAlways(l.Name)+" LIMIT $1)")
			}
		}
	}
	if limit > countLimit || len(parts) > 1000 || len(parts) == 0 {
		return int64(estimate), nil
	}
	var n int64
	sql := "SELECT count(*) FROM (SELECT FROM (" + strings.Join(parts, " UNION ALL ") + ") u LIMIT $1) r"
	if err := a.tx.QueryRow(ctx, sql, limit+1).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the rows of the sources: %w", err)
	}
	return n, nil
}
