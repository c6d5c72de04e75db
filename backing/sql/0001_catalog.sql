-- The catalog of mvsync. The words in braces are filled in by catalog.go: the quoted schema, the keys of the advisory lock
-- of waiters, the notification channel. Bodies of functions name no schema: their search_path is pinned.

-- One row a view.
CREATE TABLE {catalog}.view (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schema      text NOT NULL,
    name        text NOT NULL,
    state       text NOT NULL CHECK (state IN ('filling', 'live', 'paused', 'stale', 'failed', 'refused')),
    strategy    text NOT NULL DEFAULT '',
    key_columns text[] NOT NULL DEFAULT '{}',
    query       text NOT NULL DEFAULT '',   -- as declared
    canonical   text NOT NULL DEFAULT '',   -- as Postgres prints it
    query_hash  text NOT NULL DEFAULT '',
    slot        text NOT NULL,              -- whose progress row the view follows while as_of is null
    as_of       pg_snapshot,                -- its own, while it does not follow the progress row
    as_of_lsn   pg_lsn,
    as_of_time  timestamptz,
    confirm_lsn pg_lsn,                     -- the stream from here on is still needed by this view
    error       text,
    collisions  bigint NOT NULL DEFAULT 0,
    fingerprint text NOT NULL DEFAULT '',   -- of what the body depends on in the catalog of Postgres
    relid       oid,                        -- its backing table; by this we know our own
    created_at  timestamptz NOT NULL DEFAULT now(),
    changed_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (schema, name)
) WITH (fillfactor = 50);

-- One row a slot, written in each round's own transaction. Much free space and no index over what changes: its updates
-- stay on one page.
CREATE TABLE {catalog}.progress (
    slot              text PRIMARY KEY,
    snapshot          pg_snapshot NOT NULL,
    lsn               pg_lsn NOT NULL,
    at                timestamptz NOT NULL,
    system_identifier text NOT NULL,
    timeline          bigint NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- One row a merge of a coarsened key, the newest 10,000 a view.
CREATE TABLE {catalog}.collision (
    id               bigint GENERATED ALWAYS AS IDENTITY,
    view_id          bigint NOT NULL REFERENCES {catalog}.view ON DELETE CASCADE,
    key              jsonb NOT NULL,
    weakened_columns text[] NOT NULL,
    old_row          jsonb,
    new_row          jsonb,
    at               timestamptz NOT NULL,
    PRIMARY KEY (view_id, id)
);

-- What users asked for; the daemon takes it up once the asking transaction has committed.
CREATE TABLE {catalog}.request (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    view_id      bigint NOT NULL REFERENCES {catalog}.view ON DELETE CASCADE,
    action       text NOT NULL CHECK (action IN ('refresh', 'pause', 'resume', 'verify')),
    requested_at timestamptz NOT NULL DEFAULT now(),
    done_at      timestamptz,
    rows         bigint,
    error        text,
    detail       text                       -- rows that a verification found to differ
);
CREATE INDEX ON {catalog}.request (id) WHERE done_at IS NULL;

-- The sessions that may write backing tables.
CREATE TABLE {catalog}.sessions (
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL,
    PRIMARY KEY (pid, backend_start)
);

CREATE VIEW {catalog}.views AS
SELECT quote_ident(v.schema) || '.' || quote_ident(v.name) AS name,
       v.state, v.strategy, v.key_columns, v.query, v.query_hash,
       COALESCE(v.as_of, p.snapshot) AS as_of,
       CASE WHEN v.as_of IS NULL THEN p.lsn ELSE v.as_of_lsn END AS as_of_lsn,
       CASE WHEN v.as_of IS NULL THEN p.at ELSE v.as_of_time END AS as_of_time,
       v.error, v.collisions, v.id, v.created_at, v.changed_at
FROM {catalog}.view v
LEFT JOIN {catalog}.progress p ON p.slot = v.slot AND v.as_of IS NULL AND v.state <> 'filling' AND v.state <> 'refused';

CREATE VIEW {catalog}.collisions AS
SELECT quote_ident(v.schema) || '.' || quote_ident(v.name) AS view,
       c.key, c.weakened_columns, c.old_row, c.new_row, c.at
FROM {catalog}.collision c
JOIN {catalog}.view v ON v.id = c.view_id;

-- Refuses writes by anyone but the registered sessions. The start time tells a session from a later one of the same pid.
CREATE FUNCTION {catalog}.guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {catalog}, pg_temp AS $mvsync$
BEGIN
    IF EXISTS (SELECT FROM sessions s
               WHERE s.pid = pg_backend_pid()
                 AND s.backend_start = (SELECT a.backend_start FROM pg_stat_get_activity(pg_backend_pid()) a)) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '%.% is maintained by mvsync and cannot be written by others',
                    quote_ident(TG_TABLE_SCHEMA), quote_ident(TG_TABLE_NAME)
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'Change the tables that its query reads, or the view''s query in the configuration of mvsync; "mvsync teardown" makes all views ordinary tables.';
END
$mvsync$;

-- A row's text as a short key, for keys that no btree index can hold. The text depends on settings, which are pinned
-- here: that is what makes it immutable.
CREATE FUNCTION {catalog}.row_hash(key record) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET timezone = 'UTC'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $mvsync$
BEGIN
    RETURN sha256(convert_to(key::text, 'UTF8'));
END
$mvsync$;

-- Whether everything visible in p is visible in s. It may say no where the answer is yes, never the reverse. LSNs could
-- not decide it: the order of commits in the log is not the order in which they become visible.
CREATE FUNCTION {catalog}.covers(s pg_snapshot, p pg_snapshot) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $mvsync$
    SELECT COALESCE(pg_snapshot_xmax(p) <= pg_snapshot_xmax(s), false)
       AND NOT EXISTS (SELECT x FROM pg_snapshot_xip(s) x WHERE x < pg_snapshot_xmax(p)
                       EXCEPT SELECT x FROM pg_snapshot_xip(p) x)
$mvsync$;

-- The id of a view named in SQL identifier syntax, in schema public where none is given.
CREATE FUNCTION {catalog}.view_id(view text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, {catalog}, pg_temp AS $mvsync$
DECLARE
    parts text[] := parse_ident(view_id.view);
    found bigint;
BEGIN
    IF cardinality(parts) = 1 THEN
        parts := array_prepend('public', parts);
    END IF;
    IF cardinality(parts) = 2 THEN
        SELECT v.id INTO found FROM view v WHERE v.schema = parts[1] AND v.name = parts[2];
    END IF;
    IF found IS NULL THEN
        RAISE EXCEPTION 'mvsync maintains no view named %', view_id.view
            USING ERRCODE = 'undefined_object', HINT = 'Table "views" in mvsync''s schema lists them; names are in SQL identifier syntax, with their schema.';
    END IF;
    RETURN found;
END
$mvsync$;

-- Whether the wanted views (null: all live ones) include everything visible in p. A wanted view that will not get there
-- is an error.
CREATE FUNCTION {catalog}.reached(wanted bigint[], p pg_snapshot) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, {catalog}, pg_temp AS $mvsync$
DECLARE
    bad record;
BEGIN
    IF wanted IS NOT NULL THEN
        SELECT quote_ident(v.schema) || '.' || quote_ident(v.name) AS name, v.state INTO bad
        FROM unnest(wanted) w(id) LEFT JOIN view v ON v.id = w.id
        WHERE v.state IS NULL OR v.state NOT IN ('live', 'filling') LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'mvsync.wait: % is %, so there is nothing to wait for',
                            COALESCE(bad.name, 'one of the views'), COALESCE(bad.state, 'no longer maintained')
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      HINT = 'Resume or refresh it first ("mvsync status" says what is wrong), or leave it out.';
        END IF;
    END IF;
    RETURN NOT EXISTS (
            SELECT FROM view v
            WHERE CASE WHEN wanted IS NULL THEN v.state = 'live' ELSE v.id = ANY (wanted) END
              AND (v.state <> 'live'
                   OR v.as_of IS NOT NULL AND NOT covers(v.as_of, p)
                   OR v.as_of IS NULL AND NOT EXISTS (SELECT FROM progress g WHERE g.slot = v.slot)))
        AND NOT EXISTS (
            SELECT FROM progress g
            WHERE EXISTS (SELECT FROM view v
                          WHERE v.slot = g.slot AND v.as_of IS NULL AND v.state = 'live'
                            AND (wanted IS NULL OR v.id = ANY (wanted)))
              AND NOT covers(g.snapshot, p));
END
$mvsync$;

-- Read your writes: true once the views include everything that committed before the call, false after the timeout.
-- Each statement in here has a snapshot of its own, since the function is volatile and the isolation is checked.
CREATE FUNCTION {catalog}.wait(timeout interval DEFAULT '30s', views text[] DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {catalog}, pg_temp AS $mvsync$
DECLARE
    p        pg_snapshot;
    deadline timestamptz := clock_timestamp() + COALESCE(wait.timeout, interval '30s');
    wanted   bigint[];
    nap      float8 := 0.002;
    met      boolean;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'mvsync.wait cannot work in a % transaction: its snapshot never moves', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state', HINT = 'Call it before the transaction, or under READ COMMITTED.';
    END IF;
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'mvsync.wait cannot work after uncommitted writes of the same transaction: they are not visible to anybody yet'
            USING ERRCODE = 'invalid_transaction_state', HINT = 'Commit first, then wait.';
    END IF;
    p := pg_current_snapshot();
    IF wait.views IS NOT NULL THEN
        SELECT COALESCE(array_agg(view_id(n)), '{}') INTO wanted FROM unnest(wait.views) n;
    END IF;
    IF reached(wanted, p) THEN
        RETURN true;
    END IF;
    -- The lock tells the daemon that somebody waits. It is taken in a subtransaction that always ends by an error, which
    -- releases it on every way out, cancellation included, though the caller's transaction may go on for long.
    BEGIN
        PERFORM pg_try_advisory_xact_lock_shared({waiter_lock}, {lock_key});
        LOOP
            PERFORM pg_sleep(least(nap, greatest(extract(epoch FROM deadline - clock_timestamp())::float8, 0)));
            met := reached(wanted, p);
            IF met OR clock_timestamp() >= deadline THEN
                RAISE EXCEPTION USING ERRCODE = 'MV000';
            END IF;
            nap := least(nap * 1.5, 0.02);
        END LOOP;
    EXCEPTION WHEN SQLSTATE 'MV000' THEN
        RETURN met;
    END;
END
$mvsync$;

-- Queues a request and tells the daemon; both take effect when the caller commits.
CREATE FUNCTION {catalog}.enqueue(view text, action text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {catalog}, pg_temp AS $mvsync$
DECLARE
    made bigint;
BEGIN
    INSERT INTO request (view_id, action) VALUES (view_id(enqueue.view), enqueue.action) RETURNING id INTO made;
    PERFORM pg_notify('{channel}', '');
    RETURN made;
END
$mvsync$;

CREATE FUNCTION {catalog}.refresh(view text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {catalog}, pg_temp AS $mvsync$
BEGIN
    PERFORM enqueue(refresh.view, 'refresh');
END
$mvsync$;

CREATE FUNCTION {catalog}.pause(view text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {catalog}, pg_temp AS $mvsync$
BEGIN
    PERFORM enqueue(pause.view, 'pause');
END
$mvsync$;

CREATE FUNCTION {catalog}.resume(view text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {catalog}, pg_temp AS $mvsync$
BEGIN
    PERFORM enqueue(resume.view, 'resume');
END
$mvsync$;

REVOKE ALL ON ALL TABLES IN SCHEMA {catalog} FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {catalog} FROM PUBLIC;
GRANT USAGE ON SCHEMA {catalog} TO PUBLIC;
GRANT EXECUTE ON FUNCTION {catalog}.wait(interval, text[]) TO PUBLIC;
GRANT SELECT ON {catalog}.progress TO PUBLIC;
-- error is left out: it may hold values of rows.
GRANT SELECT (name, state, strategy, key_columns, query, query_hash, as_of, as_of_lsn, as_of_time, collisions, id, created_at, changed_at)
    ON {catalog}.views TO PUBLIC;
