package samples

// rentals lends films from two stores; payments are partitioned by month.
var rentals = sample{
	name: "rental",
	tables: []string{
		"country", "city", "address", "store", "staff", "customer", "language", "category", "actor", "film",
		"film_actor", "film_category", "inventory", "rental", "payment",
	},
	views: []view{
		{name: "customer_list", want: join, body: `
			SELECT cu.customer_id AS id, cu.first_name || ' ' || cu.last_name AS name, a.address, a.postal_code AS "zip code", a.phone,
			       city.city, country.country, CASE WHEN cu.activebool THEN 'active' ELSE '' END AS notes, cu.store_id AS sid
			  FROM customer cu JOIN address a ON cu.address_id = a.address_id JOIN city ON a.city_id = city.city_id
			  JOIN country ON city.country_id = country.country_id`},
		{name: "staff_list", want: join, body: `
			SELECT s.staff_id AS id, s.first_name || ' ' || s.last_name AS name, a.address, city.city, country.country, s.store_id AS sid
			  FROM staff s LEFT JOIN address a USING (address_id) LEFT JOIN city USING (city_id) LEFT JOIN country USING (country_id)`},
		{name: "film_list", want: residual, body: `
			SELECT f.film_id AS fid, f.title, f.description, c.name AS category, f.rental_rate AS price, f.length, f.rating,
			       string_agg(a.first_name || ' ' || a.last_name, ', ' ORDER BY a.last_name, a.first_name, a.actor_id) AS actors
			  FROM film f LEFT JOIN film_category fc ON fc.film_id = f.film_id LEFT JOIN category c ON c.category_id = fc.category_id
			  LEFT JOIN film_actor fa ON fa.film_id = f.film_id LEFT JOIN actor a ON a.actor_id = fa.actor_id
			 GROUP BY f.film_id, c.name`},
		{name: "nicer_but_slower_film_list", want: residual, body: `
			SELECT f.film_id AS fid, f.title, c.name AS category, l.name AS language,
			       array_to_string(array_agg(initcap(a.first_name) || upper(left(a.last_name, 1)) || lower(substr(a.last_name, 2)) ORDER BY a.actor_id), ', ') AS actors
			  FROM category c JOIN film_category fc USING (category_id) JOIN film f USING (film_id) JOIN language l USING (language_id)
			  JOIN film_actor fa USING (film_id) JOIN actor a USING (actor_id) GROUP BY f.film_id, c.name, l.name`},
		{name: "actor_info", want: floor, why: "a subquery within the aggregate reads rows of other groups", body: `
			SELECT a.actor_id, a.first_name, a.last_name, string_agg(DISTINCT c.name || ': ' || (
			           SELECT string_agg(f.title, ', ' ORDER BY f.title, f.film_id) FROM film f
			             JOIN film_category fc1 ON fc1.film_id = f.film_id JOIN film_actor fa1 ON fa1.film_id = f.film_id
			            WHERE fc1.category_id = c.category_id AND fa1.actor_id = a.actor_id), '; ') AS film_info
			  FROM actor a LEFT JOIN film_actor fa ON fa.actor_id = a.actor_id LEFT JOIN film_category fc ON fc.film_id = fa.film_id
			  LEFT JOIN category c ON c.category_id = fc.category_id GROUP BY a.actor_id, a.first_name, a.last_name`},
		{name: "sales_by_film_category", want: residual, body: `
			SELECT c.name AS category, sum(p.amount) AS total_sales
			  FROM payment p JOIN rental r ON p.rental_id = r.rental_id JOIN inventory i ON r.inventory_id = i.inventory_id
			  JOIN film f ON i.film_id = f.film_id JOIN film_category fc ON f.film_id = fc.film_id JOIN category c ON fc.category_id = c.category_id
			 GROUP BY c.name ORDER BY total_sales DESC`},
		{name: "sales_by_store", want: residual, body: `
			SELECT s.store_id, c.city || ',' || cy.country AS store, m.first_name || ' ' || m.last_name AS manager, sum(p.amount) AS total_sales
			  FROM payment p JOIN rental r ON p.rental_id = r.rental_id JOIN inventory i ON r.inventory_id = i.inventory_id
			  JOIN store s ON i.store_id = s.store_id JOIN address a ON s.address_id = a.address_id JOIN city c ON a.city_id = c.city_id
			  JOIN country cy ON c.country_id = cy.country_id JOIN staff m ON s.manager_staff_id = m.staff_id
			 GROUP BY cy.country, c.city, s.store_id, m.first_name, m.last_name ORDER BY cy.country, c.city`},
		{name: "rental_counts", want: residual, body: `
			SELECT f.film_id, f.title, count(r.rental_id) AS rentals, max(r.rental_date) AS latest
			  FROM film f LEFT JOIN inventory i USING (film_id) LEFT JOIN rental r USING (inventory_id) GROUP BY f.film_id`},
		{name: "not_rented", want: join, body: `
			SELECT f.film_id, f.title FROM film f
			 WHERE NOT EXISTS (SELECT FROM inventory i JOIN rental r ON r.inventory_id = i.inventory_id WHERE i.film_id = f.film_id)`},
		{name: "never_lent_copies", want: join, body: `
			SELECT i.inventory_id, i.store_id FROM inventory i LEFT JOIN rental r ON r.inventory_id = i.inventory_id WHERE r.rental_id IS NULL`},
		{name: "in_stock", want: join, body: `
			SELECT i.inventory_id, i.film_id, i.store_id FROM inventory i
			 WHERE NOT EXISTS (SELECT FROM rental r WHERE r.inventory_id = i.inventory_id AND r.return_date IS NULL)`},
		{name: "out_on_loan", want: join, body: `
			SELECT r.rental_id, c.first_name || ' ' || c.last_name AS customer, f.title, r.rental_date
			  FROM rental r JOIN customer c USING (customer_id) JOIN inventory i USING (inventory_id) JOIN film f USING (film_id)
			 WHERE r.return_date IS NULL`},
		{name: "daily_takings", want: delta, body: `
			SELECT payment_date::date AS day, count(*) AS payments, sum(amount) AS takings FROM payment GROUP BY 1`},
		{name: "good_customers", want: residual, body: `
			SELECT customer_id, count(*) AS payments, sum(amount) AS paid FROM payment GROUP BY customer_id HAVING count(*) > 2 AND sum(amount) > 5`},
		{name: "customer_medians", want: residual, body: `
			SELECT customer_id, percentile_disc(0.5) WITHIN GROUP (ORDER BY amount) AS median FROM payment GROUP BY customer_id`},
		{name: "co_stars", want: residual, body: `
			SELECT a.actor_id AS one, b.actor_id AS other, count(*) AS films
			  FROM film_actor a JOIN film_actor b ON b.film_id = a.film_id AND b.actor_id > a.actor_id GROUP BY a.actor_id, b.actor_id`},
		{name: "film_features", want: prefix, body: `
			SELECT f.film_id, u.place, u.feature FROM film f CROSS JOIN LATERAL unnest(f.special_features) WITH ORDINALITY u(feature, place)`},
		{name: "latest_rental", want: residual, body: `
			SELECT DISTINCT ON (customer_id) customer_id, rental_id, rental_date FROM rental ORDER BY customer_id, rental_date DESC, rental_id`},
		{name: "ratings", want: delta, body: `
			SELECT rating, count(*) AS films, min(rental_rate) AS cheapest, avg(length) AS length FROM film GROUP BY rating`},
		{name: "running_total", want: floor, why: "a window over all rows: the earliest payment moves every total after it", body: `
			SELECT payment_id, payment_date, sum(amount) OVER (ORDER BY payment_date, payment_id) AS total FROM payment`},
		{name: "sales_cube", want: floor, why: "grouping sets hold one row over everything", body: `
			SELECT store_id, film_id, grouping(store_id, film_id) AS level, count(*) AS copies FROM inventory GROUP BY ROLLUP (store_id, film_id)`},
		{name: "overdue", refused: "non_deterministic", why: "what is overdue changes with the clock", body: `
			SELECT r.rental_id, r.customer_id FROM rental r WHERE r.return_date IS NULL AND r.rental_date < now() - interval '7 days'`},
	},
}
