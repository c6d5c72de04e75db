package ingest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Snapshot is a pg_snapshot: which transactions are visible. Ids are full 64-bit
// ids (with epoch). The zero Snapshot contains nothing.
type Snapshot struct {
	Xmin uint64   // every id below it has ended
	Xmax uint64   // every id from it on had not been completed
	Xip  []uint64 // ids in [Xmin, Xmax) that were running, ascending
}

// ParseSnapshot reads the text form of pg_snapshot, xmin:xmax:xip,xip.
func ParseSnapshot(s string) (Snapshot, error) {
	bad := func() (Snapshot, error) {
		return Snapshot{}, fmt.Errorf("parse snapshot %q: want xmin:xmax:xip_list", s)
	}
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return bad()
	}
	var out Snapshot
	var err error
	if out.Xmin, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return bad()
	}
	if out.Xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return bad()
	}
	if parts[2] == "" {
		return out, nil
	}
	for _, p := range strings.Split(parts[2], ",") {
		x, err := strconv.ParseUint(p, 10, 64)
		if err != nil {
			return bad()
		}
		out.Xip = append(out.Xip, x)
	}
	slices.Sort(out.Xip)
	return out, nil
}

// String returns the text form of pg_snapshot.
func (s Snapshot) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d:%d:", s.Xmin, s.Xmax)
	for i, x := range s.Xip {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(x, 10))
	}
	return b.String()
}

// IsZero reports whether the snapshot was never taken.
func (s Snapshot) IsZero() bool { return s.Xmax == 0 }

// Contains reports whether a transaction that is known to have committed is
// visible in the snapshot.
func (s Snapshot) Contains(xid uint64) bool {
	if xid < s.Xmin {
		return true
	}
	if xid >= s.Xmax {
		return false
	}
	_, running := slices.BinarySearch(s.Xip, xid)
	return !running
}

// Covers reports whether everything visible in p is visible in s as well, which
// is what a waiter with snapshot p asks of a view's as-of s. It may say no where
// the answer is yes, never the reverse.
func (s Snapshot) Covers(p Snapshot) bool {
	if p.Xmax > s.Xmax {
		return false
	}
	for _, x := range s.Xip {
		if x >= p.Xmax {
			break
		}
		if x < p.Xmin {
			return false
		}
		if _, running := slices.BinarySearch(p.Xip, x); !running {
			return false
		}
	}
	return true
}

// Widen returns the full id of the 32-bit xid of a transaction that is near the
// snapshot. The distance is signed: a transaction later than the snapshot may
// have passed the epoch's end already, so widening by the snapshot's epoch would
// make it an ancient, visible one. A replication slot's catalog_xmin keeps both
// sides of the window below 2^31.
func (s Snapshot) Widen(xid uint32) uint64 {
	return s.Xmax + uint64(int64(int32(xid-uint32(s.Xmax))))
}
