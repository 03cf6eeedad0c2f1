package unix

import "golang.org/x/sys/unix"

// SetParentDeathSignal has the kernel send this process a signal when the thread
// that started it ends (prctl(2), PR_SET_PDEATHSIG).
func SetParentDeathSignal(sig int) error {
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(sig), 0, 0, 0)
}
