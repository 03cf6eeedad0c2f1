package inject

import (
	"context"
	"fmt"
	"syscall"

	"trapless/internal/ptrace"
	"trapless/internal/unix"
)

// System calls that injected code makes, and their flags, for x86-64.
const (
	sysMmap        = 9
	sysClose       = 3
	sysMadvise     = 28
	sysFtruncate   = 77
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

// memfd is one open file that target and tracer share.
type memfd struct{ theirs, ours int }

// makeMemfd lets the target make a memfd and takes a descriptor of it. The
// target's own descriptor stays open for a moment; it is close-on-exec.
func (t *Target) makeMemfd(ctx context.Context, size uint64) (memfd, error) {
	var b ptrace.Blob
	fd := b.Call(sysMemfdCreate, b.Data([]byte(arenaName+"\x00")), ptrace.Const(mfdCloexec|mfdAllowSealing))
	b.Call(sysFtruncate, fd, ptrace.Const(size))
	res, err := t.group.Run(ctx, &b)
	if err != nil {
		return memfd{}, err
	}
	if err := errno(res[0]); err != nil {
		return memfd{}, t.callFailed("memfd_create", res[0])
	}
	m := memfd{theirs: int(res[0])}
	if err := errno(res[1]); err != nil {
		return m, t.callFailed("ftruncate", res[1])
	}
	pidfd, err := unix.PidfdOpen(t.PID)
	if err != nil {
		return m, fmt.Errorf("process %d: pidfd_open: %w", t.PID, err)
	}
	defer closeFD(pidfd)
	if m.ours, err = unix.PidfdGetfd(pidfd, m.theirs); err != nil {
		return m, fmt.Errorf("process %d: pidfd_getfd (Linux 5.6): %w", t.PID, err)
	}
	return m, nil
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
