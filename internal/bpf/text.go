package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
)

var aluText = map[asm.ALUOp]string{
	asm.Add: "+=", asm.Sub: "-=", asm.Mul: "*=", asm.Div: "/=", asm.SDiv: "s/=", asm.Or: "|=", asm.And: "&=",
	asm.LSh: "<<=", asm.RSh: ">>=", asm.ArSh: "s>>=", asm.Mod: "%=", asm.SMod: "s%=", asm.Xor: "^=", asm.Mov: "=",
	asm.MovSX8: "= (s8)", asm.MovSX16: "= (s16)", asm.MovSX32: "= (s32)",
}

var jumpText = map[asm.JumpOp]string{
	asm.JEq: "==", asm.JNE: "!=", asm.JGT: ">", asm.JGE: ">=", asm.JLT: "<", asm.JLE: "<=", asm.JSet: "&",
	asm.JSGT: "s>", asm.JSGE: "s>=", asm.JSLT: "s<", asm.JSLE: "s<=",
}

var atomicText = map[asm.AtomicOp]string{
	asm.AddAtomic: "add", asm.AndAtomic: "and", asm.OrAtomic: "or", asm.XorAtomic: "xor",
	asm.FetchAdd: "fetch_add", asm.FetchAnd: "fetch_and", asm.FetchOr: "fetch_or", asm.FetchXor: "fetch_xor",
	asm.Xchg: "xchg", asm.CmpXchg: "cmpxchg",
}

// String is the instruction in the notation of the kernel's verifier log, more
// or less: w1 is the lower half of r1.
func (in Insn) String() string {
	switch in.Kind {
	case ALU:
		return in.aluString()
	case LoadImm:
		return fmt.Sprintf("%s = %#x ll", regText(in.Dst, true), uint64(in.Imm))
	case LoadRef:
		if in.Imm == ringNumber {
			return regText(in.Dst, true) + " = ring"
		}
		return fmt.Sprintf("%s = map[%d]", regText(in.Dst, true), in.Imm)
	case Load:
		return fmt.Sprintf("%s = %s", regText(in.Dst, true), in.memText(in.Src))
	case Store:
		return fmt.Sprintf("%s = %s", in.memText(in.Dst), in.operandText(true))
	case AtomicRMW:
		return fmt.Sprintf("lock %s %s, %s", atomicText[in.Atomic], in.memText(in.Dst), regText(in.Src, true))
	case Jump:
		return fmt.Sprintf("if %s %s %s goto %d", regText(in.Dst, in.Wide), jumpText[in.Jump], in.operandText(in.Wide), in.Target)
	case JumpAlways:
		return fmt.Sprintf("goto %d", in.Target)
	case LoadValue:
		return fmt.Sprintf("%s = map[%d][0]+%d", regText(in.Dst, true), in.Imm, in.Off)
	case LoadFunc:
		return fmt.Sprintf("%s = func %d", regText(in.Dst, true), in.Target)
	case CallHelper:
		if h := helperByID[in.Helper()]; h != nil {
			return "call " + h.Name
		}
		return fmt.Sprintf("call helper %d", in.Imm)
	case CallReg:
		return "callx " + regText(in.Dst, true)
	case CallFunc:
		return fmt.Sprintf("call func %d", in.Target)
	}
	return "exit"
}

func (in *Insn) aluString() string {
	d := regText(in.Dst, in.Wide)
	switch in.ALU {
	case asm.Neg:
		return fmt.Sprintf("%s = -%s", d, d)
	case asm.Swap:
		order := "le"
		if in.Swap == asm.BE {
			order = "be"
		}
		return fmt.Sprintf("%s = %s%d %s", regText(in.Dst, true), order, 8*in.Size, regText(in.Dst, true))
	}
	return fmt.Sprintf("%s %s %s", d, aluText[in.ALU], in.operandText(in.Wide))
}

func (in *Insn) operandText(wide bool) string {
	if in.UseSrc {
		return regText(in.Src, wide)
	}
	return fmt.Sprint(in.Imm)
}

func (in *Insn) memText(base asm.Register) string {
	sign := "u"
	if in.Signed {
		sign = "s"
	}
	return fmt.Sprintf("*(%s%d *)(%s %+d)", sign, 8*in.Size, regText(base, true), in.Off)
}

func regText(r asm.Register, wide bool) string {
	if wide {
		return fmt.Sprintf("r%d", uint8(r))
	}
	return fmt.Sprintf("w%d", uint8(r))
}
