package proc

import (
	"bytes"
	"os"

	"trapless/internal/unix"
)

// Sharers lists the other processes that share the address space of a process:
// children of vfork(2) that have not called execve yet, and those made by
// clone(2) with CLONE_VM but without CLONE_THREAD. Processes that we may not
// compare are left out; they belong to somebody else.
func Sharers(pid int) ([]int, error) {
	live, err := LiveThread(pid)
	if err != nil {
		return nil, err
	}
	all, err := Processes()
	if err != nil {
		return nil, err
	}
	var out []int
	for _, p := range all {
		if p == pid {
			continue
		}
		if same, err := unix.SameMemory(live, p); err == nil && same && HasMemory(p) {
			out = append(out, p)
		}
	}
	return out, nil
}

// Apart is a process that shares the address space of another one, but has signal
// actions of its own, 0 if there is none. Children of vfork(2) do not count: they are gone
// in a moment.
func Apart(pid int) (int, error) {
	all, err := Sharers(pid)
	if err != nil {
		return 0, err
	}
	for _, other := range all {
		live, err := LiveThread(pid)
		if err != nil {
			return 0, err
		}
		handlers, err := unix.SameHandlers(live, other)
		if err != nil || handlers {
			continue
		}
		if st, err := ReadStat(other, other); err != nil || st.PPid == pid && AwaitsVfork(pid) {
			continue
		}
		if same, err := unix.SameMemory(live, other); err == nil && same { // it has not called execve meanwhile
			return other, nil
		}
	}
	return 0, nil
}

// HasMemory reports whether a process has an address space: threads of the
// kernel, zombies and processes that are about to be have none, and so all seem
// to share it.
func HasMemory(pid int) bool {
	b, err := os.ReadFile(Path(pid, "statm"))
	return err == nil && !bytes.HasPrefix(b, []byte("0 "))
}

// Numbers of system calls that make a child (arch/x86/entry/syscalls/syscall_64.tbl).
const (
	sysClone  = 56
	sysVfork  = 58
	sysClone3 = 435
)

// AwaitsVfork reports whether a thread of the process sleeps until its vfork
// child is gone. Such a thread does not stop for a tracer, and its child runs in
// its stead.
func AwaitsVfork(pid int) bool {
	tids, _ := Threads(pid)
	for _, tid := range tids {
		st, err := ReadStat(pid, tid)
		if err != nil || st.State != Disk {
			continue
		}
		switch nr, ok := CurrentCall(pid, tid); {
		case ok && (nr == sysVfork || nr == sysClone || nr == sysClone3):
			return true
		}
	}
	return false
}
