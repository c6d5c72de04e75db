// Package pgserver runs private throwaway Postgres servers for the demo and the tests.
//
// It uses the Postgres binaries that are installed ([Find]) and works as any user, root included: the server refuses
// to run as root, so a root process runs it as user postgres (else nobody). Each server has a folder of its own with
// its data, its unix socket and its log, listens on a free port of 127.0.0.1, and is in a process group of its own, so
// that Ctrl-C on a terminal reaches the owner and not the server.
//
// # Nothing stays behind
//
// [Server.Close] stops the server and removes the folder. Where the owner never gets that far:
//
//   - on Linux the kernel stops the server when the owner dies, however it dies (parent-death signal);
//   - the folder is held by an advisory lock that ends with the owner's process, and each [Start] removes the folders
//     in the same place whose lock is free, with the server in it, if one still runs.
//
// A Server is safe for use by one goroutine at a time.
package pgserver
