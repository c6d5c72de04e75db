package maintain

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mvsync/mvsync/plans"
)

//go:embed fingerprint.sql
var fingerprintSQL string

// object is one thing of the catalog on which views depend.
type object struct {
	class string // table, storage, member, function, view, type, collation, publication, producer
	oid   uint32 // 0 for the publication
}

// fingerprint is what the catalog says of every object on which the views depend:
// a hash each. What the stream does not report shows as a difference (INV-9).
type fingerprint map[object]string

// watch lists the objects to compare.
type watch struct {
	tables, functions, views, types, collations, producers []uint32
	publication                                            string
}

// watchOf collects the objects on which plans depend.
func watchOf(publication string, ps []*plans.Plan) watch {
	w := watch{publication: publication}
	for _, p := range ps {
		for i := range p.Sources {
			s := &p.Sources[i]
			switch {
			case !s.Producer:
				w.tables = append(w.tables, s.OID)
			case s.OID != 0: // else it is not made yet
				w.producers = append(w.producers, s.OID)
			}
		}
		for _, d := range p.Depends {
			switch d.Class {
			case plans.Function:
				w.functions = append(w.functions, d.OID)
			case plans.Relation:
				w.views = append(w.views, d.OID)
			case plans.Type:
				w.types = append(w.types, d.OID)
			case plans.Collation:
				w.collations = append(w.collations, d.OID)
			case plans.Operator: // its function is listed as well
			}
		}
	}
	for _, l := range []*[]uint32{&w.tables, &w.functions, &w.views, &w.types, &w.collations, &w.producers} {
		slices.Sort(*l)
		*l = slices.Compact(*l)
		if *l == nil {
			*l = []uint32{}
		}
	}
	return w
}

// querier is what a connection and a transaction have in common.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// read takes the fingerprint as the querier's snapshot sees it.
func (w watch) read(ctx context.Context, q querier) (fingerprint, error) {
	rows, err := q.Query(ctx, fingerprintSQL, w.tables, w.functions, w.views, w.types, w.collations, w.publication, w.producers)
	if err != nil {
		return nil, fmt.Errorf("compare the catalog: %w", err)
	}
	out := fingerprint{}
	var o object
	var hash string
	_, err = pgx.ForEachRow(rows, []any{&o.class, &o.oid, &hash}, func() error {
		out[o] = hash
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compare the catalog: %w", err)
	}
	return out, nil
}

// fingerprintName is the statement by which the session of the rounds compares, prepared
// once: it travels with what opens a round.
const fingerprintName = "mvsync_fingerprint"

// execute is read as a statement for the simple protocol, of which [parse] takes the rows.
func (w watch) execute() string {
	var args []string
	for _, oids := range [][]uint32{w.tables, w.functions, w.views, w.types, w.collations} {
		args = append(args, oidArray(oids))
	}
	return "EXECUTE " + fingerprintName + " (" + strings.Join(append(args, quoteLiteral(w.publication), oidArray(w.producers)), ", ") + ")"
}

func oidArray(oids []uint32) string {
	texts := make([]string, len(oids))
	for i, o := range oids {
		texts[i] = strconv.FormatUint(uint64(o), 10)
	}
	return "'{" + strings.Join(texts, ",") + "}'::pg_catalog.oid[]"
}

// parse reads the rows of execute.
func parse(rows [][][]byte) (fingerprint, error) {
	out := make(fingerprint, len(rows))
	for _, row := range rows {
		oid, err := strconv.ParseUint(string(row[1]), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("compare the catalog: %w", err)
		}
		out[object{string(row[0]), uint32(oid)}] = string(row[2])
	}
	return out, nil
}

// changed lists the objects that differ between two fingerprints.
func (f fingerprint) changed(g fingerprint) []object {
	var out []object
	for o, hash := range f {
		if g[o] != hash {
			out = append(out, o)
		}
	}
	for o := range g {
		if _, ok := f[o]; !ok {
			out = append(out, o)
		}
	}
	return out
}

// affects reports whether a plan depends on the object.
func (o object) affects(p *plans.Plan) bool {
	switch o.class {
	case "publication":
		return slices.ContainsFunc(p.Sources, func(s plans.Source) bool { return !s.Producer })
	case "table", "storage", "member", "producer":
		return slices.ContainsFunc(p.Sources, func(s plans.Source) bool { return s.OID == o.oid && s.Producer == (o.class == "producer") })
	}
	class := map[string]plans.Class{"function": plans.Function, "view": plans.Relation, "type": plans.Type, "collation": plans.Collation}[o.class]
	return slices.Contains(p.Depends, plans.Object{Class: class, OID: o.oid})
}

// published reports whether the publication changed, or what it holds of a table:
// changes of running transactions may not be in the stream then.
func (o object) published() bool { return o.class == "publication" || o.class == "member" }

// storage reports whether only the files of a table are others: it was truncated,
// which the stream says as well, or rewritten, which it does not.
func (o object) storage() bool { return o.class == "storage" }
