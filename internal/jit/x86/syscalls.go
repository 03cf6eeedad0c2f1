package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// SyscallHelper names the first helper of a program that makes system calls in
// the target, empty when there is none. Where a filter watches them, a thread
// might be killed for one. Of the environment ThreadID matters.
func SyscallHelper(p *bpf.Verified, env *Env) string {
	makes := map[bpfasm.BuiltinFunc]bool{bpf.HelperStackID: true}
	for _, h := range routine.Helpers() {
		makes[h.ID] = len(h.Syscalls) > 0
	}
	for i, in := range p.Code().Insns {
		switch {
		case in.Kind == bpf.CallReg:
			return "callx"
		case in.Kind != bpf.CallHelper || !makes[in.Helper()]:
		case in.Helper() == bpf.HelperGetCurrentPidTgid && (env.ThreadID != 0 || shiftsTid(&p.Code().Insns[i+1])):
		default:
			h, _ := bpf.LookupHelper(in.Helper())
			return h.Name
		}
	}
	return ""
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
