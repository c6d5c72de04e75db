SELECT a.attname,
       format_type(a.atttypid, a.atttypmod) AS type,
       format_type(b.base, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END) AS base,
       b.base::regtype::text AS plain,
       NOT a.attnotnull AND NOT t.typnotnull AS nullable,
       a.attidentity = 'a' AS identity,
       a.attgenerated <> '' AS computed,
       a.atthasdef OR a.attidentity <> '' AS has_default,
       a.attstorage IN ('x', 'e', 'm') AND b.base IN ('text'::regtype, 'varchar'::regtype, 'bytea'::regtype)
           AND CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END = -1 AS wide,
       EXISTS (SELECT FROM pg_opclass o JOIN pg_am m ON m.oid = o.opcmethod
                WHERE m.amname = 'btree' AND o.opcdefault
                  AND o.opcintype IN (b.base, CASE bt.typtype WHEN 'e' THEN 'anyenum'::regtype
                                                              WHEN 'r' THEN 'anyrange'::regtype
                                                              WHEN 'c' THEN 'record'::regtype END,
                                      CASE WHEN bt.typcategory = 'A' THEN 'anyarray'::regtype END,
                                      CASE WHEN b.base = 'varchar'::regtype THEN 'text'::regtype END)) AS ordered,
       coalesce((SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = b.base), '{}') AS labels
  FROM pg_attribute a
  JOIN pg_type t ON t.oid = a.atttypid
 CROSS JOIN LATERAL (
       WITH RECURSIVE chain AS (
           SELECT t.oid, t.typbasetype
            UNION ALL
           SELECT p.oid, p.typbasetype FROM chain JOIN pg_type p ON p.oid = chain.typbasetype
       )
       SELECT oid AS base FROM chain WHERE typbasetype = 0) b
  JOIN pg_type bt ON bt.oid = b.base
 WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
