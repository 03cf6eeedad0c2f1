package unix

import "golang.org/x/sys/unix"

// enum kcmp_type in include/uapi/linux/kcmp.h
const (
	kcmpVM      = 1
	kcmpSighand = 4
)

// SameMemory reports whether two processes or threads share one address space.
func SameMemory(a, b int) (bool, error) { return kcmp(a, b, kcmpVM) }

// SameHandlers reports whether two processes or threads share their signal actions.
func SameHandlers(a, b int) (bool, error) { return kcmp(a, b, kcmpSighand) }

func kcmp(a, b int, what uintptr) (bool, error) {
	r, _, e := unix.RawSyscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), what, 0, 0, 0)
	if e != 0 {
		return false, e
	}
	return r == 0, nil
}
