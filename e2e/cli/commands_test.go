package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/mvsync/mvsync/e2e/pgtest"
	"github.com/mvsync/mvsync/internal/pgserver"
)

// script is one script's database and what it remembers of it.
type script struct {
	t          *testing.T
	db         *pgtest.DB
	remembered []string
	held       pgx.Tx
}

func (s *script) commands() map[string]func(*testscript.TestScript, bool, []string) {
	plain := func(f func(*testscript.TestScript, []string)) func(*testscript.TestScript, bool, []string) {
		return func(ts *testscript.TestScript, neg bool, args []string) {
			if neg {
				ts.Fatalf("! makes no sense here")
			}
			f(ts, args)
		}
	}
	return map[string]func(*testscript.TestScript, bool, []string){
		"sql":        plain(s.sql),
		"want":       plain(s.want),
		"eventually": plain(s.eventually),
		"remember":   plain(func(ts *testscript.TestScript, _ []string) { s.remembered = s.inventory(ts) }),
		"untouched":  plain(s.untouched),
		"oneline":    plain(oneline),
		"json":       plain(checkJSON),
		"server":     plain(s.server),
		"role":       plain(s.role),
		"pooler":     plain(s.pooler),
		"signal":     plain(signal),
		"logged":     plain(s.logged),
		"hold":       plain(s.hold),
		"release":    plain(func(ts *testscript.TestScript, _ []string) { ts.Check(s.held.Rollback(s.t.Context())) }),
	}
}

func (s *script) sql(ts *testscript.TestScript, args []string) {
	for _, arg := range args {
		if text, err := os.ReadFile(ts.MkAbs(arg)); err == nil {
			arg = string(text)
		}
		_, err := s.db.Pool.Exec(s.t.Context(), arg, pgx.QueryExecModeSimpleProtocol)
		ts.Check(err)
	}
}

// rows runs a query; each row becomes a text with its columns separated by |.
func (s *script) rows(sql string) ([]string, error) {
	rows, err := s.db.Pool.Query(s.t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []string{}
	for rows.Next() {
		var cells []string
		for _, value := range rows.RawValues() {
			cells = append(cells, string(value))
		}
		out = append(out, strings.Join(cells, "|"))
	}
	return out, rows.Err()
}

func (s *script) want(ts *testscript.TestScript, args []string) {
	got, err := s.rows(args[0])
	ts.Check(err)
	if diff := cmp.Diff(args[1:], got); diff != "" {
		ts.Fatalf("%s: (-want +got)\n%s", args[0], diff)
	}
}

func (s *script) eventually(ts *testscript.TestScript, args []string) {
	soon(ts, func() error {
		got, err := s.rows(args[0])
		if diff := cmp.Diff(args[1:], got); err == nil && diff != "" {
			err = fmt.Errorf("%s: (-want +got)\n%s", args[0], diff)
		}
		return err
	})
}

// patience is how long scripts wait for something: far longer than it takes, since machines may be busy.
const patience = time.Minute

// soon calls condition until it returns nil, and fails the script with its last error when that takes too long.
func soon(ts *testscript.TestScript, condition func() error) {
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for err := condition(); err != nil; err = condition() {
		if time.Now().After(deadline) {
			ts.Fatalf("not within %s: %v", patience, err)
		}
		<-tick.C
	}
}

// hold keeps a transaction open that has written something. Slots wait for it in the whole server: only on one of the
// script's own.
func (s *script) hold(ts *testscript.TestScript, _ []string) {
	tx, err := s.db.Conn(s.t).Begin(s.t.Context())
	ts.Check(err)
	_, err = tx.Exec(s.t.Context(), "SELECT pg_current_xact_id()")
	ts.Check(err)
	s.held = tx
}

// logged waits until a file that something in the background writes matches a pattern.
func (s *script) logged(ts *testscript.TestScript, args []string) {
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	var text []byte
	soon(ts, func() error {
		text, err = os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && !pattern.Match(text) {
			err = fmt.Errorf("no match for %s in %s:\n%s", args[1], args[0], text)
		}
		return err
	})
}

// inventory lists what a failed start could leave behind.
func (s *script) inventory(ts *testscript.TestScript) []string {
	got, err := s.rows(`
		SELECT 'schema', nspname FROM pg_namespace WHERE nspname !~ '^pg_(toast|temp)'
		UNION ALL SELECT 'relation', oid::regclass || ' ' || relkind::text || ' ' || relreplident::text FROM pg_class
			WHERE relnamespace = 'public'::regnamespace
		UNION ALL SELECT 'function', oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
		UNION ALL SELECT 'publication', pubname FROM pg_publication
		UNION ALL SELECT 'slot', slot_name FROM pg_replication_slots WHERE database = current_database()
		ORDER BY 1, 2`)
	ts.Check(err)
	return got
}

func (s *script) untouched(ts *testscript.TestScript, _ []string) {
	if diff := cmp.Diff(s.remembered, s.inventory(ts)); diff != "" {
		ts.Fatalf("the database was changed: (-before +after)\n%s", diff)
	}
}

// form is what each line on standard error looks like: a mistake in the configuration, or a message of mvsync. Both say
// what is wrong and what to do.
var form = regexp.MustCompile(`^([^ :]+(:\d+:\d+)?: .+; hint: .+|mvsync: .+; .+)$`)

func oneline(ts *testscript.TestScript, args []string) {
	count := 1
	if len(args) > 0 {
		var err error
		count, err = strconv.Atoi(args[0])
		ts.Check(err)
	}
	var lines []string
	for line := range strings.Lines(ts.ReadFile("stderr")) {
		if !strings.HasPrefix(line, "{") { // the log
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	if len(lines) != count {
		ts.Fatalf("want %d lines on standard error, got %d:\n%s", count, len(lines), strings.Join(lines, "\n"))
	}
	for _, line := range lines {
		if !form.MatchString(line) {
			ts.Fatalf("not in the form of an error that says what to do: %s", line)
		}
	}
}

func checkJSON(ts *testscript.TestScript, args []string) {
	var value any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &value))
	if len(args) != 2 {
		ts.Fatalf("usage: json PATH VALUE")
	}
	at := value
	for step := range strings.SplitSeq(args[0], ".") {
		switch v := at.(type) {
		case map[string]any:
			found, ok := v[step]
			if !ok {
				ts.Fatalf("%s: no %s in %v", args[0], step, v)
			}
			at = found
		case []any:
			if step == "length" {
				at = len(v)
				continue
			}
			i, err := strconv.Atoi(step)
			ts.Check(err)
			if i >= len(v) {
				ts.Fatalf("%s: only %d elements in %v", args[0], len(v), v)
			}
			at = v[i]
		default:
			ts.Fatalf("%s: %s is of no object or list", args[0], step)
		}
	}
	if got := fmt.Sprint(at); got != args[1] {
		ts.Fatalf("%s: got %s, want %s", args[0], got, args[1])
	}
}

// signal sends a signal to what runs in the background; testscript's own kill knows only two.
func signal(ts *testscript.TestScript, args []string) {
	number, ok := map[string]syscall.Signal{"HUP": syscall.SIGHUP, "TERM": syscall.SIGTERM}[args[0]]
	if !ok {
		ts.Fatalf("signal %s: want HUP or TERM", args[0])
	}
	for _, cmd := range ts.BackgroundCmds() {
		ts.Check(cmd.Process.Signal(number))
	}
}

// server goes on with a server of the script's own.
func (s *script) server(ts *testscript.TestScript, args []string) {
	settings := map[string]string{}
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		settings[name] = value
	}
	s.db = pgtest.NewOn(s.t, pgtest.NewServer(s.t, pgserver.Options{Settings: settings}))
	ts.Setenv("DATABASE_URL", s.db.URL)
}

// role makes a role that goes with the script. Roles are those of the whole server, so its name carries the database's.
func (s *script) role(ts *testscript.TestScript, args []string) {
	name := s.db.Name + "_" + args[0]
	quoted := pgx.Identifier{name}.Sanitize()
	_, err := s.db.Pool.Exec(s.t.Context(), "CREATE ROLE "+quoted+" LOGIN "+strings.Join(args[1:], " "))
	ts.Check(err)
	ts.Defer(func() {
		_, err := s.db.Pool.Exec(s.t.Context(), "REASSIGN OWNED BY "+quoted+" TO CURRENT_USER; DROP OWNED BY "+quoted+"; DROP ROLE "+quoted,
			pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			s.t.Errorf("drop role %s: %v", name, err)
		}
	})
	u, err := url.Parse(s.db.URL)
	ts.Check(err)
	u.User = url.User(name)
	ts.Setenv("ROLE_URL", u.String())
	ts.Setenv("ROLE", name)
}
