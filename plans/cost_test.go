package plans

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatFollowsFromACost(t *testing.T) {
	t.Parallel()
	keyed := &Cost{Evaluate: 1000, Refresh: 500, Fixed: 20, Key: 10, Writes: []WriteCost{{Fixed: 30, Row: 4}, {Fixed: 0, Row: 6}}}
	require.False(t, keyed.Exceeds(0))
	require.False(t, keyed.Exceeds(293))
	require.True(t, keyed.Exceeds(295))
	require.InDelta(t, 294, keyed.Rebuild(), 0) // at a third of the key's cost
	require.InDelta(t, 60, keyed.Batch(1), 0)
	require.InDelta(t, 90, keyed.BreakEven(), 0) // (500 - 20 - 30) / mean of 4 and 6

	floor := &Cost{Evaluate: 1000, Refresh: 500, Fixed: 1000, Writes: []WriteCost{{}}}
	require.Zero(t, floor.BreakEven())
	require.True(t, math.IsInf(floor.Rebuild(), 1))
	require.False(t, floor.Exceeds(1_000_000))

	var none *Cost
	require.False(t, none.Exceeds(1_000_000))
	scanning := &Cost{Evaluate: 100, Fixed: 200, Key: 1}
	require.True(t, scanning.Exceeds(1))
	require.Zero(t, scanning.Rebuild())
}

// TestCostsFollowTheChange: a delta costs the same whatever the table holds, a rebuild
// grows with it, and no estimate leaves a setting behind.
func TestCostsFollowTheChange(t *testing.T) {
	t.Parallel()
	db, conn := bigFixture(t)
	db.Exec(t, "CREATE TABLE small (LIKE big INCLUDING ALL); ALTER TABLE small REPLICA IDENTITY FULL; ALTER TABLE big REPLICA IDENTITY FULL;"+
		" INSERT INTO small SELECT * FROM big LIMIT 1000; CREATE INDEX ON big (bucket); CREATE INDEX ON small (bucket); ANALYZE small, big")
	for _, tc := range []struct {
		strategy   Strategy
		head, tail string
	}{
		{InverseProjection, "SELECT pk, p FROM ", ""},
		{DeltaAggregate, "SELECT bucket, count(*) AS n FROM ", " GROUP BY bucket"},
		{ResidualRecompute, "SELECT bucket, string_agg(p::text, ',' ORDER BY pk) AS s FROM ", " GROUP BY bucket"},
		{PrefixDelete, "SELECT pk, w.o, w.w FROM ", " CROSS JOIN LATERAL string_to_table(words, ' ') WITH ORDINALITY w(w, o)"},
		{FullRebuild, "SELECT pk, rank() OVER (ORDER BY p, pk) AS r FROM ", ""},
	} {
		small, big := estimated(t, conn, tc.head+"small"+tc.tail), estimated(t, conn, tc.head+"big"+tc.tail)
		require.Equal(t, tc.strategy, big.Strategy, big.Declined)
		require.Greater(t, big.Cost.Evaluate, 20*small.Cost.Evaluate, tc.strategy)
		require.Greater(t, big.Cost.Rows, small.Cost.Rows)
		if tc.strategy == FullRebuild {
			require.InDelta(t, big.Cost.Evaluate, big.Cost.Batch(1), 0)
			require.Zero(t, big.Cost.BreakEven())
			continue
		}
		require.Less(t, big.Cost.Batch(1), 20*small.Cost.Batch(1), tc.strategy)
		require.Less(t, big.Cost.Batch(1), big.Cost.Evaluate/20, tc.strategy)
		require.Greater(t, big.Cost.BreakEven(), 100.0, tc.strategy)
	}
	var settings [3]string
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = Estimate(t.Context(), tx, estimated(t, conn, "SELECT bucket, string_agg(p::text, ',' ORDER BY pk) AS s FROM big GROUP BY bucket"))
	require.NoError(t, err)
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT current_setting('seq_page_cost'), current_setting('random_page_cost'),"+
		" current_setting('max_parallel_workers_per_gather')").Scan(&settings[0], &settings[1], &settings[2]))
	require.Equal(t, [3]string{"1", "4", "2"}, settings)
	require.NoError(t, tx.Rollback(t.Context()))
}

// TestCandidates: explain weighs every strategy that fits, and says of each but the
// chosen one why it lost.
func TestCandidates(t *testing.T) {
	t.Parallel()
	db, conn := bigFixture(t)
	db.Exec(t, "CREATE INDEX ON big (bucket); ALTER TABLE big REPLICA IDENTITY FULL; ANALYZE big")
	p, err := Compile(t.Context(), conn, view("SELECT bucket, count(*) AS n, sum(p) AS s FROM big GROUP BY bucket"), Options{Compare: true})
	require.NoError(t, err)
	require.Equal(t, DeltaAggregate, p.Strategy)
	costs := map[Strategy]*Cost{}
	for _, c := range p.Candidates {
		costs[c.Strategy] = c.Cost
		require.Equal(t, c.Strategy == p.Strategy, c.Chosen)
		require.Equal(t, c.Chosen, c.Lost == "", c)
	}
	require.Len(t, p.Candidates, len(arms)+1)
	require.Nil(t, costs[InverseProjection])
	require.NotNil(t, costs[ResidualRecompute], "groups can be run again as well")
	require.Less(t, costs[DeltaAggregate].Batch(1), costs[ResidualRecompute].Batch(1))
	require.Less(t, costs[ResidualRecompute].Batch(1), costs[FullRebuild].Batch(1))

	text := p.Explain(nil).String()
	require.Contains(t, text, "cost            each changed row of public.big: ")
	require.Contains(t, text, "a plain REFRESH (")
	require.Contains(t, text, "not             residual-recompute: a round with one changed row of each table costs ")
	require.Contains(t, text, "not             full-rebuild: a round with one changed row of each table costs ")
	var out struct {
		Cost struct {
			Evaluate  float64 `json:"evaluate"`
			BreakEven float64 `json:"break_even_rows"`
			Writes    []struct {
				Table string  `json:"table"`
				Row   float64 `json:"row"`
			} `json:"writes"`
		} `json:"cost"`
		Candidates []struct {
			Strategy Strategy `json:"strategy"`
			Lost     string   `json:"lost"`
		} `json:"candidates"`
	}
	js, err := json.Marshal(p)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(js, &out))
	require.Greater(t, out.Cost.Evaluate, 1000.0)
	require.Greater(t, out.Cost.BreakEven, 100.0)
	require.Equal(t, "public.big", out.Cost.Writes[0].Table)
	require.Len(t, out.Candidates, len(arms)+1)
}

// TestCostOfProducersToBe: the cost of a view over one that has no table yet can be
// asked for.
func TestCostOfProducersToBe(t *testing.T) {
	t.Parallel()
	conn := fixture(t).Conn(t)
	producer, err := Compile(t.Context(), conn, Declaration{Name: Name{"public", "made"}, Query: "SELECT pk, p FROM item"}, Options{Estimate: true})
	require.NoError(t, err)
	consumer, err := Compile(t.Context(), conn, view("SELECT m.pk, d.label FROM made m JOIN dim d ON d.id = m.p"),
		Options{Compare: true, Producers: map[Name]*Plan{producer.Name: producer}})
	require.NoError(t, err)
	require.Equal(t, JoinResidual, consumer.Strategy)
	require.Len(t, consumer.Cost.Writes, 2)
	require.Positive(t, consumer.Cost.Writes[0].Row)
}
