package metrics

import "slices"

// The values of the labels that have a fixed list. They are part of what
// dashboards and alerts rely on: add words, never rename them.
const other = "other"

var (
	// states are the states of a view, in the order in which pages list them.
	states = []string{"filling", "live", "paused", "stale", "failed"}

	// changeOps are the kinds of change that the stream delivers.
	changeOps = []string{"insert", "update", "delete", "truncate"}

	// writeOps are the kinds of write to a backing table.
	writeOps = []string{"insert", "update", "delete"}

	retryReasons   = []string{"barrier", "connection", "lock", "schema", "serialization", "view", other}
	rebuildReasons = []string{
		"create", "degrade", "gap", "image", "memory", "refresh", "resume", "retry", "schema", "strategy", "truncate", other,
	}
	gapReasons = []string{"ahead", "identity", "invalidated", "lost", "moved", "poison", "recreated", "timeline", other}
)

// RetryReasons returns the words that [Metrics.RoundRetried] tells apart:
//
//   - barrier: the walsender was too busy to reach the barrier in time
//   - connection: a connection was lost
//   - lock: a source could not be locked, or was found to be needed too late
//   - schema: the catalog changed while the round ran
//   - serialization: a serialization failure or a deadlock
//   - view: a view's statement failed, and the round is redone without it
//   - other: anything else
func RetryReasons() []string { return slices.Clone(retryReasons) }

// RebuildReasons returns the words that [Metrics.Rebuilt] tells apart:
//
//   - create: the view's first fill
//   - degrade: for this batch evaluating the body was cheaper
//   - gap: the stream has a gap
//   - image: a change came without the old image that the strategy needs
//   - memory: the pending work passed the memory budget
//   - refresh: somebody asked for it
//   - resume: the view was paused
//   - retry: the view was failed or stale
//   - schema: a source, or something else the body depends on, was altered
//   - strategy: the view's strategy is to rebuild
//   - truncate: a source was truncated
//   - other: anything else
func RebuildReasons() []string { return slices.Clone(rebuildReasons) }

// GapReasons returns the words that [Metrics.Gap] tells apart:
//
//   - ahead: the slot is ahead of the recorded progress
//   - identity: the server is another one (system identifier)
//   - invalidated: the server invalidated the slot
//   - lost: the slot is gone
//   - moved: somebody else advanced the slot
//   - poison: a transaction cannot be decoded, whatever the attempt
//   - recreated: the slot was dropped and created by somebody else
//   - timeline: the server is on another timeline (failover, restore)
//   - other: anything else
func GapReasons() []string { return slices.Clone(gapReasons) }

// bounded returns value if the list has it, and "other" if not, so that no
// caller can make a label grow.
func bounded(list []string, value string) string {
	if slices.Contains(list, value) {
		return value
	}
	return other
}
