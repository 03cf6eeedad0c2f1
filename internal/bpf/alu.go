package bpf

import (
	"math"
	"math/bits"

	"github.com/cilium/ebpf/asm"
)

// compute is the result of an arithmetic instruction (RFC 9669, 4.1 and 4.2).
// A 32-bit operation leaves the upper half zero. A division by zero gives 0, a
// remainder by zero the dividend, and neither traps.
func (in *Insn) compute(dst, src uint64) uint64 {
	if !in.UseSrc {
		src = uint64(in.Imm)
	}
	switch {
	case in.ALU == asm.Swap:
		return in.swap(dst)
	case in.Wide:
		return compute64(in.ALU, dst, src)
	}
	return uint64(compute32(in.ALU, uint32(dst), uint32(src)))
}

func compute64(op asm.ALUOp, d, s uint64) uint64 {
	switch op {
	case asm.Add:
		return d + s
	case asm.Sub:
		return d - s
	case asm.Mul:
		return d * s
	case asm.Div, asm.SDiv, asm.Mod, asm.SMod:
		return divide64(op, d, s)
	case asm.Or:
		return d | s
	case asm.And:
		return d & s
	case asm.Xor:
		return d ^ s
	case asm.LSh:
		return d << (s & 63)
	case asm.RSh:
		return d >> (s & 63)
	case asm.ArSh:
		return uint64(int64(d) >> (s & 63))
	case asm.Neg:
		return -d
	case asm.Mov:
		return s
	case asm.MovSX8:
		return uint64(int8(s))
	case asm.MovSX16:
		return uint64(int16(s))
	case asm.MovSX32:
		return uint64(int32(s))
	}
	panic("BUG: bpf: arithmetic instruction was not decoded")
}

func compute32(op asm.ALUOp, d, s uint32) uint32 {
	switch op {
	case asm.Div, asm.SDiv, asm.Mod, asm.SMod:
		return divide32(op, d, s)
	case asm.LSh:
		return d << (s & 31)
	case asm.RSh:
		return d >> (s & 31)
	case asm.ArSh:
		return uint32(int32(d) >> (s & 31))
	}
	return uint32(compute64(op, uint64(d), uint64(s)))
}

func divide64(op asm.ALUOp, d, s uint64) uint64 {
	switch {
	case s == 0 && (op == asm.Div || op == asm.SDiv):
		return 0
	case s == 0:
		return d
	case op == asm.Div:
		return d / s
	case op == asm.Mod:
		return d % s
	case int64(d) == math.MinInt64 && int64(s) == -1: // overflows; RFC 9669, 4.1
		if op == asm.SDiv {
			return d
		}
		return 0
	case op == asm.SDiv:
		return uint64(int64(d) / int64(s))
	}
	return uint64(int64(d) % int64(s))
}

func divide32(op asm.ALUOp, d, s uint32) uint32 {
	if op == asm.Div || op == asm.Mod {
		return uint32(divide64(op, uint64(d), uint64(s)))
	}
	return uint32(divide64(op, uint64(int32(d)), uint64(int32(s))))
}

func (in *Insn) swap(d uint64) uint64 {
	be := in.Swap == asm.BE
	switch {
	case in.Size == 2 && be:
		return uint64(bits.ReverseBytes16(uint16(d)))
	case in.Size == 2:
		return uint64(uint16(d))
	case in.Size == 4 && be:
		return uint64(bits.ReverseBytes32(uint32(d)))
	case in.Size == 4:
		return uint64(uint32(d))
	case be:
		return bits.ReverseBytes64(d)
	}
	return d
}

// taken reports whether a conditional jump is taken (RFC 9669, 4.3).
func (in *Insn) taken(dst, src uint64) bool {
	if !in.UseSrc {
		src = uint64(in.Imm)
	}
	sd, ss := int64(dst), int64(src)
	if !in.Wide {
		dst, src = uint64(uint32(dst)), uint64(uint32(src))
		sd, ss = int64(int32(dst)), int64(int32(src))
	}
	switch in.Jump {
	case asm.JEq:
		return dst == src
	case asm.JNE:
		return dst != src
	case asm.JGT:
		return dst > src
	case asm.JGE:
		return dst >= src
	case asm.JLT:
		return dst < src
	case asm.JLE:
		return dst <= src
	case asm.JSet:
		return dst&src != 0
	case asm.JSGT:
		return sd > ss
	case asm.JSGE:
		return sd >= ss
	case asm.JSLT:
		return sd < ss
	case asm.JSLE:
		return sd <= ss
	}
	panic("BUG: bpf: jump was not decoded")
}

// update is the new content of memory after an atomic instruction (RFC 9669,
// 5.3) that found old there; r0 matters to CMPXCHG only.
func (in *Insn) update(old, src, r0 uint64) uint64 {
	switch in.Atomic {
	case asm.AddAtomic, asm.FetchAdd:
		return old + src
	case asm.AndAtomic, asm.FetchAnd:
		return old & src
	case asm.OrAtomic, asm.FetchOr:
		return old | src
	case asm.XorAtomic, asm.FetchXor:
		return old ^ src
	case asm.Xchg:
		return src
	case asm.CmpXchg:
		if in.Size == 4 {
			r0 = uint64(uint32(r0))
		}
		if old == r0 {
			return src
		}
		return old
	}
	panic("BUG: bpf: atomic instruction was not decoded")
}

// Fetches reports whether an atomic instruction returns what it found, in Src,
// or in r0 for CMPXCHG.
func (in *Insn) Fetches() bool {
	switch in.Atomic {
	case asm.AddAtomic, asm.AndAtomic, asm.OrAtomic, asm.XorAtomic:
		return false
	}
	return in.Kind == AtomicRMW
}

// overwrites reports whether an arithmetic instruction does not read Dst.
func (in *Insn) overwrites() bool {
	switch in.ALU {
	case asm.Mov, asm.MovSX8, asm.MovSX16, asm.MovSX32:
		return true
	}
	return false
}
