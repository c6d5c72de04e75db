package pgserver

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// envOwner makes the re-executed test binary start a server in the folder it names, and wait to be killed.
const envOwner = "PGSERVER_TEST_OWNER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(envOwner); dir != "" {
		ownServer(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// ownServer is the whole life of the process that the test kills.
func ownServer(dir string) {
	s, err := Start(context.Background(), Options{Dir: dir})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(s.proc.cmd.Process.Pid, s.Dir())
	select {}
}

// openDir returns a folder that the server's user may enter, which t.TempDir is not.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pgserver-test-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// ask returns the single text value of a query.
func ask(t *testing.T, s *Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	var value string
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

func TestStartServesWithTheSettingsAsked(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Settings: map[string]string{"application_name": "it's set", "max_wal_senders": "7"}})
	for setting, want := range map[string]string{
		"wal_level":                 "logical",
		"max_wal_senders":           "7",
		"max_replication_slots":     "30",
		"max_prepared_transactions": "10",
		"max_connections":           "200",
		"fsync":                     "off",
		"server_encoding":           "UTF8",
		"application_name":          "it's set",
		"listen_addresses":          "127.0.0.1",
		"data_directory":            filepath.Join(s.Dir(), "data"),
		"server_version_num":        strconv.Itoa(s.Version()),
	} {
		require.Equal(t, want, ask(t, s, fmt.Sprintf("SELECT current_setting('%s')", setting)), setting)
	}
	require.Equal(t, "é", ask(t, s, "SELECT lower('É')"), "letters beyond ASCII have case")
	require.Equal(t, "t", ask(t, s, "SELECT (E'B' < E'a')::text")[:1], "text sorts by bytes")
	require.Equal(t, "true", ask(t, s, "SELECT (count(*) > 0)::text FROM pg_collation WHERE collprovider = 'i'"), "ICU is there")
}

func TestTwoServersAtOnce(t *testing.T) {
	t.Parallel()
	a, b := start(t, Options{}), start(t, Options{Fsync: true})
	require.NotEqual(t, a.Port(), b.Port())
	require.NotEqual(t, a.Dir(), b.Dir())
	require.NotEqual(t, ask(t, a, "SELECT system_identifier::text FROM pg_control_system()"),
		ask(t, b, "SELECT system_identifier::text FROM pg_control_system()"))
	require.Equal(t, "on", ask(t, b, "SHOW fsync"))
}

func TestUnixSocketIsInTheFolder(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	conn, err := pgx.Connect(t.Context(), fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", s.Dir(), s.Port()))
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

func TestLongPathGoesWithoutSocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openDir(t), strings.Repeat("long", 25))
	require.NoError(t, os.Mkdir(dir, 0o755))
	s := start(t, Options{Dir: dir})
	require.Empty(t, ask(t, s, "SHOW unix_socket_directories"))
}

func TestPasswordIsAskedOfTCP(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Password: "se/c?r@t"})
	require.Equal(t, "1", ask(t, s, "SELECT '1'"))
	u, err := url.Parse(s.URL("postgres"))
	require.NoError(t, err)
	u.User = url.UserPassword("postgres", "wrong")
	_, err = pgx.Connect(t.Context(), u.String())
	require.ErrorContains(t, err, "password authentication failed")
	require.NoFileExists(t, filepath.Join(s.Dir(), "password"))
}

func TestLogIsCopied(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s, err := Start(t.Context(), Options{Log: &log})
	require.NoError(t, err)
	require.NoError(t, s.Stop(t.Context()))
	require.Contains(t, log.String(), "database system is shut down")
	kept, err := os.ReadFile(filepath.Join(s.Dir(), "server.log"))
	require.NoError(t, err)
	require.Equal(t, string(kept), log.String())
	require.NoError(t, s.Close())
}

func TestRestartKeepsDataAndPort(t *testing.T) {
	t.Parallel()
	ends := []struct {
		name    string
		end     func(*testing.T, *Server)
		crashed bool
	}{
		{name: "stopped", end: func(t *testing.T, s *Server) { require.NoError(t, s.Stop(t.Context())) }},
		{name: "killed", end: func(t *testing.T, s *Server) { require.NoError(t, s.Kill()) }, crashed: true},
		{name: "still running", end: func(*testing.T, *Server) {}},
	}
	for _, tc := range ends {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{})
			conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
			require.NoError(t, err)
			defer conn.Close(context.Background()) // the server has ended under it
			_, err = conn.Exec(t.Context(), "CREATE TABLE t AS SELECT generate_series(1, 1000) AS n")
			require.NoError(t, err)
			port := s.Port()

			tc.end(t, s)
			if tc.name != "still running" {
				require.False(t, s.Running())
				_, err = conn.Exec(t.Context(), "SELECT 1")
				require.Error(t, err)
			}
			require.NoError(t, s.Restart(t.Context()))

			require.Equal(t, port, s.Port())
			require.Equal(t, "1000", ask(t, s, "SELECT count(*)::text FROM t"))
			log, err := os.ReadFile(filepath.Join(s.Dir(), "server.log"))
			require.NoError(t, err)
			require.Equal(t, tc.crashed, strings.Contains(string(log), "automatic recovery in progress"))
		})
	}
}

func TestKillRepeatedly(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	require.Equal(t, "", ask(t, s, "SELECT '' FROM (SELECT set_config('x.y', '', false)) AS _"))
	for i := range 3 {
		require.NoError(t, s.Kill())
		require.NoError(t, s.Kill(), "killing a dead server does nothing")
		require.NoError(t, s.Restart(t.Context()), "round %d", i)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%t", killed), func(t *testing.T) {
			t.Parallel()
			dir := openDir(t)
			s, err := Start(t.Context(), Options{Dir: dir})
			require.NoError(t, err)
			pids := append(children(s.proc.cmd.Process.Pid), s.proc.cmd.Process.Pid)
			require.Greater(t, len(pids), 1, "the server has background processes")
			segment := readPidFile(s.folder.data())
			require.True(t, segment.sharedRecorded)
			if killed {
				require.NoError(t, s.Kill())
			}
			require.NoError(t, s.Close())
			require.NoError(t, s.Close(), "closing twice does nothing")
			require.True(t, awaitGone(pids, time.Second))
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, entries)
			requireNoSegment(t, segment)
			require.ErrorContains(t, s.Restart(t.Context()), "it is closed")
		})
	}
}

// requireNoSegment checks that the kernel no longer lists the shared memory segment.
func requireNoSegment(t *testing.T, p pidFile) {
	t.Helper()
	list, err := os.ReadFile("/proc/sysvipc/shm")
	if os.IsNotExist(err) {
		return // not on this system
	}
	require.NoError(t, err)
	for _, line := range strings.Split(string(list), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 {
			require.NotEqual(t, strconv.Itoa(p.shmID), fields[1])
		}
	}
}

func TestFailedStartLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	_, err := Start(t.Context(), Options{Dir: dir, Settings: map[string]string{"wal_level": "nonsense"}})
	require.ErrorContains(t, err, `invalid value for parameter "wal_level"`, "the error carries the server's log")
	_, err = Start(t.Context(), Options{Dir: dir, InitArgs: []string{"--no-such-option"}})
	require.ErrorContains(t, err, "run initdb")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Start(cancelled, Options{Dir: dir})
	require.ErrorIs(t, err, context.Canceled)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// A caller out of time gets an error, and no server all the same.
func TestStopWithoutTime(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(done); err != nil {
		require.ErrorContains(t, err, "stopped at once")
	}
	require.False(t, s.Running())
	require.NoError(t, s.Stop(done), "stopping a stopped server does nothing")
	require.NoError(t, s.Restart(t.Context()))
}

func TestStartWithRelativeBinDir(t *testing.T) {
	t.Parallel()
	bin, err := Find(t.Context())
	require.NoError(t, err)
	here, err := os.Getwd()
	require.NoError(t, err)
	relative, err := filepath.Rel(here, bin)
	require.NoError(t, err)
	s := start(t, Options{BinDir: relative})
	require.Equal(t, bin, s.BinDir())
	_, err = Start(t.Context(), Options{BinDir: "/nowhere"})
	require.ErrorContains(t, err, "ask /nowhere/postgres for its version")
}

func TestKilledOwnerLeavesNoServer(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	self, err := os.Executable()
	require.NoError(t, err)
	owner := exec.CommandContext(t.Context(), self)
	owner.Env = append(os.Environ(), envOwner+"="+dir)
	owner.Dir = "/"
	out, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, line)
	word, path, _ := strings.Cut(strings.TrimSpace(line), " ")
	pid, err := strconv.Atoi(word)
	require.NoError(t, err, line)
	require.True(t, alive(pid))
	pids := append(children(pid), pid)

	sweep(dir)
	require.DirExists(t, path, "a living owner's folder is not swept")
	require.True(t, alive(pid))

	require.NoError(t, owner.Process.Kill())
	require.Error(t, owner.Wait())
	if parentDeathSignal {
		require.True(t, awaitGone(pids, 10*time.Second), "the server ended with its owner")
	}
	next := start(t, Options{Dir: dir})
	require.True(t, awaitGone(pids, 10*time.Second))
	require.NoDirExists(t, path)
	require.DirExists(t, next.Dir())
}

func TestSweepEndsAnOrphan(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	s, err := Start(t.Context(), Options{Dir: dir})
	require.NoError(t, err)
	require.NoError(t, s.folder.lock.Close(), "as if the owner had died, on a system without a parent-death signal")
	sweep(dir)
	require.True(t, s.proc.await(t.Context(), 10*time.Second))
	require.NoDirExists(t, s.Dir())
}

func TestSweepKeepsWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	target := filepath.Join(dir, "target")
	require.NoError(t, os.Mkdir(target, 0o755))
	link := filepath.Join(dir, folderPrefix+"link")
	require.NoError(t, os.Symlink(target, link))
	file := filepath.Join(dir, folderPrefix+"file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	stale := filepath.Join(dir, folderPrefix+"stale")
	require.NoError(t, os.MkdirAll(filepath.Join(stale, "data"), 0o755))
	// A process id that has been given to somebody else: this test.
	require.NoError(t, os.WriteFile(filepath.Join(stale, "data", "postmaster.pid"), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600))
	sweep(dir)
	require.DirExists(t, target)
	require.FileExists(t, file)
	require.NoDirExists(t, stale)
}

func TestClosedFolderForServerUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("the server runs as this user, who may enter what it owns")
		return
	}
	dir := openDir(t)
	require.NoError(t, os.Chmod(dir, 0o700))
	_, err := Start(t.Context(), Options{Dir: dir})
	require.ErrorContains(t, err, "may not enter "+dir)
	require.ErrorContains(t, err, "chmod o+x")
}

func TestFreePortIsFree(t *testing.T) {
	t.Parallel()
	port, err := freePort()
	require.NoError(t, err)
	require.GreaterOrEqual(t, port, 15000)
	require.Less(t, port, 32000)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestCommandReachesTheServer(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Password: "secret"})
	out, err := s.Command(t.Context(), "psql", "--no-psqlrc", "--tuples-only", "--command", "SELECT 'here'", "postgres").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "here")
}
