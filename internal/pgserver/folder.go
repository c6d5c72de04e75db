package pgserver

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// folderPrefix begins the name of each server's folder.
const folderPrefix = "mvsync-pg-"

// folder is a server's own folder. Its lock tells a living owner from one that is gone: the kernel drops it with the
// process, while a recorded process id may have been given to somebody else.
type folder struct {
	path string
	lock *os.File
}

func (f *folder) data() string { return filepath.Join(f.path, "data") }

// newFolder makes a locked folder for the account in parent, or in the default place if parent is empty.
func newFolder(parent string, acct account) (*folder, error) {
	if parent == "" {
		parent = os.TempDir()
		if acct.reach(parent) != nil {
			parent = "/tmp" // a private TMPDIR of root is no place for a server that runs as somebody else
		}
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, fmt.Errorf("make a folder for the server: %w", err)
	}
	if err := acct.reach(parent); err != nil {
		return nil, fmt.Errorf("make a folder for the server: %w", err)
	}
	sweep(parent)
	// A sweep elsewhere may lock a new folder before its maker does, and remove it: then it is made again.
	for range 10 {
		path, err := os.MkdirTemp(parent, folderPrefix)
		if err != nil {
			return nil, fmt.Errorf("make a folder for the server: %w", err)
		}
		lock, err := lockFolder(path)
		if err != nil {
			continue
		}
		f := &folder{path: path, lock: lock}
		if err := acct.own(path); err != nil {
			return nil, errors.Join(fmt.Errorf("give the server's folder to user %s: %w", acct.name, err), f.remove())
		}
		return f, nil
	}
	return nil, fmt.Errorf("make a folder for the server in %s: no new folder could be locked; does the file system support flock?", parent)
}

// lockFolder locks the folder without waiting, and fails if it is gone once it is locked.
func lockFolder(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		_, err = os.Lstat(path)
	}
	if err != nil {
		return nil, cmp.Or(err, f.Close())
	}
	return f, nil
}

// remove deletes the folder and what a crashed server left of itself in the kernel, then gives up the lock.
func (f *folder) remove() error {
	removeSharedMemory(f.data())
	err := os.RemoveAll(f.path)
	return errors.Join(err, f.lock.Close())
}

// sweep removes the folders in parent whose owners are gone. What it may not touch belongs to other users and stays.
func sweep(parent string) {
	paths, err := filepath.Glob(filepath.Join(parent, folderPrefix+"*"))
	if err != nil {
		return // the pattern is at fault: nothing to sweep under such a name
	}
	for _, path := range paths {
		lock, err := lockFolder(path)
		if err != nil {
			continue
		}
		f := &folder{path: path, lock: lock}
		stopOrphan(f.data())
		_ = f.remove() // another user's folder, or the next sweep's
	}
}

// stopOrphan ends the server that runs on the data folder of an owner who is gone.
func stopOrphan(data string) {
	pid := readPidFile(data).pid
	if pid <= 0 || !strings.Contains(commandLine(pid), data) {
		return
	}
	if syscall.Kill(pid, syscall.SIGQUIT) == nil {
		awaitGone([]int{pid}, 10*time.Second)
	}
}

// pidFile is what postmaster.pid says.
type pidFile struct {
	pid            int
	shmKey, shmID  int // System V segment; 0 if none is recorded
	status         string
	sharedRecorded bool
}

// readPidFile reads the data folder's postmaster.pid; the zero value where there is none. The server writes it line by
// line while it starts, the status last.
func readPidFile(data string) pidFile {
	content, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return pidFile{}
	}
	var p pidFile
	for i, line := range bytes.Split(content, []byte("\n")) {
		fields := strings.Fields(string(line))
		switch {
		case i == 0 && len(fields) == 1:
			p.pid, _ = strconv.Atoi(fields[0]) // 0, no process, where the line is not yet complete
		case i == 6 && len(fields) == 2:
			key, keyErr := strconv.Atoi(fields[0])
			id, idErr := strconv.Atoi(fields[1])
			p.shmKey, p.shmID, p.sharedRecorded = key, id, keyErr == nil && idErr == nil
		case i == 7 && len(fields) == 1:
			p.status = fields[0]
		}
	}
	return p
}
