package samples

// music is a shop for digital music: tracks on albums, playlists, customers and their
// invoices, and the employees who support them.
var music = sample{
	name: "music",
	tables: []string{
		"artist", "album", "genre", "media_type", "track", "playlist", "playlist_track",
		"employee", "customer", "invoice", "invoice_line",
	},
	views: []view{
		{name: "track_catalogue", want: join, body: `
			SELECT t.track_id, t.name, al.title AS album, ar.name AS artist, g.name AS genre, m.name AS media,
			       (t.milliseconds / 60000) || ':' || lpad((t.milliseconds / 1000 % 60)::text, 2, '0') AS length
			  FROM track t LEFT JOIN album al ON al.album_id = t.album_id LEFT JOIN artist ar ON ar.artist_id = al.artist_id
			  LEFT JOIN genre g ON g.genre_id = t.genre_id JOIN media_type m ON m.media_type_id = t.media_type_id`},
		{name: "artist_albums", want: residual, body: `
			SELECT ar.artist_id, ar.name, count(al.album_id) AS albums, string_agg(al.title, ', ' ORDER BY al.title, al.album_id) AS titles
			  FROM artist ar LEFT JOIN album al ON al.artist_id = ar.artist_id GROUP BY ar.artist_id, ar.name`},
		{name: "playlist_entries", want: join, body: `
			SELECT p.playlist_id, t.track_id, p.name AS playlist, t.name AS track
			  FROM playlist p JOIN playlist_track pt ON pt.playlist_id = p.playlist_id JOIN track t ON t.track_id = pt.track_id`},
		{name: "playlist_lengths", want: residual, body: `
			SELECT p.playlist_id, p.name, count(t.track_id) AS tracks, coalesce(sum(t.milliseconds), 0) AS milliseconds
			  FROM playlist p LEFT JOIN playlist_track pt USING (playlist_id) LEFT JOIN track t USING (track_id)
			 GROUP BY p.playlist_id`},
		{name: "unsold_tracks", want: join, body: `
			SELECT t.track_id, t.name FROM track t WHERE NOT EXISTS (SELECT FROM invoice_line l WHERE l.track_id = t.track_id)`},
		{name: "genre_sales", want: residual, body: `
			SELECT g.name AS genre, count(*) AS lines, sum(l.unit_price * l.quantity) AS sales
			  FROM invoice_line l JOIN track t USING (track_id) JOIN genre g USING (genre_id) GROUP BY g.name`},
		{name: "sales_by_country", want: delta, body: `
			SELECT billing_country, count(*) AS invoices, sum(total) AS sales, avg(total) AS average FROM invoice GROUP BY billing_country`},
		{name: "monthly_sales", want: delta, body: `
			SELECT date_trunc('month', invoice_date) AS month, sum(total) AS sales, max(total) AS largest FROM invoice GROUP BY 1`},
		{name: "customer_spending", want: residual, body: `
			SELECT c.customer_id, c.first_name || ' ' || c.last_name AS customer, c.country, coalesce(sum(i.total), 0) AS spent,
			       CASE WHEN sum(i.total) >= 40 THEN 'gold' WHEN sum(i.total) >= 20 THEN 'silver' ELSE 'none' END AS tier
			  FROM customer c LEFT JOIN invoice i USING (customer_id) GROUP BY c.customer_id`},
		{name: "chain_of_command", want: join, body: `
			SELECT e.employee_id, e.first_name || ' ' || e.last_name AS employee, e.title, m.first_name || ' ' || m.last_name AS manager
			  FROM employee e LEFT JOIN employee m ON m.employee_id = e.reports_to`},
		{name: "support_load", want: residual, body: `
			SELECT e.employee_id, e.last_name, count(DISTINCT c.customer_id) AS customers, sum(i.total) AS sales
			  FROM employee e LEFT JOIN customer c ON c.support_rep_id = e.employee_id LEFT JOIN invoice i ON i.customer_id = c.customer_id
			 GROUP BY e.employee_id`},
		{name: "invoice_check", want: residual, body: `
			SELECT i.invoice_id, i.total, sum(l.unit_price * l.quantity) AS lines
			  FROM invoice i JOIN invoice_line l USING (invoice_id) GROUP BY i.invoice_id
			HAVING i.total <> sum(l.unit_price * l.quantity)`},
		{name: "country_ranking", want: residual, body: `
			SELECT i.invoice_id, i.billing_country, i.total, rank() OVER (PARTITION BY i.billing_country ORDER BY i.total DESC, i.invoice_id)
			  FROM invoice i`},
		{name: "best_sellers", want: floor, why: "a LIMIT over everything: any row may enter the first ten", body: `
			SELECT t.track_id, t.name, sum(l.quantity) AS sold FROM track t JOIN invoice_line l USING (track_id)
			 GROUP BY t.track_id ORDER BY sold DESC, t.track_id LIMIT 10`},
		{name: "reports", want: floor, why: "a recursive query: one edge changes any number of paths", body: `
			WITH RECURSIVE below AS (
			    SELECT employee_id AS boss, employee_id FROM employee
			    UNION SELECT b.boss, e.employee_id FROM below b JOIN employee e ON e.reports_to = b.employee_id)
			SELECT boss, count(*) - 1 AS staff FROM below GROUP BY boss`},
	},
}
