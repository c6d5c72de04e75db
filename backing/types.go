package backing

import (
	"context"
	"fmt"
	"slices"
)

// typeFacts is what the statements need to know of a type.
type typeFacts struct {
	equal    string // operator of its default equality, such as OPERATOR(pg_catalog.=); empty where it has none
	array    bool   // it is an array, which has no array type of its own
	hasArray bool   // there is an array type over it
	float    bool   // float4 or float8, or a domain over one
	real     bool   // float4, or a domain over it
	row      bool   // a composite type, or a domain over one
	hash     bool   // its equality can be hashed
	// delimiter stands between the elements of an array's text: a comma but for box, PostGIS geometries and the like.
	delimiter byte
}

// typesQuery reads the facts of types by name. Operators are found by the default operator class and never by name: under
// an empty search_path "=" over a type of another schema resolves to some other type's equality (citext's to text's).
const typesQuery = `
WITH RECURSIVE asked AS (
	SELECT t.name, t.name::regtype::oid AS oid FROM (SELECT DISTINCT unnest($1::text[])) t(name)
), base AS (
	SELECT name, oid FROM asked
	UNION ALL
	SELECT b.name, t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid WHERE t.typtype = 'd'
)
SELECT a.name,
	COALESCE((
		SELECT format('OPERATOR(%I.%s)', on_.nspname, o.oprname)
		FROM pg_catalog.pg_opclass c
		JOIN pg_catalog.pg_am m ON m.oid = c.opcmethod AND m.amname IN ('btree', 'hash')
		JOIN pg_catalog.pg_amop ao ON ao.amopfamily = c.opcfamily AND ao.amoplefttype = c.opcintype
			AND ao.amoprighttype = c.opcintype AND ao.amopstrategy = CASE m.amname WHEN 'btree' THEN 3 ELSE 1 END
		JOIN pg_catalog.pg_operator o ON o.oid = ao.amopopr
		JOIN pg_catalog.pg_namespace on_ ON on_.oid = o.oprnamespace
		LEFT JOIN pg_catalog.pg_cast k ON k.castsource = bt.oid AND k.casttarget = c.opcintype
			AND k.castmethod = 'b' AND k.castcontext = 'i'
		JOIN pg_catalog.pg_type ct ON ct.oid = c.opcintype
		WHERE c.opcdefault AND (c.opcintype = bt.oid OR k.oid IS NOT NULL OR c.opcintype = CASE
			WHEN bt.typtype = 'e' THEN 'anyenum'::regtype
			WHEN bt.typtype = 'r' THEN 'anyrange'::regtype
			WHEN bt.typtype = 'm' THEN 'anymultirange'::regtype
			WHEN bt.typtype = 'c' THEN 'record'::regtype
			WHEN bt.typcategory = 'A' THEN 'anyarray'::regtype END)
		ORDER BY c.opcintype = bt.oid DESC, m.amname, ct.typispreferred DESC
		LIMIT 1), ''),
	bt.typcategory = 'A' AND bt.typarray = 0,
	at.typarray <> 0,
	bt.oid IN ('float4'::regtype, 'float8'::regtype),
	bt.oid = 'float4'::regtype,
	at.typdelim::text,
	bt.typtype = 'c',
	EXISTS (SELECT FROM pg_catalog.pg_opclass c JOIN pg_catalog.pg_am m ON m.oid = c.opcmethod
		WHERE m.amname = 'hash' AND c.opcdefault AND (c.opcintype = bt.oid OR EXISTS (SELECT FROM pg_catalog.pg_cast k
			WHERE k.castsource = bt.oid AND k.casttarget = c.opcintype AND k.castmethod = 'b' AND k.castcontext = 'i')))
FROM asked a
JOIN pg_catalog.pg_type at ON at.oid = a.oid
JOIN base b ON b.name = a.name
JOIN pg_catalog.pg_type bt ON bt.oid = b.oid AND bt.typtype <> 'd'`

// types knows the facts of the types of one session's layouts, by their name.
type types map[string]typeFacts

// learn asks for the types that are not known yet.
func (t types) learn(ctx context.Context, q Querier, names []string) error {
	ask := slices.DeleteFunc(names, func(name string) bool {
		_, known := t[name]
		return known
	})
	if len(ask) == 0 {
		return nil
	}
	rows, err := q.Query(ctx, typesQuery, ask)
	if err != nil {
		return fmt.Errorf("look up types: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var f typeFacts
		var delimiter string
		if err := rows.Scan(&name, &f.equal, &f.array, &f.hasArray, &f.float, &f.real, &delimiter, &f.row, &f.hash); err != nil {
			return fmt.Errorf("look up types: %w", err)
		}
		f.delimiter = delimiter[0]
		t[name] = f
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("look up types: %w", err)
	}
	return nil
}

// delimiter returns what stands between the elements of the text of an array over the type.
func (t types) delimiter(name string) byte {
	if d := t[name].delimiter; d != 0 {
		return d
	}
	return ','
}
