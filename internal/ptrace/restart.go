package ptrace

import (
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// A stop interrupts a sleeping system call. The kernel then leaves one of its
// internal results in rax (include/linux/errno.h) and, when no handler is to be
// run, restarts the call by itself: nobody notices.
//
// A few calls return EINTR at once instead, because for a signal that would be
// right (signal(7), "Interruption of system calls and library functions by stop
// signals"). The program would see an EINTR without a signal. Such a thread gets
// the result ERESTARTNOHAND, which means: restart unless a handler runs, then
// EINTR. That is what the call would have done had we never stopped it, and it
// leaves the choice to the kernel at the last moment, so a signal that arrives
// after our stop still interrupts the call. (Setting rip back instead loses that
// signal: its handler runs, and then the call sleeps again.)
const (
	errINTR           = -4
	errRESTARTSYS     = -512
	errRESTARTNOINTR  = -513
	errRESTARTNOHAND  = -514
	errRESTARTBLOCK   = -516
	sysRestartSyscall = 219
	syscallInsnLen    = 2
	noHandlerResult   = ^uint64(-errRESTARTNOHAND - 1)
	interruptedResult = ^uint64(-errINTR - 1)
)

// eintrCalls are the calls that return EINTR when a stop interrupts them, having
// done nothing. close(2) and whatever else has an effect before it returns EINTR
// is not among them and must not be.
var eintrCalls = map[uint64]string{
	0:   "read", // the calls that transfer data do so for a socket with SO_RCVTIMEO or SO_SNDTIMEO
	1:   "write",
	19:  "readv",
	20:  "writev",
	40:  "sendfile",
	42:  "connect",
	43:  "accept",
	44:  "sendto",
	45:  "recvfrom",
	46:  "sendmsg",
	47:  "recvmsg",
	65:  "semop",
	128: "rt_sigtimedwait",
	208: "io_getevents",
	220: "semtimedop",
	232: "epoll_wait",
	275: "splice",
	281: "epoll_pwait",
	288: "accept4",
	299: "recvmmsg",
	307: "sendmmsg",
	426: "io_uring_enter",
	441: "epoll_pwait2",
}

// inCall reports whether the thread is on its way out of a system call.
func inCall(r *Regs) bool { return int64(r.OrigRAX) >= 0 }

// restarts reports whether the kernel is going to restart the call.
func restarts(r *Regs) bool {
	if !inCall(r) {
		return false
	}
	switch int64(r.RAX) {
	case errRESTARTSYS, errRESTARTNOINTR, errRESTARTNOHAND, errRESTARTBLOCK:
		return true
	}
	return false
}

// leaksEINTR reports whether the call returned EINTR because of a stop, unless a
// signal came as well.
func leaksEINTR(r *Regs) bool {
	return inCall(r) && r.RAX == interruptedResult && eintrCalls[r.OrigRAX] != ""
}

// Signals whose default action is to do nothing (signal(7)).
const ignoredByDefault = 1<<(17-1) | 1<<(18-1) | 1<<(23-1) | 1<<(28-1) // CHLD CONT URG WINCH

// mend repairs the result of an interrupted call, before the thread goes on.
//
// Preconditions: the thread is stopped.
func (th *Thread) mend() {
	if th.state != stateStopped {
		panic("BUG: mending a thread that runs")
	}
	if th.afterStop {
		return // EINTR after SIGCONT is what these calls return without us, too
	}
	r, err := th.readRegs()
	if err != nil || !leaksEINTR(&r) {
		return
	}
	if th.kind == Signal && !th.ignores(th.sig) {
		return
	}
	if unix.PtraceSetRAX(th.TID, noHandlerResult) == nil {
		th.regs.RAX = noHandlerResult
	}
}

// ignores reports whether a signal will have no effect. The kernel wakes up a
// traced thread even for such a signal, so that the tracer can see it; without
// us the call would have slept on.
func (th *Thread) ignores(sig int) bool {
	st, err := proc.ReadStatus(th.PID, th.TID)
	if err != nil {
		return false
	}
	dflt := !st.Caught.Has(sig) && !st.Ignored.Has(sig)
	return st.Ignored.Has(sig) || dflt && proc.SigSet(ignoredByDefault).Has(sig)
}
