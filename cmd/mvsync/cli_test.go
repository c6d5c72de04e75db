package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/config"
	"github.com/mvsync/mvsync/plans"
	"github.com/mvsync/mvsync/replication"
)

// run runs a command line as main does, with an environment of its own.
func run(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = Run(t.Context(), args, Streams{Out: &out, Err: &err, Env: func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}})
	return code, out.String(), err.String()
}

func TestRun(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "mvsync.yaml")
	require.NoError(t, os.WriteFile(file, []byte("source: {url: \"${URL}\"}\nviews: []\nvews: []\n"), 0o600))
	for _, tc := range []struct {
		name           string
		env            map[string]string
		args           []string
		code           int
		stdout, stderr string
	}{
		{name: "version", args: []string{"version"}, stdout: "mvsync "},
		{name: "help", stdout: "mvsync demo"},
		{name: "unknown command", args: []string{"statsu"}, code: exitUsage, stderr: `mvsync: unknown command "statsu", did you mean status; see mvsync --help` + "\n"},
		{name: "unknown flag", args: []string{"status", "--al"}, code: exitUsage, stderr: "mvsync: unknown flag: --al; see mvsync status --help\n"},
		{name: "arguments", args: []string{"pause", "a", "b"}, code: exitUsage, stderr: "mvsync: mvsync pause takes the name of a view, got 2 arguments; see mvsync pause --help\n"},
		{name: "no file", args: []string{"check", "-c", "none.yaml"}, code: exitUsage, stderr: "none.yaml: no such file; hint: "},
		{name: "file of the environment", env: map[string]string{"MVSYNC_CONFIG": file}, args: []string{"check"}, code: exitUsage, stderr: file + ":1:15: source.url: the environment variable URL is not set"},
		{name: "all mistakes", env: map[string]string{"URL": "host=x"}, args: []string{"run", "-c", file}, code: exitUsage, stderr: file + ":3:1: vews: unknown field; hint: did you mean views?"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := run(t, tc.env, tc.args...)
			require.Equal(t, tc.code, code, stderr)
			require.Contains(t, stdout, tc.stdout)
			require.Contains(t, stderr, tc.stderr)
			if tc.stderr == "" {
				require.Empty(t, stderr)
			}
		})
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	mistake := config.Mistake{File: "f.yaml", Line: 1, Column: 2, Path: "x", Message: "bad", Hint: "mend it"}
	one, two := errors.New("one"), errors.New("two\n  of two")
	for _, tc := range []struct {
		name string
		err  error
		want []string
	}{
		{name: "nothing", err: answerNo(), want: nil},
		{name: "plain", err: one, want: []string{"mvsync: one"}},
		{name: "one line each", err: two, want: []string{"mvsync: two of two"}},
		{name: "joined", err: errors.Join(one, nil, two), want: []string{"mvsync: one", "mvsync: two of two"}},
		{name: "a sentence that wraps two", err: fmt.Errorf("%w: %w", one, two), want: []string{"mvsync: one: two of two"}},
		{name: "mistakes", err: config.Mistakes{mistake, mistake}, want: []string{mistake.Error(), mistake.Error()}},
		{name: "with a status", err: &exitError{exitFailed, errors.Join(mistake, one)}, want: []string{mistake.Error(), "mvsync: one"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, lines(tc.err))
		})
	}
}

func TestExit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, exitDone},
		{errors.New("x"), exitFailed},
		{errors.Join(errors.New("x"), config.Mistakes{{Message: "y"}}), exitUsage},
		{&exitError{exitFailed, config.Mistakes{{Message: "y"}}}, exitFailed},
		{nof("not yet"), exitNo},
		{fmt.Errorf("late: %w", answerNo()), exitNo},
	} {
		var out bytes.Buffer
		require.Equal(t, tc.want, (&cli{std: Streams{Err: &out}}).exit(tc.err), "%v", tc.err)
	}
}

func TestStatementsIn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"run ALTER TABLE public.t REPLICA IDENTITY FULL;":                               {"ALTER TABLE public.t REPLICA IDENTITY FULL"},
		"run ALTER TABLE a REPLICA IDENTITY FULL; ALTER TABLE b REPLICA IDENTITY FULL;": {"ALTER TABLE a REPLICA IDENTITY FULL", "ALTER TABLE b REPLICA IDENTITY FULL"},
		"run ALTER SYSTEM SET wal_level = 'logical', and restart the server":            {"ALTER SYSTEM SET wal_level = 'logical'"},
		"run ALTER TABLE t REPLICA IDENTITY FULL (or ADD PRIMARY KEY (...))":            {"ALTER TABLE t REPLICA IDENTITY FULL"},
		"let the owner run ALTER PUBLICATION ... ADD TABLE ONLY t":                      nil,
		"GRANT SELECT ON public.t TO ...; with mvsync's role":                           nil,
		"upgrade the server": nil,
	} {
		require.Equal(t, want, statementsIn(text), text)
	}
}

func TestGap(t *testing.T) {
	t.Parallel()
	fine := found{
		catalog: true, publication: true, progress: true,
		slot:     replication.SlotState{Exists: true, WALStatus: "reserved", ConfirmedFlush: 90},
		recorded: backing.Progress{LSN: 100, SystemIdentifier: "7", Timeline: 1},
		identity: replication.Identity{SystemID: "7", Timeline: 1},
	}
	require.NoError(t, fine.gap())
	for reason, change := range map[string]func(*found){
		"lost":        func(f *found) { f.slot = replication.SlotState{} },
		"invalidated": func(f *found) { f.slot.WALStatus = "lost" },
		"identity":    func(f *found) { f.identity.SystemID = "8" },
		"timeline":    func(f *found) { f.identity.Timeline = 2 },
		"ahead":       func(f *found) { f.slot.ConfirmedFlush = 101 },
		"other":       func(f *found) { f.publication = false },
	} {
		f := fine
		change(&f)
		got, ok := gapReason(f.gap())
		require.True(t, ok, reason)
		require.Equal(t, reason, got)
	}
	// Nothing was recorded yet: a first start, or one that ended before its first round.
	first := found{publication: true, slot: fine.slot, identity: fine.identity}
	require.NoError(t, first.gap())
	require.NoError(t, found{identity: fine.identity}.gap())
	_, ok := gapReason(replication.ErrSlotInUse)
	require.False(t, ok)
}

func TestGapLimit(t *testing.T) {
	t.Parallel()
	var g gapLimit
	now := time.Now()
	for range gapsAllowed {
		require.True(t, g.allow(now))
	}
	require.False(t, g.allow(now.Add(gapsWithin-time.Second)))
	require.True(t, g.allow(now.Add(2*gapsWithin)))
}

func TestGrid(t *testing.T) {
	t.Parallel()
	g := newGrid("VIEW", "N", "STATE").numbers(1)
	g.add("public.ä", "5", paint(true).state("live"))
	g.add("b", "1,000", "")
	require.Equal(t, []string{
		"\x1b[1mVIEW\x1b[0m          \x1b[1mN\x1b[0m  \x1b[1mSTATE\x1b[0m",
		"public.ä      5  \x1b[32mlive\x1b[0m",
		"b         1,000",
	}, g.lines(true))
	require.Equal(t, "VIEW          N  STATE", g.lines(false)[0])
	require.Equal(t, "pub\x1b[0m", clip("public\x1b[0m", 3))
	require.Equal(t, "public", clip("public", 6))
}

func TestTexts(t *testing.T) {
	t.Parallel()
	require.Equal(t, "0", countText(0))
	require.Equal(t, "999", countText(999))
	require.Equal(t, "-1,234,567", countText(-1234567))
	require.Equal(t, "1 row", plural(1, "row"))
	require.Equal(t, "1,000 rows", plural(1000, "row"))
	require.Equal(t, "0 ms", agoText(0))
	require.Equal(t, "12 ms", agoText(12*time.Millisecond))
	require.Equal(t, "1.5 s", agoText(1500*time.Millisecond))
	require.Equal(t, "2m5s", agoText(125*time.Second))
	require.Equal(t, "900 B", bytesText(900))
	require.Equal(t, "1.5 kB", bytesText(1536))
	require.Equal(t, "2.0 GB", bytesText(2<<30))
}

func TestStatementOrder(t *testing.T) {
	t.Parallel()
	require.Negative(t, statementOrder("body", "evaluate"))
	require.Negative(t, statementOrder("keys_0", "new_0"))
	require.Negative(t, statementOrder("keys_0", "keys_1"))
	require.Equal(t, "custom", statementTitle("custom"))
	require.Equal(t, statementTitle("keys"), statementTitle("keys_10"))
}

func TestConsumers(t *testing.T) {
	t.Parallel()
	base := plans.Name{Schema: "public", Name: "base"}
	reader := &plans.Plan{Name: plans.Name{Schema: "public", Name: "reader"}, Sources: []plans.Source{{Schema: "public", Name: "base", Producer: true}}}
	other := &plans.Plan{Name: plans.Name{Schema: "public", Name: "other"}, Sources: []plans.Source{{Schema: "public", Name: "base"}}}
	require.Equal(t, []plans.Name{reader.Name}, consumers(base, []verdict{{plan: reader}, {plan: other}, {}}))
}

func TestBeside(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	untilDone := func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}
	require.NoError(t, beside(t.Context(), untilDone, func(context.Context) error { return nil }))
	require.ErrorIs(t, beside(t.Context(), untilDone, func(context.Context) error { return broken }), broken)
	// What serves ends early: the other one is told why.
	err := beside(t.Context(), func(context.Context) error { return broken }, func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	require.ErrorIs(t, err, broken)
}

func TestGuarded(t *testing.T) {
	t.Parallel()
	require.NoError(t, guarded(func() error { return nil })())
	require.ErrorContains(t, guarded(func() error { panic("lost it") })(), "lost it")
}
