package proc

import (
	"errors"
	"fmt"
)

// Why a process cannot be looked at or traced. Functions return them wrapped in
// a *Error.
var (
	ErrNoProcess    = errors.New("no such process")
	ErrThreadID     = errors.New("that is a thread")
	ErrZombie       = errors.New("it is a zombie")
	ErrKernelThread = errors.New("it is a kernel thread")
	ErrSelf         = errors.New("a process cannot trace itself")
	ErrTraced       = errors.New("it is already traced")
	ErrNot64        = errors.New("it is not a 64-bit x86 program")
	ErrPermission   = errors.New("not permitted")
)

// Error is a reason why a process is refused, in one line that says what to do.
type Error struct {
	PID    int
	Why    error // one of the sentinels above
	Detail string
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("process %d: %v", e.PID, e.Why)
	}
	return fmt.Sprintf("process %d: %v: %s", e.PID, e.Why, e.Detail)
}

func (e *Error) Unwrap() error { return e.Why }

func refuse(pid int, why error, format string, args ...any) error {
	return &Error{pid, why, fmt.Sprintf(format, args...)}
}
