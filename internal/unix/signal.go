package unix

import "golang.org/x/sys/unix"

// Kill sends a signal to a process.
func Kill(pid, sig int) error { return unix.Kill(pid, unix.Signal(sig)) }

// Tgkill sends a signal to one thread of a process.
func Tgkill(pid, tid, sig int) error { return unix.Tgkill(pid, tid, unix.Signal(sig)) }
