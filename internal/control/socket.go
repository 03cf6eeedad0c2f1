// Package control lets the user of a session ask for its probes and change them
// from another process, through a unix socket. Only the session's own user, and
// root, can open it: it lies in a directory that nobody else may enter, and each
// side checks who the other one is.
//
// A request and its answer are one line of JSON each. The package decides nothing:
// what it is asked it hands to the session.
package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// ErrNoSession: no session of ours is at work on the process.
var ErrNoSession = errors.New("no session of yours is at work on it")

// directories are where the socket may be, best first.
func directories() []string {
	var all []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		all = append(all, filepath.Join(dir, "trapless"))
	}
	return append(all, filepath.Join("/tmp", "trapless-"+strconv.Itoa(os.Getuid())))
}

// ours checks that a directory is one that only we may enter.
func ours(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() || st.Mode().Perm()&0o077 != 0 || st.Sys().(*syscall.Stat_t).Uid != uint32(os.Getuid()) {
		return fmt.Errorf("%s is not a directory of ours alone", dir)
	}
	return nil
}

func socketName(dir string, pid int) string {
	return filepath.Join(dir, strconv.Itoa(pid)+".sock")
}

// listen makes the socket of a process's session.
func listen(pid int) (*net.UnixListener, error) {
	var errs []error
	for _, dir := range directories() {
		l, err := listenIn(dir, pid)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func listenIn(dir string, pid int) (*net.UnixListener, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if err := ours(dir); err != nil {
		return nil, err
	}
	name := socketName(dir, pid)
	// A process has one session at a time, so one that is there was left by a
	// tracer that was killed.
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
}

// dial connects to the session of a process.
func dial(pid int) (*net.UnixConn, error) {
	for _, dir := range directories() {
		if ours(dir) != nil {
			continue
		}
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socketName(dir, pid), Net: "unix"})
		if err != nil {
			continue
		}
		if err := checkPeer(c); err != nil {
			c.Close()
			return nil, err
		}
		return c, nil
	}
	return nil, fmt.Errorf("process %d: %w", pid, ErrNoSession)
}

// checkPeer makes sure that the other side is ours, or root's.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if cerr != nil {
		return fmt.Errorf("SO_PEERCRED: %w", cerr)
	}
	if cred.Uid != 0 && cred.Uid != uint32(os.Getuid()) {
		return fmt.Errorf("the other side is user %d", cred.Uid)
	}
	return nil
}
