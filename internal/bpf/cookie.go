package bpf

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// WithCookie is the program with a number in the place of what get_attach_cookie
// returns, which is 0 without. What was proven holds for any number.
func (v *Verified) WithCookie(cookie uint64) *Verified {
	asks := func(in Insn) bool { return in.Kind == CallHelper && in.Helper() == asm.FnGetAttachCookie }
	if cookie == 0 || !slices.ContainsFunc(v.code.Insns, asks) {
		return v
	}
	out, code := *v, *v.code
	code.Insns = slices.Clone(code.Insns)
	for i := range code.Insns {
		if asks(code.Insns[i]) {
			code.Insns[i] = Insn{Kind: LoadImm, Dst: asm.R0, Imm: int64(cookie)}
		}
	}
	out.code = &code
	return &out
}
