package inject

import (
	"context"
	"fmt"
	"maps"

	"trapless/internal/bpf/routine"
	jit "trapless/internal/jit/x86"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// Some helpers make system calls in the target, and a seccomp filter can kill a thread
// for one that is not the target's own. So filters are asked before programs come, and
// again when a thread has another one.

// syscalls is what is known of them.
type syscalls struct {
	makes   map[string][]routine.Call // by the helpers of programs that are placed
	filters map[int]filters           // by thread, when they were asked last
	looked  int                       // the thread that was looked at last
}

// filters tells that a thread has got another one.
type filters struct{ mode, count int }

// checkSyscalls refuses programs that make system calls for which a filter might
// kill a thread.
func (t *Target) checkSyscalls(ctx context.Context, reqs []Request) error {
	makes := map[string][]routine.Call{}
	for _, req := range reqs {
		for _, progs := range req.Programs {
			for _, p := range progs {
				maps.Copy(makes, jit.Syscalls(p, &jit.Env{ThreadID: t.threadID}))
			}
		}
	}
	if len(makes) == 0 {
		return nil
	}
	if err := t.askFilters(ctx, makes); err != nil {
		return err
	}
	maps.Copy(makes, t.syscalls.makes)
	t.syscalls.makes = makes
	return nil
}

// askFilters is an error if a filter of any thread does not let a call pass, or if that
// cannot be known.
func (t *Target) askFilters(ctx context.Context, makes map[string][]routine.Call) error {
	seen, err := readFilters(t.PID)
	if err != nil {
		return err
	}
	any := false
	for _, f := range seen {
		any = any || f.mode != proc.SeccompOff
	}
	if any {
		err = t.whileStopped(func() error { return t.group.Stop(ctx) }, func() error { return t.askEach(makes) })
	}
	t.syscalls.filters = seen
	return err
}

// askEach asks the filters of all threads, which are stopped.
func (t *Target) askEach(makes map[string][]routine.Call) error {
	threads, err := t.group.Stopped()
	if err != nil {
		return err
	}
	for helper, calls := range makes {
		var list []ptrace.Syscall
		for _, c := range calls {
			list = append(list, ptrace.Syscall{Number: uint64(c.Number), Args: c.Args})
		}
		for _, th := range threads {
			if err := th.CheckSyscalls(t.home, list...); err != nil {
				return fmt.Errorf("a program calls the helper %s, which makes system calls: %w; leave the helper out", helper, err)
			}
		}
	}
	return nil
}

// readFilters reads what filters the threads of a process have.
func readFilters(pid int) (map[int]filters, error) {
	threads, err := proc.Threads(pid)
	if err != nil {
		return nil, err
	}
	seen := map[int]filters{}
	for _, tid := range threads {
		if st, err := proc.ReadStatus(pid, tid); err == nil { // else it has ended
			seen[tid] = filters{st.Seccomp, st.SeccompFilters}
		}
	}
	return seen, nil
}

// threadLooks bounds how many threads FiltersStand looks at.
const threadLooks = 64

// FiltersStand reports whether threads have the filters that were asked, as far as
// programs make system calls. Of many threads it looks at some each time, in turn; a
// new thread has those of the one that made it.
func (t *Target) FiltersStand() bool {
	if len(t.syscalls.makes) == 0 {
		return true
	}
	threads, err := proc.Threads(t.PID)
	if err != nil || len(threads) == 0 {
		return true // it has ended
	}
	known := map[filters]bool{}
	for _, f := range t.syscalls.filters {
		known[f] = true
	}
	for range min(threadLooks, len(threads)) {
		t.syscalls.looked = (t.syscalls.looked + 1) % len(threads)
		tid := threads[t.syscalls.looked]
		st, err := proc.ReadStatus(t.PID, tid)
		if err != nil {
			continue
		}
		now := filters{st.Seccomp, st.SeccompFilters}
		if old, ok := t.syscalls.filters[tid]; ok && now != old || !known[now] {
			return false
		}
	}
	return true
}

// AskFilters asks the filters of all threads again whether they let pass what the
// programs that are there do.
func (t *Target) AskFilters(ctx context.Context) error { return t.askFilters(ctx, t.syscalls.makes) }
