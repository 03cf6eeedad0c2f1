package unix

import "golang.org/x/sys/unix"

const kcmpVM = 1 // enum kcmp_type in include/uapi/linux/kcmp.h

// SameMemory reports whether two processes or threads share one address space.
func SameMemory(a, b int) (bool, error) {
	r, _, e := unix.RawSyscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	if e != 0 {
		return false, e
	}
	return r == 0, nil
}
