package examples_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/e2e/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The files are what newcomers run first: the configuration must load, and every body must give rows over the sample.
func TestShop(t *testing.T) {
	db := pgtest.New(t)
	t.Setenv("DATABASE_URL", db.URL)
	cfg, err := config.Load("mvsync.yaml")
	require.NoError(t, err)
	require.Len(t, cfg.Views, 5)

	sample, err := os.ReadFile("shop.sql")
	require.NoError(t, err)
	db.Exec(t, string(sample))
	for _, view := range cfg.Views {
		require.NotEmpty(t, db.Query(t, view.Query), view.Name)
	}
}

// Inside its container mvsync has to listen on all addresses; the same file serves both.
func TestListenFromTheEnvironment(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://localhost/shop")
	cfg, err := config.Load("mvsync.yaml")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:9632", cfg.HTTP.Listen)

	t.Setenv("MVSYNC_LISTEN", "0.0.0.0:9632")
	cfg, err = config.Load("mvsync.yaml")
	require.NoError(t, err)
	require.Equal(t, "0.0.0.0:9632", cfg.HTTP.Listen)
}
