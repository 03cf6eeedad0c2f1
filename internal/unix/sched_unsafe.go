package unix

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetRealtime gives the calling thread the lowest real-time priority, which is
// above that of every ordinary thread. Threads that it creates do not inherit it.
func SetRealtime() error {
	return unix.SchedSetAttr(0, &unix.SchedAttr{
		Size:     unix.SizeofSchedAttr,
		Policy:   unix.SCHED_FIFO,
		Flags:    unix.SCHED_FLAG_RESET_ON_FORK,
		Priority: 1,
	}, 0)
}

// SetTimerSlack bounds how much later than asked the calling thread may wake up.
func SetTimerSlack(d time.Duration) error {
	return unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(d.Nanoseconds()), 0, 0, 0)
}

// Nap sleeps for a short while without giving the thread's processor back to
// the scheduler of Go, whose return trip can take longer than the nap.
func Nap(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// Gettid is the calling thread's id.
func Gettid() int { return unix.Gettid() }

// SetOrdinary gives the calling thread back the ordinary scheduling policy.
func SetOrdinary() error {
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
}
