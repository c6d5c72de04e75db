-- A small shop and its request log: the tables that mvsync.yaml beside this file derives views from.
--
-- A primary key is identity enough for views that keep single rows. Sums and counts have to take back the old values
-- of a changed row, which the stream holds under REPLICA IDENTITY FULL only.

CREATE TABLE customers (
    id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text NOT NULL,
    region  text NOT NULL
);
ALTER TABLE customers REPLICA IDENTITY FULL;

CREATE TABLE orders (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id  integer NOT NULL REFERENCES customers,
    status       text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'paid', 'shipped', 'cancelled')),
    cents        integer NOT NULL CHECK (cents >= 0),
    placed_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON orders (customer_id);
ALTER TABLE orders REPLICA IDENTITY FULL;

-- Only ever inserted into: declared append_only in mvsync.yaml, so that the primary key suffices.
CREATE TABLE requests (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT now(),
    path    text NOT NULL,
    status  integer NOT NULL,
    millis  integer NOT NULL
);

INSERT INTO customers (name, region)
SELECT 'customer ' || n, (ARRAY['EU', 'US', 'APAC'])[1 + n % 3]
FROM generate_series(1, 300) AS n;

INSERT INTO orders (customer_id, status, cents, placed_at)
SELECT 1 + n % 300, (ARRAY['open', 'paid', 'shipped', 'shipped', 'cancelled'])[1 + n % 5], 500 + n * 37 % 20000,
       timestamptz '2026-01-01 00:00+00' + n * interval '41 minutes'
FROM generate_series(1, 3000) AS n;

INSERT INTO requests (at, path, status, millis)
SELECT timestamptz '2026-01-01 00:00+00' + n * interval '7 seconds', (ARRAY['/', '/cart', '/search', '/order'])[1 + n % 4],
       CASE WHEN n % 97 = 0 THEN 500 ELSE 200 END, 3 + n * 13 % 250
FROM generate_series(1, 5000) AS n;
