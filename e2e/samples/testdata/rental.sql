CREATE DOMAIN year AS int CHECK (VALUE BETWEEN 0 AND 2155);
CREATE TYPE rating AS ENUM ('G', 'PG', 'R');
CREATE TABLE country (country_id int PRIMARY KEY, country text NOT NULL);
CREATE TABLE city (city_id int PRIMARY KEY, city text NOT NULL, country_id int NOT NULL REFERENCES country ON DELETE CASCADE);
CREATE TABLE address (address_id int PRIMARY KEY, address text NOT NULL, district text, postal_code text, phone text, city_id int NOT NULL REFERENCES city ON DELETE CASCADE);
CREATE TABLE store (store_id int PRIMARY KEY, address_id int REFERENCES address ON DELETE SET NULL, manager_staff_id int);
CREATE TABLE staff (
    staff_id int PRIMARY KEY, first_name text NOT NULL, last_name text NOT NULL, address_id int REFERENCES address ON DELETE SET NULL,
    store_id int REFERENCES store ON DELETE SET NULL, active boolean NOT NULL DEFAULT true
);
CREATE TABLE customer (
    customer_id int PRIMARY KEY, store_id int NOT NULL REFERENCES store ON DELETE CASCADE, first_name text NOT NULL, last_name text NOT NULL,
    email text, address_id int REFERENCES address ON DELETE SET NULL, activebool boolean NOT NULL DEFAULT true
);
CREATE TABLE language (language_id int PRIMARY KEY, name char(20) NOT NULL);
CREATE TABLE category (category_id int PRIMARY KEY, name varchar(25) NOT NULL);
CREATE TABLE actor (actor_id int PRIMARY KEY, first_name text NOT NULL, last_name text NOT NULL);
CREATE TABLE film (
    film_id int PRIMARY KEY, title text NOT NULL, description text, release_year year, language_id int NOT NULL REFERENCES language ON DELETE CASCADE,
    rental_rate numeric(4,2) NOT NULL, length smallint, rating rating, special_features text[]
);
CREATE TABLE film_actor (actor_id int REFERENCES actor ON DELETE CASCADE, film_id int REFERENCES film ON DELETE CASCADE, PRIMARY KEY (actor_id, film_id));
CREATE TABLE film_category (film_id int REFERENCES film ON DELETE CASCADE, category_id int REFERENCES category ON DELETE CASCADE, PRIMARY KEY (film_id, category_id));
CREATE TABLE inventory (inventory_id int PRIMARY KEY, film_id int NOT NULL REFERENCES film ON DELETE CASCADE, store_id int NOT NULL REFERENCES store ON DELETE CASCADE);
CREATE TABLE rental (
    rental_id int PRIMARY KEY, rental_date timestamptz NOT NULL, inventory_id int NOT NULL REFERENCES inventory ON DELETE CASCADE,
    customer_id int NOT NULL REFERENCES customer ON DELETE CASCADE, return_date timestamptz, staff_id int REFERENCES staff ON DELETE SET NULL
);
CREATE TABLE payment (
    payment_id int NOT NULL, customer_id int NOT NULL, staff_id int, rental_id int, amount numeric(5,2) NOT NULL, payment_date timestamptz NOT NULL,
    PRIMARY KEY (payment_date, payment_id)
) PARTITION BY RANGE (payment_date);
CREATE TABLE payment_early PARTITION OF payment FOR VALUES FROM (MINVALUE) TO ('2024-02-01 00:00+00');
CREATE TABLE payment_february PARTITION OF payment FOR VALUES FROM ('2024-02-01 00:00+00') TO ('2024-03-01 00:00+00');
CREATE TABLE payment_late PARTITION OF payment DEFAULT;

INSERT INTO country VALUES (1, 'Chad'), (2, 'Peru'), (3, 'Laos');
INSERT INTO city SELECT i, 'City ' || (i % 4), 1 + i % 3 FROM generate_series(1, 6) i;
INSERT INTO address SELECT i, i || ' Street', nullif('D' || (i % 3), 'D0'), nullif((1000 + i)::text, '1005'), '555-' || i, 1 + i % 6 FROM generate_series(1, 12) i;
INSERT INTO store VALUES (1, 1, 1), (2, 2, 2), (3, NULL, NULL);
INSERT INTO staff VALUES (1, 'Mo', 'Hill', 3, 1, true), (2, 'Jo', 'Day', 4, 2, true), (3, 'Al', 'Fox', NULL, 1, false);
INSERT INTO customer SELECT i, 1 + i % 3, 'First ' || i, 'Last ' || (i % 5), 'c' || i || '@example.org', nullif(i % 12, 0), i % 4 > 0 FROM generate_series(1, 12) i;
INSERT INTO language VALUES (1, 'English'), (2, 'Khmer'), (3, 'Welsh');
INSERT INTO category VALUES (1, 'Action'), (2, 'Drama'), (3, 'Music'), (4, 'Action');
INSERT INTO actor SELECT i, upper('first' || (i % 4)), upper('last' || (i % 3)) FROM generate_series(1, 8) i;
INSERT INTO film SELECT i, upper('film ' || (i % 9)), 'About ' || i, 2000 + i, 1 + i % 3, (i % 5) + 0.99, 60 + i, (ARRAY['G', 'PG', 'R', NULL])[1 + i % 4]::rating,
    ARRAY['Trailers', 'Scenes'] FROM generate_series(1, 12) i;
INSERT INTO film_actor SELECT 1 + i % 8, 1 + (i * 5) % 12 FROM generate_series(1, 24) i ON CONFLICT DO NOTHING;
INSERT INTO film_category SELECT i, 1 + i % 4 FROM generate_series(1, 11) i;
INSERT INTO inventory SELECT i, 1 + i % 11, 1 + i % 2 FROM generate_series(1, 18) i;
INSERT INTO rental SELECT i, timestamptz '2024-01-20 10:00+00' + i * interval '37 hours', 1 + i % 18, 1 + i % 12,
    CASE WHEN i % 3 > 0 THEN timestamptz '2024-01-25 10:00+00' + i * interval '37 hours' END, nullif(i % 4, 0) FROM generate_series(1, 30) i;
INSERT INTO payment SELECT i, 1 + i % 12, nullif(i % 4, 0), nullif(i % 31, 0), (i % 7) + 0.99, timestamptz '2024-01-20 10:00+00' + i * interval '37 hours' FROM generate_series(1, 36) i;
