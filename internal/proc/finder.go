package proc

import (
	"errors"
	"os"
	"syscall"

	"trapless/internal/abi"
	"trapless/internal/unix"
)

// Finder finds single mappings of a process, faster than all of them are read: the
// process may be stopped meanwhile. Its answers lack the path.
type Finder struct {
	f    *os.File
	maps Maps    // all, where the kernel knows no questions
	last Mapping // the last answer
}

// NewFinder opens the mappings of a process.
func NewFinder(pid int) (*Finder, error) {
	tid, err := LiveThread(pid)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(TaskPath(pid, tid, "maps"))
	if err != nil {
		return nil, err
	}
	if _, err := unix.QueryMap(int(f.Fd()), 0); errors.Is(err, syscall.ENOENT) {
		return &Finder{f: f}, nil
	}
	f.Close()
	maps, err := ReadMaps(pid)
	return &Finder{maps: maps}, err
}

// Close closes what NewFinder has opened.
func (f *Finder) Close() {
	if f.f != nil {
		f.f.Close()
	}
}

// Find is the mapping that holds an address, nil when it is unmapped. The address
// space may not change between two calls.
func (f *Finder) Find(a abi.Addr) *Mapping {
	if f.f == nil {
		return f.maps.Find(a)
	}
	if f.last.Contains(a) {
		return &f.last
	}
	q, err := unix.QueryMap(int(f.f.Fd()), uint64(a))
	if err != nil {
		return nil
	}
	f.last = Mapping{Range: abi.Range{Start: abi.Addr(q.Start), End: abi.Addr(q.End)}, Offset: q.Offset, Major: q.Major, Minor: q.Minor, Inode: q.Inode}
	for _, bit := range []struct {
		flag uint64
		perm Perm
	}{{unix.MapsRead, Read}, {unix.MapsWrite, Write}, {unix.MapsExec, Exec}, {unix.MapsShared, Shared}} {
		if q.Flags&bit.flag != 0 {
			f.last.Perm |= bit.perm
		}
	}
	return &f.last
}
