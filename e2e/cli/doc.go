// Package cli runs the mvsync binary as a user would: the scripts in testdata call it against a real server, and look at
// what it prints, its exit status, and what it leaves in the database.
//
// A script gets an empty database of its own, DATABASE_URL set to it, and these commands beside those of testscript:
//
//	sql 'STATEMENTS'...         run SQL in the database (a file if the argument names one)
//	want 'QUERY' ROW...         the query returns exactly these rows, columns separated by |
//	eventually 'QUERY' ROW...   the same within a minute
//	logged FILE PATTERN         the file matches within a minute
//	remember                    note what the database holds
//	untouched                   it holds the same, and mvsync left no slot or publication
//	oneline [COUNT]             the last command's standard error has COUNT lines (default 1), each in the form of the contract
//	json PATH VALUE             the last command's standard output is JSON with this value; the path is like views.0.name
//	server SETTING=VALUE...     go on with a server of its own
//	role NAME OPTIONS           make a role, and set ROLE_URL to connect as it
//	pooler KIND                 put a pooler in front of the database, and set POOLER_URL: strict or lenient
//	hold, release               begin a transaction that writes, and roll it back
//	signal HUP|TERM             signal what runs in the background
//
// exec exits N PROGRAM ARGS... checks an exit status.
package cli
