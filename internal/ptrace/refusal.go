package ptrace

import "fmt"

// Reason is the stable name of a refusal.
type Reason string

// Reasons.
const (
	ReasonGone     Reason = "gone"                  // the process has ended
	ReasonExec     Reason = "exec"                  // it replaced itself by execve(2)
	ReasonBusy     Reason = "busy"                  // a thread did not stop in time
	ReasonStopped  Reason = "stopped"               // it is stopped by a signal
	ReasonNoThread Reason = "no-thread"             // no thread can run injected code
	ReasonNoSlack  Reason = "no-slack"              // no room for the first instructions
	ReasonSeccomp  Reason = "seccomp"               // its filter would not let a system call pass
	ReasonDispatch Reason = "syscall-user-dispatch" // it catches system calls itself
	ReasonKernel   Reason = "kernel"                // the kernel is too old or forbids it
	ReasonRseq     Reason = "rseq"                  // the thread is in a restartable sequence
	ReasonInCall   Reason = "in-system-call"        // the thread is in a system call
	ReasonFailed   Reason = "call-failed"           // an injected system call failed
	ReasonClosed   Reason = "closed"                // the tracer is closed
	ReasonRunning  Reason = "not-stopped"           // the thread is not stopped
)

// Refusal says why something was not done to a target. Nothing is left stopped
// or half done when a function returns one, unless its comment says so.
type Refusal struct {
	PID    int
	Reason Reason
	Detail string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("process %d: %s: %s", r.PID, r.Reason, r.Detail)
}

// Is reports whether target is a Refusal for the same reason, so that
// errors.Is(err, ErrBusy) works whatever the details are.
func (r *Refusal) Is(target error) bool {
	t, ok := target.(*Refusal)
	return ok && t.Reason == r.Reason
}

// Sentinels to compare with by errors.Is.
var (
	ErrGone     = &Refusal{Reason: ReasonGone}
	ErrExec     = &Refusal{Reason: ReasonExec}
	ErrBusy     = &Refusal{Reason: ReasonBusy}
	ErrStopped  = &Refusal{Reason: ReasonStopped}
	ErrNoThread = &Refusal{Reason: ReasonNoThread}
	ErrNoSlack  = &Refusal{Reason: ReasonNoSlack}
	ErrSeccomp  = &Refusal{Reason: ReasonSeccomp}
	ErrDispatch = &Refusal{Reason: ReasonDispatch}
	ErrKernel   = &Refusal{Reason: ReasonKernel}
	ErrRseq     = &Refusal{Reason: ReasonRseq}
	ErrInCall   = &Refusal{Reason: ReasonInCall}
	ErrFailed   = &Refusal{Reason: ReasonFailed}
	ErrClosed   = &Refusal{Reason: ReasonClosed}
	ErrRunning  = &Refusal{Reason: ReasonRunning}
)

func refuse(pid int, reason Reason, format string, args ...any) error {
	return &Refusal{pid, reason, fmt.Sprintf(format, args...)}
}
