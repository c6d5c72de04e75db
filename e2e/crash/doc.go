// Package crash kills the daemon and its server at random moments while a workload runs, and asks whether anything was
// lost or counted twice.
//
// The daemon runs in a process of its own, since only a process can be killed: the test binary again, of which
// TestDaemonProcess then is the daemon. It compares every view with its body in every round, and tells its parent on
// standard output what happens. Views must go on from where they were: a reconcile would hide a gap.
package crash
