package plans

import "github.com/jackc/pgx/v5/pgtype"

// distinctText are types of which different values have different texts, under the settings that sessions pin. (What is
// equal may well have several texts, as 1.0 and 1.00.)
var distinctText = map[uint32]bool{
	pgtype.Int2OID: true, pgtype.Int4OID: true, pgtype.Int8OID: true, pgtype.OIDOID: true, pgtype.NumericOID: true,
	pgtype.BoolOID: true, pgtype.UUIDOID: true, pgtype.DateOID: true, pgtype.TimestampOID: true, pgtype.TimestamptzOID: true,
}

// widening are casts, by signature, that keep different values different. Those of int8 to float8 and the like do not.
var widening = wordSet(`
pg_catalog.int4(smallint) pg_catalog.int8(smallint) pg_catalog.int8(integer)
pg_catalog.numeric(smallint) pg_catalog.numeric(integer) pg_catalog.numeric(bigint)
pg_catalog.float8(smallint) pg_catalog.float8(integer)
pg_catalog.text(boolean)`)

// uncast looks through casts that keep different values different, such as id::text: who knows the result knows the value
// below.
func (s *scope) uncast(e *node) *node {
	for {
		switch {
		case e.tag == "COERCEVIAIO" && isText(e.oid("resulttype")) && distinctText[exprType(e.child("arg"))]:
			e = e.child("arg")
		case e.tag == "FUNCEXPR" && len(e.nodes("args")) == 1 && s.widens(e.oid("funcid")):
			e = e.nodes("args")[0]
		default:
			return e
		}
	}
}

func isText(typeOID uint32) bool { return typeOID == pgtype.TextOID || typeOID == pgtype.VarcharOID }

func (s *scope) widens(function uint32) bool {
	f := s.a.functions[function]
	return f != nil && widening[f.signature()]
}
