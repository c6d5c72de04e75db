package plans

import (
	"slices"
	"strings"
)

// writer writes expressions over the names of places. It knows columns, operators,
// plain functions and casts; anything else is not followed.
type writer struct {
	j      *joinTree
	params *scope // whose outputs PARAMs are
	cols   []columnRef
}

// cond makes a condition of what was written, if it is strict in its two places.
func (w *writer) cond(text string, strict map[int]bool) (cond, bool) {
	c := cond{text: text, cols: w.cols}
	for _, col := range w.cols {
		if !slices.Contains(c.places, col.place) {
			c.places = append(c.places, col.place)
		}
	}
	if len(c.places) != 2 || slices.ContainsFunc(c.places, func(i int) bool { return strict != nil && !strict[i] }) {
		return c, false
	}
	return c, true
}

func (w *writer) write(s *scope, n *node) (string, bool) {
	if n == nil {
		return "", false
	}
	switch n.tag {
	case "VAR":
		return w.column(s, n)
	case "PARAM":
		if w.params == nil || n.num("paramkind") != 2 {
			return "", false
		}
		e := w.params.param(n)
		if e == nil || !w.params.transparent(w.params.outputs()[n.num("paramid")-1]) {
			return "", false
		}
		return w.write(w.params, w.params.plainExpr(e))
	case "CONST":
		return w.constant(n)
	case "COERCEVIAIO":
		if !isText(n.oid("resulttype")) {
			return "", false // it may fail for rows that the body filters out
		}
		return w.cast(s, n.child("arg"), n.oid("resulttype"))
	case "RELABELTYPE":
		return w.cast(s, n.child("arg"), n.oid("resulttype"))
	case "OPEXPR":
		return w.operator(s, n)
	case "FUNCEXPR":
		return w.function(s, n)
	case "BOOLEXPR":
		return w.boolean(s, n)
	}
	return "", false
}

func (w *writer) column(s *scope, n *node) (string, bool) {
	at, ok := w.j.column(s, n)
	if !ok {
		return "", false
	}
	p := w.j.places[at.place]
	col := p.rel.attr(at.attr)
	if col == nil {
		return "", false
	}
	if !slices.Contains(w.cols, at) {
		w.cols = append(w.cols, at)
	}
	return p.name() + "." + quoteAlways(col.Name), true
}

func (w *writer) cast(s *scope, arg *node, to uint32) (string, bool) {
	text, ok := w.write(s, arg)
	t := w.j.a.types[to]
	if !ok || t == nil {
		return "", false
	}
	return "(" + text + ")::" + t.Display, true
}

// operator writes an operator by its full name. Under a collation that the
// columns do not have by themselves its meaning would change.
func (w *writer) operator(s *scope, n *node) (string, bool) {
	op := w.j.a.operators[n.oid("opno")]
	if op == nil || usesTag(n.fields["args"], "COLLATEEXPR", "COLLATE") {
		return "", false
	}
	args := n.nodes("args")
	if divides := op.Name == "/" || op.Name == "%"; divides && args[len(args)-1].tag != "CONST" {
		return "", false // likewise
	}
	var parts []string
	for _, a := range args {
		text, ok := w.write(s, a)
		if !ok {
			return "", false
		}
		parts = append(parts, text)
	}
	name := "OPERATOR(" + quoteAlways(op.Schema) + "." + op.Name + ")"
	switch len(parts) {
	case 1:
		return "(" + name + " " + parts[0] + ")", true
	case 2:
		return "(" + parts[0] + " " + name + " " + parts[1] + ")", true
	}
	return "", false
}

func (w *writer) function(s *scope, n *node) (string, bool) {
	const explicit, special = 0, 3 // a call, also where SQL has words of its own for it, as opposed to a cast
	f := w.j.a.functions[n.oid("funcid")]
	args := n.nodes("args")
	switch {
	case f == nil || n.is("funcretset") || n.is("funcvariadic"):
		return "", false
	case n.num("funcformat") == explicit, n.num("funcformat") == special:
	case len(args) == 1 && (n.num("funcformat") == 1 || n.num("funcformat") == 2):
		return w.cast(s, args[0], n.oid("funcresulttype"))
	default:
		return "", false
	}
	var parts []string
	for _, a := range args {
		text, ok := w.write(s, a)
		if !ok {
			return "", false
		}
		parts = append(parts, text)
	}
	return quoteAlways(f.Schema) + "." + quoteAlways(f.Name) + "(" + join(parts) + ")", true
}

func (w *writer) boolean(s *scope, n *node) (string, bool) {
	var parts []string
	for _, a := range n.nodes("args") {
		text, ok := w.write(s, a)
		if !ok {
			return "", false
		}
		parts = append(parts, "("+text+")")
	}
	switch op := n.text("boolop"); {
	case op == "not" && len(parts) == 1:
		return "NOT " + parts[0], true
	case op == "and", op == "or":
		return "(" + strings.Join(parts, " "+strings.ToUpper(op)+" ") + ")", true
	}
	return "", false
}
