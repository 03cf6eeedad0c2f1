package text

import (
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"trapless/internal/lang"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// nameOf is what a number names.
func nameOf(v lang.Value) string {
	kind, filter, _ := strings.Cut(v.Type.Format, ":")
	switch kind {
	case lang.ErrorNames:
		return unix.Strerror(int(int32(v.Int)))
	case lang.SignalNames:
		return signalName(int(int32(v.Int)))
	}
	return cgroupPath(v.Int, filter)
}

// The signals of Linux (signal(7)).
const (
	lastOrdinary = 31
	lastSignal   = 64
)

// signalName is the text of a signal as strsignal(3) of glibc has it.
func signalName(n int) string {
	switch {
	case n < 0 || n > lastSignal:
		return "N/A"
	case n == 0 || n == lastOrdinary+1 || n == lastOrdinary+2: // glibc keeps those two for itself
		return fmt.Sprintf("Unknown signal %d", n)
	case n > lastOrdinary:
		return fmt.Sprintf("Real-time signal %d", n-lastOrdinary-3)
	}
	text := syscall.Signal(n).String()
	return strings.ToUpper(text[:1]) + text[1:]
}

// unified is how bpftrace calls the version 2 hierarchy of control groups.
const unified = "unified"

// cgroupPath is the path of a control group that has a number, with its hierarchy before
// it, which has to fit the filter; the number if there is none.
func cgroupPath(id uint64, filter string) string {
	unknown := fmt.Sprint(id)
	root := proc.CgroupRoot()
	if fits, err := path.Match(filter, unified); root == "" || filter != "" && (err != nil || !fits) {
		return unknown
	}
	found := ""
	_ = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // it may have gone
		}
		// With version 1 beside it, numbers of 32 bits are those of both; bpftrace compares these.
		if n, ok := proc.CgroupID(name); ok && (n == id || n&(1<<32-1) == id) {
			found = unified + ":/" + strings.TrimPrefix(strings.TrimPrefix(name, root), "/")
			return fs.SkipAll
		}
		return nil
	})
	if found == "" {
		return unknown
	}
	return found
}
