package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrNotFound says that no Postgres server binaries were found, and how to install them.
var ErrNotFound = errors.New("no Postgres server binaries found (initdb and postgres); install them: " +
	"Debian and Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server postgresql-contrib; " +
	"macOS: brew install postgresql@17; or set MVSYNC_PG_BIN to the folder that holds them")

// EnvBin names the environment variable that overrides where [Find] looks.
const EnvBin = "MVSYNC_PG_BIN"

// binGlobs are the places where packages put server binaries that they keep out of PATH.
var binGlobs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// Find returns the folder that holds initdb and postgres: the one that MVSYNC_PG_BIN names, else the first of PATH,
// pg_config --bindir, and the usual places of packages, newest major version first. It returns [ErrNotFound] where
// there is none, and an error where MVSYNC_PG_BIN names a folder without them.
func Find(ctx context.Context) (string, error) {
	if dir := os.Getenv(EnvBin); dir != "" {
		if !hasBinaries(dir) {
			return "", fmt.Errorf("%s=%s: holds no initdb and postgres; set it to the bin folder of a Postgres server", EnvBin, dir)
		}
		return filepath.Abs(dir)
	}
	return findIn(ctx, os.Getenv("PATH"), binGlobs)
}

// findIn is Find without the override, over the given PATH and patterns.
func findIn(ctx context.Context, path string, globs []string) (string, error) {
	candidates := filepath.SplitList(path)
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		candidates = append(candidates, strings.TrimSpace(string(out)))
	}
	for _, pattern := range globs {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("look for Postgres binaries in %s: %w", pattern, err)
		}
		slices.SortFunc(dirs, newestFirst)
		candidates = append(candidates, dirs...)
	}
	for _, dir := range candidates {
		if !hasBinaries(dir) {
			continue
		}
		// The binaries find their share folder relative to where they really are, and PATH may hold links to them.
		if initdb, err := filepath.EvalSymlinks(filepath.Join(dir, "initdb")); err == nil && hasBinaries(filepath.Dir(initdb)) {
			return filepath.Dir(initdb), nil
		}
		return filepath.Abs(dir)
	}
	return "", ErrNotFound
}

func hasBinaries(dir string) bool {
	if dir == "" {
		return false
	}
	for _, name := range []string{"initdb", "postgres"} {
		if !executable(filepath.Join(dir, name)) {
			return false
		}
	}
	return true
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir() && info.Mode().Perm()&0o111 != 0
}

// findTool returns the path of a client tool: in dir, else in the newest package that has it, else its bare name, for
// PATH.
func findTool(dir, tool string) string {
	candidates := []string{dir}
	for _, pattern := range binGlobs {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			continue // a fixed pattern: it is well-formed
		}
		slices.SortFunc(dirs, newestFirst)
		candidates = append(candidates, dirs...)
	}
	for _, candidate := range candidates {
		if path := filepath.Join(candidate, tool); executable(path) {
			return path
		}
	}
	return tool
}

var majorInPath = regexp.MustCompile(`\d+`)

// newestFirst orders folders by the first number in their path, which is the major version where packages have one.
func newestFirst(a, b string) int {
	major := func(dir string) int {
		n, err := strconv.Atoi(majorInPath.FindString(dir))
		if err != nil {
			return 0
		}
		return n
	}
	return cmp.Or(cmp.Compare(major(b), major(a)), cmp.Compare(a, b))
}

var versionNumber = regexp.MustCompile(`\(PostgreSQL\) (\d+)(?:\.(\d+))?`)

// binVersion asks the postgres binary in dir for its version, as server_version_num has it: 150018 for 15.18.
func binVersion(ctx context.Context, dir string) (int, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("ask %s for its version: %w", filepath.Join(dir, "postgres"), err)
	}
	return parseVersion(string(out))
}

func parseVersion(s string) (int, error) {
	m := versionNumber.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("read version from %q: not the output of postgres --version", s)
	}
	major, err := strconv.Atoi(m[1])
	if err != nil {
		return 0, fmt.Errorf("read version from %q: %w", s, err)
	}
	minor, err := strconv.Atoi(cmp.Or(m[2], "0"))
	if err != nil {
		return 0, fmt.Errorf("read version from %q: %w", s, err)
	}
	return major*10000 + minor, nil
}
