package proc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// State is the one-letter state of a thread in proc(5).
type State byte

// The states that matter here.
const (
	Running  State = 'R'
	Sleeping State = 'S'
	Disk     State = 'D' // uninterruptible: it stops only when it wakes up
	Stopped  State = 'T' // by a signal
	Tracing  State = 't' // by a tracer
	Zombie   State = 'Z'
	Exited   State = 'X'
)

// Dead reports whether a thread in this state will never run again.
func (s State) Dead() bool { return s == Zombie || s == Exited || s == 'x' }

func (s State) String() string {
	switch s {
	case Running:
		return "running"
	case Sleeping:
		return "sleeping"
	case Disk:
		return "uninterruptible sleep"
	case Stopped:
		return "stopped"
	case Tracing:
		return "stopped by a tracer"
	case Zombie, Exited:
		return "dead"
	}
	return fmt.Sprintf("state %c", byte(s))
}

// Stat is the part of /proc/PID/task/TID/stat that has no better source.
type Stat struct {
	State
	PPid      int
	Flags     uint64 // PF_* of include/linux/sched.h
	StartTime uint64 // clock ticks since boot; with the pid it names a process for good
	StartBrk  uint64 // address at which the heap begins that brk(2) makes; 0 without the right to trace it
}

const (
	pfExiting    = 0x4      // PF_EXITING
	pfIOWorker   = 0x10     // PF_IO_WORKER
	pfUserWorker = 0x4000   // PF_USER_WORKER, since Linux 6.4; before, a caller of init_module(2)
	pfKthread    = 0x200000 // PF_KTHREAD
)

// Worker reports whether it is a thread of a process that the kernel made for
// itself (io_uring, vhost): it never runs code of user space, though it is listed
// with the others, and blocks all signals.
func (s Stat) Worker() bool { return s.Flags&(pfIOWorker|pfUserWorker) != 0 }

// KernelThread reports whether it is a thread of the kernel.
func (s Stat) KernelThread() bool { return s.Flags&pfKthread != 0 }

// Exiting reports whether the thread is on its way out.
func (s Stat) Exiting() bool { return s.Flags&pfExiting != 0 }

// ReadStat reads the stat file of one thread.
func ReadStat(pid, tid int) (Stat, error) {
	b, err := read(pid, TaskPath(pid, tid, "stat"))
	if err != nil {
		return Stat{}, err
	}
	return parseStat(string(b))
}

// parseStat starts behind the last parenthesis: the command's name may hold any
// character.
func parseStat(s string) (Stat, error) {
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return Stat{}, fmt.Errorf("/proc stat line of %d fields", len(f))
	}
	st := Stat{State: State(f[0][0])}
	st.PPid, _ = strconv.Atoi(f[1])
	st.Flags, _ = strconv.ParseUint(f[6], 10, 64)
	st.StartTime, _ = strconv.ParseUint(f[19], 10, 64)
	if len(f) > 44 {
		st.StartBrk, _ = strconv.ParseUint(f[44], 10, 64)
	}
	return st, nil
}

// SigSet is a set of signals; bit n-1 stands for signal n.
type SigSet uint64

// Has reports whether signal n is in the set.
func (s SigSet) Has(n int) bool { return n >= 1 && n <= 64 && s>>(n-1)&1 != 0 }

// Seccomp modes of a thread (seccomp(2)).
const (
	SeccompOff    = 0
	SeccompStrict = 1
	SeccompFilter = 2
)

// Status is what /proc/PID/task/TID/status says.
type Status struct {
	Name           string
	State          State
	Tgid           int
	PPid           int
	TracerPid      int // a thread id of the tracer, 0 for none
	UID, GID       [4]int
	Threads        int
	NSpid          []int // the thread's id in each pid namespace, ours first
	NStgid         []int // the process's
	VMLck          uint64
	Seccomp        int
	SeccompFilters int
	Pending        SigSet // for this thread alone
	Blocked        SigSet
	Ignored        SigSet
	Caught         SigSet
	CapEff         uint64
	ShadowStack    bool // user shadow stacks (Documentation/arch/x86/shstk.rst)
}

// ReadStatus reads the status file of one thread.
func ReadStatus(pid, tid int) (*Status, error) {
	b, err := read(pid, TaskPath(pid, tid, "status"))
	if err != nil {
		return nil, err
	}
	return parseStatus(string(b)), nil
}

func parseStatus(text string) *Status {
	s := &Status{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		s.set(key, strings.TrimSpace(value))
	}
	return s
}

func (s *Status) set(key, value string) {
	switch key {
	case "Name":
		s.Name = value
	case "State":
		if value != "" {
			s.State = State(value[0])
		}
	case "Tgid":
		s.Tgid, _ = strconv.Atoi(value)
	case "PPid":
		s.PPid, _ = strconv.Atoi(value)
	case "TracerPid":
		s.TracerPid, _ = strconv.Atoi(value)
	case "Uid":
		s.UID = four(value)
	case "Gid":
		s.GID = four(value)
	case "Threads":
		s.Threads, _ = strconv.Atoi(value)
	case "NSpid":
		s.NSpid = numbers(value)
	case "NStgid":
		s.NStgid = numbers(value)
	case "VmLck":
		kb, _, _ := strings.Cut(value, " ")
		n, _ := strconv.ParseUint(kb, 10, 64)
		s.VMLck = n * 1024
	case "Seccomp":
		s.Seccomp, _ = strconv.Atoi(value)
	case "Seccomp_filters":
		s.SeccompFilters, _ = strconv.Atoi(value)
	case "SigPnd":
		s.Pending = SigSet(hex(value))
	case "SigBlk":
		s.Blocked = SigSet(hex(value))
	case "SigIgn":
		s.Ignored = SigSet(hex(value))
	case "SigCgt":
		s.Caught = SigSet(hex(value))
	case "CapEff":
		s.CapEff = hex(value)
	case "x86_Thread_features":
		s.ShadowStack = slices.Contains(strings.Fields(value), "shstk")
	}
}

func hex(s string) uint64 {
	n, _ := strconv.ParseUint(s, 16, 64)
	return n
}

func numbers(s string) (out []int) {
	for _, f := range strings.Fields(s) {
		n, _ := strconv.Atoi(f)
		out = append(out, n)
	}
	return out
}

func four(s string) (out [4]int) {
	for i, f := range strings.Fields(s) {
		if i < len(out) {
			out[i], _ = strconv.Atoi(f)
		}
	}
	return out
}
