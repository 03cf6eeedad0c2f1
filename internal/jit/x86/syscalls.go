package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// Syscalls are the system calls that a program makes in the target, by the helpers
// that make them. Where a filter watches them, a thread might be killed for one. Of
// the environment ThreadID matters.
func Syscalls(p *bpf.Verified, env *Env) map[string][]routine.Call {
	calls := map[string][]routine.Call{}
	add := func(h *routine.Helper) {
		if h != nil && len(h.Syscalls) > 0 {
			named, _ := bpf.LookupHelper(h.ID)
			calls[named.Name] = h.Syscalls
		}
	}
	for i, in := range p.Code().Insns {
		switch {
		case in.Kind == bpf.CallReg: // any of them
			for _, h := range routine.Helpers() {
				add(&h)
			}
		case in.Kind != bpf.CallHelper:
		case in.Helper() == bpf.HelperStackID, in.Helper() == bpfasm.FnGetStack, in.Helper() == bpfasm.FnGetStackid:
			named, _ := bpf.LookupHelper(in.Helper())
			calls[named.Name] = routine.Ask
		case in.Helper() == bpf.HelperGetCurrentPidTgid && (env.ThreadID != 0 || shiftsTid(&p.Code().Insns[i+1])):
		default:
			add(routine.LookupHelper(in.Helper()))
		}
	}
	return calls
}

// TellsThread reports whether a program asks for the number of the thread.
func TellsThread(p *bpf.Verified) bool {
	for i, in := range p.Code().Insns {
		if in.Kind == bpf.CallReg || isCall(&in, bpf.HelperGetCurrentPidTgid) && !shiftsTid(&p.Code().Insns[i+1]) {
			return true
		}
	}
	return false
}
