package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Options says how a server differs from the default; the zero value is a server for tests.
type Options struct {
	// Dir is the folder in which the server's own folder is made (default: the folder for temporary files). For a root
	// process it must be open to the user under whom the server runs.
	Dir string
	// BinDir holds initdb and postgres (default: what [Find] finds).
	BinDir string
	// Settings go into postgresql.conf, over the defaults of this package.
	Settings map[string]string
	// InitArgs are further arguments of initdb, such as "--wal-segsize=1".
	InitArgs []string
	// Password is asked of TCP connections, and is in [Server.URL]. Without one every local user may connect as
	// superuser, which is fit for tests only.
	Password string
	// Fsync makes commits survive a crash of the machine. Without it they survive a crash of the server only.
	Fsync bool
	// Log receives a copy of the server's log, which is also in server.log in its folder.
	Log io.Writer
}

// Server is a private Postgres server. Its superuser is postgres.
type Server struct {
	opts    Options
	acct    account
	folder  *folder // its lock is held until Close
	closed  bool
	version int
	port    int
	proc    *process // the last one started; it may have ended
}

// How long a server may take to come up or go down before something is wrong. Both are generous: on a busy machine
// recovery and the shutdown checkpoint take seconds.
const (
	startLimit = 60 * time.Second
	stopLimit  = 20 * time.Second
)

// defaults are the settings of every server, before Options.
func defaults(fsync bool) map[string]string {
	settings := map[string]string{
		"wal_level":                 "logical",
		"max_wal_senders":           "30",
		"max_replication_slots":     "30",
		"max_connections":           "200",
		"max_prepared_transactions": "10",
		"listen_addresses":          "127.0.0.1",
		"shared_buffers":            "32MB",
		"max_wal_size":              "1GB",
		"timezone":                  "UTC",
		"log_timezone":              "UTC",
		// Dynamic shared memory as files in the data folder: it goes with the folder even after a kill, and does not
		// depend on the small /dev/shm of a container.
		"dynamic_shared_memory_type": "mmap",
		"logging_collector":          "off",
	}
	if !fsync {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	return settings
}

// Start makes a new server and returns once it accepts connections. ctx bounds the start, not the life of the server:
// that ends with [Server.Close]. On an error nothing is left behind.
func Start(ctx context.Context, opts Options) (*Server, error) {
	s, err := create(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("start a private Postgres server: %w", err)
	}
	if err := s.initialise(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start a private Postgres server: %w", err), s.Close())
	}
	if err := s.launch(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start a private Postgres server: %w", err), s.Close())
	}
	return s, nil
}

// create finds what the server needs and makes its folder.
func create(ctx context.Context, opts Options) (*Server, error) {
	s := &Server{opts: opts}
	var err error
	if s.opts.BinDir == "" {
		if s.opts.BinDir, err = Find(ctx); err != nil {
			return nil, err
		}
	}
	// The server's own folder becomes the current one of its processes.
	if s.opts.BinDir, err = filepath.Abs(s.opts.BinDir); err != nil {
		return nil, err
	}
	if s.version, err = binVersion(ctx, s.opts.BinDir); err != nil {
		return nil, err
	}
	if s.acct, err = serverAccount(); err != nil {
		return nil, err
	}
	if err := s.acct.reach(s.opts.BinDir); err != nil {
		return nil, fmt.Errorf("use the binaries in %s: %w", s.opts.BinDir, err)
	}
	s.folder, err = newFolder(opts.Dir, s.acct)
	return s, err
}

// initialise makes the data folder and its configuration.
func (s *Server) initialise(ctx context.Context) error {
	args := []string{"-D", s.folder.data(), "-U", "postgres", "-E", "UTF8", "--no-sync", "--auth=trust"}
	if s.opts.Password != "" {
		file := filepath.Join(s.folder.path, "password")
		if err := os.WriteFile(file, []byte(s.opts.Password+"\n"), 0o600); err != nil {
			return err
		}
		defer os.Remove(file) //nolint:errcheck // it goes with the folder at the latest
		if err := s.acct.own(file); err != nil {
			return err
		}
		args = append(args, "--auth-host=scram-sha-256", "--pwfile="+file)
	}
	if err := s.initdb(ctx, append(args, s.opts.InitArgs...)); err != nil {
		return err
	}
	conf, err := os.OpenFile(filepath.Join(s.folder.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = conf.WriteString(s.configuration())
	return errors.Join(err, conf.Close())
}

// initdb runs initdb under the locale C.UTF-8, whose order is that of the bytes while lower() knows all letters, or
// under C on systems that lack it.
func (s *Server) initdb(ctx context.Context, args []string) error {
	tool := filepath.Join(s.opts.BinDir, "initdb")
	err := runTool(ctx, s.acct, s.folder.path, tool, append(args, "--locale=C.UTF-8")...)
	if err != nil && strings.Contains(err.Error(), "invalid locale") {
		err = runTool(ctx, s.acct, s.folder.path, tool, append(args, "--locale=C")...)
	}
	if err != nil {
		return fmt.Errorf("run initdb: %w", err)
	}
	return nil
}

// configuration returns the lines to append to postgresql.conf.
func (s *Server) configuration() string {
	settings := defaults(s.opts.Fsync)
	settings["unix_socket_directories"] = s.socketDir()
	maps.Copy(settings, s.opts.Settings)
	var b strings.Builder
	b.WriteString("\n")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	return b.String()
}

// socketDir is the server's folder, unless its name is too long for the address of a unix socket (104 bytes on macOS).
func (s *Server) socketDir() string {
	if len(s.folder.path)+len("/.s.PGSQL.65535.lock") > 103 {
		return ""
	}
	return s.folder.path
}

// launch starts the server process on the data folder, at first on some free port, later on the same one.
func (s *Server) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %s", startLimit))
	defer cancel()
	if s.port != 0 {
		return s.launchOn(ctx, s.port)
	}
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return err
		}
		err = s.launchOn(ctx, port)
		if err == nil {
			s.port = port
			return nil
		}
		// Somebody else may have taken the port between the look and the start.
		if attempt == 5 || !strings.Contains(err.Error(), "Address already in use") {
			return err
		}
	}
}

func (s *Server) launchOn(ctx context.Context, port int) error {
	logFile, err := os.OpenFile(filepath.Join(s.folder.path, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := logFile.Stat()
	if err != nil {
		return errors.Join(err, logFile.Close())
	}
	//nolint:noctx // the server outlives the context of its start
	cmd := exec.Command(filepath.Join(s.opts.BinDir, "postgres"), "-D", s.folder.data(), "-p", strconv.Itoa(port))
	cmd.Dir = s.folder.path
	// SIGQUIT, the immediate shutdown: it ends the backends too and removes the shared memory.
	cmd.SysProcAttr = sysProcAttr(s.acct, syscall.SIGQUIT)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if s.opts.Log != nil {
		cmd.Stderr = io.MultiWriter(logFile, s.opts.Log)
		cmd.WaitDelay = stopLimit
	}
	release := func() { _ = logFile.Close() } // what was written is in the file
	if s.proc, err = spawn(cmd, release); err != nil {
		return err
	}
	if err := s.awaitReady(ctx); err != nil {
		s.halt(syscall.SIGQUIT)
		return fmt.Errorf("%w; its log: %s", err, s.logSince(info.Size()))
	}
	return nil
}

// awaitReady waits until the server says in postmaster.pid that it accepts connections, as pg_ctl does.
func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		p := readPidFile(s.folder.data())
		if p.pid == s.proc.cmd.Process.Pid && p.status == "ready" {
			return nil
		}
		select {
		case <-s.proc.done:
			return fmt.Errorf("the server ended while starting: %w", s.proc.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// logSince returns the end of the server's log from the offset on, for an error message.
func (s *Server) logSince(offset int64) string {
	content, err := os.ReadFile(filepath.Join(s.folder.path, "server.log"))
	if err != nil {
		return err.Error()
	}
	content = bytes.TrimSpace(content[min(offset, int64(len(content))):])
	const most = 2000
	return string(content[max(0, len(content)-most):])
}

// freePort returns a port of 127.0.0.1 that nobody listens on. It is below the range from which kernels take the local
// ports of outgoing connections, so that it is still free after a restart.
func freePort() (int, error) {
	for range 100 {
		port := 15000 + rand.IntN(17000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // it does not wait
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("find a free port: none of a hundred tried between 15000 and 32000 is free")
}

// URL returns the URL to connect to a database of this server as superuser.
func (s *Server) URL(database string) string {
	user := url.User("postgres")
	if s.opts.Password != "" {
		user = url.UserPassword("postgres", s.opts.Password)
	}
	u := url.URL{
		Scheme: "postgres", User: user, Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port returns the port of 127.0.0.1 on which the server listens; a restart keeps it.
func (s *Server) Port() int { return s.port }

// Dir returns the server's folder: it holds data/, server.log and, unless its path is too long, the unix socket.
func (s *Server) Dir() string { return s.folder.path }

// BinDir returns the folder of the binaries, which may also hold pgbench, pg_recvlogical and the like.
func (s *Server) BinDir() string { return s.opts.BinDir }

// Version returns the server's version as server_version_num has it: 150018 for 15.18.
func (s *Server) Version() int { return s.version }

// Running says whether the server process runs.
func (s *Server) Running() bool { return s.proc != nil && s.proc.running() }

// Command returns a command that runs a client tool, such as pgbench, against this server: the one of
// [Server.BinDir], or where that folder holds only the server, one of another installed Postgres.
func (s *Server) Command(ctx context.Context, tool string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, findTool(s.opts.BinDir, tool), args...)
	cmd.Env = append(os.Environ(), "PGHOST=127.0.0.1", "PGPORT="+strconv.Itoa(s.port), "PGUSER=postgres",
		"PGPASSWORD="+s.opts.Password, "PGSSLMODE=disable")
	return cmd
}

// Stop shuts the server down cleanly (fast mode: clients are disconnected). When that takes long, or ctx is done, it
// does so without a checkpoint, and says so by an error. Stopping a stopped server does nothing.
func (s *Server) Stop(ctx context.Context) error {
	if !s.Running() {
		return nil
	}
	if err := s.proc.signal(syscall.SIGINT); err != nil {
		return err
	}
	if s.proc.await(ctx, stopLimit) {
		return nil
	}
	s.halt(syscall.SIGQUIT)
	return fmt.Errorf("stop the server on port %d: no clean shutdown within %s or the caller's time, so it was stopped at once", s.port, stopLimit)
}

// Kill ends all processes of the server with SIGKILL, as a crash or the out-of-memory killer would: nothing is
// flushed, no lock file removed. The data stays for [Server.Restart].
func (s *Server) Kill() error {
	if !s.Running() {
		return nil
	}
	pid := s.proc.cmd.Process.Pid
	// Stopped first, so that it starts no backend between the look at its children and its end.
	if err := s.proc.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	backends := children(pid)
	if err := s.proc.signal(syscall.SIGKILL); err != nil {
		return err
	}
	for _, backend := range backends {
		if err := syscall.Kill(backend, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill backend %d: %w", backend, err)
		}
	}
	<-s.proc.done
	// A new server refuses the data folder while an old backend still holds the shared memory.
	if !awaitGone(backends, stopLimit) {
		return fmt.Errorf("kill the server on port %d: a backend still runs after %s", s.port, stopLimit)
	}
	return nil
}

// Restart starts the server again on the same data and port; one that still runs is stopped first.
func (s *Server) Restart(ctx context.Context) error {
	if s.closed {
		return errors.New("restart the server: it is closed")
	}
	if err := s.Stop(ctx); err != nil {
		return err
	}
	if err := s.launch(ctx); err != nil {
		return fmt.Errorf("restart the server: %w", err)
	}
	return nil
}

// Close ends the server at once and removes its folder. Closing a closed server does nothing.
func (s *Server) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.halt(syscall.SIGQUIT)
	if err := s.folder.remove(); err != nil {
		return fmt.Errorf("remove the server's folder: %w", err)
	}
	return nil
}

// halt ends the server by the signal, or kills it if that does not help.
func (s *Server) halt(sig syscall.Signal) {
	if !s.Running() {
		return
	}
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	if s.proc.signal(sig) == nil {
		select {
		case <-s.proc.done:
			return
		case <-limit.C:
		}
	}
	_ = s.Kill() // nothing is left to try
}
