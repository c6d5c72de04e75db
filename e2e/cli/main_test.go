package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// exits runs a program and checks its exit status.
const exits = `#!/bin/sh
want=$1
shift
"$@"
got=$?
[ "$got" = "$want" ] || { echo "exit status $got, want $want: $*" >&2; exit 1; }
`

func TestScripts(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, "mvsync"), "./cmd/mvsync")
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "build the binary: %s", out)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "exits"), []byte(exits), 0o755))

	files, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	// Each script waits more than it works.
	slots := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			s := &script{t: t, db: pgtest.New(t)}
			testscript.Run(t, testscript.Params{
				Files: []string{file},
				Cmds:  s.commands(),
				Setup: func(env *testscript.Env) error {
					env.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
					env.Setenv("TMPDIR", os.TempDir()) // the server of a root process runs as somebody else
					env.Setenv("DATABASE_URL", s.db.URL)
					env.Setenv("DBNAME", s.db.Name)
					env.Setenv("PORT", strconv.Itoa(s.db.Server.Port()))
					return nil
				},
			})
		})
	}
}
