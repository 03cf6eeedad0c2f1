package bpf

import (
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// Kind is what an instruction does in general.
type Kind uint8

// The kinds of instructions.
const (
	ALU        Kind = iota // Dst = Dst op (Src or Imm)
	LoadImm                // Dst = Imm, 64 bits
	LoadRef                // Dst = reference to map Imm, or to the ring
	LoadValue              // Dst = address of byte Off of the first value of map Imm
	LoadFunc               // Dst = reference to the function that begins at Target
	Load                   // Dst = *(Src+Off)
	Store                  // *(Dst+Off) = Src or Imm
	AtomicRMW              // an atomic read-modify-write of *(Dst+Off) with Src
	Jump                   // to Target if Dst op (Src or Imm)
	JumpAlways             // to Target
	CallHelper             // helper number Imm
	CallReg                // the helper whose number is in Dst
	CallFunc               // the function that begins at Target
	Exit                   // the function returns, or the run ends
)

// Insn is an instruction, decoded: no field has to be taken apart any more.
type Insn struct {
	Kind   Kind
	ALU    asm.ALUOp    // of an ALU instruction
	Jump   asm.JumpOp   // of a Jump
	Atomic asm.AtomicOp // of an AtomicRMW
	Wide   bool         // 64 bits are computed or compared, not 32
	UseSrc bool         // the second operand is Src, not Imm
	Signed bool         // a Load extends the sign
	Size   int          // bytes of memory, or of a byte swap
	Swap   asm.Endianness
	Dst    asm.Register
	Src    asm.Register
	Off    int32
	Imm    int64
	Target int // index of an instruction
}

// Helper is the number of the helper that a CallHelper calls.
func (in *Insn) Helper() asm.BuiltinFunc { return asm.BuiltinFunc(in.Imm) }

// decoder turns instructions into Insns.
type decoder struct {
	prog    *Program
	code    *Code
	symbols map[string]int // index of the instruction that bears the symbol
	raw     []int          // position of each instruction in 8-byte units
	index   map[int]int    // position to index
	why     Reason         // the kind of thing that is wrong, where something is
}

func newDecoder(p *Program) *decoder {
	return &decoder{
		prog:    p,
		code:    &Code{Name: p.Name, Input: p.Input, Maps: slices.Clone(p.Maps), Insns: make([]Insn, len(p.Insns)), Constants: p.Constants},
		symbols: map[string]int{},
		index:   map[int]int{},
	}
}

// insns decodes all instructions.
func (d *decoder) insns() error {
	pos := 0
	for i := range d.prog.Insns {
		in := &d.prog.Insns[i]
		if s := in.Symbol(); s != "" {
			if _, dup := d.symbols[s]; dup {
				return d.fail(i, ReasonEncoding, "symbol %s is defined twice", s)
			}
			d.symbols[s] = i
		}
		d.raw = append(d.raw, pos)
		d.index[pos] = i
		pos += int(in.Size() / asm.InstructionSize)
	}
	for i := range d.code.Insns {
		if err := d.one(i, &d.code.Insns[i]); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) fail(i int, why Reason, format string, args ...any) error {
	return &InsnError{
		Program: d.prog.Name, Index: i, Insn: fmt.Sprint(d.prog.Insns[i]), Source: d.prog.source(i),
		Word: why, Reason: fmt.Sprintf(format, args...), Hint: decodeHints[why],
	}
}

var decodeHints = map[Reason]string{
	ReasonEncoding:     "the instruction is not one of RFC 9669: see how the program was made",
	ReasonUnsupported:  "leave it out",
	ReasonJump:         "a jump or a call can only lead to an instruction of the program",
	ReasonFunction:     "a function ends with exit or a jump, is left by exit alone, and is never active twice",
	ReasonMapType:      "read its variables by their names",
	ReasonMap:          "the program has other maps than it was compiled for",
	ReasonFramePointer: "copy it to another register, and change that",
}

func (d *decoder) one(i int, out *Insn) error {
	in := &d.prog.Insns[i]
	if in.OpCode == asm.InvalidOpCode {
		return d.fail(i, ReasonEncoding, "invalid opcode")
	}
	if in.Dst > asm.R10 || in.Src > asm.R10 {
		return d.fail(i, ReasonEncoding, "no such register")
	}
	*out = Insn{Dst: in.Dst, Src: in.Src, Off: int32(in.Offset), Imm: in.Constant}
	var reason string
	d.why = ReasonEncoding
	switch class := in.OpCode.Class(); class {
	case asm.ALUClass, asm.ALU64Class:
		reason = decodeALU(in, out)
	case asm.JumpClass, asm.Jump32Class:
		reason = d.jump(i, in, out)
	default:
		reason = d.memory(i, in, out)
	}
	if reason == "" && out.writesR10() {
		d.why, reason = ReasonFramePointer, "the frame pointer is read-only"
	}
	if reason != "" {
		return d.fail(i, d.why, "%s", reason)
	}
	if in.OpCode != asm.LoadImmOp(asm.DWord) && !out.UseSrc && (out.Imm < math.MinInt32 || out.Imm > math.MaxInt32) {
		return d.fail(i, ReasonEncoding, "constant %d has more than 32 bits", out.Imm)
	}
	return nil
}

// writesR10 reports whether an instruction changes the frame pointer.
func (in *Insn) writesR10() bool {
	switch in.Kind {
	case ALU, LoadImm, LoadRef, LoadValue, LoadFunc, Load:
		return in.Dst == asm.R10
	case AtomicRMW:
		return in.Src == asm.R10 && in.Fetches() && in.Atomic != asm.CmpXchg
	}
	return false
}

// decodeALU follows RFC 9669, 4.1 and 4.2.
func decodeALU(in *asm.Instruction, out *Insn) string {
	out.Kind, out.ALU, out.Wide = ALU, in.OpCode.ALUOp(), in.OpCode.Class() == asm.ALU64Class
	if in.Offset != 0 {
		return "an arithmetic instruction has an offset"
	}
	if out.ALU == asm.Swap {
		return decodeSwap(in, out)
	}
	out.UseSrc = in.OpCode.Source() == asm.RegSource
	switch out.ALU {
	case asm.Add, asm.Sub, asm.Mul, asm.Div, asm.SDiv, asm.Or, asm.And, asm.Mod, asm.SMod, asm.Xor, asm.Mov:
	case asm.LSh, asm.RSh, asm.ArSh: // the count is masked when it is used
	case asm.Neg:
		if out.UseSrc || out.Imm != 0 {
			return "a negation has a second operand"
		}
	case asm.MovSX8, asm.MovSX16, asm.MovSX32:
		if !out.UseSrc || out.ALU == asm.MovSX32 && !out.Wide {
			return "no such sign extension"
		}
	default:
		return "unknown arithmetic instruction"
	}
	return unusedOperand(out)
}

func decodeSwap(in *asm.Instruction, out *Insn) string {
	switch in.Constant {
	case 16, 32, 64:
		out.Size = int(in.Constant) / 8
	default:
		return fmt.Sprintf("byte swap of %d bits", in.Constant)
	}
	if in.Src != 0 {
		return "a byte swap has a source register"
	}
	out.Swap = in.OpCode.Endianness()
	if out.Wide { // BSWAP swaps on every host, as BE does on this little-endian context
		if out.Swap != asm.LE {
			return "unknown arithmetic instruction"
		}
		out.Swap = asm.BE
	}
	return ""
}

// unusedOperand refuses operands that the instruction has no use for: they
// would be instructions of a later instruction set.
func unusedOperand(out *Insn) string {
	if out.UseSrc && out.Imm != 0 {
		return "both a source register and a constant"
	}
	if !out.UseSrc && out.Src != 0 {
		return "both a constant and a source register"
	}
	return ""
}

// jump follows RFC 9669, 4.3.
func (d *decoder) jump(i int, in *asm.Instruction, out *Insn) string {
	op := in.OpCode.JumpOp()
	switch op {
	case asm.Call:
		return d.call(i, in, out)
	case asm.Exit:
		out.Kind = Exit
		if in.OpCode.Class() != asm.JumpClass {
			return "unknown jump"
		}
		if in.Src != 0 || in.Dst != 0 || in.Offset != 0 || in.Constant != 0 || in.OpCode.Source() != asm.ImmSource {
			return "an exit has operands"
		}
		return ""
	case asm.Ja:
		return d.jumpAlways(i, in, out)
	case asm.JEq, asm.JNE, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSet, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE:
	case asm.JCOND:
		d.why = ReasonUnsupported
		return "may_goto is not supported: every loop is bounded by fuel"
	default:
		return "unknown jump"
	}
	out.Kind, out.Jump, out.Wide = Jump, op, in.OpCode.Class() == asm.JumpClass
	out.UseSrc = in.OpCode.Source() == asm.RegSource
	out.Off = 0
	if r := unusedOperand(out); r != "" {
		return r
	}
	return d.target(i, in, int64(in.Offset), int64(in.Offset) == -1, out)
}

// call follows RFC 9669, 4.3.1 and 4.3.2, and clang's and the kernel's callx,
// which calls the helper whose number is in a register.
func (d *decoder) call(i int, in *asm.Instruction, out *Insn) string {
	switch {
	case in.OpCode.Class() != asm.JumpClass:
		return "unknown call"
	case in.Offset != 0:
		return "a call has an offset"
	case in.OpCode.Source() == asm.RegSource:
		out.Kind, out.UseSrc = CallReg, true
		if in.Src != 0 || in.Constant != 0 {
			return "a call of a register has other operands"
		}
		return ""
	case in.Dst != 0:
		return "a call has a destination register"
	case in.Src == asm.R0:
		out.Kind = CallHelper
		return ""
	case in.Src == asm.PseudoCall:
		out.Kind, out.Src, out.Imm = CallFunc, 0, 0
		return d.target(i, in, in.Constant, in.Constant == -1, out)
	case in.Src == asm.PseudoKfuncCall:
		d.why = ReasonUnsupported
		return "kernel functions cannot be called: the program runs in a process"
	}
	return "unknown call"
}

func (d *decoder) jumpAlways(i int, in *asm.Instruction, out *Insn) string {
	out.Kind, out.Off, out.Imm = JumpAlways, 0, 0
	if in.Src != 0 || in.Dst != 0 || in.OpCode.Source() != asm.ImmSource {
		return "an unconditional jump has operands"
	}
	if in.OpCode.Class() == asm.Jump32Class {
		if in.Offset != 0 {
			return "a long jump has an offset"
		}
		return d.target(i, in, in.Constant, in.Constant == -1, out)
	}
	if in.Constant != 0 {
		return "an unconditional jump has operands"
	}
	return d.target(i, in, int64(in.Offset), in.Offset == -1, out)
}

// target finds where a jump goes: to a symbol, or by a distance in 8-byte
// units from the next instruction.
func (d *decoder) target(i int, in *asm.Instruction, dist int64, symbolic bool, out *Insn) string {
	if ref := in.Reference(); ref != "" && symbolic {
		t, ok := d.symbols[ref]
		if !ok {
			d.why = ReasonJump
			return fmt.Sprintf("jump to the unknown symbol %s", ref)
		}
		out.Target = t
		return ""
	}
	t, ok := d.index[d.raw[i]+1+int(dist)]
	if !ok {
		d.why = ReasonJump
		return fmt.Sprintf("jump by %d leaves the program", dist)
	}
	out.Target = t
	return ""
}

// memory follows RFC 9669, 5.
func (d *decoder) memory(i int, in *asm.Instruction, out *Insn) string {
	class, mode := in.OpCode.Class(), in.OpCode.Mode()
	out.Size = in.OpCode.Size().Sizeof()
	switch {
	case in.OpCode == asm.LoadImmOp(asm.DWord):
		return d.loadImm(i, in, out)
	case class == asm.LdClass && (mode == asm.AbsMode || mode == asm.IndMode):
		d.why = ReasonUnsupported
		return "legacy packet access (ABS, IND) is not supported: a probe has no packet"
	case class == asm.LdXClass && mode == asm.MemMode:
		out.Kind, out.UseSrc = Load, true
	case class == asm.LdXClass && mode == asm.MemSXMode && out.Size < 8:
		out.Kind, out.UseSrc, out.Signed = Load, true, true
	case class == asm.StClass && mode == asm.MemMode:
		out.Kind = Store
	case class == asm.StXClass && mode == asm.MemMode:
		out.Kind, out.UseSrc = Store, true
	case class == asm.StXClass && mode == asm.AtomicMode:
		return decodeAtomic(in, out)
	default:
		return "unknown memory access"
	}
	return unusedOperand(out)
}

// loadImm follows RFC 9669, 5.4. Maps are given by their numbers.
func (d *decoder) loadImm(i int, in *asm.Instruction, out *Insn) string {
	out.Src = 0
	switch {
	case in.Offset != 0:
		return "a constant load has an offset"
	case in.Src == 0:
		out.Kind = LoadImm
		return ""
	case in.Src == asm.PseudoMapFD || in.Src == pseudoMapIdx:
		out.Kind, out.Imm = LoadRef, int64(uint32(in.Constant))
		if in.Constant>>32 != 0 {
			return "a map reference has an offset"
		}
		if out.Imm != ringNumber && out.Imm >= int64(len(d.prog.Maps)) {
			d.why = ReasonMap
			return fmt.Sprintf("there is no map %d", out.Imm)
		}
		if _, constant := d.prog.Constants[int(out.Imm)]; constant {
			d.why = ReasonMapType
			return fmt.Sprintf("%s is used as a map, but holds constants", d.prog.Maps[out.Imm].Name)
		}
		return ""
	case in.Src == asm.PseudoMapValue || in.Src == pseudoMapIdxValue:
		out.Kind, out.Imm, out.Off = LoadValue, int64(uint32(in.Constant)), int32(in.Constant>>32)
		if out.Imm >= int64(len(d.prog.Maps)) {
			d.why = ReasonMap
			return fmt.Sprintf("there is no map %d", out.Imm)
		}
		return ""
	case in.Src == asm.PseudoFunc:
		out.Kind, out.Imm = LoadFunc, 0
		dist := int64(int32(in.Constant))
		return d.target(i, in, dist, dist == -1, out)
	}
	return "unknown kind of constant"
}

// Values of a constant load's source register that package asm does not name
// (RFC 9669, 5.4).
const (
	pseudoMapIdx      asm.Register = 5
	pseudoMapIdxValue asm.Register = 6
)

func decodeAtomic(in *asm.Instruction, out *Insn) string {
	out.Kind, out.UseSrc, out.Imm, out.Atomic = AtomicRMW, true, 0, in.OpCode.AtomicOp()
	if out.Size != 4 && out.Size != 8 {
		return fmt.Sprintf("atomic operation on %d bytes", out.Size)
	}
	switch out.Atomic {
	case asm.AddAtomic, asm.AndAtomic, asm.OrAtomic, asm.XorAtomic, asm.Xchg, asm.CmpXchg,
		asm.FetchAdd, asm.FetchAnd, asm.FetchOr, asm.FetchXor:
		return ""
	}
	return "unknown atomic operation"
}
