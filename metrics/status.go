package metrics

import "time"

// Status is what the status page and /api/status show. The names in its JSON
// are relied upon by users' tools: add fields, never rename them.
//
// No field may carry a row value or a secret (INV-12): whoever fills it in
// leaves both out of the texts.
type Status struct {
	// Version is that of mvsync; filled in by the server.
	Version string `json:"version"`
	// At is when the status was taken; filled in by the server.
	At time.Time `json:"at"`
	// Ready tells whether /readyz answers 200; filled in by the server.
	Ready bool `json:"ready"`
	// NotReady is the reason why not, else empty; filled in by the server.
	NotReady string `json:"not_ready,omitempty"`

	Stream Stream `json:"stream"`
	Slot   Slot   `json:"slot"`
	// Views are the declared views that were accepted, in the order to show.
	Views []ViewStatus `json:"views"`
	// Refused are the declared views that were not.
	Refused []Refused `json:"refused"`
}

// Stream is the state of the logical replication stream and of the rounds.
type Stream struct {
	// State is a word such as connecting, streaming or standby.
	State string `json:"state"`
	// Problem says what keeps the stream from flowing, else it is empty.
	Problem string `json:"problem,omitempty"`
	// AppliedLSN is the WAL position up to which everything is applied.
	AppliedLSN string `json:"applied_lsn,omitempty"`
	// LagSeconds is the age of the oldest pending commit, 0 while none is.
	LagSeconds float64 `json:"lag_seconds"`
	// LagBytes is the distance to the server's WAL position; nil if not known.
	LagBytes *int64 `json:"lag_bytes"`
	// PendingBytes and PendingTransactions are received and not yet applied.
	PendingBytes        int64 `json:"pending_bytes"`
	PendingTransactions int64 `json:"pending_transactions"`
	// LastRoundAt is when the last round committed; nil before the first.
	LastRoundAt *time.Time `json:"last_round_at"`
	// Activity is filled in by the server.
	Activity StreamActivity `json:"activity"`
}

// StreamActivity is what was observed of the stream since the daemon started.
// Rates are averages that fade over about ten seconds.
type StreamActivity struct {
	Rounds                int64   `json:"rounds"`
	RoundsPerSecond       float64 `json:"rounds_per_second"`
	Transactions          int64   `json:"transactions"`
	TransactionsPerSecond float64 `json:"transactions_per_second"`
	Changes               int64   `json:"changes"`
	ChangesPerSecond      float64 `json:"changes_per_second"`
}

// Slot is the replication slot and what it makes the server keep.
type Slot struct {
	Name string `json:"name"`
	// ConfirmedLSN is the position confirmed to the server.
	ConfirmedLSN string `json:"confirmed_lsn,omitempty"`
	// RetainedBytes is the WAL kept for the slot; nil if not known.
	RetainedBytes *int64 `json:"retained_bytes"`
	// WALStatus is the server's word: reserved, extended, unreserved or lost.
	WALStatus string `json:"wal_status,omitempty"`
}

// ViewStatus is one maintained view.
type ViewStatus struct {
	// Name is quote_ident(schema).quote_ident(name), as in metric labels.
	Name string `json:"name"`
	// State is filling, live, paused, stale or failed.
	State    string `json:"state"`
	Strategy string `json:"strategy"`
	// AsOfLSN and AsOf say which snapshot the view shows; empty and nil before
	// the first fill.
	AsOfLSN string     `json:"as_of_lsn,omitempty"`
	AsOf    *time.Time `json:"as_of"`
	// AgeSeconds is how far the view is behind now, 0 while nothing is pending;
	// nil before the first fill.
	AgeSeconds *float64 `json:"age_seconds"`
	// Rows is the number of rows in the backing table, possibly an estimate;
	// nil if not known.
	Rows *int64 `json:"rows"`
	// FillRatio is the part of a running fill that is done; nil if none runs.
	FillRatio *float64 `json:"fill_ratio"`
	// Collisions counts merges under a coarsened key since the view was created.
	Collisions int64 `json:"collisions"`
	// Coarsened names the columns that weaken the key.
	Coarsened []string `json:"coarsened,omitempty"`
	// NonDeterministic marks a view that is exempt from verification.
	NonDeterministic bool `json:"non_deterministic,omitempty"`
	// Problem says why the view is not live, or sat rounds out, without any row
	// value: a SQLSTATE with its name and the object concerned, not the
	// server's message. The full text stands in mvsync.views.error.
	Problem string `json:"problem,omitempty"`
	// Activity is filled in by the server.
	Activity ViewActivity `json:"activity"`
}

// ViewActivity is what was observed of a view since the daemon started. The
// rate is an average that fades over about ten seconds.
type ViewActivity struct {
	RowsWritten         int64   `json:"rows_written"`
	RowsPerSecond       float64 `json:"rows_per_second"`
	RowsSuppressed      int64   `json:"rows_suppressed"`
	ResidualKeys        int64   `json:"residual_keys"`
	Rebuilds            int64   `json:"rebuilds"`
	Collisions          int64   `json:"collisions"`
	VerifyRuns          int64   `json:"verify_runs"`
	VerifyDifferingRows int64   `json:"verify_differing_rows"`
}

// Refused is a declared view that mvsync does not maintain, and why.
type Refused struct {
	View string `json:"view"`
	// Code is one of the contract's refusal codes.
	Code       string `json:"code"`
	Construct  string `json:"construct,omitempty"`
	Reason     string `json:"reason"`
	Suggestion string `json:"suggestion,omitempty"`
}

// StreamActivity returns what was observed of the stream and the rounds.
func (m *Metrics) StreamActivity() StreamActivity {
	var a StreamActivity
	a.Rounds, a.RoundsPerSecond = m.rounds.read()
	a.Transactions, a.TransactionsPerSecond = m.transactions.read()
	a.Changes, a.ChangesPerSecond = m.changesAll.read()
	return a
}

// ViewActivity returns what was observed of a view; nothing, if it is not
// declared.
func (m *Metrics) ViewActivity(view string) ViewActivity {
	var a ViewActivity
	m.observe(view, func(v *viewSeries) {
		a.RowsWritten, a.RowsPerSecond = v.writtenAll.read()
		a.RowsSuppressed, _ = v.suppressed.read()
		a.ResidualKeys, _ = v.residual.read()
		a.Rebuilds, _ = v.rebuilt.read()
		a.Collisions, _ = v.collisions.read()
		a.VerifyRuns, _ = v.verifyRuns.read()
		a.VerifyDifferingRows, _ = v.verifyRows.read()
	})
	return a
}
