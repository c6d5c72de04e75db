package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is who the server runs as.
type account struct {
	name string
	// cred is nil where the server runs as the user of this process.
	cred *syscall.Credential
}

// serverAccount returns this process's own user, or for root, under whom Postgres refuses to run, the first
// unprivileged one that exists.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr != nil || gidErr != nil || uid == 0 {
			continue
		}
		return account{name: name, cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return account{}, errors.New("choose a user for the server: Postgres does not run as root, and neither user postgres nor user nobody exists; create one")
}

// reach checks that the account may enter dir, which matters only where it is not this process's own.
func (a account) reach(dir string) error {
	if a.cred == nil {
		return nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for p := abs; ; p = filepath.Dir(p) {
		info, err := os.Stat(p)
		if err != nil {
			return err
		}
		if !a.mayEnter(info) {
			return fmt.Errorf("user %s, under whom the server runs, may not enter %s: chmod o+x it, or use another folder", a.name, p)
		}
		if p == filepath.Dir(p) {
			return nil
		}
	}
}

func (a account) mayEnter(info os.FileInfo) bool {
	perm := info.Mode().Perm()
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case ok && st.Uid == a.cred.Uid:
		return perm&0o100 != 0
	case ok && st.Gid == a.cred.Gid:
		return perm&0o010 != 0
	default:
		return perm&0o001 != 0
	}
}

// own gives path to the account.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	return os.Chown(path, int(a.cred.Uid), int(a.cred.Gid))
}
