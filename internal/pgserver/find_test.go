package pgserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeBin makes a folder with the named executables and returns it.
func fakeBin(t *testing.T, dir string, names ...string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755))
	}
	return dir
}

func TestFindPrefersTheEnvironment(t *testing.T) {
	dir := fakeBin(t, t.TempDir(), "initdb", "postgres")
	t.Setenv(EnvBin, dir)
	got, err := Find(t.Context())
	require.NoError(t, err)
	require.Equal(t, dir, got)

	t.Setenv(EnvBin, fakeBin(t, filepath.Join(dir, "client"), "psql"))
	_, err = Find(t.Context())
	require.ErrorContains(t, err, "holds no initdb and postgres")
}

func TestFindNothing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := findIn(t.Context(), t.TempDir(), []string{filepath.Join(t.TempDir(), "*/bin")})
	require.ErrorIs(t, err, ErrNotFound)
	for _, hint := range []string{"apt-get install", "dnf install", "brew install", EnvBin} {
		require.ErrorContains(t, err, hint)
	}
}

func TestFindOrder(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // hides this machine's pg_config
	root := t.TempDir()
	fakeBin(t, filepath.Join(root, "9/bin"), "initdb", "postgres")
	newest := fakeBin(t, filepath.Join(root, "17/bin"), "initdb", "postgres")
	fakeBin(t, filepath.Join(root, "18/bin"), "psql") // client only
	glob := []string{filepath.Join(root, "*/bin")}

	got, err := findIn(t.Context(), "", glob)
	require.NoError(t, err)
	require.Equal(t, newest, got)

	fromPath := fakeBin(t, filepath.Join(root, "path"), "initdb", "postgres")
	got, err = findIn(t.Context(), "/nowhere:"+fromPath, glob)
	require.NoError(t, err)
	require.Equal(t, fromPath, got)

	// A link in PATH leads to the real folder, beside which the share folder lies.
	links := filepath.Join(root, "links")
	require.NoError(t, os.Mkdir(links, 0o755))
	for _, name := range []string{"initdb", "postgres"} {
		require.NoError(t, os.Symlink(filepath.Join(newest, name), filepath.Join(links, name)))
	}
	got, err = findIn(t.Context(), links, nil)
	require.NoError(t, err)
	require.Equal(t, newest, got)
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   string
		want int
		err  string
	}{
		{in: "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", want: 150018},
		{in: "postgres (PostgreSQL) 18.4\n", want: 180004},
		{in: "postgres (PostgreSQL) 19beta1\n", want: 190000},
		{in: "psql 15\n", err: "not the output of postgres --version"},
	} {
		t.Run(tc.in, func(t *testing.T) {
			t.Parallel()
			got, err := parseVersion(tc.in)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestFindTool(t *testing.T) {
	t.Parallel()
	dir := fakeBin(t, t.TempDir(), "pgbench", "only-here")
	require.Equal(t, filepath.Join(dir, "pgbench"), findTool(dir, "pgbench"))
	require.Equal(t, filepath.Join(dir, "only-here"), findTool(dir, "only-here"))
	require.Equal(t, "nowhere-at-all", findTool(dir, "nowhere-at-all"))
}
