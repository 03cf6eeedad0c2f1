package inject

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"trapless/internal/proc"
	"trapless/internal/ptrace"
	"trapless/internal/unix"
)

// System calls that injected code makes, and their flags, for x86-64.
const (
	sysMmap        = 9
	sysClose       = 3
	sysMadvise     = 28
	sysMemfdCreate = 319

	protRead  = 1
	protWrite = 2
	protExec  = 4

	mapShared         = 0x01
	mapPrivate        = 0x02
	mapFixed          = 0x10
	mapAnonymous      = 0x20
	mapNoReserve      = 0x4000
	mapFixedNoReplace = 0x100000

	mfdCloexec      = 1
	mfdAllowSealing = 2

	madvWipeOnFork = 18
)

// arenaName is the name by which a later tracer finds an arena in the maps.
const arenaName = "trapless"

// memfd is one open file that target and tracer share; -1 for a descriptor that
// is closed.
type memfd struct{ theirs, ours int }

// makeMemfd lets the target make a memfd and takes a descriptor of it. The
// target's own descriptor stays open for a moment; it is close-on-exec.
//
// The tracer gives the file its size: a target with a limit of its files' sizes
// (RLIMIT_FSIZE) would get SIGXFSZ for that, and die.
func (t *Target) makeMemfd(ctx context.Context, size uint64) (memfd, error) {
	m := memfd{-1, -1}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err == nil && limit.Cur < size {
		return m, fmt.Errorf("process %d: %w: its arena needs %d MB, and trapless itself may write files of %d MB only; raise that by ulimit -f",
			t.PID, ErrNoRoom, size>>20, limit.Cur>>20)
	}
	var b ptrace.Blob
	b.Call(sysMemfdCreate, b.Data([]byte(arenaName+"\x00")), ptrace.Const(mfdCloexec|mfdAllowSealing))
	res, err := t.group.Run(ctx, &b)
	if res != nil && res[0] != ptrace.Missing && errno(res[0]) == nil {
		m.theirs = int(res[0])
	}
	if err != nil {
		return m, err
	}
	if m.theirs < 0 {
		return m, t.callFailed("memfd_create", res[0])
	}
	if m.ours, err = t.takeFD(m.theirs); err != nil {
		m.ours = -1
		return m, err
	}
	if err := syscall.Ftruncate(m.ours, int64(size)); err != nil {
		return m, fmt.Errorf("process %d: an arena of %d MB: %w", t.PID, size>>20, err)
	}
	return m, nil
}

// takeFD takes a descriptor of the target. A process whose leader has ended has
// none by the leader's id, which is all that a pidfd knows; then the file is
// opened anew through a thread that lives.
func (t *Target) takeFD(theirs int) (int, error) {
	pidfd, err := unix.PidfdOpen(t.PID)
	if err != nil {
		return -1, fmt.Errorf("process %d: pidfd_open: %w", t.PID, err)
	}
	defer closeFD(pidfd)
	ours, err := unix.PidfdGetfd(pidfd, theirs)
	if err == nil {
		return ours, nil
	}
	tid, terr := proc.LiveThread(t.PID)
	if terr != nil || tid == t.PID {
		return -1, fmt.Errorf("process %d: pidfd_getfd (Linux 5.6): %w", t.PID, err)
	}
	path := proc.TaskPath(t.PID, tid, fmt.Sprintf("fd/%d", theirs))
	ours, err = syscall.Open(path, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("process %d: opening its arena: %w", t.PID, err)
	}
	return ours, nil
}

// closeTime bounds closing what an error left open.
const closeTime = 5 * time.Second

// release closes what is open of a memfd. The threads are still stopped, so that
// the number means what it did.
func (t *Target) release(m *memfd) error {
	if m.ours >= 0 {
		closeFD(m.ours)
	}
	if m.theirs < 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	var b ptrace.Blob
	b.Call(sysClose, ptrace.Const(uint64(m.theirs)))
	_, err := t.group.Run(ctx, &b)
	return err
}

// closeFD closes a descriptor of which nothing can be lost.
func closeFD(fd int) { _ = unix.Close(fd) }

// errno is the error that a system call's result stands for, nil for success.
func errno(result uint64) error {
	if n := -int64(result); n > 0 && n < 4096 {
		return syscall.Errno(n)
	}
	return nil
}
