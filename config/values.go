package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// valueError says why a text is not a value of its type. The decoder adds the
// place.
type valueError struct {
	message, hint string
	// detail goes on after the message, and quotes a part of the value.
	detail string
}

func (e *valueError) Error() string {
	if e.hint == "" {
		return e.message + e.detail
	}
	return e.message + e.detail + "; hint: " + e.hint
}

// wrong makes a valueError that does not quote the value.
func wrong(message, hint string) error {
	return &valueError{message: message, hint: hint}
}

// Duration is a length of time, written like 10s, 1m30s or 250ms.
type Duration time.Duration

// Std returns the duration as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes the duration in the form that UnmarshalText reads, without
// zero parts: 1m rather than 1m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes the duration as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a duration that is not negative.
func (d *Duration) UnmarshalText(text []byte) error {
	s := string(text)
	if _, err := strconv.ParseFloat(s, 64); err == nil && s != "0" {
		return wrong("a duration needs a unit", "write it like 10s, 5m or 1h30m")
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return wrong("not a duration", "write it like 10s, 5m or 1h30m")
	}
	if v < 0 {
		return wrong("a duration cannot be negative", "write it like 10s, 5m or 1h30m")
	}
	*d = Duration(v)
	return nil
}

// ByteSize is an amount of memory in bytes, written like 256MiB.
type ByteSize int64

// Units of [ByteSize]. The ones with an i are powers of 1024, the others of
// 1000.
const (
	KiB ByteSize = 1 << 10
	MiB ByteSize = 1 << 20
	GiB ByteSize = 1 << 30
	KB  ByteSize = 1e3
	MB  ByteSize = 1e6
	GB  ByteSize = 1e9
)

var byteUnits = []struct {
	suffix string
	size   ByteSize
}{
	{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"GB", GB}, {"MB", MB}, {"kB", KB}, {"B", 1}, {"", 1},
}

// String writes the size in the largest unit that divides it.
func (b ByteSize) String() string {
	for _, u := range byteUnits {
		if u.size > 1 && b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText writes the size as String does.
func (b ByteSize) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads a whole number with or without a unit.
func (b *ByteSize) UnmarshalText(text []byte) error {
	const hint = "write it like 256MiB (units: B, kB, MB, GB, KiB, MiB, GiB)"
	s := string(text)
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	number, unit := s[:digits], strings.TrimLeft(s[digits:], " ")
	if number == "" {
		return wrong("not a size", hint)
	}
	for _, u := range byteUnits {
		if u.suffix != unit {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n > math.MaxInt64/int64(u.size) {
			return wrong("a size of more than 8 EiB", hint)
		}
		*b = ByteSize(n) * u.size
		return nil
	}
	for _, u := range byteUnits {
		if strings.EqualFold(u.suffix, unit) {
			return wrong("unknown unit", "did you mean "+u.suffix+"?")
		}
	}
	return wrong("unknown unit", hint)
}

// Switch is a setting that is on or off.
type Switch bool

// The two positions of a [Switch].
const (
	On  Switch = true
	Off Switch = false
)

// String gives on or off.
func (s Switch) String() string {
	if s {
		return "on"
	}
	return "off"
}

// MarshalText writes the switch as String does.
func (s Switch) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads on or off; YAML's true and false are as good.
func (s *Switch) UnmarshalText(text []byte) error {
	switch string(text) {
	case "on", "true":
		*s = On
	case "off", "false":
		*s = Off
	default:
		return wrong("must be on or off", didYouMean(string(text), []string{"on", "off"}))
	}
	return nil
}

// ReplicaIdentity says who sets the replica identity of source tables.
type ReplicaIdentity string

// What [Source.ReplicaIdentity] can be.
const (
	// ReplicaIdentityRequire never alters a source: the view is refused and
	// the message says what to run.
	ReplicaIdentityRequire ReplicaIdentity = "require"
	// ReplicaIdentityManage sets REPLICA IDENTITY FULL where it is needed.
	ReplicaIdentityManage ReplicaIdentity = "manage"
)

func (ReplicaIdentity) values() []string { return []string{"require", "manage"} }

// OnGap says what to do when changes were lost.
type OnGap string

// What [Source.OnGap] can be.
const (
	// OnGapReconcile makes a new slot and reconciles every view.
	OnGapReconcile OnGap = "reconcile"
	// OnGapHalt stops with an error.
	OnGapHalt OnGap = "halt"
)

func (OnGap) values() []string { return []string{"reconcile", "halt"} }

// Feed says where a table's changes come from. The zero value is the
// replication stream.
type Feed string

// FeedExternal marks a table whose changes are reported with mvsync ingest.
const FeedExternal Feed = "external"

func (Feed) values() []string { return []string{"external"} }

// Provision says what to do where database and configuration differ.
type Provision string

// What [Config.Provision] can be.
const (
	// ProvisionApply creates and alters what is needed.
	ProvisionApply Provision = "apply"
	// ProvisionVerify creates nothing, and refuses to run on a difference.
	ProvisionVerify Provision = "verify"
)

func (Provision) values() []string { return []string{"apply", "verify"} }

// Nondeterministic says what happens to a body that is not reproducible.
type Nondeterministic string

// What [View.Nondeterministic] can be.
const (
	// NondeterministicReject refuses the view.
	NondeterministicReject Nondeterministic = "reject"
	// NondeterministicAllow accepts it, exempt from verify.
	NondeterministicAllow Nondeterministic = "allow"
)

func (Nondeterministic) values() []string { return []string{"reject", "allow"} }

// ColdRead says what readers see while a view is first filled.
type ColdRead string

// What [View.ColdRead] can be.
const (
	// ColdReadNone means that the name does not exist yet.
	ColdReadNone ColdRead = "none"
	// ColdReadThrough means a plain view over the sources.
	ColdReadThrough ColdRead = "read_through"
)

func (ColdRead) values() []string { return []string{"none", "read_through"} }

// enum is a string type with a fixed set of values.
type enum interface{ values() []string }

func checkEnum(e enum, text string) error {
	values := e.values()
	for _, v := range values {
		if v == text {
			return nil
		}
	}
	want := "must be " + values[0]
	if len(values) > 1 {
		want = fmt.Sprintf("must be %s or %s", strings.Join(values[:len(values)-1], ", "), values[len(values)-1])
	}
	return wrong(want, didYouMean(text, values))
}
