package unix

import (
	"encoding/binary"
	"io"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OpenUprobe opens a counter of the hits at a place in a file, of one thread on any CPU (cpu -1) or of
// everything on one CPU (tid -1), through the uprobe PMU of that type (perf_event_open(2); the attributes in Documentation/ABI/testing/sysfs-bus-event_source-devices-uprobe:
// config bit 0 asks for returns, config1 points to the path, config2 is the offset in the file). The counter
// is enabled until it is closed.
func OpenUprobe(pmu uint32, path string, offset uint64, onReturn bool, tid, cpu int) (int, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	attr := unix.PerfEventAttr{
		Type: pmu,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Ext1: uint64(uintptr(unsafe.Pointer(name))),
		Ext2: offset,
	}
	if onReturn {
		attr.Config = 1
	}
	const noGroup = -1
	fd, err := unix.PerfEventOpen(&attr, tid, cpu, noGroup, unix.PERF_FLAG_FD_CLOEXEC)
	runtime.KeepAlive(name)
	return fd, err
}

// ReadCounter reads the count of a counter opened by OpenUprobe.
func ReadCounter(fd int) (uint64, error) {
	var b [8]byte
	n, err := unix.Read(fd, b[:])
	if err == nil && n != len(b) {
		err = io.ErrUnexpectedEOF
	}
	return binary.NativeEndian.Uint64(b[:]), err
}
