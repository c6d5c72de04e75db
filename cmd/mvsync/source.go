package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/replication"
)

// source is how the database of a configuration is reached.
type source struct {
	cfg         *config.Config
	sql         *pgx.ConnConfig
	replication *pgconn.Config
	session     replication.Session
	weigh       bool // plans come with the costs of all strategies that fit
}

// newSource reads the connection strings. It connects nowhere.
func newSource(cfg *config.Config) (*source, error) {
	sql, err := pgx.ParseConfig(cfg.Source.URL)
	if err != nil {
		return nil, config.Mistakes{cfg.Mistake("source.url", "not a connection string: "+parseReason(err),
			"write it like postgres://user@host:5432/database")}
	}
	stream, err := pgconn.ParseConfig(cfg.Source.StreamURL())
	if err != nil {
		return nil, config.Mistakes{cfg.Mistake("source.replication_url", "not a connection string: "+parseReason(err),
			"write it like postgres://user@host:5432/database")}
	}
	return &source{cfg: cfg, sql: sql, replication: stream, session: replication.Session{Timezone: cfg.Session.Timezone}}, nil
}

// parseReason is why a connection string cannot be read, without the string: it may hold a password.
func parseReason(err error) string {
	if inner := errors.Unwrap(err); inner != nil {
		return oneLine(inner.Error())
	}
	return "it cannot be read"
}

// target is what replication has to know.
func (s *source) target() replication.Target {
	return replication.Target{
		Source: s.sql, Replication: s.replication, Session: s.session,
		Slot: string(s.cfg.Source.Slot), Publication: string(s.cfg.Source.Publication),
	}
}

// connect opens a session with the pinned settings, after which a body means the same as on every other one.
func (s *source) connect(ctx context.Context, purpose string) (*pgx.Conn, error) {
	cfg := s.sql.Copy()
	replication.Pin(&cfg.Config, s.session)
	cfg.RuntimeParams["application_name"] = replication.ApplicationName + " " + purpose
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, connectError(cfg, err)
	}
	if err := direct(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	return conn, nil
}

// do connects, calls f and disconnects.
func (s *source) do(ctx context.Context, purpose string, f func(*pgx.Conn) error) error {
	conn, err := s.connect(ctx, purpose)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}

const usePooler = "set source.url to the server itself, since sessions and their settings must last"

// direct refuses a connection pooler. What one hands out as a session is none: settings, locks and temporary tables do
// not stay with it. A pooler that lets a session through all the same shows by another process number than the server's
// own, and by settings that were asked for and are not there.
func direct(ctx context.Context, conn *pgx.Conn) error {
	var pid uint32
	var digits, path string
	err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('extra_float_digits'),
		pg_catalog.current_setting('search_path')`, pgx.QueryExecModeSimpleProtocol).Scan(&pid, &digits, &path)
	switch {
	case err != nil:
		return fmt.Errorf("ask the server about the session: %w", err)
	case pid != conn.PgConn().PID():
		return errors.New("connect to the source: a connection pooler answers instead of a Postgres server; " + usePooler)
	case digits != "3" || strings.Trim(path, `" `) != "":
		return errors.New("connect to the source: the session's settings were not taken over, as behind a connection pooler; " + usePooler)
	}
	return nil
}

// connectError says what to do about a failed connection. The text of the server is kept: it names the user, the
// database or the line of pg_hba.conf; passwords are not in it.
func connectError(cfg *pgx.ConnConfig, err error) error {
	where := fmt.Sprintf("connect to the source at %s", net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port)))
	if strings.HasPrefix(cfg.Host, "/") {
		where = fmt.Sprintf("connect to the source at socket %s, port %d", cfg.Host, cfg.Port)
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return &worded{fmt.Sprintf("%s: %s (SQLSTATE %s); %s", where, pg.Message, pg.Code, connectAdvice(cfg, pg)), err}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w; is the server running, and are host and port in source.url right?", where, op.Err)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return &worded{fmt.Sprintf("%s: %s; check the host in source.url", where, dns.Err), err}
	}
	return fmt.Errorf("%s: %w; check source.url", where, err)
}

// worded is an error in other words, which callers still recognise.
type worded struct {
	text string
	err  error
}

func (e *worded) Error() string { return e.text }
func (e *worded) Unwrap() error { return e.err }

func connectAdvice(cfg *pgx.ConnConfig, pg *pgconn.PgError) string {
	switch {
	case pg.Code == pgerrcode.InvalidPassword:
		return "check user and password in source.url"
	case pgerrcode.IsInvalidAuthorizationSpecification(pg.Code):
		return "check the user in source.url, and that a line of pg_hba.conf lets it in"
	case pg.Code == pgerrcode.InvalidCatalogName:
		return fmt.Sprintf("check the database in source.url, or run createdb %s", cfg.Database)
	case pg.Code == pgerrcode.TooManyConnections:
		return "raise max_connections, or close other connections; mvsync holds about five"
	case pg.Code == pgerrcode.ProtocolViolation || pg.Code == pgerrcode.FeatureNotSupported:
		return "a connection pooler answers instead of a Postgres server: " + usePooler
	case pg.Code == pgerrcode.CannotConnectNow:
		return "wait until the server has started"
	}
	return "check source.url"
}
