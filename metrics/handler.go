package metrics

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// askTimeout bounds how long a page waits for the daemon's answer.
	askTimeout = 5 * time.Second
	// maxScrapes bounds concurrent scrapes; more of them get 503.
	maxScrapes = 8
)

// Pages are the questions that the HTTP pages ask the daemon. The functions
// must be safe for concurrent use and return soon after their context ends.
type Pages struct {
	// Status takes a snapshot for the status page. Nil shows an empty status.
	Status func(context.Context) Status
	// Ready returns nil if views can be relied on, else the reason in one line,
	// such as standby. Nil means that the daemon is still starting.
	Ready func(context.Context) error
	// Healthy returns nil if the process works, else the reason in one line.
	// Nil means that answering is proof enough.
	Healthy func(context.Context) error
	// Log receives what goes wrong while serving. Nil discards it.
	Log *slog.Logger
}

// pages serves Pages together with what the collectors know.
type pages struct {
	Pages
	metrics *Metrics
}

// errStarting is why a daemon that has not said anything yet is not ready.
var errStarting = errors.New("starting")

// Handler returns the read-only pages: /metrics, /healthz, /readyz, / and
// /api/status. Other methods than GET and HEAD get 405.
func (m *Metrics) Handler(p Pages) http.Handler {
	p.Log = cmp.Or(p.Log, slog.New(slog.DiscardHandler))
	s := pages{Pages: p, metrics: m}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(p.Log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // one broken collector must not hide the others
		MaxRequestsInFlight: maxScrapes,
	}))
	mux.HandleFunc("/healthz", s.healthz)
	mux.HandleFunc("/readyz", s.readyz)
	mux.HandleFunc("/api/status", s.status)
	mux.HandleFunc("/{$}", s.index)
	return readOnly(secured(mux))
}

// readOnly refuses every method that could be meant to change something, on
// every path.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "read-only: use GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// secured sets the headers that keep a browser from doing anything with the
// answers but showing them. The page widens the content policy for itself.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		next.ServeHTTP(w, r)
	})
}

func (p pages) healthz(w http.ResponseWriter, r *http.Request) {
	var err error
	if p.Healthy != nil {
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		err = p.Healthy(ctx)
	}
	answer(w, "ok", err)
}

func (p pages) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	answer(w, "ready", p.ready(ctx))
}

func (p pages) ready(ctx context.Context) error {
	if p.Ready == nil {
		return errStarting
	}
	return p.Ready(ctx)
}

// answer writes the fine word, or 503 with the reason, as one line of text.
func answer(w http.ResponseWriter, fine string, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fine = err.Error()
	}
	// A client that went away is no concern of ours.
	_, _ = w.Write([]byte(fine + "\n"))
}

func (p pages) status(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(p.take(r.Context())); err != nil {
		p.broken(w, "encode status", err)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write(body.Bytes())
}

func (p pages) index(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	if err := page.render(&body, p.take(r.Context())); err != nil {
		p.broken(w, "render status page", err)
		return
	}
	w.Header().Set("Content-Security-Policy", page.policy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(body.Bytes())
}

// broken logs why a page cannot be made and tells the client no more than that.
func (p pages) broken(w http.ResponseWriter, doing string, err error) {
	p.Log.Error("page cannot be made", "err", err, "doing", doing)
	http.Error(w, doing+": internal error; see the log", http.StatusInternalServerError)
}

// take asks for the status and adds what the server and the collectors know.
func (p pages) take(ctx context.Context) Status {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()

	var status Status
	if p.Status != nil {
		status = p.Status(ctx)
	}
	status.Version = p.metrics.version
	status.At = time.Now()
	status.Ready = true
	if err := p.ready(ctx); err != nil {
		status.Ready, status.NotReady = false, err.Error()
	}
	status.Stream.Activity = p.metrics.StreamActivity()
	// Copies: the caller may hand out the same slice to several requests. And
	// never nil, since tools want [] and not null.
	status.Views = append([]ViewStatus{}, status.Views...)
	status.Refused = append([]Refused{}, status.Refused...)
	for i := range status.Views {
		status.Views[i].Activity = p.metrics.ViewActivity(status.Views[i].Name)
	}
	return status
}
