-- A sum of squares over a state that is no result: the text of its two numbers.
CREATE FUNCTION energy_add(bigint[], integer) RETURNS bigint[] IMMUTABLE STRICT LANGUAGE sql AS 'SELECT ARRAY[$1[1] + $2 * $2, $1[2] + 1]';
CREATE FUNCTION energy_final(bigint[]) RETURNS text IMMUTABLE STRICT LANGUAGE sql AS $$SELECT $1[1] || ' of ' || $1[2]$$;
CREATE AGGREGATE energy(integer) (SFUNC = energy_add, STYPE = bigint[], FINALFUNC = energy_final, INITCOND = '{0,0}');
CREATE FUNCTION energy_merge(bigint[], bigint[]) RETURNS bigint[] IMMUTABLE STRICT LANGUAGE sql AS 'SELECT ARRAY[$1[1] + $2[1], $1[2] + $2[2]]';
CREATE FUNCTION energy_negate(bigint[]) RETURNS bigint[] IMMUTABLE STRICT LANGUAGE sql AS 'SELECT ARRAY[-$1[1], -$1[2]]';
CREATE FUNCTION energy_decode(text) RETURNS bigint[] IMMUTABLE STRICT LANGUAGE sql AS $$SELECT string_to_array($1, ' of ')::bigint[]$$;

-- The longest text, which cannot be taken out again.
CREATE FUNCTION longer(text, text) RETURNS text IMMUTABLE STRICT LANGUAGE sql
    AS $$SELECT CASE WHEN (length($1), $1 COLLATE "C") >= (length($2), $2 COLLATE "C") THEN $1 ELSE $2 END$$;
CREATE AGGREGATE longest(text) (SFUNC = longer, STYPE = text);
CREATE FUNCTION itself(text) RETURNS text IMMUTABLE STRICT LANGUAGE sql AS 'SELECT $1';

-- A mean, said in Postgres' own aggregates.
CREATE FUNCTION mean_final(bigint[]) RETURNS numeric IMMUTABLE STRICT LANGUAGE sql AS 'SELECT $1[1]::numeric / nullif($1[2], 0)';
CREATE FUNCTION mean_add(bigint[], integer) RETURNS bigint[] IMMUTABLE STRICT LANGUAGE sql AS 'SELECT ARRAY[$1[1] + $2, $1[2] + 1]';
CREATE AGGREGATE mean(integer) (SFUNC = mean_add, STYPE = bigint[], FINALFUNC = mean_final, INITCOND = '{0,0}');
