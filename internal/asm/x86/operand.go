package x86

import (
	"math/bits"

	"trapless/internal/abi"
)

// Seg is a segment override.
type Seg uint8

// The segments that have a base in 64-bit mode.
const (
	NoSeg Seg = 0
	SegFS Seg = 0x64
	SegGS Seg = 0x65
)

type memKind uint8

const (
	memReg   memKind = iota // base, index and displacement
	memAddr                 // RIP-relative, to a fixed address
	memLabel                // RIP-relative, to a label
)

// Mem is a memory operand: At, AtIndex, Abs, FS and AtLabel make one. Seg may
// be set afterwards, and so may Disp, which counts from the address or label too.
type Mem struct {
	Base, Index Reg // NoReg when absent
	Scale       uint8
	Disp        int32
	Seg         Seg

	kind  memKind
	addr  abi.Addr
	label Label
}

// At is [base+disp].
func At(base Reg, disp int32) Mem { return Mem{Base: base, Index: NoReg, Disp: disp} }

// AtIndex is [base+index*scale+disp]. The scale is 1, 2, 4 or 8; base may be
// NoReg; RSP cannot be an index.
func AtIndex(base, index Reg, scale uint8, disp int32) Mem {
	return Mem{Base: base, Index: index, Scale: scale, Disp: disp}
}

// Abs is a RIP-relative reference to a fixed address within 2 GB of the code.
func Abs(addr abi.Addr) Mem { return Mem{Base: NoReg, Index: NoReg, kind: memAddr, addr: addr} }

// AtLabel is a RIP-relative reference to a label.
func AtLabel(l Label) Mem { return Mem{Base: NoReg, Index: NoReg, kind: memLabel, label: l} }

// FS is %fs:disp, without a base register.
func FS(disp int32) Mem { return Mem{Base: NoReg, Index: NoReg, Disp: disp, Seg: SegFS} }

// opcode is an opcode with what precedes it: 0xPPMMOO, where PP is a mandatory
// prefix or 0, MM is 0x0f or 0, and OO the opcode byte.
type opcode uint32

const rexBase = 0x40

// head is what comes before the ModRM byte.
type head struct {
	size    int    // operand size in bytes; 2 adds prefix 66, 8 adds REX.W
	op      opcode // opcode with escape and mandatory prefix
	rexBits byte   // R, X and B
	needREX bool   // a REX prefix even without bits: SPL, BPL, SIL, DIL
	seg     Seg
}

func (a *Asm) head(h head) {
	if h.seg != NoSeg {
		a.Raw(byte(h.seg))
	}
	if h.size == 2 {
		a.Raw(0x66)
	}
	if p := byte(h.op >> 16); p != 0 {
		a.Raw(p)
	}
	rex := h.rexBits
	if h.size == 8 {
		rex |= 8
	}
	if rex != 0 || h.needREX {
		a.Raw(rexBase | rex)
	}
	if e := byte(h.op >> 8); e != 0 {
		a.Raw(e)
	}
	a.Raw(byte(h.op))
}

// byteREX reports whether r, used as a byte register, is reachable only with a
// REX prefix; without one, 4 to 7 mean AH to BH.
func byteREX(r Reg) bool { return r >= RSP && r <= RDI }

// sized picks the byte opcode for size 1 and the next one for the others.
func (a *Asm) sized(op opcode, size int) opcode {
	switch size {
	case 1:
		return op
	case 2, 4, 8:
		return op | 1
	}
	a.fail("operand size %d", size)
	return op
}

// wide refuses byte operands of instructions that have none.
func (a *Asm) wide(size int) {
	if size != 2 && size != 4 && size != 8 {
		a.fail("operand size %d", size)
	}
}

func (a *Asm) check(regs ...Reg) {
	for _, r := range regs {
		if r > R15 {
			a.fail("register %d does not exist", r)
		}
	}
}

// rr emits opcode and ModRM for two registers; byteOps says which of them are
// byte registers.
func (a *Asm) rr(size int, op opcode, reg, rm Reg, byteOps ...Reg) {
	a.check(reg, rm)
	h := head{size: size, op: op, rexBits: reg.high()<<2 | rm.high()}
	for _, r := range byteOps {
		h.needREX = h.needREX || byteREX(r)
	}
	a.head(h)
	a.Raw(0xc0 | reg.low()<<3 | rm.low())
}

// rm emits opcode, ModRM, SIB and displacement for a register (or opcode
// digit) and a memory operand. The caller adds an immediate and calls finish.
func (a *Asm) rm(size int, op opcode, reg Reg, m Mem, byteOps ...Reg) {
	a.check(reg)
	a.checkMem(m)
	h := head{size: size, op: op, seg: m.Seg, rexBits: reg.high() << 2}
	if m.Index != NoReg {
		h.rexBits |= m.Index.high() << 1
	}
	if m.Base != NoReg {
		h.rexBits |= m.Base.high()
	}
	for _, r := range byteOps {
		h.needREX = h.needREX || byteREX(r)
	}
	a.head(h)
	a.modrm(reg.low()<<3, m)
}

// modrm emits the addressing bytes (SDM volume 2, tables 2-2 and 2-3).
func (a *Asm) modrm(reg byte, m Mem) {
	switch {
	case m.kind != memReg:
		a.Raw(reg | 5)
		a.rip = ripOperand{at: len(a.buf), mem: m}
		a.Long(0)
	case m.Base == NoReg: // mod 0, SIB base 5: displacement without a base
		a.Raw(reg|4, a.sib(m, 5))
		a.Long(uint32(m.Disp))
	default:
		a.modrmBase(reg, m)
	}
}

func (a *Asm) modrmBase(reg byte, m Mem) {
	var mod byte
	switch {
	case m.Disp == 0 && m.Base.low() != RBP.low(): // mod 0 with RBP or R13 means no base
		mod = 0x00
	case fits8(int64(m.Disp)):
		mod = 0x40
	default:
		mod = 0x80
	}
	if m.Index != NoReg || m.Base.low() == RSP.low() { // RSP or R12 in ModRM means SIB
		a.Raw(mod|reg|4, a.sib(m, m.Base.low()))
	} else {
		a.Raw(mod | reg | m.Base.low())
	}
	switch mod {
	case 0x40:
		a.Raw(byte(m.Disp))
	case 0x80:
		a.Long(uint32(m.Disp))
	}
}

func (a *Asm) sib(m Mem, base byte) byte {
	if m.Index == NoReg {
		return 4<<3 | base
	}
	return byte(bits.TrailingZeros8(m.Scale))<<6 | m.Index.low()<<3 | base
}

func (a *Asm) checkMem(m Mem) {
	if m.Base != NoReg {
		a.check(m.Base)
	}
	if m.Index == NoReg {
		return
	}
	a.check(m.Index)
	switch {
	case m.kind != memReg:
		a.fail("a RIP-relative operand has no index")
	case m.Index == RSP:
		a.fail("rsp cannot be an index")
	case m.Scale != 1 && m.Scale != 2 && m.Scale != 4 && m.Scale != 8:
		a.fail("scale %d", m.Scale)
	}
}

// imm emits an immediate of an operand's size: at most four bytes, which the
// processor sign-extends. A value may be given signed or unsigned.
func (a *Asm) imm(size int, v int32) {
	switch size {
	case 1:
		if v < -1<<7 || v >= 1<<8 {
			a.fail("%d does not fit a byte", v)
		}
		a.Raw(byte(v))
	case 2:
		if v < -1<<15 || v >= 1<<16 {
			a.fail("%d does not fit 16 bits", v)
		}
		a.Raw(byte(v), byte(v>>8))
	default:
		a.Long(uint32(v))
	}
	a.finish()
}
