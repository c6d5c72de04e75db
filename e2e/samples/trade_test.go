package samples

// trade is a company that trades in food: orders by customers, shipped by carriers, of
// products from suppliers.
var trade = sample{
	name: "trade",
	tables: []string{
		"category", "supplier", "shipper", "customer", "employee", "region", "territory",
		"employee_territory", "product", "orders", "order_detail",
	},
	views: []view{
		{name: "alphabetical_products", want: join, body: `
			SELECT p.*, c.category_name FROM category c JOIN product p ON p.category_id = c.category_id
			 WHERE NOT p.discontinued ORDER BY p.product_name`},
		{name: "current_products", want: projection, body: `
			SELECT product_id, product_name FROM product WHERE NOT discontinued ORDER BY product_name`},
		{name: "products_by_category", want: join, body: `
			SELECT p.product_id, c.category_name, p.product_name, p.quantity_per_unit, p.units_in_stock, s.company_name AS supplier
			  FROM product p LEFT JOIN category c USING (category_id) LEFT JOIN supplier s USING (supplier_id)`},
		{name: "order_subtotals", want: residual, body: `
			SELECT order_id, sum(unit_price * quantity * (1 - discount)) AS subtotal FROM order_detail GROUP BY order_id`},
		{name: "exact_subtotals", want: delta, body: `
			SELECT order_id, count(*) AS lines, sum((unit_price * quantity)::numeric(14,4)) AS gross FROM order_detail GROUP BY order_id`},
		{name: "order_details_extended", want: join, body: `
			SELECT d.order_id, d.product_id, p.product_name, d.unit_price, d.quantity, d.discount,
			       round((d.unit_price * d.quantity * (1 - d.discount::numeric)), 2) AS extended_price
			  FROM product p JOIN order_detail d ON d.product_id = p.product_id`},
		{name: "invoices", want: join, body: `
			SELECT o.ship_name, o.ship_country, c.customer_id, c.company_name AS customer_name, c.city, c.region,
			       e.first_name || ' ' || e.last_name AS salesperson, o.order_id, o.order_date, o.shipped_date, s.company_name AS shipper,
			       p.product_id, p.product_name, d.quantity, d.unit_price * d.quantity AS extended_price, o.freight
			  FROM shipper s JOIN (product p JOIN ((employee e JOIN (customer c JOIN orders o ON c.customer_id = o.customer_id)
			       ON e.employee_id = o.employee_id) JOIN order_detail d ON o.order_id = d.order_id)
			       ON p.product_id = d.product_id) ON s.shipper_id = o.ship_via`},
		{name: "product_sales_of_the_year", want: join, body: `SELECT category_name, product_name, product_sales FROM product_sales`},
		{name: "category_sales_of_the_year", want: residual, body: `
			SELECT category_name, sum(product_sales) AS category_sales FROM product_sales GROUP BY category_name`},
		{name: "sales_by_category", want: residual, body: `
			SELECT c.category_id, c.category_name, p.product_name, sum(x.extended) AS sales
			  FROM category c JOIN (product p JOIN (orders o JOIN (SELECT order_id, product_id, unit_price * quantity AS extended FROM order_detail) x
			       ON x.order_id = o.order_id) ON p.product_id = x.product_id) ON c.category_id = p.category_id
			 WHERE o.order_date >= '2024-01-01' GROUP BY c.category_id, c.category_name, p.product_name`},
		{name: "quarterly_orders", want: residual, body: `
			SELECT DISTINCT c.customer_id, c.company_name, c.city, c.country FROM orders o LEFT JOIN customer c USING (customer_id)
			 WHERE o.order_date BETWEEN '2024-01-01' AND '2024-03-31'`},
		{name: "quarterly_sales", want: residual, body: `
			SELECT extract(year FROM o.shipped_date) AS year, extract(quarter FROM o.shipped_date) AS quarter, count(DISTINCT o.order_id) AS orders,
			       sum(d.unit_price * d.quantity) AS sales
			  FROM orders o JOIN order_detail d USING (order_id) WHERE o.shipped_date IS NOT NULL GROUP BY 1, 2`},
		{name: "shipped_by_year", want: join, body: `
			SELECT o.shipped_date, o.order_id, s.subtotal, extract(year FROM o.shipped_date) AS year
			  FROM orders o JOIN order_subtotals s ON s.order_id = o.order_id WHERE o.shipped_date IS NOT NULL`},
		{name: "large_orders", want: join, body: `
			SELECT s.subtotal, o.order_id, c.company_name, o.shipped_date
			  FROM customer c JOIN (orders o JOIN order_subtotals s ON o.order_id = s.order_id) ON c.customer_id = o.customer_id
			 WHERE s.subtotal > 10 AND o.shipped_date BETWEEN '2024-01-01' AND '2024-12-31'`},
		{name: "partners_by_city", want: residual, body: `
			SELECT city, company_name, contact_name, 'Customers' AS relationship FROM customer
			UNION SELECT city, company_name, contact_name, 'Suppliers' FROM supplier`},
		{name: "territories", want: residual, body: `
			SELECT e.employee_id, coalesce(e.title_of_courtesy || ' ', '') || e.last_name AS employee,
			       string_agg(t.territory_description || ' (' || r.region_description || ')', '; ' ORDER BY t.territory_id) AS territories
			  FROM employee e JOIN employee_territory et USING (employee_id) JOIN territory t USING (territory_id) JOIN region r USING (region_id)
			 GROUP BY e.employee_id`},
		{name: "idle_customers", want: join, body: `
			SELECT customer_id, company_name FROM customer WHERE customer_id NOT IN (SELECT customer_id FROM orders WHERE customer_id IS NOT NULL)`},
		{name: "price_list", want: residual, body: `
			SELECT category_id, product_id, product_name, unit_price, dense_rank() OVER (PARTITION BY category_id ORDER BY unit_price DESC) AS place,
			       unit_price - avg(unit_price) OVER (PARTITION BY category_id) AS above FROM product`},
		{
			name: "shippers_late", want: residual, body: `
			SELECT s.company_name, count(*) FILTER (WHERE o.shipped_date > o.required_date) AS late, count(*) AS shipped
			  FROM shipper s JOIN orders o ON o.ship_via = s.shipper_id GROUP BY s.shipper_id`,
			refused: "no_key", why: "two shippers of one name and numbers would be two rows alike",
		},
		{name: "above_average", want: floor, why: "each row is compared with the average of all", body: `
			SELECT product_id, product_name, unit_price FROM product WHERE unit_price > (SELECT avg(unit_price) FROM product) ORDER BY unit_price DESC`},
		{name: "dearest", want: floor, why: "a LIMIT over everything: any row may enter the first ten", body: `
			SELECT product_id, product_name, unit_price FROM product ORDER BY unit_price DESC NULLS LAST, product_id LIMIT 10`},
	},
}
