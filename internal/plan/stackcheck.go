package plan

import (
	insn "trapless/internal/insn/x86"
)

// StackCheck is what stands at the start of most Go functions (cmd/internal/obj/x86, stacksplit): a comparison
// of the stack pointer with the stack's limit, and a jump to code at the function's end that has the stack made
// larger and comes back to the start. A function that grows its stack runs its first instruction twice, so a
// call is counted behind the check.
type StackCheck struct {
	Len   int // bytes of the check: where the function proper begins, with the arguments still in their registers
	Below int // how far below the stack pointer the check looks, in bytes: the frame less StackSmall, or 0
	Grow  int // offset of the code that makes the stack larger
}

// checkBudget bounds the instructions of a check, and of the code that makes the stack larger, which saves
// and restores the arguments.
const (
	checkBudget = 8
	growBudget  = 64
)

// Offsets of the two limits of the stack in runtime's g.
const (
	stackGuard0 = 0x10
	stackGuard1 = 0x18 // of functions that run on a thread's own stack
)

// FindStackCheck looks for the check at the start of a Go function's code. It reports false for a function
// that has none (NOSPLIT).
func FindStackCheck(code []byte) (StackCheck, bool) {
	var c StackCheck
	compared := false
	for range checkBudget {
		in, err := insn.Decode(code[c.Len:], insn.Mode64)
		if err != nil {
			return c, false
		}
		c.Len += int(in.Len)
		switch {
		case in.Branch == insn.BranchJcc:
			to := c.Len + int(in.Imm)
			if to <= c.Len || to >= len(code) || c.Grow != 0 && c.Grow != to {
				return c, false
			}
			c.Grow = to
			if compared {
				return c, comesBack(code, to)
			}
		case isGuard(in):
			compared = true
		case !c.prepares(in):
			return c, false
		}
	}
	return c, false
}

// isGuard reports cmp 0x10(g), r: the comparison with the stack's limit.
func isGuard(in insn.Inst) bool {
	_, based := in.Base()
	_, indexed := in.Index()
	return isPlain(&in) && in.Opcode == 0x3b && in.Prefixes&insn.RexW != 0 && in.HasMem() && based && !indexed &&
		(in.Disp == stackGuard0 || in.Disp == stackGuard1)
}

// prepares reports an instruction that loads g from the thread's storage, or computes what is compared:
// where the frame will end.
func (c *StackCheck) prepares(in insn.Inst) bool {
	if !isPlain(&in) || in.Prefixes&insn.RexW == 0 || in.ModRMOff == 0 {
		return false
	}
	base, _ := in.Base()
	switch {
	case in.Opcode == 0xc7: // mov $offset, g: where in the thread's storage it is
		return !in.HasMem()
	case in.Opcode == 0x8b && in.HasMem():
		return in.Prefixes&insn.PrefixFS != 0 || in.RIPRel()
	case in.Opcode == 0x89 && in.ModRM >= 0xc0: // mov %rsp, %r12
		return regOf(&in) == insn.RSP
	case in.Opcode == 0x8b: // the same, encoded the other way
		return rmOf(&in) == insn.RSP
	case isLea(&in) && base == insn.RSP && in.Disp < 0:
		c.Below = -int(in.Disp)
		return true
	case in.Opcode == 0x81 && in.ModRM >= 0xe8 && in.ModRM < 0xf0 && in.Imm > 0: // sub $n, %r12
		c.Below = int(in.Imm)
		return rmOf(&in) != insn.RSP
	}
	return false
}

// comesBack reports whether the code at an offset calls something and jumps to the start.
func comesBack(code []byte, at int) bool {
	called := false
	for range growBudget {
		in, err := insn.Decode(code[at:], insn.Mode64)
		if err != nil {
			return false
		}
		at += int(in.Len)
		switch in.Branch {
		case insn.BranchNone:
		case insn.BranchCall:
			called = true
		case insn.BranchJmp:
			return called && at+int(in.Imm) == 0
		default:
			return false
		}
	}
	return false
}
