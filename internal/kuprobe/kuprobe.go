// Package kuprobe counts calls by uprobes of the kernel, to compare with: nothing else in the project
// traps into the kernel. It goes through perf_event_open, without tracefs and without a BPF program, which
// makes it the cheapest uprobe there is; whatever a tracer does at a hit comes on top.
package kuprobe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"trapless/internal/unix"
)

// Why uprobes cannot be used. Attach wraps one of them.
var (
	ErrNotPermitted = errors.New("kernel uprobes are not permitted")
	ErrUnsupported  = errors.New("this kernel has no uprobes for perf_event_open")
)

const pmuType = "/sys/bus/event_source/devices/uprobe/type"

// Place is where to count: an offset in a file, as the kernel names it.
type Place struct {
	Path   string // the kernel opens it from this process
	Offset uint64 // in the file, not an address
	Return bool   // count returns instead of calls
}

// Probe is a kernel uprobe that is armed.
type Probe struct {
	fds []int
}

// Threads lists the threads of a process.
func Threads(pid int) ([]int, error) {
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return nil, err
	}
	var tids []int
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, err
		}
		tids = append(tids, tid)
	}
	return tids, nil
}

// Attach arms a uprobe and counts the hits of the given threads, exactly. A hit of any thread of their
// process costs the trap, and what it costs grows a little with each thread that is counted, so leave out
// those that never come there. Threads that start later are not counted.
func Attach(at Place, tids []int) (*Probe, error) {
	const anyCPU = -1
	p := &Probe{}
	for _, tid := range tids {
		if err := p.add(at, tid, anyCPU); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// AttachAll arms a uprobe and counts the hits of all processes that have the file mapped, by one counter
// for each CPU: cheaper than Attach where threads outnumber CPUs.
func AttachAll(at Place) (*Probe, error) {
	const anyThread = -1
	cpus, err := onlineCPUs()
	if err != nil {
		return nil, err
	}
	p := &Probe{}
	for _, cpu := range cpus {
		if err := p.add(at, anyThread, cpu); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// add opens one counter. When it fails nothing stays armed.
func (p *Probe) add(at Place, tid, cpu int) error {
	pmu, err := readPMU()
	if err != nil {
		return err
	}
	fd, err := unix.OpenUprobe(pmu, at.Path, at.Offset, at.Return, tid, cpu)
	if err != nil {
		return errors.Join(explain(at, err), p.Close())
	}
	p.fds = append(p.fds, fd)
	return nil
}

// Count is the number of hits so far.
func (p *Probe) Count() (uint64, error) {
	var sum uint64
	for _, fd := range p.fds {
		n, err := unix.ReadCounter(fd)
		if err != nil {
			return 0, fmt.Errorf("read a uprobe's counter: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// Close disarms the uprobe.
func (p *Probe) Close() error {
	var errs []error
	for _, fd := range p.fds {
		errs = append(errs, unix.Close(fd))
	}
	p.fds = nil
	return errors.Join(errs...)
}

func readPMU() (uint32, error) {
	text, err := os.ReadFile(pmuType)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: %s is missing (CONFIG_UPROBE_EVENTS, or sysfs is not mounted)", ErrUnsupported, pmuType)
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", pmuType, err)
	}
	return uint32(n), nil
}

// onlineCPUs reads a list such as "0-3,8".
func onlineCPUs() ([]int, error) {
	const path = "/sys/devices/system/cpu/online"
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	cpus, err := parseCPUs(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cpus, nil
}

func parseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		if err != nil {
			return nil, err
		}
		last, err := strconv.Atoi(to)
		if err != nil {
			return nil, err
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// explain says what an error of perf_event_open means for a uprobe and what can be done.
func explain(at Place, err error) error {
	place := fmt.Sprintf("uprobe at %s+0x%x", at.Path, at.Offset)
	switch {
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%s: %w (%w): needs root or CAP_PERFMON; kernel.perf_event_paranoid is %s, and containers often forbid perf_event_open by seccomp",
			place, ErrNotPermitted, err, paranoid())
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%s: %w (%w): no such file, or a kernel without CONFIG_UPROBE_EVENTS", place, ErrUnsupported, err)
	case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EOPNOTSUPP):
		return fmt.Errorf("%s: %w (%w)", place, ErrUnsupported, err)
	case errors.Is(err, syscall.ESRCH):
		return fmt.Errorf("%s: the thread has ended: %w", place, err)
	}
	return fmt.Errorf("%s: %w", place, err)
}

func paranoid() string {
	text, err := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
