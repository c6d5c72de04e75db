package plans

// onlyFunction is the function of an entry that calls one, nil for others.
func (s *scope) onlyFunction(rte *node) *function {
	fns := rte.nodes("functions")
	if len(fns) != 1 {
		return nil
	}
	call := fns[0].child("funcexpr")
	if call == nil {
		return nil
	}
	return s.a.functions[call.oid("funcid")]
}

// distinct reports a function whose rows differ in their first column, which is
// never NULL. A series that came back to a value would have no end; jsonb keeps a
// key once.
func (f *function) distinct() bool {
	if f == nil || !f.ReturnSet || f.Schema != "pg_catalog" {
		return false
	}
	switch f.Name {
	case "generate_series", "generate_subscripts", "jsonb_each", "jsonb_each_text", "jsonb_object_keys":
		return true
	}
	return false
}

// valuesKeys finds a column of a VALUES list that is another constant in each row.
func (s *scope) valuesKeys(rte *node) [][]int {
	rows := rte.items("values_lists")
	var out [][]int
	for col := range len(rte.child("eref").items("colnames")) {
		seen := map[string]bool{}
		for _, row := range rows {
			cells, ok := row.(list)
			if !ok || col >= len(cells.items) {
				return nil
			}
			if c, ok := cells.items[col].(*node); ok && s.solidConst(c) {
				seen[c.text("constvalue")] = true
			}
		}
		if len(seen) == len(rows) {
			out = append(out, []int{col + 1})
		}
	}
	return out
}

// solidConst reports a constant whose bytes tell it from others.
func (s *scope) solidConst(c *node) bool {
	return c.tag == "CONST" && !c.is("constisnull") && s.a.exact(c.oid("consttype"), int32(c.num("consttypmod")), c.oid("constcollid"))
}

// identifiesFan: one set-returning function in the target list, whose values
// differ for each input row, and what fixes that row.
func (s *scope) identifiesFan(exprs []*node) bool {
	sets := 0
	for _, t := range s.q.nodes("targetList") {
		walk(t, func(n *node) bool {
			if n.is("funcretset") || n.is("opretset") {
				sets++
			}
			return true
		})
	}
	given := false
	for _, e := range exprs {
		given = given || e.tag == "FUNCEXPR" && e.is("funcretset") && s.a.functions[e.oid("funcid")].distinct()
	}
	return sets == 1 && given && !s.q.has("groupClause") && !s.q.is("hasAggs") && !s.q.is("hasWindowFuncs") && s.determines(exprs)
}
