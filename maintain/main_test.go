package maintain

import (
	"testing"

	"github.com/mvsync/mvsync/e2e/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
