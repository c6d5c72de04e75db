-- A small shop and its request log.
CREATE TABLE customers (
    id     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name   text NOT NULL,
    region text NOT NULL
);
CREATE TABLE products (
    id    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name  text NOT NULL,
    cents integer NOT NULL CHECK (cents > 0),
    tags  text[] NOT NULL
);
CREATE TABLE orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id integer NOT NULL REFERENCES customers,
    product_id  integer NOT NULL REFERENCES products,
    quantity    integer NOT NULL CHECK (quantity > 0),
    cents       integer NOT NULL,
    status      text NOT NULL DEFAULT 'open',
    placed_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON orders (customer_id);
CREATE INDEX ON orders (product_id);
CREATE TABLE requests (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT now(),
    path   text NOT NULL,
    status integer NOT NULL,
    millis integer NOT NULL
);

-- Sums and counts take back the old values of a changed row: the stream holds them under FULL only.
ALTER TABLE customers REPLICA IDENTITY FULL;
ALTER TABLE products REPLICA IDENTITY FULL;
ALTER TABLE orders REPLICA IDENTITY FULL;

INSERT INTO customers (name, region)
SELECT 'customer ' || n, (ARRAY['EU', 'US', 'APAC', 'LATAM'])[1 + n % 4] FROM generate_series(1, 200) n;

INSERT INTO products (name, cents, tags)
SELECT 'product ' || n, 300 + n * 137 % 9000,
       (ARRAY['new', 'sale', 'red', 'blue', 'small', 'large'])[1 + n % 4:2 + n % 5]
FROM generate_series(1, 40) n;

INSERT INTO orders (customer_id, product_id, quantity, cents, status, placed_at)
SELECT 1 + n % 200, p.id, 1 + n % 3, p.cents * (1 + n % 3), (ARRAY['open', 'paid', 'shipped', 'cancelled'])[1 + n % 4],
       now() - n * interval '1 minute'
FROM generate_series(1, 2000) n JOIN products p ON p.id = 1 + n * 7 % 40;

INSERT INTO requests (path, status, millis)
SELECT (ARRAY['/', '/cart', '/search', '/order'])[1 + n % 4], CASE WHEN n % 50 = 0 THEN 500 ELSE 200 END, 2 + n * 13 % 200
FROM generate_series(1, 3000) n;

ANALYZE;
