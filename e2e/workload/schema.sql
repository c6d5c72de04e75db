-- Equality under nocase is coarser than bytes: 'Bob' = 'bob'.
CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);

CREATE TABLE item (
    pk     int PRIMARY KEY,
    p      int NOT NULL,
    q      int NOT NULL,
    bucket int NOT NULL
);

-- The nullable twin of item.
CREATE TABLE nul (
    pk     int PRIMARY KEY,
    p      int,
    q      int,
    bucket int
);

CREATE TABLE dim (
    id    int PRIMARY KEY,
    label text NOT NULL,
    rank  int NOT NULL
);

CREATE TABLE fact (
    id     int PRIMARY KEY,
    dim_id int NOT NULL REFERENCES dim ON DELETE CASCADE,
    amt    int NOT NULL
);

-- No foreign key: NULLs and orphans. The dropped column makes attribute numbers and positions differ.
CREATE TABLE loose (
    id     int PRIMARY KEY,
    gone   text,
    dim_id int,
    amt    numeric(10,2)
);
ALTER TABLE loose DROP COLUMN gone;

CREATE TABLE edge (
    src int,
    dst int,
    PRIMARY KEY (src, dst)
);

CREATE TABLE tag (
    key text COLLATE nocase PRIMARY KEY,
    n   int NOT NULL
);

CREATE TABLE acct (
    login text PRIMARY KEY,
    email text
);

-- Large bodies are stored apart and uncompressed, so that an update of other columns leaves them out of the stream.
CREATE TABLE txt (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body text,
    j    jsonb,
    d    numeric,
    f    float8,
    at   timestamptz NOT NULL
);
ALTER TABLE txt ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE part (
    id     int,
    region text,
    v      int NOT NULL,
    PRIMARY KEY (id, region)
) PARTITION BY LIST (region);
CREATE TABLE part_north PARTITION OF part FOR VALUES IN ('north');
-- A leaf with columns in another order than its root's.
CREATE TABLE part_south (
    v      int NOT NULL,
    region text,
    id     int,
    PRIMARY KEY (id, region)
);
ALTER TABLE part ATTACH PARTITION part_south FOR VALUES IN ('south');
CREATE TABLE part_rest PARTITION OF part DEFAULT;
