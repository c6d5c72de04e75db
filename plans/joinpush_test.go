package plans

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestGroupingsArePushed: for a few keys Postgres groups few rows, wherever the
// grouping stands in the join.
func TestGroupingsArePushed(t *testing.T) {
	t.Parallel()
	b, compile := joinFixture(t)
	b.exec(`INSERT INTO dim SELECT i, 'l', i FROM generate_series(1, 4000) i;
INSERT INTO fact SELECT i, 1 + i % 4000, i FROM generate_series(1, 40000) i;
CREATE INDEX fact_by_dim ON fact (dim_id);
ANALYZE`)
	for _, body := range []string{
		"SELECT d.id, x.n FROM dim d JOIN (SELECT dim_id, count(*) AS n FROM fact GROUP BY dim_id) x ON x.dim_id = d.id",
		"SELECT d.id, x.n FROM dim d LEFT JOIN (SELECT dim_id, count(*) AS n FROM fact GROUP BY dim_id) x ON x.dim_id = d.id",
		"SELECT d.id, x.n FROM dim d, (SELECT dim_id, count(*) AS n FROM fact GROUP BY dim_id) x WHERE x.dim_id = d.rank",
		"SELECT z.id, z.n FROM (SELECT d.id, x.n FROM dim d JOIN (SELECT dim_id, count(*) AS n FROM fact GROUP BY dim_id) x ON x.dim_id = d.id) z",
		"SELECT x.dim_id, x.n FROM (SELECT dim_id, count(*) AS n FROM fact GROUP BY dim_id) x WHERE x.n > 2",
		"SELECT d.id, x.id AS fid FROM dim d LEFT JOIN (SELECT id, dim_id, rank() OVER (PARTITION BY dim_id ORDER BY id) AS r FROM fact) x ON x.dim_id = d.id AND x.r = 1",
	} {
		p, err := compile(body, Options{ReplicaIdentity: Manage})
		require.NoError(t, err, body)
		require.Equal(t, JoinResidual, p.Strategy, body)
		var keys []string
		for i, s := range p.Residual.Slices {
			cols := make([]string, len(s.KeyColumns))
			for k, c := range s.KeyColumns {
				cols[k] = "7::" + c.Type + " AS " + c.Name
			}
			keys = append(keys, touchedKeys(i)+" AS MATERIALIZED (SELECT "+join(cols)+")")
		}
		rows, err := b.conn.Query(t.Context(), "EXPLAIN WITH "+join(keys)+" "+p.Residual.New)
		require.NoError(t, err, body)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err, body)
		require.NotContains(t, strings.Join(plan, "\n"), "Seq Scan on fact", "%s\n%s", body, p.Residual.New)
	}
}
