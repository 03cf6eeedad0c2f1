package unix

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options of a tracee (ptrace(2), PTRACE_SETOPTIONS).
const (
	OptTraceFork  = unix.PTRACE_O_TRACEFORK
	OptTraceVfork = unix.PTRACE_O_TRACEVFORK
	OptTraceClone = unix.PTRACE_O_TRACECLONE
	OptTraceExec  = unix.PTRACE_O_TRACEEXEC
	OptExitKill   = unix.PTRACE_O_EXITKILL
)

// Events that a stop reports in the high half of its status.
const (
	EventFork  = unix.PTRACE_EVENT_FORK
	EventVfork = unix.PTRACE_EVENT_VFORK
	EventClone = unix.PTRACE_EVENT_CLONE
	EventExec  = unix.PTRACE_EVENT_EXEC
	EventStop  = unix.PTRACE_EVENT_STOP
)

// Every call below has to be made by the thread that seized the tracee. They
// are raw system calls: each takes about a microsecond and never sleeps, and
// the scheduler of Go must not take the thread's processor away in between.
//
// What data points to has to be on the heap: were it on the stack, that could
// move between the conversion to uintptr and the system call, for this function
// may be what makes the stack grow.
//
//go:uintptrescapes
func ptrace(req int, tid int, addr, data uintptr) error {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(req), uintptr(tid), addr, data, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// PtraceSeize attaches to a thread without stopping it. Alone among these calls
// it can sleep: while the process of the thread is in execve(2).
func PtraceSeize(tid int, options int) error {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, uintptr(options), 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// PtraceInterrupt asks a seized thread to stop. The stop comes later, if at all.
func PtraceInterrupt(tid int) error { return ptrace(unix.PTRACE_INTERRUPT, tid, 0, 0) }

// PtraceListen lets a thread in a group-stop stay stopped and yet report what
// ends the group-stop.
func PtraceListen(tid int) error { return ptrace(unix.PTRACE_LISTEN, tid, 0, 0) }

// PtraceCont continues a stopped thread and delivers sig unless it is 0.
func PtraceCont(tid, sig int) error { return ptrace(unix.PTRACE_CONT, tid, 0, uintptr(sig)) }

// PtraceSyscall is PtraceCont up to the beginning or the end of a system call.
func PtraceSyscall(tid, sig int) error { return ptrace(unix.PTRACE_SYSCALL, tid, 0, uintptr(sig)) }

// PtraceDetach lets go of a stopped thread and delivers sig unless it is 0.
func PtraceDetach(tid, sig int) error { return ptrace(unix.PTRACE_DETACH, tid, 0, uintptr(sig)) }

// PtraceSetOptions replaces the options of a stopped thread.
func PtraceSetOptions(tid, options int) error {
	return ptrace(unix.PTRACE_SETOPTIONS, tid, 0, uintptr(options))
}

// PtraceEventMsg is the message of the event stop that a thread is in, such as
// the new thread's id for EventClone.
func PtraceEventMsg(tid int) (uint64, error) {
	var msg uint64
	err := ptrace(unix.PTRACE_GETEVENTMSG, tid, 0, uintptr(unsafe.Pointer(&msg)))
	return msg, err
}

// PtracePoke writes one word into the memory of a stopped thread, whatever its
// protection says.
func PtracePoke(tid int, at uint64, word uint64) error {
	return ptrace(unix.PTRACE_POKEDATA, tid, uintptr(at), uintptr(word))
}

// PtraceRegs reads the general registers of a stopped thread.
func PtraceRegs(tid int) (Regs, error) {
	var r Regs
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(&r)), Len: uint64(unsafe.Sizeof(r))}
	err := ptrace(unix.PTRACE_GETREGSET, tid, unix.NT_PRSTATUS, uintptr(unsafe.Pointer(&iov)))
	return r, err
}

// PtraceSetRegs writes the general registers of a stopped thread.
func PtraceSetRegs(tid int, r *Regs) error {
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(r)), Len: uint64(unsafe.Sizeof(*r))}
	return ptrace(unix.PTRACE_SETREGSET, tid, unix.NT_PRSTATUS, uintptr(unsafe.Pointer(&iov)))
}

// PtraceSigMask is the set of signals that a stopped thread blocks, bit n-1 for
// signal n. In a system call that changes the mask for its own duration it is
// the mask outside of the call.
func PtraceSigMask(tid int) (uint64, error) {
	var mask uint64
	err := ptrace(unix.PTRACE_GETSIGMASK, tid, 8, uintptr(unsafe.Pointer(&mask)))
	return mask, err
}

// PtraceSetSigMask sets the set of signals that a stopped thread blocks.
func PtraceSetSigMask(tid int, mask uint64) error {
	return ptrace(unix.PTRACE_SETSIGMASK, tid, 8, uintptr(unsafe.Pointer(&mask)))
}

// Rseq is what a thread registered by rseq(2); all zero when it did not.
type Rseq struct {
	Area      uint64 // address of its struct rseq
	Size      uint32
	Signature uint32
	Flags     uint32
	_         uint32
}

// PtraceRseq reads the rseq registration of a stopped thread (Linux 5.13).
func PtraceRseq(tid int) (Rseq, error) {
	var r Rseq
	err := ptrace(unix.PTRACE_GET_RSEQ_CONFIGURATION, tid, unsafe.Sizeof(r), uintptr(unsafe.Pointer(&r)))
	return r, err
}

// PtraceUserDispatch reports whether a stopped thread uses syscall user
// dispatch (prctl(2), PR_SET_SYSCALL_USER_DISPATCH; the request is of Linux 6.4).
func PtraceUserDispatch(tid int) (bool, error) {
	var c struct{ Mode, Selector, Offset, Len uint64 }
	err := ptrace(unix.PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, unsafe.Sizeof(c), uintptr(unsafe.Pointer(&c)))
	return c.Mode != 0, err
}

// BPFInsn is an instruction of a classic BPF program (struct sock_filter).
type BPFInsn struct {
	Code   uint16
	JT, JF uint8
	K      uint32
}

// PtraceSeccompFilter reads the seccomp filter number index, counted from the
// newest, of a stopped thread. ENOENT says that there is none of that number;
// EACCES that CAP_SYS_ADMIN is missing.
func PtraceSeccompFilter(tid, index int) ([]BPFInsn, error) {
	n, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(tid), uintptr(index), 0, 0, 0)
	if e != 0 {
		return nil, e
	}
	prog := make([]BPFInsn, max(int(n), 1))
	err := ptrace(unix.PTRACE_SECCOMP_GET_FILTER, tid, uintptr(index), uintptr(unsafe.Pointer(&prog[0])))
	return prog[:n], err
}

// PtraceSetRAX writes the one register that holds a system call's result.
func PtraceSetRAX(tid int, v uint64) error {
	return ptrace(unix.PTRACE_POKEUSR, tid, unsafe.Offsetof(Regs{}.RAX), uintptr(v))
}

// SigInfo is the beginning of a siginfo_t.
type SigInfo struct {
	Signo, Errno, Code int32
	_                  [116]byte
}

// PtraceSigInfo reads the signal that a stopped thread is stopped for. In an
// event stop, Code is the event and the signal in the form of a wait status.
func PtraceSigInfo(tid int) (SigInfo, error) {
	var si SigInfo
	err := ptrace(unix.PTRACE_GETSIGINFO, tid, 0, uintptr(unsafe.Pointer(&si)))
	return si, err
}
