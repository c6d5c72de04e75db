// Package pgtest gives tests a real Postgres: one private server a test binary, one database a test.
//
// A package that uses it hands its tests to [Main]:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// and each test takes a database of its own with [New], which is dropped when the test ends. Tests that crash the
// server, or hold transactions open, take a server of their own with [NewServer]: the creation of a replication slot
// waits for every open transaction of its server, in other databases too.
//
// The server is the one that package pgserver finds; the environment variable MVSYNC_PG_BIN names another one, so the
// same tests run against each major version.
package pgtest
