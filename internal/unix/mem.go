package unix

import "golang.org/x/sys/unix"

// SealSize forbids any later change of a memfd's size and of its seals.
func SealSize(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	return err
}

// FileSize is the size of an open file in bytes.
func FileSize(fd int) (int64, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Size, err
}

// MapShared maps the first size bytes of a file, shared, for reading and writing.
func MapShared(fd, size int) ([]byte, error) {
	return unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// MapPrivate maps zeroed memory of which only what is used takes room.
func MapPrivate(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
}

// Unmap undoes MapShared and MapPrivate.
func Unmap(mem []byte) error { return unix.Munmap(mem) }

// PidfdOpen opens a descriptor of a process. It is readable once the process has ended.
func PidfdOpen(pid int) (int, error) { return unix.PidfdOpen(pid, 0) }

// PidfdGetfd duplicates a descriptor of another process. It asks for the same
// rights as ptrace (pidfd_getfd(2)).
func PidfdGetfd(pidfd, fd int) (int, error) { return unix.PidfdGetfd(pidfd, fd, 0) }

// Lock locks an open file for as long as it is open (flock(2)), without waiting: for
// its opener alone, or, shared, only against those. It fails with EWOULDBLOCK.
func Lock(fd int, shared bool) error {
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	return unix.Flock(fd, how|unix.LOCK_NB)
}

// Close closes a descriptor.
func Close(fd int) error { return unix.Close(fd) }
