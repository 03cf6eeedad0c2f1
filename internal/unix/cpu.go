package unix

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// CPU is the processor that this thread runs on, and its NUMA node; zeros where the
// kernel does not tell.
func CPU() (cpu, node uint32) {
	_, _, _ = unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), uintptr(unsafe.Pointer(&node)), 0)
	return cpu, node
}

// TAIOffset is CLOCK_TAI minus CLOCK_MONOTONIC in nanoseconds. It changes where the time
// of the day is set.
func TAIOffset() uint64 {
	var tai, monotonic unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_TAI, &tai) // both clocks are always there
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic)
	return uint64(tai.Nano() - monotonic.Nano())
}
