package plans

import (
	"fmt"
	"strings"
)

// Code says why a view is refused.
type Code string

// The codes of refusals.
const (
	NonDeterministic   Code = "non_deterministic"
	NoKey              Code = "no_key"
	NoRelation         Code = "no_relation"
	NoSource           Code = "no_source"
	RebuildTooLarge    Code = "rebuild_too_large"
	UnstreamableSource Code = "unstreamable_source"
	RowSecurity        Code = "row_security"
	ReplicaIdentity    Code = "replica_identity"
	SelfReference      Code = "self_reference"
	Cycle              Code = "cycle"
	Invalid            Code = "invalid"
)

// Refusal is the answer to a body that cannot be kept: what in it, why, and
// what to do instead.
type Refusal struct {
	Code       Code   `json:"code"`
	Construct  string `json:"construct"`
	Reason     string `json:"reason"`
	Suggestion string `json:"suggestion"`
	// Position is the byte offset in the declared query, -1 where unknown.
	Position int `json:"position"`
}

// Error implements error: code: construct: reason; suggestion.
func (r *Refusal) Error() string {
	var b strings.Builder
	b.WriteString(string(r.Code))
	if r.Construct != "" {
		b.WriteString(": " + r.Construct)
	}
	b.WriteString(": " + r.Reason)
	if r.Suggestion != "" {
		b.WriteString("; " + r.Suggestion)
	}
	return b.String()
}

// refuse makes a refusal without a position.
func refuse(code Code, construct, reason, suggestion string) *Refusal {
	return &Refusal{Code: code, Construct: construct, Reason: reason, Suggestion: suggestion, Position: -1}
}

// refusef is refuse with a formatted reason.
func refusef(code Code, construct, suggestion, format string, args ...any) *Refusal {
	return refuse(code, construct, fmt.Sprintf(format, args...), suggestion)
}
