// Command mvsync keeps declared views of a Postgres database equal to their queries, by logical replication.
//
// This package is wiring: it reads the configuration, connects the packages that do the work to each other, and talks to
// people. [Run] takes arguments and streams and returns the exit status, so that all of it runs in a test.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = ""

func main() {
	ctx, unhook := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	code := Run(ctx, os.Args[1:], Streams{
		Out: os.Stdout, Err: os.Stderr, Env: os.LookupEnv, Hangup: hangup, Unhook: unhook,
	})
	unhook()
	os.Exit(code)
}

// release is the version to show: the linker's, else the one that the go command recorded, else devel.
func release() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
