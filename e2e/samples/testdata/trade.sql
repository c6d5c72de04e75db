CREATE TABLE category (category_id smallint PRIMARY KEY, category_name varchar(15) NOT NULL, description text);
CREATE TABLE supplier (supplier_id int PRIMARY KEY, company_name varchar(40) NOT NULL, contact_name varchar(30), city varchar(15), country varchar(15));
CREATE TABLE shipper (shipper_id int PRIMARY KEY, company_name varchar(40) NOT NULL, phone varchar(24));
CREATE TABLE customer (
    customer_id varchar(5) PRIMARY KEY, company_name varchar(40) NOT NULL, contact_name varchar(30), address varchar(60),
    city varchar(15), region varchar(15), country varchar(15)
);
CREATE TABLE employee (
    employee_id int PRIMARY KEY, last_name varchar(20) NOT NULL, first_name varchar(10) NOT NULL, title_of_courtesy varchar(25),
    birth_date date, reports_to int REFERENCES employee ON DELETE SET NULL, notes text
);
CREATE TABLE region (region_id int PRIMARY KEY, region_description varchar(60) NOT NULL);
CREATE TABLE territory (
    territory_id varchar(20) PRIMARY KEY, territory_description varchar(60) NOT NULL,
    region_id int NOT NULL REFERENCES region ON DELETE CASCADE
);
CREATE TABLE employee_territory (
    employee_id int REFERENCES employee ON DELETE CASCADE,
    territory_id varchar(20) REFERENCES territory ON DELETE CASCADE,
    PRIMARY KEY (employee_id, territory_id)
);
CREATE TABLE product (
    product_id int PRIMARY KEY, product_name varchar(40) NOT NULL, supplier_id int REFERENCES supplier ON DELETE SET NULL,
    category_id smallint REFERENCES category ON DELETE SET NULL, quantity_per_unit varchar(20),
    unit_price numeric(10,4) CHECK (unit_price >= 0), units_in_stock smallint, discontinued boolean NOT NULL DEFAULT false
);
CREATE TABLE orders (
    order_id int PRIMARY KEY, customer_id varchar(5) REFERENCES customer ON DELETE CASCADE, employee_id int REFERENCES employee ON DELETE SET NULL,
    order_date date, required_date date, shipped_date date, ship_via int REFERENCES shipper ON DELETE SET NULL,
    freight numeric(10,2), ship_name varchar(40), ship_country varchar(15)
);
CREATE TABLE order_detail (
    order_id int REFERENCES orders ON DELETE CASCADE, product_id int REFERENCES product ON DELETE CASCADE,
    unit_price numeric(10,4) NOT NULL, quantity smallint NOT NULL, discount real NOT NULL,
    PRIMARY KEY (order_id, product_id)
);

INSERT INTO category VALUES (1, 'Drinks', 'cold and warm'), (2, 'Spices', NULL), (3, 'Sweets', 'not too many'), (4, 'Fish', ''), (5, 'Drinks', 'again');
INSERT INTO supplier SELECT i, 'Supplier ' || i, nullif('Contact ' || (i % 3), 'Contact 0'), (ARRAY['London', 'Oslo', NULL])[1 + i % 3], 'UK' FROM generate_series(1, 5) i;
INSERT INTO shipper VALUES (1, 'Fast', '1'), (2, 'Cheap', NULL), (3, 'Sea', '3');
INSERT INTO customer SELECT chr(64 + i) || 'CUST', 'Customer ' || i, nullif('Contact ' || (i % 4), 'Contact 0'), 'Street ' || i,
    (ARRAY['London', 'Oslo', 'Bern', NULL])[1 + i % 4], nullif('R' || (i % 3), 'R0'), 'UK' FROM generate_series(1, 9) i;
INSERT INTO employee VALUES (1, 'Ade', 'Ann', 'Ms.', '1968-12-08', NULL, 'x'), (2, 'Bell', 'Bo', 'Dr.', '1952-02-19', 1, NULL),
    (3, 'Cole', 'Cy', NULL, NULL, 2, ''), (4, 'Dunn', 'Di', 'Mrs.', '1958-09-19', 2, NULL);
INSERT INTO region VALUES (1, 'Eastern'), (2, 'Western'), (3, 'Northern');
INSERT INTO territory SELECT lpad(i::text, 5, '0'), 'Territory ' || (i % 5), 1 + i % 3 FROM generate_series(1, 8) i;
INSERT INTO employee_territory SELECT 1 + i % 4, lpad((1 + i % 8)::text, 5, '0') FROM generate_series(1, 12) i ON CONFLICT DO NOTHING;
INSERT INTO product SELECT i, 'Product ' || (i % 9), nullif(i % 6, 0), nullif(i % 6, 0), i || ' boxes', i * 1.5, i * 2, i % 4 = 0 FROM generate_series(1, 14) i;
INSERT INTO orders SELECT i, chr(65 + i % 9) || 'CUST', nullif(i % 5, 0), date '2024-01-03' + i * 17, date '2024-02-01' + i * 17,
    CASE WHEN i % 4 > 0 THEN date '2024-01-10' + i * 17 END, nullif(i % 4, 0), i * 0.5, 'Ship ' || i, 'UK' FROM generate_series(1, 18) i;
INSERT INTO order_detail SELECT 1 + i % 18, 1 + (i * 5) % 14, i * 0.25, 1 + i % 7, (i % 4) * 0.05 FROM generate_series(1, 40) i ON CONFLICT DO NOTHING;

CREATE VIEW product_sales AS
    SELECT c.category_name, p.product_name, sum(d.unit_price::double precision * d.quantity * (1 - d.discount) / 100) * 100 AS product_sales
      FROM category c JOIN product p ON p.category_id = c.category_id JOIN order_detail d ON d.product_id = p.product_id
      JOIN orders o ON o.order_id = d.order_id
     WHERE o.shipped_date BETWEEN date '2024-01-01' AND date '2024-12-31'
     GROUP BY c.category_name, p.product_name;
