package pgserver

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// parentDeathSignal: the kernel ends the server when its owner dies.
const parentDeathSignal = true

// sysProcAttr puts a child in a process group of its own, under the account, and has the kernel send it sig when this
// process dies.
func sysProcAttr(acct account, sig syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: acct.cred, Pdeathsig: sig}
}

// commandLine returns the words of a running process, or "".
func commandLine(pid int) string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
}

// procStat returns state and parent of a process; false if there is none.
func procStat(pid int) (state string, parent int, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, false
	}
	// The name in the second field may hold blanks and parentheses: the rest begins behind the last parenthesis.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return "", 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err == nil
}

// alive says whether the process runs. A zombie does not: it holds no memory, and its parent may never reap it.
func alive(pid int) bool {
	state, _, ok := procStat(pid)
	return ok && state != "Z" && state != "X"
}

// children returns the direct children of a process. Each backend leads a session of its own, so the process group
// does not reach them.
func children(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if _, parent, ok := procStat(child); ok && parent == pid {
			pids = append(pids, child)
		}
	}
	return pids
}

// removeSharedMemory removes the System V segment that a killed server left, if its key still names that segment.
func removeSharedMemory(data string) {
	p := readPidFile(data)
	if !p.sharedRecorded {
		return
	}
	id, _, errno := syscall.Syscall(syscall.SYS_SHMGET, uintptr(p.shmKey), 0, 0)
	if errno != 0 || int(id) != p.shmID {
		return
	}
	const ipcRmid = 0
	// An error means that it is gone or another user's: nothing to remove in either case.
	_, _, _ = syscall.Syscall(syscall.SYS_SHMCTL, id, ipcRmid, 0)
}
