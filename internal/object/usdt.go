package object

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// libbpf's header usdt.bpf.h has functions that read the arguments of a USDT probe
// by tables which libbpf fills in, from registers that the kernel keeps in memory.
// None of that is there in a process. Calls of bpf_usdt_arg become calls of functions
// that stand for one argument each, which package usdt makes anew for each place of
// the probe. The header's own functions, and what they refer to, are taken out.
const (
	usdtArg    = "bpf_usdt_arg"
	usdtCount  = "bpf_usdt_arg_cnt"
	usdtCookie = "bpf_usdt_cookie"
)

// usdtCalls is a program without libbpf's functions for USDT.
func usdtCalls(insns asm.Instructions) (asm.Instructions, error) {
	targets := jumpTargets(insns)
	var out asm.Instructions
	used := map[int]bool{}
	cookie, skip := false, false
	for i, in := range insns {
		if s := in.Symbol(); s != "" {
			skip = s == usdtArg || s == usdtCount || s == usdtCookie
		}
		if skip {
			continue
		}
		if in.IsFunctionCall() {
			switch in.Reference() {
			case usdtArg:
				n, err := argNumber(insns, i, targets)
				if err != nil {
					return nil, fmt.Errorf("instruction %d: %s: %w%s", i, usdtArg, err, at(insns, i))
				}
				used[n] = true
				in = in.WithReference(argFunction(n))
			case usdtCount:
				return nil, fmt.Errorf("instruction %d: %s is not supported: a program is made for each place of a probe, and refused where an argument is missing%s", i, usdtCount, at(insns, i))
			case usdtCookie:
				cookie = true
			}
		}
		out = append(out, in)
	}
	for n := range bpf.MaxMarkerArgs {
		if used[n] {
			out = append(out, fetchArg(n)...)
		}
	}
	if cookie { // the context is its argument, too
		out = append(out, asm.FnGetAttachCookie.Call().WithSymbol(usdtCookie), asm.Return())
	}
	return out, nil
}

func argFunction(n int) string { return fmt.Sprintf("%s %d", usdtArg, n) }

// fetchArg is a function like bpf_usdt_arg for one argument: it takes the context and,
// in r3, where to put it.
func fetchArg(n int) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R3).WithSymbol(argFunction(n)),
		bpf.MarkerArg(n, -8),
		asm.StoreMem(asm.R6, 0, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
}

// argNumber is the argument that a call asks for: r2, which must be a constant.
func argNumber(insns asm.Instructions, call int, targets map[int]bool) (int, error) {
	for i := call; i > 0 && !targets[i]; i-- {
		in := &insns[i-1]
		switch {
		case in.OpCode.Class().IsJump(): // another call destroys r2, a jump ends what is certain
			return 0, errNotConstant
		case in.Dst != asm.R2 || in.OpCode.Class().IsStore():
			continue
		case in.OpCode != asm.Mov.Op(asm.ImmSource) && in.OpCode != asm.Mov.Op32(asm.ImmSource):
			return 0, errNotConstant
		case in.Constant < 0 || in.Constant >= bpf.MaxMarkerArgs:
			return 0, fmt.Errorf("there is no argument %d: a probe has at most %d", in.Constant, bpf.MaxMarkerArgs)
		}
		return int(in.Constant), nil
	}
	return 0, errNotConstant
}

var errNotConstant = errors.New("the number of the argument is not a constant there")

// jumpTargets are the instructions that jumps by a distance lead to.
func jumpTargets(insns asm.Instructions) map[int]bool {
	index, raw := map[int64]int{}, make([]int64, len(insns))
	pos := int64(0)
	for i := range insns {
		index[pos], raw[i] = i, pos
		pos += int64(insns[i].Width())
	}
	out := map[int]bool{}
	for i := range insns {
		in := &insns[i]
		op := in.OpCode
		if !op.Class().IsJump() || op.JumpOp() == asm.Call || op.JumpOp() == asm.Exit {
			continue
		}
		distance := int64(in.Offset)
		if op.Class() == asm.Jump32Class && op.JumpOp() == asm.Ja {
			distance = in.Constant
		}
		if to, ok := index[raw[i]+1+distance]; ok {
			out[to] = true
		}
		if ref := in.Reference(); ref != "" {
			if to := slices.IndexFunc(insns, func(in asm.Instruction) bool { return in.Symbol() == ref }); to >= 0 {
				out[to] = true
			}
		}
	}
	return out
}
