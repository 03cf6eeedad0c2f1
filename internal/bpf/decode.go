package bpf

import (
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf/asm"
)

// ErrInvalid is wrapped by every reason why a program is not accepted.
var ErrInvalid = errors.New("bpf program")

// InsnError is a reason why a program is not accepted, and where.
type InsnError struct {
	Program string
	Index   int    // of the instruction in Program.Insns
	Insn    string // its text
	Reason  string
}

func (e *InsnError) Error() string {
	return fmt.Sprintf("%v %s: instruction %d (%s): %s", ErrInvalid, e.Program, e.Index, e.Insn, e.Reason)
}

func (e *InsnError) Unwrap() error { return ErrInvalid }

// Kind is what an instruction does in general.
type Kind uint8

// The kinds of instructions.
const (
	ALU        Kind = iota // Dst = Dst op (Src or Imm)
	LoadImm                // Dst = Imm, 64 bits
	LoadRef                // Dst = reference to map Imm, or to the ring
	Load                   // Dst = *(Src+Off)
	Store                  // *(Dst+Off) = Src or Imm
	AtomicRMW              // an atomic read-modify-write of *(Dst+Off) with Src
	Jump                   // to Target if Dst op (Src or Imm)
	JumpAlways             // to Target
	CallHelper             // helper number Imm
	Exit                   // the run ends
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

// decoder turns instructions into Insns.
type decoder struct {
	prog    *Program
	symbols map[string]int // index of the instruction that bears the symbol
	raw     []int          // position of each instruction in 8-byte units
	index   map[int]int    // position to index
}

// decode decodes a whole program.
func decode(p *Program) ([]Insn, error) {
	d := &decoder{prog: p, symbols: map[string]int{}, index: map[int]int{}}
	pos := 0
	for i := range p.Insns {
		in := &p.Insns[i]
		if s := in.Symbol(); s != "" {
			if _, dup := d.symbols[s]; dup {
				return nil, d.fail(i, "symbol %s is defined twice", s)
			}
			d.symbols[s] = i
		}
		d.raw = append(d.raw, pos)
		d.index[pos] = i
		pos += int(in.Size() / asm.InstructionSize)
	}
	out := make([]Insn, len(p.Insns))
	for i := range p.Insns {
		if err := d.one(i, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d *decoder) fail(i int, format string, args ...any) error {
	return &InsnError{d.prog.Name, i, fmt.Sprint(d.prog.Insns[i]), fmt.Sprintf(format, args...)}
}

func (d *decoder) one(i int, out *Insn) error {
	in := &d.prog.Insns[i]
	if in.OpCode == asm.InvalidOpCode {
		return d.fail(i, "invalid opcode")
	}
	if in.Dst > asm.R10 || in.Src > asm.R10 {
		return d.fail(i, "no such register")
	}
	*out = Insn{Dst: in.Dst, Src: in.Src, Off: int32(in.Offset), Imm: in.Constant}
	var reason string
	switch class := in.OpCode.Class(); class {
	case asm.ALUClass, asm.ALU64Class:
		reason = decodeALU(in, out)
	case asm.JumpClass, asm.Jump32Class:
		reason = d.jump(i, in, out)
	default:
		reason = decodeMemory(in, out)
	}
	if reason != "" {
		return d.fail(i, "%s", reason)
	}
	if out.Kind != LoadImm && out.Kind != LoadRef && !out.UseSrc && (out.Imm < math.MinInt32 || out.Imm > math.MaxInt32) {
		return d.fail(i, "constant %d has more than 32 bits", out.Imm)
	}
	return nil
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
	case asm.LSh, asm.RSh, asm.ArSh:
		bits := int64(32)
		if out.Wide {
			bits = 64
		}
		if !out.UseSrc && (out.Imm < 0 || out.Imm >= bits) {
			return fmt.Sprintf("shift by %d", out.Imm)
		}
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
		out.Kind = CallHelper
		if in.Src != 0 || in.Dst != 0 || in.Offset != 0 {
			return "only helpers can be called"
		}
		if in.OpCode.Source() != asm.ImmSource {
			return "unknown call"
		}
		return ""
	case asm.Exit:
		out.Kind = Exit
		if in.Src != 0 || in.Dst != 0 || in.Offset != 0 || in.Constant != 0 || in.OpCode.Source() != asm.ImmSource {
			return "an exit has operands"
		}
		return ""
	case asm.Ja:
		return d.jumpAlways(i, in, out)
	case asm.JEq, asm.JNE, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSet, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE:
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
	return d.target(i, in, int64(in.Offset), in.Offset == -1, out)
}

// target finds where a jump goes: to a symbol, or by a distance in 8-byte
// units from the next instruction.
func (d *decoder) target(i int, in *asm.Instruction, dist int64, symbolic bool, out *Insn) string {
	if ref := in.Reference(); ref != "" && symbolic {
		t, ok := d.symbols[ref]
		if !ok {
			return fmt.Sprintf("jump to the unknown symbol %s", ref)
		}
		out.Target = t
		return ""
	}
	t, ok := d.index[d.raw[i]+1+int(dist)]
	if !ok {
		return fmt.Sprintf("jump by %d leaves the program", dist)
	}
	out.Target = t
	return ""
}

// decodeMemory follows RFC 9669, 5.
func decodeMemory(in *asm.Instruction, out *Insn) string {
	class, mode := in.OpCode.Class(), in.OpCode.Mode()
	out.Size = in.OpCode.Size().Sizeof()
	switch {
	case in.OpCode == asm.LoadImmOp(asm.DWord):
		return decodeLoadImm(in, out)
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

func decodeLoadImm(in *asm.Instruction, out *Insn) string {
	switch {
	case in.Offset != 0:
		return "a constant load has an offset"
	case in.Src == 0:
		out.Kind = LoadImm
	case in.Src == asm.PseudoMapFD:
		out.Kind, out.Imm = LoadRef, int64(uint32(in.Constant))
		out.Src = 0
	default:
		return "unknown kind of constant"
	}
	return ""
}

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
