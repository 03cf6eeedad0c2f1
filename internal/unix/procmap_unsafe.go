package unix

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// MapQuery is struct procmap_query (include/uapi/linux/fs.h, since Linux 6.11).
type MapQuery struct {
	size       uint64
	flags      uint64
	addr       uint64
	Start, End uint64
	Flags      uint64 // the Maps... bits
	pageSize   uint64
	Offset     uint64
	Inode      uint64
	Major      uint32
	Minor      uint32
	nameSize   uint32
	buildSize  uint32
	nameAddr   uint64
	buildAddr  uint64
}

// Bits of MapQuery.Flags.
const (
	MapsRead = 1 << iota
	MapsWrite
	MapsExec
	MapsShared
)

// procmapQuery is _IOWR('f', 17, struct procmap_query).
const procmapQuery = 0xc0000000 | uint(unsafe.Sizeof(MapQuery{}))<<16 | 'f'<<8 | 17

// QueryMap asks an open /proc/PID/maps for the mapping that holds an address. It
// fails with ENOENT if there is none, and with ENOTTY on older kernels.
func QueryMap(fd int, addr uint64) (MapQuery, error) {
	q := MapQuery{size: uint64(unsafe.Sizeof(MapQuery{})), addr: addr}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(procmapQuery), uintptr(unsafe.Pointer(&q)))
	if errno != 0 {
		return MapQuery{}, errno
	}
	return q, nil
}
