package x86

import (
	"math/bits"

	bpfasm "github.com/cilium/ebpf/asm"

	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

var aluOps = map[bpfasm.ALUOp]asm.Op{
	bpfasm.Add: asm.Add, bpfasm.Sub: asm.Sub, bpfasm.Or: asm.Or, bpfasm.And: asm.And, bpfasm.Xor: asm.Xor,
}

var shifts = map[bpfasm.ALUOp]asm.Shift{
	bpfasm.LSh: asm.Shl, bpfasm.RSh: asm.Shr, bpfasm.ArSh: asm.Sar,
}

// alu emits an arithmetic instruction. A 32-bit operation of the processor
// clears the upper half, as eBPF demands.
func (g *generator) alu(o *op) {
	in := o.in
	size := compareSize(in)
	d := g.r(in.Dst)
	switch {
	case overwrites(in):
		g.move(in, d, g.number(o, in.Src))
		return
	case o.tgid():
		g.MovRI(d, uint64(g.env.TGID))
		return
	}
	switch in.ALU {
	case bpfasm.LSh, bpfasm.RSh, bpfasm.ArSh:
		g.shift(o, d, size)
	case bpfasm.Mul:
		if imm, ok := o.constant(size); ok {
			g.ImulI(size, d, d, imm)
		} else {
			g.Imul(size, d, g.number(o, in.Src))
		}
	case bpfasm.Div, bpfasm.Mod, bpfasm.SDiv, bpfasm.SMod:
		g.divide(o, d, size)
	case bpfasm.Neg:
		g.Neg(size, d)
	case bpfasm.Swap:
		g.swap(in, d)
	default:
		if imm, ok := o.constant(size); ok {
			g.OpRI(aluOps[in.ALU], size, d, imm)
		} else {
			g.OpRR(aluOps[in.ALU], size, d, g.number(o, in.Src))
		}
	}
}

// constant is the second operand if the instruction can hold it.
func (o *op) constant(size int) (int32, bool) {
	if !o.in.UseSrc {
		return int32(o.in.Imm), true
	}
	return immediate(o.val(o.in.Src), size)
}

// copy moves all 64 bits, unless there is nothing to move.
func (g *generator) copy(d, s asm.Reg) {
	if d != s {
		g.MovRR(8, d, s)
	}
}

func (g *generator) move(in *bpf.Insn, d, s asm.Reg) {
	switch in.ALU {
	case bpfasm.MovSX8:
		g.MovSX(1, d, s)
	case bpfasm.MovSX16:
		g.MovSX(2, d, s)
	case bpfasm.MovSX32:
		g.MovSX(4, d, s)
	default:
		if in.Wide {
			g.copy(d, s)
			return
		}
		g.MovRR(4, d, s)
		return
	}
	if !in.Wide {
		g.MovRR(4, d, d)
	}
}

func (g *generator) shift(o *op, d asm.Reg, size int) {
	in := o.in
	if imm, ok := o.constant(size); ok {
		n := uint8(imm) & uint8(8*size-1)
		if n == 0 {
			if size == 4 {
				g.MovRR(4, d, d)
			}
			return
		}
		g.ShiftI(shifts[in.ALU], size, d, n)
		return
	}
	g.MovRR(4, asm.RCX, g.number(o, in.Src)) // the processor masks CL as eBPF does
	g.ShiftCL(shifts[in.ALU], size, d)
}

func (g *generator) swap(in *bpf.Insn, d asm.Reg) {
	be := in.Swap == bpfasm.BE
	switch {
	case in.Size == 2 && be:
		g.Bswap(4, d)
		g.ShiftI(asm.Shr, 4, d, 16)
	case be:
		g.Bswap(in.Size, d)
	case in.Size < 8:
		g.MovZX(in.Size, d, d)
	}
}

// divide emits a division or remainder: by shift or mask where the divisor is
// a power of two, else by the processor's, around its two traps.
func (g *generator) divide(o *op, d asm.Reg, size int) {
	in := o.in
	imm, isConst := o.constant(size)
	signed := in.ALU == bpfasm.SDiv || in.ALU == bpfasm.SMod
	if isConst {
		if imm > 0 && imm&(imm-1) == 0 && !signed {
			g.dividePower(in, d, size, uint8(bits.TrailingZeros32(uint32(imm))))
			return
		}
		divisor := uint64(int64(imm))
		if size == 4 {
			divisor = uint64(uint32(imm))
		}
		g.MovRI(g.v(temp1), divisor)
		g.divideBy(in, d, g.v(temp1), size)
		return
	}
	g.divideBy(in, d, g.number(o, in.Src), size)
}

func (g *generator) dividePower(in *bpf.Insn, d asm.Reg, size int, log uint8) {
	switch {
	case in.ALU == bpfasm.Mod:
		g.OpRI(asm.And, size, d, int32(1)<<log-1)
	case log == 0:
		if size == 4 {
			g.MovRR(4, d, d)
		}
	default:
		g.ShiftI(asm.Shr, size, d, log)
	}
}

func (g *generator) divideBy(in *bpf.Insn, d, s asm.Reg, size int) {
	rem := in.ALU == bpfasm.Mod || in.ALU == bpfasm.SMod
	zero, minusOne, done := g.NewLabel(), g.NewLabel(), g.NewLabel()
	g.TestRR(size, s, s)
	g.Jcc(asm.E, zero)
	g.MovRR(8, asm.RAX, d)
	if in.ALU == bpfasm.SDiv || in.ALU == bpfasm.SMod {
		g.OpRI(asm.Cmp, size, s, -1)
		g.Jcc(asm.E, minusOne)
		if size == 8 {
			g.Cqo()
		} else {
			g.Cdq()
		}
		g.IDiv(size, s)
	} else {
		g.OpRR(asm.Xor, 4, asm.RDX, asm.RDX)
		g.Div(size, s)
	}
	if rem {
		g.MovRR(size, d, asm.RDX)
	} else {
		g.MovRR(size, d, asm.RAX)
	}
	g.Jmp(done)
	g.Bind(zero)
	if rem {
		g.MovRR(size, d, d)
	} else {
		g.OpRR(asm.Xor, 4, d, d)
	}
	g.Jmp(done)
	g.Bind(minusOne) // where the processor would trap for the smallest number
	if rem {
		g.OpRR(asm.Xor, 4, d, d)
	} else {
		g.Neg(size, d)
	}
	g.Bind(done)
}

var conditions = map[bpfasm.JumpOp]asm.Cond{
	bpfasm.JEq: asm.E, bpfasm.JNE: asm.NE, bpfasm.JSet: asm.NE,
	bpfasm.JGT: asm.A, bpfasm.JGE: asm.AE, bpfasm.JLT: asm.B, bpfasm.JLE: asm.BE,
	bpfasm.JSGT: asm.G, bpfasm.JSGE: asm.GE, bpfasm.JSLT: asm.L, bpfasm.JSLE: asm.LE,
}

// jump emits a conditional jump; what follows otherwise is the caller's. One
// that leads back takes fuel.
func (g *generator) jump(o *op) {
	if o.target < 0 { // it is always taken
		g.charge(o, g.spent(o))
		return
	}
	c, to := g.compare(o), g.label(g.follow(o.target))
	if o.charge == 0 {
		g.Jcc(c, to)
		return
	}
	over := g.NewLabel()
	g.Jcc(c.Not(), over)
	g.OpMI(asm.Sub, 4, g.stack(g.frame.fuel), int32(o.charge))
	g.Jcc(asm.NS, to)
	g.Jmp(g.spent(o))
	g.Bind(over)
}

// compare sets the flags for a conditional jump, and returns its condition.
func (g *generator) compare(o *op) asm.Cond {
	in := o.in
	size := compareSize(in)
	d := g.number(o, in.Dst)
	imm, isConst := o.constant(size)
	switch {
	case in.Jump == bpfasm.JSet && isConst:
		g.TestRI(size, d, imm)
	case in.Jump == bpfasm.JSet:
		g.TestRR(size, d, g.number(o, in.Src))
	case isConst && imm == 0:
		g.TestRR(size, d, d)
	case isConst:
		g.OpRI(asm.Cmp, size, d, imm)
	default:
		g.OpRR(asm.Cmp, size, d, g.number(o, in.Src))
	}
	return conditions[in.Jump]
}

// bitLength emits HelperBitLength. BSR leaves its destination alone when the
// source is zero: AMD says so, and the kernel relies on it for Intel's too
// (fls64 in arch/x86/include/asm/bitops.h).
func (g *generator) bitLength() {
	d := g.r(bpfasm.R0)
	g.MovRI(d, ^uint64(0))
	g.Bsr(8, d, g.r(bpfasm.R1))
	g.Inc(8, d)
}
