package session

import (
	"context"
	"fmt"

	"trapless/internal/image"
	"trapless/internal/inject"
	jit "trapless/internal/jit/x86"
	"trapless/internal/lang"
	"trapless/internal/plan"
	"trapless/internal/proc"
)

// What is different about Go programs: how threads are told apart, where probes may be put in so early that
// nothing of the program has run, and what is not known of functions written in assembly.

// From getauxval(3).
const (
	atHWCAP2      = 26
	hwcapFSGSBASE = 1 << 1 // rdfsbase is enabled
)

// traits are those of Go programs. Without the C library they keep something else at fs:0 than the thread
// pointer, in threads that may be yet to come, and get all their memory by mmap.
func (ms *modules) traits() (inject.Traits, error) {
	var t inject.Traits
	exe, err := ms.executable()
	if err != nil || exe == nil || !exe.image.Go {
		return t, err
	}
	withC := exe.callsC()
	t.NoBrk = !withC
	aux, err := proc.Auxv(ms.pid)
	switch {
	case err != nil:
		return t, err
	case aux[atHWCAP2]&hwcapFSGSBASE != 0:
		t.Thread = jit.FSBase
	case !withC:
		return t, fmt.Errorf("process %d: thread-pointer: a Go program without the C library can be probed only where the kernel enables the instruction rdfsbase (Linux 5.9, processors since 2012)", ms.pid)
	}
	return t, nil
}

// callsC reports whether the C library is a part of a Go program.
func (mod *module) callsC() bool {
	_, err := mod.funcs.Lookup("crosscall2") // runtime/cgo: how C calls Go
	return err == nil
}

// executable is the target's own program, nil if it is none that could be probed.
func (ms *modules) executable() (*module, error) {
	match, err := ms.matcher(&lang.AttachPoint{})
	if err != nil {
		return nil, err
	}
	for _, m := range ms.texts() {
		if match(m) {
			exe, err := ms.load(m)
			if err != nil {
				return nil, nil // it is told to those who want to probe it
			}
			return exe, nil
		}
	}
	return nil, nil
}

// anyGo reports whether one of the modules that were read is Go's. Then C code may
// run with all signals blocked for moments in which nobody looks: in new threads,
// and where a thread of C's comes to Go.
func (ms *modules) anyGo() bool {
	for _, mod := range ms.loaded {
		if mod.image.Go {
			return true
		}
	}
	return false
}

// awaitGo lets a Go program that was launched run until its runtime system has put its signal handlers in
// place, which would take the place of ours, and is about to run the program's first function.
func (s *Session) awaitGo(ctx context.Context) error {
	ms, err := readModules(s.PID, nil)
	if err != nil {
		return err
	}
	defer ms.Close()
	exe, err := ms.executable()
	if err != nil || exe == nil || !exe.image.Go {
		return err
	}
	const first = "runtime.main"
	found, err := exe.funcs.Lookup(first)
	if err != nil {
		return fmt.Errorf("process %d: a Go program without %s: %w", s.PID, first, err)
	}
	return s.group.RunTo(ctx, exe.bias.Addr(found[0].Start))
}

// Arguments is the reason of a refusal where it is not known in which registers a function finds its
// arguments.
const Arguments plan.Reason = "arguments"

// entry is where a call of a function is counted.
func (mod *module) entry(fn image.Func) (uint64, error) {
	if !fn.Go {
		return 0, nil
	}
	code, err := mod.funcs.Code(fn)
	if err != nil {
		return 0, err
	}
	check, ok := plan.FindStackCheck(code)
	if !ok {
		return 0, nil
	}
	return uint64(check.Len), nil
}
