-- What no stream reports of the catalog, for the objects on which views depend:
-- one row an object, (class, oid, hash). $1 tables, $2 functions and aggregates,
-- $3 plain views, $4 types, $5 collations, $6 the publication's name, $7 producers.
WITH RECURSIVE tree (root, oid) AS (
    SELECT t, t FROM unnest($1::oid[]) t
  UNION
    SELECT tree.root, i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
), relation AS (
    SELECT DISTINCT oid FROM tree
), shape AS (
    SELECT r.oid, pg_catalog.jsonb_build_array(c.relname, c.relnamespace, c.relkind, c.relpersistence,
             (SELECT n.nspname FROM pg_catalog.pg_namespace n WHERE n.oid = c.relnamespace), c.relreplident, c.relrowsecurity, c.relforcerowsecurity,
             (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(i.inhparent, i.inhdetachpending) ORDER BY i.inhparent)
                FROM pg_catalog.pg_inherits i WHERE i.inhrelid = r.oid),
             (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(a.attnum, a.xmin::text) ORDER BY a.attnum)
                FROM pg_catalog.pg_attribute a WHERE a.attrelid = r.oid AND a.attnum > 0),
             (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(x.indexrelid, x.indisreplident, x.indisvalid, x.indisunique) ORDER BY x.indexrelid)
                FROM pg_catalog.pg_index x WHERE x.indrelid = r.oid AND x.indisunique)) AS form
      FROM relation r LEFT JOIN pg_catalog.pg_class c ON c.oid = r.oid
)
SELECT 'table' AS class, tree.root AS oid,
       pg_catalog.md5(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(s.oid, s.form) ORDER BY s.oid)::text) AS hash
  FROM tree JOIN shape s ON s.oid = tree.oid GROUP BY tree.root
UNION ALL
SELECT 'storage', tree.root, pg_catalog.string_agg(c.oid::text || ':' || c.relfilenode::text, ',' ORDER BY c.oid)
  FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid GROUP BY tree.root
UNION ALL
SELECT 'member', tree.root, coalesce((SELECT pg_catalog.string_agg(m.oid::text || ':' || m.xmin::text, ',' ORDER BY m.oid)
         FROM tree t JOIN pg_catalog.pg_publication_rel m ON m.prrelid = t.oid
         JOIN pg_catalog.pg_publication p ON p.oid = m.prpubid WHERE t.root = tree.root AND p.pubname = $6), 'none')
  FROM tree GROUP BY tree.root
UNION ALL
SELECT 'function', f, coalesce((SELECT p.xmin::text || ':' || n.nspname || ':' || coalesce(
           (SELECT pg_catalog.string_agg(d.refobjid::text, ',' ORDER BY d.refobjid) FROM pg_catalog.pg_depend d
             WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid), '') || coalesce(
           (SELECT pg_catalog.string_agg(q.oid::text || ':' || q.xmin::text, ',' ORDER BY q.oid) FROM pg_catalog.pg_aggregate g
              JOIN pg_catalog.pg_proc q ON q.oid IN (g.aggtransfn, g.aggfinalfn, g.aggcombinefn, g.aggmtransfn, g.aggminvtransfn, g.aggmfinalfn)
             WHERE g.aggfnoid = p.oid), '')
         FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = f), 'gone')
  FROM unnest($2::oid[]) f
UNION ALL
SELECT 'view', v, coalesce((SELECT pg_catalog.md5(pg_catalog.jsonb_build_array(c.relname, n.nspname, c.relowner, c.reloptions,
         (SELECT pg_catalog.jsonb_agg(a.attname ORDER BY a.attnum) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
         (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(w.oid, w.xmin::text) ORDER BY w.oid) FROM pg_catalog.pg_rewrite w WHERE w.ev_class = v))::text)
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = v), 'gone')
  FROM unnest($3::oid[]) v
UNION ALL
SELECT 'type', t, coalesce((SELECT y.xmin::text || ':' || n.nspname FROM pg_catalog.pg_type y
         JOIN pg_catalog.pg_namespace n ON n.oid = y.typnamespace WHERE y.oid = t), 'gone') || coalesce(
         (SELECT pg_catalog.string_agg(a.attnum::text || ':' || a.xmin::text, ',' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
           JOIN pg_catalog.pg_type y ON y.typrelid = a.attrelid WHERE y.oid = t AND a.attnum > 0), '') || coalesce(
         (SELECT pg_catalog.string_agg(e.oid::text || ':' || e.xmin::text, ',' ORDER BY e.oid) FROM pg_catalog.pg_enum e WHERE e.enumtypid = t), '') || coalesce(
         (SELECT pg_catalog.string_agg(k.oid::text || ':' || k.xmin::text, ',' ORDER BY k.oid) FROM pg_catalog.pg_constraint k WHERE k.contypid = t), '')
  FROM unnest($4::oid[]) t
UNION ALL
SELECT 'collation', k, coalesce((SELECT c.xmin::text || coalesce(pg_catalog.pg_collation_actual_version(c.oid), '')
         FROM pg_catalog.pg_collation c WHERE c.oid = k), 'gone')
  FROM unnest($5::oid[]) k
UNION ALL
SELECT 'publication', 0::oid, coalesce((SELECT pg_catalog.jsonb_build_array(p.oid, p.xmin::text, p.puballtables, p.pubviaroot,
         (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(s.oid, s.xmin::text) ORDER BY s.oid)
            FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid))::text
         FROM pg_catalog.pg_publication p WHERE p.pubname = $6), 'gone')
UNION ALL
SELECT 'producer', b, coalesce((SELECT pg_catalog.jsonb_build_array(c.relname, c.relnamespace, c.relfilenode, c.relpersistence,
         (SELECT n.nspname FROM pg_catalog.pg_namespace n WHERE n.oid = c.relnamespace),
         (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(a.attnum, a.xmin::text) ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0))::text
         FROM pg_catalog.pg_class c WHERE c.oid = b), 'gone')
  FROM unnest($7::oid[]) b
