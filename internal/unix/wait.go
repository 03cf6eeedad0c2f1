package unix

import "golang.org/x/sys/unix"

// WaitStatus is the status of a child or tracee.
type WaitStatus = unix.WaitStatus

// WaitTracee asks, without blocking, for a change of state of one tracee or
// child of the calling thread, or of any when tid is -1. It returns 0 when there
// is none to report.
//
// Other threads' children are left alone (__WNOTHREAD), so that a library in the
// same process does not lose the exit status of a child of its own.
func WaitTracee(tid int) (int, WaitStatus, error) {
	var ws WaitStatus
	for {
		n, err := unix.Wait4(tid, &ws, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil)
		if err != unix.EINTR {
			return n, ws, err
		}
	}
}

// WaitChild asks, without blocking, for the exit of a child of this process.
func WaitChild(pid int) (int, WaitStatus, error) {
	var ws WaitStatus
	n, err := unix.Wait4(pid, &ws, unix.WNOHANG|unix.WALL, nil)
	return n, ws, err
}
