package config

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

func elementPath(list string, i int) string {
	return list + "[" + strconv.Itoa(i) + "]"
}

// validate checks what a single value cannot tell. It leaves alone what
// already has a mistake, so that one mistake is reported once.
func (d *decoder) validate(cfg *Config) {
	d.checkConnection("source.url", cfg.Source.URL)
	if cfg.Source.ReplicationURL != "" {
		d.checkConnection("source.replication_url", cfg.Source.ReplicationURL)
	}
	if cfg.Backing.URL != "" {
		d.checkConnection("backing.url", cfg.Backing.URL)
	}
	if reserved(cfg.Backing.Catalog) {
		d.reportPath("backing.catalog", "belongs to Postgres itself", "choose a schema of its own, such as mvsync")
	}
	d.checkUnique("session.search_path", cfg.Session.SearchPath)
	d.checkText("session.timezone", cfg.Session.Timezone, "name a time zone such as UTC or Europe/Berlin")
	d.checkListen(cfg.HTTP.Listen)
	d.checkPositive("http.ready_lag", int64(cfg.HTTP.ReadyLag), "give a time such as 60s")
	d.checkPositive("round.memory", int64(cfg.Round.Memory), "give a size such as 256MiB")
	d.checkCount("limits.rebuild_row_threshold", cfg.Limits.RebuildRowThreshold)
	d.checkPositive("fill.chunk_rows", cfg.Fill.ChunkRows, "give a number such as 50000")
	d.checkCount("fill.max_rows_per_second", cfg.Fill.MaxRowsPerSecond)
	for signature, a := range cfg.Aggregates {
		d.checkAggregate("aggregates["+signature.String()+"]", a)
	}
	d.checkViews(cfg)
}

func (d *decoder) checkPositive(path string, v int64, hint string) {
	if v <= 0 && !d.wrong[path] {
		d.reportPath(path, "must be more than 0", hint)
	}
}

func (d *decoder) checkCount(path string, v int64) {
	if v < 0 && !d.wrong[path] {
		d.reportPath(path, "cannot be negative", "write 0 for no limit")
	}
}

func (d *decoder) checkText(path, text, hint string) {
	if _, given := d.places[path]; given && strings.TrimSpace(text) == "" && !d.wrong[path] {
		d.reportPath(path, "is empty", hint)
	}
}

// checkUnique reports names that stand in a list twice.
func (d *decoder) checkUnique(path string, names []Name) {
	first := make(map[Name]int)
	for i, n := range names {
		at := elementPath(path, i)
		if d.wrong[at] {
			continue
		}
		if j, ok := first[n]; ok {
			d.reportPath(at, d.shown(at, n)+" is listed twice, first as "+elementPath(path, j), "remove one of them")
			continue
		}
		first[n] = i
	}
}

// checkConnection tells whether a connection string can be read. An empty one
// leaves everything to PG* variables, which are checked with it.
func (d *decoder) checkConnection(path, url string) {
	if d.wrong[path] {
		return
	}
	_, err := pgconn.ParseConfig(url)
	if err == nil {
		return
	}
	// The driver's message quotes the string, and cannot always tell which
	// part of a malformed one is the password. So only known causes are named.
	for _, known := range connectionCauses {
		if strings.Contains(err.Error(), known.cause) && !strings.Contains(url, known.cause) {
			d.reportPath(path, "not a valid connection string: "+known.cause, known.hint)
			return
		}
	}
	hint := "write postgres://user:password@host:5432/database or host=... dbname=..."
	if strings.Contains(url, "://") {
		hint = "write postgres://user:password@host:5432/database, with special characters in user and password percent-encoded (@ as %40, / as %2F, : as %3A)"
	}
	d.reportPath(path, "not a valid connection string", hint)
}

var connectionCauses = []struct{ cause, hint string }{
	{"invalid port", "a port is a number from 1 to 65535"},
	{"sslmode is invalid", "use disable, allow, prefer, require, verify-ca or verify-full"},
	{"invalid connect_timeout", "connect_timeout is a number of seconds"},
	{"failed to configure TLS", "check the ssl parameters and that their files can be read"},
	{"failed to read service", "check PGSERVICEFILE and the name of the service"},
}

func (d *decoder) checkListen(listen string) {
	const path = "http.listen"
	if listen == "" || d.wrong[path] {
		return
	}
	_, port, err := net.SplitHostPort(listen)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		d.reportPath(path, "not an address", "write host:port, such as "+DefaultListen+`, or "" for no pages`)
	}
}

func (d *decoder) checkAggregate(path string, a Aggregate) {
	if d.wrong[path] {
		return
	}
	_, decomposes := d.places[path+".decompose"]
	functions := a.Merge != nil || a.Negate != nil || a.Decode != nil
	switch {
	case decomposes && functions:
		d.reportPath(path+".decompose", "excludes merge, negate and decode", "keep the functions or the expression")
	case decomposes:
		d.checkText(path+".decompose", a.Decompose, "give an expression over partial aggregates")
	case !functions:
		d.reportPath(path, "has no algebra", "give merge and decode (and negate), or decompose")
	case a.Merge == nil:
		d.reportPath(path+".merge", "missing", "name the function merge(state, state) that adds two states")
	case a.Decode == nil:
		d.reportPath(path+".decode", "missing", "name the function decode(result) that gives the state of a stored result, or use decompose")
	}
}

func (d *decoder) checkViews(cfg *Config) {
	first := make(map[Ident]string)
	for i := range cfg.Views {
		v := &cfg.Views[i]
		d.checkView(v)
		at := v.path + ".name"
		if d.wrong[at] || v.Name == (Ident{}) {
			continue
		}
		switch {
		case v.Name.Schema == cfg.Backing.Catalog && !d.wrong["backing.catalog"]:
			d.reportPath(at, "the schema of "+d.shown(at, v.Name)+" holds mvsync's own tables", "put the view into another schema")
		case reserved(v.Name.Schema):
			d.reportPath(at, "the schema of "+d.shown(at, v.Name)+" belongs to Postgres itself", "put the view into another schema")
		case first[v.Name] != "":
			d.reportPath(at, d.shown(at, v.Name)+" is declared twice, first as "+first[v.Name], "rename or remove one of them")
		default:
			first[v.Name] = v.path
		}
	}
}

// reserved tells whether a schema is one that Postgres keeps for itself.
func reserved(schema Name) bool {
	return strings.HasPrefix(string(schema), "pg_") || schema == "information_schema"
}

func (d *decoder) checkView(v *View) {
	d.checkText(v.path+".query", v.Query, "write one SELECT")
	d.checkUnique(v.path+".columns", v.Columns)
	d.checkUnique(v.path+".key", v.Key)
	d.checkUnique(v.path+".grants.select", v.Grants.Select)
	d.checkKeyColumns(v)
	if v.Columns != nil && len(v.Columns) == 0 {
		d.reportPath(v.path+".columns", "names no column", "name every column of the query, or remove the line")
	}
	for i, index := range v.Indexes {
		d.checkIndex(elementPath(v.path+".indexes", i), index)
	}
	for i, constraint := range v.Constraints {
		d.checkText(elementPath(v.path+".constraints", i), constraint, `write it like "CHECK (orders >= 0)"`)
	}
	for i, condition := range v.WarmUp {
		d.checkText(elementPath(v.path+".warm_up", i), condition, `write a condition like "region = 'EU'"`)
	}
	d.checkCount(v.path+".rebuild_row_threshold", v.RebuildRowThreshold)
	d.checkStorage(v)
}

// checkKeyColumns compares the key with the rename list. Without one, the
// columns are known only to the database.
func (d *decoder) checkKeyColumns(v *View) {
	if len(v.Columns) == 0 || d.wrong[v.path+".columns"] {
		return
	}
	names := make([]string, len(v.Columns))
	for i, c := range v.Columns {
		names[i] = d.shown(elementPath(v.path+".columns", i), c)
	}
	for i, k := range v.Key {
		at := elementPath(v.path+".key", i)
		if d.wrong[at] || slices.Contains(v.Columns, k) {
			continue
		}
		hint := didYouMean(d.shown(at, k), names)
		if hint == "" {
			hint = "the key is made of " + strings.Join(names, ", ")
		}
		d.reportPath(at, d.shown(at, k)+" is not in columns", hint)
	}
}

func (d *decoder) checkIndex(path, index string) {
	const hint = `write what follows the table name in CREATE INDEX, such as "(revenue DESC)" or "USING gin (tags)"`
	if d.wrong[path] {
		return
	}
	words := strings.Fields(strings.ToUpper(index))
	switch {
	case len(words) == 0:
		d.reportPath(path, "is empty", hint)
	case words[0] != "USING" && !strings.HasPrefix(words[0], "(") && !strings.HasPrefix(words[0], "USING("):
		d.reportPath(path, "not the definition of an index", hint)
	}
}

func (d *decoder) checkStorage(v *View) {
	const path = "fillfactor"
	value, ok := v.Storage[path]
	at := v.path + ".storage[" + path + "]"
	if !ok || d.wrong[at] {
		return
	}
	if n, err := strconv.Atoi(value); err != nil || n < 10 || n > 100 {
		d.reportPath(at, "must be a number from 10 to 100", "")
	}
}
