package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/mvsync/mvsync/backing"
	"github.com/mvsync/mvsync/replication"
)

func (c *cli) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		GroupID: "work",
		Short:   "Show each view, and the slot with what it retains",
		Long: `Show for each view its state, strategy, as-of, lag, rows and last error; the views that are refused; and
the replication slot with the WAL that it makes the server keep. It works with and without a daemon.`,
		Example: "  mvsync status\n  mvsync status --output json",
		Args:    none(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.status(cmd.Context()) },
	}
}

// report is what status prints.
type report struct {
	Daemon   reportDaemon    `json:"daemon"`
	Slot     reportSlot      `json:"slot"`
	Progress *reportProgress `json:"progress"`
	Views    []reportView    `json:"views"`
	Refused  []reportRefused `json:"refused"`
	// Pending are the views that are declared and not known to the daemon yet.
	Pending []string `json:"pending"`
}

type reportDaemon struct {
	Running bool  `json:"running"`
	Backend int32 `json:"backend,omitempty"`
}

type reportSlot struct {
	Name          string `json:"name"`
	Exists        bool   `json:"exists"`
	Active        bool   `json:"active"`
	WALStatus     string `json:"wal_status,omitempty"`
	RetainedBytes int64  `json:"retained_bytes"`
	LagBytes      int64  `json:"lag_bytes"`
}

type reportProgress struct {
	Snapshot string    `json:"snapshot"`
	LSN      string    `json:"lsn"`
	At       time.Time `json:"at"`
}

type reportView struct {
	View     string     `json:"view"`
	State    string     `json:"state"`
	Strategy string     `json:"strategy"`
	AsOf     *string    `json:"as_of"`
	AsOfTime *time.Time `json:"as_of_time"`
	// LagSeconds is 0 for a view that includes everything committed; null before its first fill.
	LagSeconds *float64 `json:"lag_seconds"`
	Rows       *int64   `json:"rows"`
	Estimated  bool     `json:"rows_estimated"`
	Collisions int64    `json:"collisions"`
	Error      string   `json:"error,omitempty"`
}

type reportRefused struct {
	View       string `json:"view"`
	Code       string `json:"code"`
	Construct  string `json:"construct"`
	Reason     string `json:"reason"`
	Suggestion string `json:"suggestion"`
}

func (c *cli) status(ctx context.Context) error {
	src, err := c.source()
	if err != nil {
		return err
	}
	r := &report{Views: []reportView{}, Refused: []reportRefused{}, Pending: []string{}}
	if err := src.do(ctx, "status", func(conn *pgxConn) error { return src.report(ctx, conn, r) }); err != nil {
		return err
	}
	if err := src.reportUnknown(ctx, r); err != nil {
		return err
	}
	if c.output == "json" {
		return c.printJSON(r)
	}
	r.print(c)
	return nil
}

// caughtUp is how long status waits for the views to show that they include everything. An idle daemon answers within
// 50 ms or so; one that does not is behind.
const caughtUp = 500 * time.Millisecond

func (s *source) report(ctx context.Context, conn *pgxConn, r *report) error {
	host := s.host(discard())
	r.Slot.Name = string(s.cfg.Source.Slot)
	slot, err := replication.Slot{Name: r.Slot.Name}.State(ctx, conn)
	if err != nil {
		return err
	}
	r.Slot.Exists, r.Slot.Active, r.Slot.WALStatus = slot.Exists, slot.ActivePID != 0, slot.WALStatus
	r.Slot.RetainedBytes, r.Slot.LagBytes = slot.RetainedBytes, slot.UnconfirmedBytes
	version, err := host.Version(ctx, conn)
	if err != nil || version == 0 {
		return err
	}
	if err := host.Ready(ctx, conn); err != nil {
		return err
	}
	if r.Daemon.Backend, err = host.Leader(ctx, conn); err != nil {
		return err
	}
	r.Daemon.Running = r.Daemon.Backend != 0
	reached := false
	if r.Daemon.Running {
		if err := waitFor(ctx, conn, host, caughtUp, nil, &reached); err != nil {
			return err
		}
	}
	progress, ok, err := host.ReadProgress(ctx, conn)
	if err != nil {
		return err
	}
	if ok {
		r.Progress = &reportProgress{Snapshot: progress.Snapshot.String(), LSN: progress.LSN.String(), At: progress.At}
	}
	return r.readViews(ctx, conn, host, reached)
}

// readViews reads the public view of the catalog. The lag of a view that includes everything committed is 0, whatever
// the age of its as-of.
func (r *report) readViews(ctx context.Context, conn *pgxConn, host *backing.Host, reached bool) error {
	rows, err := conn.Query(ctx, `SELECT name, state, strategy, as_of::text, as_of_time, COALESCE(error, ''), collisions,
		CASE WHEN state = 'live' AND $1 THEN 0
		     ELSE GREATEST(extract(epoch FROM pg_catalog.clock_timestamp() - as_of_time), 0)::float8 END
		FROM `+quoted(host.Catalog(), "views")+" ORDER BY name", reached)
	if err != nil {
		return fmt.Errorf("read the views: %w", err)
	}
	views, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v reportView, err error) {
		err = row.Scan(&v.View, &v.State, &v.Strategy, &v.AsOf, &v.AsOfTime, &v.Error, &v.Collisions, &v.LagSeconds)
		return v, err
	})
	if err != nil {
		return fmt.Errorf("read the views: %w", err)
	}
	for i := range views {
		if err := views[i].count(ctx, conn); err != nil {
			return err
		}
	}
	r.Views = append(r.Views, views...)
	return nil
}

// countBelow is the size in bytes up to which the rows of a table are counted. Above it the planner's estimate has to do.
const countBelow = 32 << 20

func (v *reportView) count(ctx context.Context, conn *pgxConn) error {
	var size *int64
	var estimate *float64
	err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_relation_size(c.oid), c.reltuples::float8 FROM pg_catalog.pg_class c
		WHERE c.oid = pg_catalog.to_regclass($1)`, v.View).Scan(&size, &estimate)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", v.View, err)
	}
	if size != nil && *size > countBelow && estimate != nil && *estimate >= 0 {
		n := int64(*estimate)
		v.Rows, v.Estimated = &n, true
		return nil
	}
	var n int64
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM "+v.View).Scan(&n); err != nil {
		return fmt.Errorf("count the rows of %s: %w", v.View, err)
	}
	v.Rows = &n
	return nil
}

// reportUnknown says what becomes of the declared views that the catalog does not know: refused, or waiting for a daemon
// that runs with this file.
func (s *source) reportUnknown(ctx context.Context, r *report) error {
	known := map[string]bool{}
	for _, v := range r.Views {
		known[v.View] = true
	}
	unknown := false
	for i := range s.cfg.Views {
		unknown = unknown || !known[s.cfg.Views[i].Name.String()]
	}
	if !unknown {
		return nil
	}
	verdicts, err := s.judge(ctx)
	if err != nil {
		return err
	}
	for _, v := range verdicts {
		name := v.view.Name.String()
		switch {
		case known[name]:
		case v.refusal != nil:
			r.Refused = append(r.Refused, reportRefused{
				View: name, Code: string(v.refusal.Code), Construct: v.refusal.Construct,
				Reason: v.refusal.Reason, Suggestion: v.refusal.Suggestion,
			})
		default:
			r.Pending = append(r.Pending, name)
		}
	}
	return nil
}

func (r *report) print(c *cli) {
	out, p := c.std.Out, c.colours(c.std.Out)
	daemon := p.in(yellow, "not running")
	if r.Daemon.Running {
		daemon = p.in(green, "running")
	}
	slot := p.in(yellow, "does not exist")
	if r.Slot.Exists {
		slot = fmt.Sprintf("keeps %s of WAL (%s), %s not confirmed", bytesText(r.Slot.RetainedBytes), r.Slot.WALStatus, bytesText(r.Slot.LagBytes))
		if r.Slot.WALStatus == "lost" {
			slot = p.in(red, "lost")
		}
	}
	fmt.Fprintf(out, "%s  %s\n", p.in(bold, "daemon"), daemon)
	fmt.Fprintf(out, "%s    %s: %s\n", p.in(bold, "slot"), r.Slot.Name, slot)
	if r.Progress != nil {
		fmt.Fprintf(out, "%s   snapshot %s, WAL %s, %s\n", p.in(bold, "round"), r.Progress.Snapshot, r.Progress.LSN,
			r.Progress.At.Format("2006-01-02 15:04:05.000 MST"))
	}
	if len(r.Views)+len(r.Refused)+len(r.Pending) == 0 {
		fmt.Fprintln(out, "\nno views")
		return
	}
	g := newGrid("VIEW", "STATE", "STRATEGY", "ROWS", "AS OF", "LAG", "ERROR").numbers(3, 5)
	for i := range r.Views {
		v := &r.Views[i]
		g.add(v.View, p.state(v.State), v.Strategy, v.rowsText(), v.asOfText(), v.lagText(), short(v.Error))
	}
	for _, v := range r.Refused {
		g.add(v.View, p.state("refused"), "-", "-", "-", "-", short(strings.Join([]string{v.Code, v.Reason, v.Suggestion}, ": ")))
	}
	for _, v := range r.Pending {
		g.add(v, p.in(yellow, "declared"), "-", "-", "-", "-", "the daemon has not taken it up yet")
	}
	fmt.Fprintln(out)
	g.print(out, p)
}

func (v *reportView) rowsText() string {
	switch {
	case v.Rows == nil:
		return "-"
	case v.Estimated:
		return "~" + countText(*v.Rows)
	}
	return countText(*v.Rows)
}

func (v *reportView) asOfText() string {
	if v.AsOfTime == nil {
		return "-"
	}
	return v.AsOfTime.Local().Format("15:04:05.000")
}

func (v *reportView) lagText() string {
	if v.LagSeconds == nil {
		return "-"
	}
	return agoText(time.Duration(*v.LagSeconds * float64(time.Second)))
}

// short keeps a table readable; the whole text is in the JSON and in mvsync.views.
func short(text string) string {
	const most = 100
	runes := []rune(oneLine(text))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// quoted is the name of an object of the catalog.
func quoted(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

// serverSays puts what a function of ours raised into one sentence with its hint.
func serverSays(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	if pg.Hint == "" {
		return &worded{fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code), err}
	}
	return &worded{pg.Message + "; " + strings.TrimSuffix(pg.Hint, "."), err}
}
