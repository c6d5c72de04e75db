CREATE TABLE artist (artist_id int PRIMARY KEY, name varchar(120));
CREATE TABLE album (
    album_id int PRIMARY KEY,
    title varchar(160) NOT NULL,
    artist_id int NOT NULL REFERENCES artist ON DELETE CASCADE
);
CREATE TABLE genre (genre_id int PRIMARY KEY, name varchar(120));
CREATE TABLE media_type (media_type_id int PRIMARY KEY, name varchar(120));
CREATE TABLE track (
    track_id int PRIMARY KEY,
    name varchar(200) NOT NULL,
    album_id int REFERENCES album ON DELETE SET NULL,
    media_type_id int NOT NULL REFERENCES media_type ON DELETE CASCADE,
    genre_id int REFERENCES genre,
    composer varchar(220),
    milliseconds int NOT NULL,
    bytes int,
    unit_price numeric(10,2) NOT NULL
);
CREATE TABLE playlist (playlist_id int PRIMARY KEY, name varchar(120));
CREATE TABLE playlist_track (
    playlist_id int REFERENCES playlist ON DELETE CASCADE,
    track_id int REFERENCES track ON DELETE CASCADE,
    PRIMARY KEY (playlist_id, track_id)
);
CREATE TABLE employee (
    employee_id int PRIMARY KEY,
    last_name varchar(20) NOT NULL,
    first_name varchar(20) NOT NULL,
    title varchar(30),
    reports_to int REFERENCES employee ON DELETE SET NULL,
    hire_date timestamp
);
CREATE TABLE customer (
    customer_id int PRIMARY KEY,
    first_name varchar(40) NOT NULL,
    last_name varchar(20) NOT NULL,
    company varchar(80),
    country varchar(40),
    support_rep_id int REFERENCES employee ON DELETE SET NULL
);
CREATE TABLE invoice (
    invoice_id int PRIMARY KEY,
    customer_id int NOT NULL REFERENCES customer ON DELETE CASCADE,
    invoice_date timestamp NOT NULL,
    billing_country varchar(40),
    total numeric(10,2) NOT NULL
);
CREATE TABLE invoice_line (
    invoice_line_id int PRIMARY KEY,
    invoice_id int NOT NULL REFERENCES invoice ON DELETE CASCADE,
    track_id int NOT NULL REFERENCES track ON DELETE CASCADE,
    unit_price numeric(10,2) NOT NULL,
    quantity int NOT NULL
);

INSERT INTO artist SELECT i, 'Artist ' || i FROM generate_series(1, 6) i;
INSERT INTO album SELECT i, 'Album ' || (i % 7), 1 + i % 5 FROM generate_series(1, 10) i;
INSERT INTO genre VALUES (1, 'Rock'), (2, 'Jazz'), (3, 'Metal'), (4, NULL), (5, 'Rock');
INSERT INTO media_type VALUES (1, 'MPEG'), (2, 'AAC'), (3, 'Video');
INSERT INTO track SELECT i, 'Track ' || (i % 12), nullif(i % 11, 0), 1 + i % 3, nullif(i % 6, 0), nullif('Composer ' || (i % 4), 'Composer 0'),
    100000 + i * 1000, i * 7, (i % 3) + 0.99 FROM generate_series(1, 20) i;
INSERT INTO playlist VALUES (1, 'Music'), (2, 'Films'), (3, 'Nineties'), (4, NULL), (5, 'Empty');
INSERT INTO playlist_track SELECT 1 + i % 4, 1 + (i * 7) % 20 FROM generate_series(1, 25) i ON CONFLICT DO NOTHING;
INSERT INTO employee VALUES (1, 'Ade', 'Ann', 'Manager', NULL, '2002-08-14'), (2, 'Bell', 'Bo', 'Sales', 1, '2003-05-01'),
    (3, 'Cole', 'Cy', 'Agent', 2, '2003-05-03'), (4, 'Dunn', 'Di', 'Agent', 2, NULL), (5, 'Ede', 'Ed', NULL, 1, '2004-01-02');
INSERT INTO customer SELECT i, 'First ' || i, 'Last ' || (i % 5), nullif('Company ' || (i % 3), 'Company 0'),
    (ARRAY['Brazil', 'Canada', 'Norway', NULL])[1 + i % 4], nullif(i % 5, 0) FROM generate_series(1, 10) i;
INSERT INTO invoice SELECT i, 1 + i % 9, timestamp '2021-01-05' + i * interval '40 days', (ARRAY['Brazil', 'Canada', 'Norway', NULL])[1 + i % 4],
    i * 1.98 FROM generate_series(1, 18) i;
INSERT INTO invoice_line SELECT i, 1 + i % 18, 1 + (i * 3) % 20, (i % 3) + 0.99, 1 + i % 3 FROM generate_series(1, 40) i;
