package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"trapless/internal/image"
	"trapless/internal/kuprobe"
)

// Uprobes are the kernel's uprobes as variants, for one number of threads: on a push (the usual start of a
// function, emulated), on a nop of five bytes (made a call from Linux 6.18 on) and on a mov
// (single-stepped).
func Uprobes(threads int) []Variant {
	var variants []Variant
	for _, kind := range []string{"push", "nop5", "mov"} {
		function := "work_" + kind
		variants = append(variants, Variant{
			Name: "uprobe-" + kind, Threads: threads, Function: function,
			Arm: func(pid int) (Armed, error) { return armUprobe(pid, function) },
		})
	}
	return variants
}

func armUprobe(pid int, function string) (Armed, error) {
	path := fmt.Sprintf("/proc/%d/exe", pid)
	offset, err := offsetOf(path, function)
	if err != nil {
		return Armed{}, err
	}
	p, err := attach(kuprobe.Place{Path: path, Offset: offset}, pid)
	if err != nil {
		return Armed{}, err
	}
	return Armed{Hits: p.Count, Disarm: p.Close}, nil
}

// attach counts in the way that makes a hit cheapest: with the fewest counters. The file is this process's
// alone.
func attach(at kuprobe.Place, pid int) (*kuprobe.Probe, error) {
	tids, err := kuprobe.Threads(pid)
	if err != nil {
		return nil, err
	}
	// The first thread reads commands and never calls.
	tids = slices.DeleteFunc(tids, func(tid int) bool { return tid == pid })
	if len(tids) > runtime.NumCPU() {
		return kuprobe.AttachAll(at)
	}
	return kuprobe.Attach(at, tids)
}

// offsetOf is where a function starts in a file.
func offsetOf(path, function string) (uint64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	f, err := image.New(file, info.Size())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	functions, err := f.Functions()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	found, err := functions.Lookup(function)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	offset, ok := f.OffsetOf(found[0].Start)
	if !ok {
		return 0, fmt.Errorf("%s: %s is not in the file", path, function)
	}
	return uint64(offset), nil
}
