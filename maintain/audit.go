package maintain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// auditor verifies views while rounds go on, one at a time: those that somebody asked
// for, and with [Options].VerifyEvery one after the other. See verify.go for how.
type auditor struct {
	queue    []auditJob
	job      auditJob
	imported string    // the snapshot that the next round imports; empty: no job waits for a round
	body     *pgx.Conn // session V
	attempts int
	last     time.Time // when the last continuous job began
	next     int       // index of the next view of the continuous audit
	done     chan audited
	cancel   context.CancelFunc // of the comparison that done is for
}

// auditJob asks for one view; request is 0 for the continuous audit.
type auditJob struct {
	view    *view
	request int64
}

type audited struct {
	job     auditJob
	verdict Verdict
	err     error
}

// auditAttempts is how many rounds a job waits for one that commits.
const auditAttempts = 20

func (a *auditor) ask(v *view, request int64) {
	job := auditJob{view: v, request: request}
	if a.job != job && !slices.Contains(a.queue, job) {
		a.queue = append(a.queue, job)
	}
}

// step goes on with what is possible between rounds.
func (a *auditor) step(ctx context.Context, e *Engine, now time.Time) error {
	if a.done != nil {
		select {
		case res := <-a.done:
			a.done = nil
			a.close(ctx)
			return e.audited(ctx, res)
		default:
			return nil
		}
	}
	if a.imported != "" {
		if a.attempts++; a.attempts <= auditAttempts {
			return nil
		}
		job := a.job
		a.close(ctx)
		return e.audited(ctx, audited{job: job, verdict: Verdict{View: job.view.name, Skipped: "no round with its snapshot committed; try again"}})
	}
	if !a.pick(e, now) {
		return nil
	}
	if err := a.begin(ctx, e); err != nil {
		job := a.job
		a.close(ctx)
		return e.audited(ctx, audited{job: job, err: err})
	}
	return nil
}

// pick takes the next job.
func (a *auditor) pick(e *Engine, now time.Time) bool {
	if len(a.queue) > 0 {
		a.job, a.queue = a.queue[0], a.queue[1:]
		return true
	}
	if e.o.VerifyEvery <= 0 || len(e.views) == 0 || now.Sub(a.last) < e.o.VerifyEvery {
		return false
	}
	a.last = now
	for range e.views {
		a.next = (a.next + 1) % len(e.views)
		if v := e.views[a.next]; v.state == Live && !v.plan.Nondeterministic {
			a.job = auditJob{view: v}
			return true
		}
	}
	return false
}

// begin opens session V: it locks what the next round may read, then exports its
// snapshot, so that the round which imports it finds nothing truncated or rewritten.
func (a *auditor) begin(ctx context.Context, e *Engine) error {
	v := a.job.view
	if why := v.notComparable(); why != "" {
		return fmt.Errorf("%w: %s", errNotCompared, why)
	}
	conn, err := e.o.Connect(ctx, "verify")
	if err != nil {
		return err
	}
	a.body = conn
	set := map[uint32]table{}
	for _, x := range e.views {
		for i := range x.plan.Sources {
			if s := &x.plan.Sources[i]; !s.Producer {
				set[s.OID] = table{oid: s.OID, name: pgx.Identifier{s.Schema, s.Name}}
			}
		}
	}
	var sql strings.Builder
	fmt.Fprintf(&sql, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL lock_timeout = %d; SET LOCAL statement_timeout = %d;",
		verifyLockTimeout.Milliseconds(), verifyStatementTimeout.Milliseconds())
	for _, t := range sortedTables(set) {
		fmt.Fprintf(&sql, "LOCK TABLE %s IN ACCESS SHARE MODE;", t.name.Sanitize())
	}
	sql.WriteString("SELECT pg_catalog.pg_export_snapshot()")
	results, err := conn.PgConn().Exec(ctx, sql.String()).ReadAll()
	if err != nil {
		return fmt.Errorf("take the snapshot at which %s is compared: %w", v.name, err)
	}
	a.imported, a.attempts = string(results[len(results)-1].Rows[0][0]), 0
	v.next = time.Time{} // a slow view moves in that round, too
	return nil
}

// notComparable says why a view cannot be verified now, or "".
func (v *view) notComparable() string {
	switch {
	case v.plan.Nondeterministic:
		return "its body is not deterministic, which the configuration allows"
	case v.state != Live:
		return "it is " + string(v.state)
	case len(v.producers) > 0 && len(v.producers) < len(v.plan.Sources) && v.plan.Inlined == "":
		return "it reads views and tables together"
	}
	return ""
}

// roundCommitted opens session W before any later round, and compares in the
// background.
func (a *auditor) roundCommitted(ctx context.Context, r *round) {
	if a.imported == "" || a.body == nil {
		return
	}
	a.imported = ""
	e, job, body := r.e, a.job, a.body
	a.done = make(chan audited, 1)
	if !r.moving[job.view] {
		a.done <- audited{job: job, verdict: Verdict{View: job.view.name, Skipped: "it sat the round out"}}
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verifyStatementTimeout)
	conn, err := e.o.Connect(ctx, "verify")
	if err == nil {
		// Any query fixes the snapshot of W.
		_, err = conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1")
	}
	if err != nil {
		cancel()
		a.done <- audited{job: job, err: err}
		return
	}
	done := a.done
	c := comparison{plan: job.view.plan, body: body, table: conn, bodySQL: bodyOf(job.view)}
	if job.view.plan.Inlined == "" && len(job.view.producers) > 0 {
		c.body = conn // W sees the producers as they were at T; V saw them before
	}
	a.cancel = cancel
	stop := e.giveWay(ctx, body.PgConn().PID())
	go func() {
		defer cancel()
		verdict, err := c.run(ctx)
		stop()
		_ = conn.Close(ctx) // only read from
		done <- audited{job: job, verdict: verdict, err: err}
	}()
}

// bodyOf is a SELECT of the view's columns.
func bodyOf(v *view) string {
	if v.plan.Inlined != "" {
		return v.plan.Inlined
	}
	return v.plan.Body
}

// abandon gives up the job whose snapshot no round can import.
func (a *auditor) abandon(ctx context.Context, e *Engine, why error) {
	job := a.job
	a.close(ctx)
	if err := e.audited(ctx, audited{job: job, err: why}); err != nil {
		e.log.Warn("could not answer a request", "view", job.view.name, "err", redact(err)) // it is taken up again
	}
}

// stop ends a comparison that is under way.
func (a *auditor) stop(ctx context.Context) {
	if a.done != nil {
		if a.cancel != nil {
			a.cancel()
		}
		<-a.done
		a.done = nil
	}
	a.close(ctx)
}

// close ends session V; its transaction only read.
func (a *auditor) close(ctx context.Context) {
	if a.body != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = a.body.Close(ctx)
		a.body = nil
	}
	a.imported, a.job = "", auditJob{}
}

// audited reports what a verification found.
func (e *Engine) audited(ctx context.Context, res audited) error {
	v := res.job.view
	verdict := res.verdict
	if res.err != nil {
		verdict.Skipped = res.err.Error()
	}
	if verdict.Skipped == "" {
		e.observe.Verified(v.name, int(verdict.Differing))
		level := slog.LevelInfo
		if verdict.Differing > 0 {
			level = slog.LevelError
		}
		e.log.Log(ctx, level, "view compared with its body", "view", v.name, "rows", verdict.Rows, "differing_rows", verdict.Differing)
	}
	if res.job.request == 0 {
		if res.err != nil && !errors.Is(res.err, errNotCompared) {
			e.log.Warn("a view could not be compared with its body", "view", v.name, "err", redact(res.err))
		}
		return nil
	}
	if verdict.Skipped != "" {
		return e.host.FinishRequest(ctx, e.side, res.job.request, 0, verdict.Skipped)
	}
	return e.host.FinishVerify(ctx, e.side, res.job.request, verdict.Differing, strings.Join(verdict.Sample, "\n"))
}
