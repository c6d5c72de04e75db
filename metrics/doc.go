// Package metrics shows what mvsync does: Prometheus collectors, and the
// read-only HTTP pages (/metrics, /healthz, /readyz, / and /api/status).
//
// It observes and never decides. Nothing here is asked by the parts that do the
// work; they call a *[Metrics] through small observer interfaces which they
// declare themselves, and hand over snapshots of their state through the
// functions in [Pages] and [Metrics.SetLive]. The package imports none of them.
//
// Three rules hold everywhere:
//
//   - No label grows with data. Label values are declared views, published
//     tables, strategies, or words from a fixed list; a reason outside its list
//     is counted as "other".
//   - A series exists before its first event. Counters over a fixed list start
//     at 0; those of a view start at 0 when it is declared and vanish when it is
//     forgotten, and an observation that comes later does not bring them back.
//   - No secret and no row value reaches a page or a metric (INV-12). The types
//     here have no place for one, and the callers' texts must not carry any.
//
// All methods of [Metrics] are safe for concurrent use, do not block on I/O and
// do not retain their arguments.
package metrics
