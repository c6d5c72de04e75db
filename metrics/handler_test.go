package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
)

var paths = []string{"/metrics", "/healthz", "/readyz", "/", "/api/status"}

// ask sends one request without a body to a handler.
func ask(t *testing.T, handler http.Handler, method, path string) *httptest.ResponseRecorder {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	return recorder
}

// bodyAt returns the body that GET answers.
func bodyAt(t *testing.T, handler http.Handler, path string) string {
	t.Helper()
	return ask(t, handler, http.MethodGet, path).Body.String()
}

func ready(context.Context) error { return nil }

// sample is a status with every field that the daemon fills in.
func sample() Status {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return Status{
		Stream: Stream{
			State: "streaming", Problem: "reconnecting", AppliedLSN: "0/16B3748", LagSeconds: 1.5, LagBytes: new(int64(4096)),
			PendingBytes: 100, PendingTransactions: 2, LastRoundAt: &at,
		},
		Slot: Slot{Name: "mvsync", ConfirmedLSN: "0/16B3700", RetainedBytes: new(int64(16 << 20)), WALStatus: "reserved"},
		Views: []ViewStatus{{
			Name: byRegion, State: "filling", Strategy: "delta-aggregate", AsOfLSN: "0/16B3748", AsOf: &at,
			AgeSeconds: new(0.25), Rows: new(int64(42)), FillRatio: new(0.5), Collisions: 3, Coarsened: []string{"name"},
			NonDeterministic: true, Problem: "division_by_zero (22012)",
		}, {
			Name: `public."</script><b>"`, State: "stale", Strategy: "full-rebuild",
		}},
		Refused: []Refused{{
			View: "public.dice", Code: "non_deterministic", Construct: "random()", Reason: "another result each time",
			Suggestion: "compute it in the application",
		}},
	}
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	handler := New("test").Handler(Pages{Ready: ready})
	for _, path := range append([]string{"/nowhere"}, paths...) {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "REFRESH"} {
			response := ask(t, handler, method, path)
			require.Equal(t, http.StatusMethodNotAllowed, response.Code, "%s %s", method, path)
			require.Equal(t, "GET, HEAD", response.Header().Get("Allow"))
			require.Contains(t, response.Body.String(), "read-only")
		}
	}
}

func TestPathsAndHeaders(t *testing.T) {
	t.Parallel()
	handler := New("test").Handler(Pages{Ready: ready})
	types := map[string]string{
		"/metrics": "text/plain", "/healthz": "text/plain", "/readyz": "text/plain", "/": "text/html", "/api/status": "application/json",
	}
	for _, path := range paths {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			response := ask(t, handler, method, path)
			require.Equal(t, http.StatusOK, response.Code, "%s %s", method, path)
			require.True(t, strings.HasPrefix(response.Header().Get("Content-Type"), types[path]), response.Header())
			require.Contains(t, response.Header().Get("Content-Security-Policy"), "default-src 'none'")
			require.Contains(t, response.Header().Get("Content-Security-Policy"), "frame-ancestors 'none'")
			require.Equal(t, "nosniff", response.Header().Get("X-Content-Type-Options"))
			require.Equal(t, "DENY", response.Header().Get("X-Frame-Options"))
			require.Equal(t, "no-referrer", response.Header().Get("Referrer-Policy"))
			require.Equal(t, "no-store", response.Header().Get("Cache-Control"))
			require.Empty(t, response.Header().Get("Access-Control-Allow-Origin"), "other sites must not read the pages")
		}
	}
	for _, path := range []string{"/nowhere", "/metrics/", "/api", "/debug/pprof/", "/index.html", "/readyz/x"} {
		require.Equal(t, http.StatusNotFound, ask(t, handler, http.MethodGet, path).Code, path)
	}
}

func TestMetricsPage(t *testing.T) {
	t.Parallel()
	m := populated()
	m.RowsWritten(byRegion, "insert", 3)
	body := bodyAt(t, m.Handler(Pages{}), "/metrics")
	require.Contains(t, body, `mvsync_rows_written_total{op="insert",view="public.by_region"} 3`)
	for _, metric := range contract {
		require.Contains(t, body, "# TYPE "+metric.Name+" "+metric.Type+"\n")
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	failing := func(reason string) func(context.Context) error {
		return func(context.Context) error { return errors.New(reason) }
	}
	for _, tc := range []struct {
		name, path string
		pages      Pages
		code       int
		body       string
	}{
		{name: "works", path: "/healthz", code: 200, body: "ok\n"},
		{name: "works though not ready", path: "/healthz", pages: Pages{Ready: failing("standby")}, code: 200, body: "ok\n"},
		{name: "says that it works", path: "/healthz", pages: Pages{Healthy: ready}, code: 200, body: "ok\n"},
		{
			name: "hangs", path: "/healthz", pages: Pages{Healthy: failing("no round for 10m")},
			code: 503, body: "no round for 10m\n",
		},
		{name: "starting", path: "/readyz", code: 503, body: "starting\n"},
		{name: "ready", path: "/readyz", pages: Pages{Ready: ready}, code: 200, body: "ready\n"},
		{name: "standby", path: "/readyz", pages: Pages{Ready: failing("standby")}, code: 503, body: "standby\n"},
		{name: "lag", path: "/readyz", pages: Pages{Ready: failing("lag 75s is above 60s")}, code: 503, body: "lag 75s is above 60s\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			response := ask(t, New("test").Handler(tc.pages), http.MethodGet, tc.path)
			require.Equal(t, tc.code, response.Code)
			require.Equal(t, tc.body, response.Body.String())
		})
	}
}

func TestQuestionsAreBounded(t *testing.T) {
	t.Parallel()
	var bounded []bool
	note := func(ctx context.Context) {
		_, has := ctx.Deadline()
		bounded = append(bounded, has)
	}
	handler := New("test").Handler(Pages{
		Status:  func(ctx context.Context) Status { note(ctx); return Status{} },
		Ready:   func(ctx context.Context) error { note(ctx); return nil },
		Healthy: func(ctx context.Context) error { note(ctx); return nil },
	})
	for _, path := range paths {
		ask(t, handler, http.MethodGet, path)
	}
	require.Equal(t, []bool{true, true, true, true, true, true}, bounded)
}

func TestStatusJSON(t *testing.T) {
	t.Parallel()
	m := New("1.2.3")
	m.ViewDeclared(byRegion, "delta-aggregate")
	m.RowsWritten(byRegion, "insert", 8)
	m.RoundCommitted(time.Millisecond)
	m.TransactionReceived(2)
	m.Changes(orders, "insert", 9)
	given := sample()
	handler := m.Handler(Pages{
		Status: func(context.Context) Status { return given },
		Ready:  func(context.Context) error { return errors.New("standby") },
	})

	var got Status
	body := bodyAt(t, handler, "/api/status")
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&got))
	require.WithinDuration(t, time.Now(), got.At, time.Minute)
	require.Positive(t, got.Stream.Activity.ChangesPerSecond)

	want := sample()
	want.Version, want.NotReady = "1.2.3", "standby"
	want.Stream.Activity = StreamActivity{Rounds: 1, Transactions: 2, Changes: 9}
	want.Views[0].Activity = ViewActivity{RowsWritten: 8}
	require.Empty(t, cmp.Diff(want, got,
		cmpopts.IgnoreFields(Status{}, "At"),
		cmpopts.IgnoreFields(StreamActivity{}, "RoundsPerSecond", "TransactionsPerSecond", "ChangesPerSecond"),
		cmpopts.IgnoreFields(ViewActivity{}, "RowsPerSecond")))
	require.Empty(t, cmp.Diff(sample(), given), "the daemon's own snapshot was changed")
}

// TestStatusFieldsAreStable lists the names that users' tools read.
func TestStatusFieldsAreStable(t *testing.T) {
	t.Parallel()
	handler := New("test").Handler(Pages{Status: func(context.Context) Status { return sample() }})
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(bodyAt(t, handler, "/api/status")), &got))
	first := func(list string) any { return got[list].([]any)[0] }
	for _, tc := range []struct {
		name   string
		object any
		want   string
	}{
		{"status", got, "at not_ready ready refused slot stream version views"},
		{
			"stream", got["stream"], "activity applied_lsn lag_bytes lag_seconds last_round_at " +
				"pending_bytes pending_transactions problem state",
		},
		{"slot", got["slot"], "confirmed_lsn name retained_bytes wal_status"},
		{
			"view", first("views"), "activity age_seconds as_of as_of_lsn coarsened collisions fill_ratio name " +
				"non_deterministic problem rows state strategy",
		},
		{"refused", first("refused"), "code construct reason suggestion view"},
	} {
		require.Equal(t, tc.want, strings.Join(keysOf(tc.object), " "), tc.name)
	}
}

func TestEmptyStatus(t *testing.T) {
	t.Parallel()
	body := bodyAt(t, New("test").Handler(Pages{}), "/api/status")
	require.Contains(t, body, `"views": []`)
	require.Contains(t, body, `"refused": []`)
	require.Contains(t, body, `"not_ready": "starting"`)
	require.Contains(t, body, `"retained_bytes": null`)
}

func TestUnprintableStatusIsAnErrorThatTellsNothing(t *testing.T) {
	t.Parallel()
	log, lines := recordedLog()
	handler := New("test").Handler(Pages{
		Status: func(context.Context) Status { return Status{Stream: Stream{LagSeconds: math.NaN()}} },
		Log:    log,
	})
	for _, path := range []string{"/", "/api/status"} {
		response := ask(t, handler, http.MethodGet, path)
		require.Equal(t, http.StatusInternalServerError, response.Code, path)
		require.NotContains(t, response.Body.String(), "NaN")
	}
	require.Equal(t, 2, strings.Count(lines.String(), "NaN"), "logged, once each")
}
