package replication

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Session is what the operator decides about the sessions in which values are printed and bodies evaluated.
type Session struct {
	// Timezone is a time zone name (default UTC).
	Timezone string
}

// ApplicationName is the application_name of every connection of ours. It is distinct, so that a
// synchronous_standby_names that lists real standbys does not match.
const ApplicationName = "mvsync"

// pinned are the settings on which the text of values, the meaning of a body, or the life of a session depend. They go
// into the startup packet, which wins over ALTER ROLE and ALTER DATABASE: a value in the stream and the same value in a
// query must be the same bytes.
var pinned = map[string]string{
	// How values are printed and read.
	"client_encoding":    "UTF8",
	"datestyle":          "ISO, MDY",
	"intervalstyle":      "postgres",
	"extra_float_digits": "3",
	"bytea_output":       "hex",
	"xmlbinary":          "base64",
	"xmloption":          "content",
	"lc_monetary":        "C",
	"lc_numeric":         "C",
	"lc_time":            "C",
	"array_nulls":        "on",
	// What a body means. to_tsvector and the like without a configuration use the one that depends on no language, so
	// that it is the same on every server; a body that wants another one names it.
	"default_text_search_config":  "pg_catalog.simple",
	"search_path":                 "",
	"transform_null_equals":       "off",
	"standard_conforming_strings": "on",
	"quote_all_identifiers":       "off", // pg_get_viewdef, which is parsed and compared
	"row_security":                "off", // hidden rows become an error instead of a wrong answer
	// How a session lives. A barrier may leave a transaction idle, and a fill runs as long as it takes.
	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
	"idle_session_timeout":                "0",
	"default_transaction_read_only":       "off",
	"default_transaction_isolation":       "read committed",
	"default_transaction_deferrable":      "off",
}

// Pin makes the connections of cfg print and evaluate alike whatever the role, the database or the environment set. Every
// connection of mvsync, for SQL or for replication, is pinned. It replaces what cfg's URL sets of the same settings, and
// keeps the rest (TLS, target, user).
func Pin(cfg *pgconn.Config, session Session) {
	params := maps.Clone(cfg.RuntimeParams)
	if params == nil {
		params = map[string]string{}
	}
	for name := range params {
		// Parameters are matched without regard to case by the server, and the later one wins.
		if _, ours := pinned[strings.ToLower(name)]; ours || strings.EqualFold(name, "timezone") {
			delete(params, name)
		}
	}
	maps.Copy(params, pinned)
	params["timezone"] = cmp.Or(session.Timezone, "UTC")
	params["application_name"] = ApplicationName
	cfg.RuntimeParams = params
	cfg.AfterConnect = pinLater(cfg.AfterConnect)
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
}

const (
	connectTimeout = 15 * time.Second
	// readBuffer is what one read from the socket may bring. The server sends at most as it fills its own 8 kB buffer,
	// but several of these wait in the kernel when the stream is busy.
	readBuffer = 256 << 10
)

// keepAlive notices a peer that is gone without a word within about a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 20 * time.Second, Interval: 10 * time.Second, Count: 4}

// pinLater pins what older servers do not know, since an unknown startup parameter fails the connection.
func pinLater(before pgconn.AfterConnectFunc) pgconn.AfterConnectFunc {
	return func(ctx context.Context, conn *pgconn.PgConn) error {
		if before != nil {
			if err := before(ctx, conn); err != nil {
				return err
			}
		}
		if majorVersion(conn) < 17 {
			return nil
		}
		if _, err := conn.Exec(ctx, "SET transaction_timeout = 0").ReadAll(); err != nil {
			return fmt.Errorf("pin transaction_timeout: %w", err)
		}
		return nil
	}
}

// majorVersion is the server's major version as it told when the connection began, 0 if it did not.
func majorVersion(conn *pgconn.PgConn) int {
	version := conn.ParameterStatus("server_version")
	digits := 0
	for digits < len(version) && version[digits] >= '0' && version[digits] <= '9' {
		digits++
	}
	major, err := strconv.Atoi(version[:digits])
	if err != nil {
		return 0
	}
	return major
}

// connectSQL opens a pinned SQL connection. extra are further startup parameters.
func connectSQL(ctx context.Context, source *pgx.ConnConfig, session Session, extra map[string]string) (*pgx.Conn, error) {
	cfg := source.Copy()
	Pin(&cfg.Config, session)
	maps.Copy(cfg.RuntimeParams, extra)
	cfg.DialFunc = dialer().DialContext
	return pgx.ConnectConfig(ctx, cfg)
}

// connectReplication opens a pinned connection to a walsender that also takes plain SQL (replication=database).
// workMem, in bytes, is its logical_decoding_work_mem: below it the server decodes in memory what others write, above it
// through files, which makes barriers slow.
func connectReplication(ctx context.Context, target *pgconn.Config, session Session, workMem int64) (*pgconn.PgConn, error) {
	cfg := target.Copy()
	Pin(cfg, session)
	cfg.RuntimeParams["replication"] = "database"
	if workMem > 0 {
		cfg.RuntimeParams["logical_decoding_work_mem"] = strconv.FormatInt(max(workMem>>10, 64), 10) + "kB"
	}
	cfg.DialFunc = dialer().DialContext
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(bufio.NewReaderSize(r, readBuffer), w)
	}
	return pgconn.ConnectConfig(ctx, cfg)
}

func dialer() *net.Dialer {
	return &net.Dialer{KeepAliveConfig: keepAlive}
}

// simple runs one statement by the simple protocol, the only one that a walsender takes, and returns its first row as
// text ("" for NULL), nil if there is none.
func simple(ctx context.Context, conn *pgconn.PgConn, sql string) ([]string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) == 0 || len(results[0].Rows) == 0 {
		return nil, nil
	}
	row := make([]string, 0, len(results[0].Rows[0]))
	for _, value := range results[0].Rows[0] {
		row = append(row, string(value))
	}
	return row, nil
}

// quoteName quotes an identifier.
func quoteName(name string) string { return pgx.Identifier{name}.Sanitize() }

// quoteText quotes a string constant for the replication grammar, which knows no escapes but the doubled quote.
func quoteText(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
