package zoo

import (
	"strings"
	"time"

	"github.com/mvsync/mvsync/e2e/daemon"
	"github.com/mvsync/mvsync/e2e/oracle"
	"github.com/mvsync/mvsync/plans"
)

const (
	projection = plans.InverseProjection
	delta      = plans.DeltaAggregate
	residual   = plans.ResidualRecompute
	prefix     = plans.PrefixDelete
	join       = plans.JoinResidual
	floor      = plans.FullRebuild
)

// shape is a kind of body.
type shape struct {
	name string // of the view, in lower case; the first letter is the family
	body string
	want plans.Strategy
	// identity is the weakest replica identity that the strategy needs, by source:
	// "item: bucket, p; dim: full". Sources that are not named need any.
	identity string
}

// shapes lists every shape, producers before consumers.
var shapes = []shape{
	{"p1", `select pk from item`, projection, ""},
	{"p2", `select pk, p, q from item where bucket > 5`, projection, ""},
	{"p3", `select q, p, pk from item`, projection, ""},
	{"p4", `select pk, p + 1 as p1, abs(q - 5) as d, q::text as qt from item`, projection, ""},
	{"p5", `select pk, case when bucket > 5 then p else q end as pick from item where p % 2 = 0 or q is null`, projection, ""},
	{"p6", `select pk, coalesce(p, -1) as p0, p is distinct from q as differs from nul where bucket is null or bucket > 5`, projection, ""},
	{"p7", `select id, lower(body) as lo, length(body) as n, j->>'k' as k from txt where body like '%a%'`, projection, ""},
	{"p8", `select id, date_trunc('day', at) as day from txt`, projection, ""},
	{"p9", `select id, region, v from part`, projection, ""},
	{"p10", `select src, dst from edge where src <> dst`, projection, ""},
	{"p11", `select i.* from item i where i.bucket in (1, 2, 3) order by i.p`, projection, ""},

	{"a1", `select bucket, count(*) as n, sum(p) as s from item group by bucket`, delta, "item: p, bucket"},
	{"a2", `select bucket, count(*) as n, sum(p) as s from item where p > 3 group by bucket`, delta, "item: p, bucket"},
	{"a3", `select bucket, count(*) as n, sum(p) as s, min(q), max(q) from item group by bucket`, delta, "item: p, q, bucket"},
	{"a4", `select p, bucket, count(*), sum(q) from item group by p, bucket`, delta, "item: p, q, bucket"},
	{"a5", `select bucket, avg(p) as a from item group by bucket`, delta, "item: p, bucket"},
	{"a6", `select bucket, count(*) filter (where p > 5) as hi, sum(p * 2) as s2 from item group by bucket`, delta, "item: p, bucket"},
	{"a7", `select bucket + 1 as b1, count(*) from item group by bucket + 1`, delta, "item: bucket"},
	{"a8", `select date_trunc('hour', at) as h, count(*) from txt group by 1`, delta, "txt: at"},
	{"a9", `select count(*) as n, sum(p) as s, min(q), max(q), avg(p) from item`, delta, "item: p, q"},
	{"a10", `select bucket, count(*), count(p) as c, sum(p) as s, avg(p) as a from nul group by bucket`, delta, "nul: p, bucket"},
	{"a11", `select dim_id, sum(amt) as s from loose group by dim_id`, delta, "loose: dim_id, amt"},
	{"a12", `select bucket, bool_and(p > 3), bool_or(q > 3), bit_or(p), bit_and(q) from item group by bucket`, delta, "item: p, q, bucket"},
	{"a13", `select bucket, variance(p), stddev_pop(p) from item group by bucket`, delta, "item: p, bucket"},
	{"a14", `select bucket, sum(d) from (select pk as bucket_pk, bucket, p as d from item where q > 2) x group by bucket`, delta, "item: p, q, bucket"},
	{"a15a", `select p from item group by p`, delta, "item: p"},
	{"a15b", `select distinct p, q from item`, delta, "item: p, q"},
	{"a16", `select region, count(*), sum(v) from part group by region`, delta, "part: region, v"},

	{"r1", `select bucket, sum(p) from item group by bucket having count(*) > 1`, residual, "item: bucket"},
	{"r2", `select id % 3 as g, sum(f) as sf, avg(f) as af, sum(d) as sd from txt group by 1`, residual, ""},
	{"r3", `select bucket, count(distinct p) from item group by bucket`, residual, "item: bucket"},
	{"r4", `select bucket, string_agg(p::text, ',' order by p, pk) from item group by bucket`, residual, "item: bucket"},
	{"r5", `select key, count(*) from tag group by key`, residual, ""},
	{"r6", `select j->'k' as k, count(*) from txt group by 1`, residual, "txt: j"},
	{"r7", `select pk, p, rank() over (partition by bucket order by p, pk) from item`, residual, "item: bucket"},
	{"r8", `select percentile_cont(0.5) within group (order by p), bucket from item group by bucket`, residual, "item: bucket"},
	{"r9", `select d.label, count(*), sum(f.amt) from fact f join dim d on d.id = f.dim_id group by d.label`, residual, "fact: full; dim: full"},
	{"r10", `select d.id, count(f.id), coalesce(sum(f.amt), 0) from dim d left join fact f on f.dim_id = d.id group by d.id`, residual, "fact: full"},
	{"r11", `select pk, p from item where bucket > 5 union select pk, q from item where bucket <= 5`, residual, "item: p, q"},
	{"r12a", `select p from item except select q from item`, residual, "item: p, q"},
	{"r12b", `select p from item intersect select q from item`, residual, "item: p, q"},
	{"r13", `select distinct on (bucket) bucket, pk, p from item order by bucket, p desc, pk`, residual, "item: bucket"},
	{"r14", `select 'a' as side, pk, p from item union all select 'b', pk, q from nul`, residual, ""},

	{"l1", `select i.pk, g.n from item i cross join lateral generate_series(1, i.p) g(n)`, prefix, ""},
	{"l2", `select i.pk, g.n, i.p, i.q from item i cross join lateral generate_series(1, i.p) g(n) where i.bucket > 5`, prefix, ""},
	{"l3", `select t.id, u.ord, u.w from txt t cross join lateral string_to_table(t.body, ' ') with ordinality u(w, ord)`, prefix, ""},
	{"l4", `select t.key, g.n from tag t cross join lateral generate_series(1, t.n) g(n)`, prefix, ""},
	{"l5", `select t.id, e.key, e.value from txt t cross join lateral jsonb_each_text(t.j) e`, prefix, ""},

	{"j1", `select f.id, f.dim_id, d.label from fact f join dim d on d.id = f.dim_id`, join, ""},
	{"j2a", `select f.id, f.dim_id, d.label from fact f join dim d on d.id = f.dim_id where f.amt > 5`, join, ""},
	{"j2b", `select f.id, f.dim_id, d.label from fact f join dim d on d.id = f.dim_id where d.rank > 5`, join, ""},
	{"j2c", `select f.id, f.dim_id, d.label from fact f join dim d on d.id = f.dim_id where f.amt > 5 and d.rank > 5`, join, ""},
	{"j3", `select l.id, d.label from loose l left join dim d on d.id = l.dim_id`, join, ""},
	{"j4", `select l.id, d.label from loose l join dim d on d.id = l.dim_id`, join, ""},
	{"j5", `select d.id, f.id as fid, d.label, f.amt from dim d join fact f on f.dim_id = d.id`, join, ""},
	{"j6a", `select l.id, f.id as fid, d.label from loose l join dim d on d.id = l.dim_id join fact f on f.dim_id = d.id`, join, ""},
	{"j6b", `select f.id, d.label, i.p, n.q from fact f join dim d on d.id = f.dim_id join item i on i.pk = f.id join nul n on n.pk = f.id`, join, ""},
	{"j6c", `select i.pk, a.label as la, b.label as lb from item i join dim a on a.id = i.p join dim b on b.id = i.q`, join, ""},
	{"j6d", `select c.id, p.amt from fact c join fact p on p.id = c.amt`, join, ""},
	{"j6e", `select id, f.amt as fa, l.amt as la from fact f join loose l using (id)`, join, ""},
	{"j6f", `select id, region, label, v from part natural join dim`, join, ""},
	{"j7a", `select d.* from dim d where exists (select from fact f where f.dim_id = d.id and f.amt > 5)`, join, "fact: full"},
	{"j7b", `select d.* from dim d where not exists (select from fact f where f.dim_id = d.id and f.amt > 5)`, join, "fact: full"},
	{"j7c", `select d.* from dim d where d.id in (select f.dim_id from fact f where f.amt > 5)`, join, "fact: full"},
	{"j7d", `select d.* from dim d where d.id not in (select l.dim_id from loose l where l.amt > 0)`, join, "loose: full"},
	{"j8", `select id, (select count(*) from fact f where f.dim_id = d.id) as n from dim d`, join, "fact: full"},
	{"j9a", `select d.id, l.id as lid, l.amt from loose l right join dim d on d.id = l.dim_id`, join, ""},
	{"j9b", `select l.id as lid, d.id as did, l.amt, d.label from loose l full join dim d on d.id = l.dim_id`, join, "loose: full"},
	{"j9c", `select l.id as lid, d.id as did, f.id as fid, d.label from loose l left join dim d on d.id = l.dim_id left join fact f on f.dim_id = d.id`, join, "fact: full"},
	{"j9d", `select i.pk, d.id as did, l.id as lid, f.id as fid, d.rank from item i left join dim d on d.id = i.p full join loose l on l.dim_id = d.id right join fact f on f.dim_id = d.id`, join, "item: full; dim: full; loose: full"},
	{"j10a", `select d.id, d.label, x.n from dim d join (select dim_id, count(*) as n from fact group by dim_id) x on x.dim_id = d.id`, join, "fact: full"},
	{"j10b", `select d.id, x.n, y.s from dim d left join (select dim_id, count(*) as n from fact group by dim_id) x on x.dim_id = d.id left join (select dim_id, sum(amt) as s from loose group by dim_id) y on y.dim_id = d.id`, join, "fact: full; loose: full"},

	{"n1", `select bucket, n, s from (select bucket, count(*) as n, sum(p) as s from item group by bucket) x where n > 2`, join, "item: bucket"},
	{"n2", `select bucket, pk, p from (select bucket, pk, p, row_number() over (partition by bucket order by p desc, pk) as rn from item) x where rn <= 2`, join, "item: bucket"},
	{"n3", `select x.bucket, y.bucket as b2, x.n, y.m from (select bucket, count(*) as n from item group by bucket) x full join (select bucket, count(*) as m from nul group by bucket) y on y.bucket = x.bucket`, join, "item: bucket; nul: bucket"},
	{"n4", `select d.id, d.label, x.pk, x.p from dim d left join (select distinct on (bucket) bucket, pk, p from nul order by bucket, p desc, pk) x on x.bucket = d.id`, join, "nul: bucket"},
	{"n5", `select n, count(*) as m from (select bucket, count(*) as n from item group by bucket) x group by n`, residual, "item: bucket"},
	{"n6", `select p, sum(n) as n, max(s) as s from (select p, bucket, count(*) as n, sum(q) as s from item group by p, bucket) x group by p`, residual, "item: p, q, bucket"},
	{"n7", `select side, v, count(*) as n, sum(w) as s from (select 'a' as side, p as v, q as w from item union all select 'b', p, q from nul) u group by side, v`, residual, "item: p, q; nul: p, q"},
	{"n8", `select x.bucket, x.n, d.label from (select bucket, count(*) as n from item group by bucket) x left join dim d on d.id = x.bucket`, join, "item: bucket"},
	{"n9", `select d.id, u.p from dim d left join (select p from item union select p from nul) u on u.p = d.rank`, join, "item: p; nul: p"},

	{"f1", `with recursive r as (select src, dst from edge union select r.src, e.dst from r join edge e on e.src = r.dst) select src, dst from r`, floor, ""},
	{"f2", `select pk, p from item order by p desc, pk limit 3`, floor, ""},
	{"f3", `select pk, p, sum(p) over (order by pk) from item`, floor, ""},
	{"f4", `select p, bucket, grouping(p, bucket) as g, sum(q) as s from item group by grouping sets ((p), (bucket), ())`, floor, ""},

	{"c1", `select email, login collate nocase as login from acct`, projection, ""},
	{"c2", `select email, login collate nocase as login from acct where email in (select label from dim)`, join, "dim: full"},

	{"v1a", `select bucket, n from a1`, projection, ""},
	{"v1b", `select n, count(*) from a1 group by n`, delta, ""},
	{"v2a", `select pk, p, q from item where bucket > 2`, projection, ""},
	{"v2b", `select pk, p, q from v2a where p > 2`, projection, ""},
	{"v2c", `select pk, p, q from v2b where q > 2`, projection, ""},
	{"v2d", `select pk, q from item where bucket < 8`, projection, ""},
	{"v2e", `select v2a.pk, v2a.p, v2d.q from v2a join v2d using (pk)`, join, ""},
	{"v3a", `select p, count(*) as n from f2 group by p`, delta, ""},
	{"v3b", `select bucket, n from a1 order by n desc, bucket limit 3`, floor, ""},
	{"v4a", `select pk, p from seen where p > 2`, projection, ""},
	{"v4b", `select region, max(v) as top from part where id > 2 group by region`, delta, "part: region, v"},
	{"v4c", `select v, count(*) as n from parent group by v`, delta, "parent: v"},
}

// extra are tables and a view that the shapes need beside the shared fixtures.
const extra = `
CREATE VIEW seen AS SELECT i.pk, i.p FROM item i WHERE i.bucket > 3;
CREATE TABLE parent (id int PRIMARY KEY, v int NOT NULL);
CREATE TABLE child (more text, PRIMARY KEY (id)) INHERITS (parent);
`

// twinEvery is how often the twins move. Evaluated in each round, they would cost more
// than all the rest.
const twinEvery = 3 * time.Second

// twinOf names the full-rebuild twin of a shape.
func twinOf(name string) string { return name + "_twin" }

// views declares the shapes and, where asked for, the twins of those that are not on
// the floor themselves.
func views(list []shape, twins bool) []plans.Declaration {
	var out []plans.Declaration
	for _, s := range list {
		out = append(out, daemon.View(s.name, s.body))
	}
	for _, s := range list {
		if !twins || !s.arm() {
			continue
		}
		d := daemon.View(twinOf(s.name), s.body)
		d.Force, d.Every = floor, twinEvery
		out = append(out, d)
	}
	return out
}

// coarsened reports whether the shape keeps one row where its body has several; which
// one may then differ between the shape and its twin.
func (s *shape) coarsened() bool { return strings.HasPrefix(s.name, "c") }

// arm reports whether the shape is maintained by an arm of its own.
func (s *shape) arm() bool { return s.want != floor }

// comparison says in which columns the shape and its twin may differ.
func (s *shape) comparison() oracle.Options {
	switch s.name {
	case "r2":
		return oracle.Options{Float: []string{"sf", "af"}}
	case "r5":
		return oracle.Options{Representative: []string{"key"}}
	case "r6":
		return oracle.Options{Representative: []string{"k"}}
	}
	return oracle.Options{}
}
