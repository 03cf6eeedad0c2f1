package unix

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// WaitStatus is the status of a child or tracee.
type WaitStatus = unix.WaitStatus

const waitFlags = unix.WNOHANG | unix.WALL | unix.WNOTHREAD

// WaitTracee asks, without blocking, for a change of state of one tracee or
// child of the calling thread, or of any when tid is -1. It returns 0 when there
// is none to report.
//
// The stop for the delivery of a signal stays unreported in the kernel's eyes,
// and is returned again until the thread is continued: were it reported, and the
// tracer died before it continued the thread, the kernel would drop the signal
// (kernel/exit.c, wait_task_stopped; kernel/signal.c, ptrace_stop).
//
// Other threads' children are left alone (__WNOTHREAD), so that a library in the
// same process does not lose the exit status of a child of its own.
func WaitTracee(tid int) (int, WaitStatus, error) {
	found, ws, err := peekTracee(tid, unix.WSTOPPED|unix.WNOTHREAD)
	if err != nil || found == 0 || ws.Stopped() && uint32(ws)>>16 == 0 {
		return found, ws, err
	}
	for {
		n, err := unix.Wait4(found, &ws, waitFlags, nil)
		if err != unix.EINTR {
			return n, ws, err
		}
	}
}

// siginfoChild is the siginfo_t that waitid fills.
type siginfoChild struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	uid                uint32
	status             int32
	_                  [100]byte
}

// Values of si_code (include/uapi/asm-generic/siginfo.h).
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

func peekTracee(tid int, flags uintptr) (int, WaitStatus, error) {
	idType, id := unix.P_PID, tid
	if tid == -1 {
		idType, id = unix.P_ALL, 0
	}
	var si siginfoChild
	for {
		_, _, e := unix.RawSyscall6(unix.SYS_WAITID, uintptr(idType), uintptr(id), uintptr(unsafe.Pointer(&si)),
			flags|unix.WNOHANG|unix.WALL|unix.WEXITED|unix.WNOWAIT, 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return 0, 0, e
		}
		break
	}
	return int(si.pid), si.waitStatus(), nil
}

// waitStatus is the same in the form of wait4(2).
func (si *siginfoChild) waitStatus() WaitStatus {
	switch si.code {
	case cldExited:
		return WaitStatus(si.status&0xff) << 8
	case cldKilled:
		return WaitStatus(si.status & 0x7f)
	case cldDumped:
		return WaitStatus(si.status&0x7f | 0x80)
	}
	return WaitStatus(si.status)<<8 | 0x7f
}

// ReapThread takes note of the death of a tracee of any thread of this process,
// and of nothing else. It says whether there was one.
func ReapThread(tid int) bool {
	found, ws, err := peekTracee(tid, 0)
	if err != nil || found != tid || ws.Stopped() {
		return false
	}
	n, err := unix.Wait4(tid, nil, unix.WNOHANG|unix.WALL, nil)
	return err == nil && n == tid
}

// WaitChild asks, without blocking, for the exit of a child of this process.
func WaitChild(pid int) (int, WaitStatus, error) {
	var ws WaitStatus
	n, err := unix.Wait4(pid, &ws, unix.WNOHANG|unix.WALL, nil)
	return n, ws, err
}
