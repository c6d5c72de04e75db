//go:build unix && !linux

package pgserver

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// parentDeathSignal: only the next sweep ends a server whose owner was killed.
const parentDeathSignal = false

// sysProcAttr puts a child in a process group of its own, under the account. There is no parent-death signal here: the
// next sweep ends a server whose owner was killed.
func sysProcAttr(acct account, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: acct.cred}
}

// commandLine returns the words of a running process, or "".
func commandLine(pid int) string {
	out, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// alive says whether the process exists.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// children returns the direct children of a process. Each backend leads a session of its own, so the process group
// does not reach them.
func children(pid int) []int {
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	if err != nil {
		return nil
	}
	var pids []int
	for _, word := range strings.Fields(string(out)) {
		if child, err := strconv.Atoi(word); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// removeSharedMemory leaves the small segment of a killed server to the next start of the machine.
func removeSharedMemory(string) {}
