package unix

import "golang.org/x/sys/unix"

// Monotonic is CLOCK_MONOTONIC, in nanoseconds.
func Monotonic() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("BUG: clock_gettime(CLOCK_MONOTONIC): " + err.Error()) // cannot fail (clock_gettime(2))
	}
	return uint64(t.Nano())
}

// ProcessTime is the processor time that this process has used, in nanoseconds.
func ProcessTime() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic("BUG: clock_gettime(CLOCK_PROCESS_CPUTIME_ID): " + err.Error()) // cannot fail (clock_gettime(2))
	}
	return uint64(t.Nano())
}
