package plans

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Names of the objects that an analysis makes and rolls back.
const (
	bodyView = "mvsync$body"
	flatView = "mvsync$flat"
	testView = "mvsync$test"
)

// analysis is a body as Postgres sees it.
type analysis struct {
	d    Declaration
	o    Options
	stmt statement
	*catalog
	viewSchema string // where the views are made: pg_temp, or the catalog schema

	body    string // canonical text without a semicolon
	columns []attribute
	flat    string // body with the plain views that it reads in place
	top     *scope // the rule tree of flat
	views   []uint32
	sources []*relation // tables read, in the order of their first place in the tree
	coarse  bool        // a key may be weakened by a collation
	stand   []Name      // producers that an empty table stands in for
	lookups []lookup    // by which the plan's statements find rows of sources
	// declared holds the user-defined aggregates of the body whose algebra is known.
	declared map[uint32]*declaredRule
}

// described is a view's definition as the catalog has it.
type described struct {
	text    string
	columns []attribute
	tree    *node
}

// analyze asks Postgres about the declared query.
func analyze(ctx context.Context, tx pgx.Tx, d Declaration, o Options) (*analysis, error) {
	stmt, refusal := parseDeclared(d.Query)
	if refusal != nil {
		return nil, refusal
	}
	cat, err := newCatalog(ctx, tx, o.Facts)
	if err != nil {
		return nil, err
	}
	a := &analysis{d: d, o: o, stmt: stmt, catalog: cat, viewSchema: "pg_temp"}
	if err := a.standIns(ctx); err != nil {
		return nil, err
	}
	if err := a.declare(ctx); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, "SET LOCAL search_path = ''"); err != nil {
		return nil, fmt.Errorf("empty the search path: %w", err)
	}
	desc, err := a.describe(ctx, bodyView)
	if err != nil {
		return nil, err
	}
	a.body, a.columns = desc.text, desc.columns
	if err := a.flatten(ctx, desc); err != nil {
		return nil, err
	}
	if err := a.loadTree(ctx); err != nil {
		return nil, err
	}
	return a, a.loadDeclared(ctx)
}

// standIns makes empty tables for producers that the query reads and that do not exist yet, or have
// another shape than planned.
func (a *analysis) standIns(ctx context.Context) error {
	names := make([]Name, 0, len(a.o.Producers))
	for name := range a.o.Producers {
		if name != a.d.Name && mayName(a.d.Query, name.Name) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(x, y Name) int { return strings.Compare(x.String(), y.String()) })
	for _, name := range names {
		if err := a.standIn(ctx, name, a.o.Producers[name]); err != nil {
			return fmt.Errorf("stand in for %s: %w", name, err)
		}
	}
	return nil
}

// mayName reports whether a query could name the identifier: whether the letters stand in it anywhere, unless it may
// spell them as escapes. To make a table for each view that is not read costs more than all else that is asked.
func mayName(query, identifier string) bool {
	query, identifier = strings.ToLower(query), strings.ToLower(identifier)
	return strings.Contains(query, "u&") || strings.Contains(query, strings.ReplaceAll(identifier, `"`, `""`))
}

func (a *analysis) standIn(ctx context.Context, name Name, p *Plan) error {
	shape, err := collect[struct{ Name, Type string }](ctx, a.tx, "read its columns", `
SELECT a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`,
		name.Schema, name.Name)
	if err != nil {
		return err
	}
	same := slices.EqualFunc(shape, p.Columns, func(s struct{ Name, Type string }, c Column) bool {
		return s.Name == c.Name && s.Type == c.Type
	})
	if same && len(shape) > 0 {
		return nil
	}
	a.stand = append(a.stand, name)
	var defs []string
	for _, c := range p.Columns {
		def := quoteAlways(c.Name) + " " + c.Type
		if c.Collation != "" {
			def += " COLLATE " + c.Collation
		}
		if c.NotNull {
			def += " NOT NULL"
		}
		defs = append(defs, def)
	}
	old := quoteAlways(name.Schema) + "." + quoteAlways(name.Name)
	statements := []string{"SET LOCAL lock_timeout = '2s'"}
	if len(shape) > 0 {
		statements = append(statements, "ALTER TABLE "+old+" RENAME TO "+quoteAlways("mvsync$old"))
	} else {
		statements = append(statements, "CREATE SCHEMA IF NOT EXISTS "+quoteAlways(name.Schema))
	}
	statements = append(statements, "CREATE TABLE "+old+" ("+join(defs)+")")
	for _, s := range statements {
		if _, err := a.tx.Exec(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// forgetStandIns takes the oids of tables that go with this transaction out of the
// plan.
func (a *analysis) forgetStandIns(p *Plan) {
	for i := range p.Sources {
		if slices.Contains(a.stand, p.Sources[i].Table()) {
			p.Sources[i].OID, p.Sources[i].Leaves = 0, nil
		}
	}
}

// declare makes the view of the declared query under the configured search path.
// Temporary relations come last, so that none of the session's own hides a table.
func (a *analysis) declare(ctx context.Context) error {
	var path []string
	for _, s := range a.searchPath() {
		path = append(path, quoteAlways(s))
	}
	path = append(path, "pg_temp")
	if _, err := a.tx.Exec(ctx, "SET LOCAL search_path = "+join(path)); err != nil {
		return fmt.Errorf("set the search path: %w", err)
	}
	var names []string
	for _, c := range a.d.Columns {
		names = append(names, quoteAlways(c))
	}
	err := a.createView(ctx, bodyView, names, a.stmt.text)
	if err == nil {
		return nil
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if ok && pg.Code == pgerrcode.InsufficientPrivilege && a.viewSchema == "pg_temp" {
		return refuse(Invalid, "query", pg.Message, "grant that to mvsync's role")
	}
	if !ok || !isBodyError(pg.Code) {
		return fmt.Errorf("create the body as a view: %w", err)
	}
	return a.bodyRefusal(pg, a.viewPrefix(bodyView, names))
}

func (a *analysis) searchPath() []string {
	if len(a.o.SearchPath) == 0 {
		return []string{"public"}
	}
	return a.o.SearchPath
}

func (a *analysis) viewPrefix(name string, columns []string) string {
	head := "CREATE VIEW " + a.viewSchema + "." + quoteAlways(name)
	if a.viewSchema == "pg_temp" {
		head = "CREATE TEMP VIEW " + quoteAlways(name)
	}
	if len(columns) > 0 {
		head += " (" + join(columns) + ")"
	}
	return head + " AS "
}

// createView makes a view, in the catalog schema where temporary objects are
// not allowed.
func (a *analysis) createView(ctx context.Context, name string, columns []string, body string) error {
	err := a.tryExec(ctx, a.viewPrefix(name, columns)+body+"\n")
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || a.viewSchema != "pg_temp" || pg.Code != pgerrcode.InsufficientPrivilege || !strings.Contains(pg.Routine, "RangeVar") &&
		!strings.Contains(pg.Routine, "InitTempTableNamespace") {
		return err
	}
	schema := a.o.Catalog
	if schema == "" {
		schema = "mvsync"
	}
	a.viewSchema = quoteAlways(schema)
	return a.tryExec(ctx, a.viewPrefix(name, columns)+body+"\n")
}

// tryExec runs a statement under a savepoint, so that its error leaves the
// transaction usable.
func (a *analysis) tryExec(ctx context.Context, sql string) error {
	sub, err := a.tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := sub.Exec(ctx, sql); err != nil {
		return errors.Join(err, sub.Rollback(ctx))
	}
	return sub.Commit(ctx)
}

// isBodyError says whether an error is the body's own fault.
func isBodyError(code string) bool {
	switch {
	case pgerrcode.IsSyntaxErrororAccessRuleViolation(code):
		return code != pgerrcode.InsufficientPrivilege
	case pgerrcode.IsFeatureNotSupported(code), pgerrcode.IsDataException(code), pgerrcode.IsProgramLimitExceeded(code):
		return true
	}
	return code == pgerrcode.InvalidSchemaName
}

// bodyRefusal turns Postgres' complaint about the body into a refusal. Postgres
// counts characters of the whole statement.
func (a *analysis) bodyRefusal(pg *pgconn.PgError, prefix string) error {
	r := refuse(Invalid, "query", pg.Message, pg.Hint)
	if pg.Detail != "" {
		r.Reason += ": " + pg.Detail
	}
	if at := int(pg.Position) - 1 - utf8.RuneCountInString(prefix); pg.Position > 0 && at >= 0 {
		r.Position = a.stmt.start + byteOffset(a.stmt.text, at)
	}
	switch pg.Code {
	case pgerrcode.DuplicateColumn:
		r.Suggestion = "give each output column a name of its own with AS"
	case pgerrcode.UndefinedTable:
		if a.readsItself() {
			return a.selfReference()
		}
	case pgerrcode.UndefinedColumn:
		if sel, ok := a.withoutFrom(); ok {
			return sel
		}
	}
	r.Suggestion = cmp.Or(r.Suggestion, a.withoutHint(pg.Code))
	return r
}

// withoutHint says what to do about an error for which Postgres has no hint.
func (a *analysis) withoutHint(code string) string {
	switch code {
	case pgerrcode.UndefinedTable, pgerrcode.UndefinedFunction, pgerrcode.UndefinedObject:
		return "look at its spelling, or name its schema: without one it is looked for in " + strings.Join(a.searchPath(), ", ")
	case pgerrcode.UndefinedColumn, pgerrcode.InvalidSchemaName:
		return "look at its spelling"
	case pgerrcode.UndefinedParameter:
		return "write a value in its place"
	}
	return "mend the query: Postgres makes no view of it"
}

// byteOffset converts an offset in characters to one in bytes.
func byteOffset(s string, runes int) int {
	for i := range s {
		if runes == 0 {
			return i
		}
		runes--
	}
	return len(s)
}

// withoutFrom recognises a query without FROM, where a column can only be
// unknown: FROM misspelt reads as a column's alias.
func (a *analysis) withoutFrom() (*Refusal, bool) {
	if a.stmt.from {
		return nil, false
	}
	r := refuse(NoSource, "SELECT without FROM", "it reads no table, so that nothing can change it",
		"select from a table; if there is a FROM, look at its spelling")
	r.Position = a.stmt.start
	return r, true
}

func (a *analysis) selfReference() *Refusal {
	return refusef(SelfReference, a.d.Name.String(), "read the tables below it",
		"the view reads itself (%s → %s)", a.d.Name, a.d.Name)
}

// readsItself looks for the view's own name in the declared text.
func (a *analysis) readsItself() bool {
	names, err := readNames(a.stmt.text)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(names, func(n Name) bool {
		return n.Name == a.d.Name.Name &&
			(n.Schema == a.d.Name.Schema || n.Schema == "" && slices.Contains(a.searchPath(), a.d.Name.Schema))
	})
}

// describe reads a view that was made in this transaction.
func (a *analysis) describe(ctx context.Context, name string) (described, error) {
	var oid uint32
	var text, action string
	err := a.tx.QueryRow(ctx, `
SELECT c.oid, pg_get_viewdef(c.oid), r.ev_action::text
FROM pg_class c JOIN pg_rewrite r ON r.ev_class = c.oid AND r.rulename = '_RETURN'
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = $1 AND (c.relnamespace = pg_my_temp_schema() OR quote_ident(n.nspname) = $2 OR '"' || n.nspname || '"' = $2)`,
		name, a.viewSchema).Scan(&oid, &text, &action)
	if err != nil {
		return described{}, fmt.Errorf("read the view's definition: %w", err)
	}
	d := described{text: strings.TrimSuffix(strings.TrimSpace(text), ";")}
	if d.tree, err = ruleQuery(action); err != nil {
		return d, err
	}
	d.columns, err = a.attributes(ctx, oid)
	return d, err
}

// ruleQuery reads the one query of a view's rule.
func ruleQuery(action string) (*node, error) {
	v, err := parseTree(action)
	if err != nil {
		return nil, err
	}
	if l, ok := v.(list); ok && len(l.items) == 1 {
		if n, ok := l.items[0].(*node); ok && n.tag == "QUERY" {
			return n, nil
		}
	}
	return nil, errors.New("read a stored rule: it is not one query")
}

// maxViewDepth bounds how deep views are read through views.
const maxViewDepth = 32

// flatten puts the definitions of plain views in the place of their names, and
// lets Postgres analyse the result.
func (a *analysis) flatten(ctx context.Context, body described) error {
	a.flat = a.body
	a.top = newScope(a, body.tree, nil)
	changed := false
	for range maxViewDepth {
		next, err := a.inlineViews(ctx, a.flat)
		if err != nil {
			return err
		}
		if next == a.flat {
			break
		}
		a.flat, changed = next, true
	}
	if !changed {
		return nil
	}
	if err := a.createView(ctx, flatView, nil, a.flat); err != nil {
		return fmt.Errorf("put the views that the body reads in place: %w", err)
	}
	flat, err := a.describe(ctx, flatView)
	if err != nil {
		return err
	}
	a.flat, a.top = flat.text, newScope(a, flat.tree, nil)
	return nil
}

// inlineViews replaces the plain views named in the text by their definitions.
func (a *analysis) inlineViews(ctx context.Context, sql string) (string, error) {
	refs, err := tableRefs(sql)
	if err != nil {
		return "", syntaxRefusal(sql, err)
	}
	definitions, err := a.viewDefinitions(ctx, refs)
	if err != nil {
		return "", err
	}
	var edits []edit
	for _, ref := range refs {
		def := definitions[ref.name]
		if def == "" {
			continue
		}
		text := "(" + def + ")"
		if !ref.alias {
			text += " " + quoteAlways(ref.name.Name)
		}
		edits = append(edits, edit{span{ref.start, ref.end}, text})
	}
	return splice(sql, edits...), nil
}

// viewDefinitions returns the texts of the plain views among the tables.
func (a *analysis) viewDefinitions(ctx context.Context, refs []tableRef) (map[Name]string, error) {
	var schemas, names []string
	for _, ref := range refs {
		if ref.name.Schema != "" {
			schemas, names = append(schemas, ref.name.Schema), append(names, ref.name.Name)
		}
	}
	found, err := collect[struct {
		OID                      uint32
		Schema, Name, Definition string
	}](ctx, a.tx, "read the views that the body reads", `
SELECT DISTINCT c.oid, n.nspname, c.relname, pg_get_viewdef(c.oid)
FROM unnest($1::text[], $2::text[]) r(schema, name)
JOIN pg_namespace n ON n.nspname = r.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = r.name AND c.relkind = 'v'
ORDER BY c.oid`, schemas, names)
	if err != nil {
		return nil, err
	}
	out := make(map[Name]string, len(found))
	for _, v := range found {
		if !slices.Contains(a.views, v.OID) {
			a.views = append(a.views, v.OID)
		}
		out[Name{v.Schema, v.Name}] = strings.TrimSuffix(strings.TrimSpace(v.Definition), ";")
	}
	return out, nil
}

// loadTree fetches the catalog rows that the tree names.
func (a *analysis) loadTree(ctx context.Context) error {
	var refs treeRefs
	refs.collect(a.top.q)
	slices.Sort(refs.relations)
	for _, oid := range slices.Compact(slices.Clone(refs.relations)) {
		r, err := a.loadRelation(ctx, oid)
		if err != nil {
			return err
		}
		r.producer = a.o.Producers[r.name()]
	}
	if err := a.loadOperators(ctx, refs.operators); err != nil {
		return err
	}
	for _, o := range refs.operators {
		if op := a.operators[o]; op != nil {
			refs.functions = append(refs.functions, op.Function)
		}
	}
	refs.types = append(refs.types, boolOID, int2OID, int4OID, int8OID, textOID, numericOID)
	if err := a.loadTypes(ctx, refs.types); err != nil {
		return err
	}
	if err := a.loadCollations(ctx, refs.collations); err != nil {
		return err
	}
	for _, t := range refs.ioTypes {
		if info := a.types[t]; info != nil {
			refs.functions = append(refs.functions, info.In, info.Out)
		}
	}
	if err := a.loadFunctions(ctx, refs.functions); err != nil {
		return err
	}
	for _, oid := range refs.order {
		if r := a.relations[oid]; r != nil && !slices.Contains(a.sources, r) {
			a.sources = append(a.sources, r)
		}
	}
	return nil
}
