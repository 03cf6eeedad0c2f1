package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// SyscallHelper names the first helper of a program that makes system calls in
// the target, empty when there is none. Where a filter watches them, a thread
// might be killed for one.
func SyscallHelper(p *bpf.Verified) string {
	makes := map[bpfasm.BuiltinFunc]bool{}
	for _, h := range routine.Helpers() {
		makes[h.ID] = len(h.Syscalls) > 0
	}
	for i, in := range p.Code().Insns {
		switch {
		case in.Kind == bpf.CallReg:
			return "callx"
		case in.Kind != bpf.CallHelper || !makes[in.Helper()]:
		case in.Helper() == bpf.HelperGetCurrentPidTgid && shiftsTid(&p.Code().Insns[i+1]):
		default:
			h, _ := bpf.LookupHelper(in.Helper())
			return h.Name
		}
	}
	return ""
}
