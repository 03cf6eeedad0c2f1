package plan

import (
	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// What instructions on general registers do, as far as the search for switch
// tables needs it.

// none stands for no register.
const none insn.Reg = 0xff

// operand is a memory operand: base + index*scale + disp. A RIP-relative one
// has neither register, and its address in disp.
type operand struct {
	base, index insn.Reg // or none
	scale       uint8    // 1, 2, 4 or 8
	disp        int64
}

// operandOf is the memory operand of the instruction with index i.
func (b *body) operandOf(i int) (operand, bool) {
	in := &b.insts[i]
	if !in.HasMem() || in.AddrSize != 8 || in.Prefixes&(insn.PrefixFS|insn.PrefixGS) != 0 {
		return operand{}, false
	}
	o := operand{base: none, index: none, scale: 1, disp: int64(in.Disp)}
	if in.RIPRel() {
		o.disp += int64(b.addr(b.at[i])) + int64(in.Len)
		return o, true
	}
	if r, ok := in.Base(); ok {
		o.base = r
	}
	if r, ok := in.Index(); ok {
		o.index, o.scale = r, 1<<(in.SIB>>6)
	}
	return o, true
}

// isPlain reports an instruction of the one-byte opcodes.
func isPlain(in *insn.Inst) bool { return in.Enc == insn.EncLegacy && in.Map == 0 }

func isLea(in *insn.Inst) bool { return isPlain(in) && in.Opcode == 0x8d }

func isEndbr64(in *insn.Inst) bool {
	return in.Map == 1 && in.Opcode == 0x1e && in.ModRM == 0xfa && in.Prefixes&insn.PrefixRep != 0
}

// rmOf and regOf are the registers that ModRM names, where it names registers.
func rmOf(in *insn.Inst) insn.Reg  { return extended(in.ModRM, in.Prefixes&insn.RexB != 0) }
func regOf(in *insn.Inst) insn.Reg { return extended(in.ModRM>>3, in.Prefixes&insn.RexR != 0) }

func extended(n byte, rex bool) insn.Reg {
	r := insn.Reg(n & 7)
	if rex {
		r += 8
	}
	return r
}

// copied is what an instruction puts into a register without a change: the low
// bytes of a register or of memory, with zeros or the sign above.
type copied struct {
	to    insn.Reg
	from  insn.Reg // none: memory
	bytes int
	sign  bool // copies of the sign stand above
}

// copyOf recognises mov, movzx, movsx, movsxd and cdqe to a whole register.
func copyOf(in *insn.Inst) (copied, bool) {
	if in.Enc != insn.EncLegacy || in.OpSize < 4 {
		return copied{}, false
	}
	c := copied{bytes: int(in.OpSize)}
	switch {
	case in.Map == 0 && in.Opcode == 0x98 && in.OpSize == 8: // cdqe
		return copied{insn.RAX, insn.RAX, 4, true}, true
	case in.Map == 0 && in.Opcode == 0x89 && !in.HasMem():
		c.to, c.from = rmOf(in), regOf(in)
		return c, true
	case in.Map == 0 && in.Opcode == 0x8b:
	case in.Map == 0 && in.Opcode == 0x63 && in.OpSize == 8:
		c.bytes, c.sign = 4, true
	case in.Map == 1 && in.Opcode&^8 == 0xb6:
		c.bytes, c.sign = 1, in.Opcode == 0xbe
	case in.Map == 1 && in.Opcode&^8 == 0xb7:
		c.bytes, c.sign = 2, in.Opcode == 0xbf
	default:
		return copied{}, false
	}
	c.to, c.from = regOf(in), none
	if !in.HasMem() {
		c.from = rmOf(in)
		if c.bytes == 1 && !hasLowByte(in) {
			return copied{}, false
		}
	}
	return c, true
}

// hasLowByte reports whether rm, as a byte register, is the low byte of the
// register of that number: not ah, ch, dh, bh.
func hasLowByte(in *insn.Inst) bool { return in.Prefixes&insn.PrefixREX != 0 || rmOf(in) < 4 }

// The numbers of arithmetic in the opcodes 80, 81, 83, and of others times 8.
const (
	opAdd = 0
	opAnd = 4
	opCmp = 7
)

// constantOf is the constant, not negative, with which an instruction does
// arithmetic of a given number on a register (none: on memory), and how many
// bytes of that take part.
func constantOf(in *insn.Inst, op byte) (r insn.Reg, n int64, bytes int, ok bool) {
	if !isPlain(in) || in.Imm < 0 {
		return 0, 0, 0, false
	}
	bytes = int(in.OpSize)
	switch in.Opcode {
	case 0x80, 0x81, 0x83:
		r = none
		if in.Opcode == 0x80 {
			bytes = 1
		}
		if !in.HasMem() {
			r = rmOf(in)
		}
		ok = in.ModRM>>3&7 == op && (bytes > 1 || r == none || hasLowByte(in))
		return r, in.Imm, bytes, ok
	case op<<3 | 4:
		return insn.RAX, in.Imm, 1, true
	case op<<3 | 5:
		return insn.RAX, in.Imm, bytes, true
	}
	return 0, 0, 0, false
}

// mayHoldAddress reports an instruction with a constant, or a displacement, that
// is long enough for an address.
func mayHoldAddress(in *insn.Inst) bool { return in.ImmLen >= 4 || in.DispLen == 4 && !in.RIPRel() }

// addressIn is that address.
func addressIn(in *insn.Inst) abi.Addr {
	switch in.ImmLen {
	case 8:
		return abi.Addr(in.Imm)
	case 4:
		return abi.Addr(uint32(in.Imm))
	}
	return abi.Addr(uint32(in.Disp))
}

// isPop reports pop of a whole register.
func isPop(in *insn.Inst) bool {
	return isPlain(in) && in.OpSize == 8 && (in.Opcode&^7 == 0x58 || in.Opcode == 0x8f && !in.HasMem())
}

// isCmov reports cmovcc of whole registers.
func isCmov(in *insn.Inst) bool {
	return in.Enc == insn.EncLegacy && in.Map == 1 && in.Opcode&^15 == 0x40 && in.OpSize == 8
}

// isDemangling reports xor %fs:..., with a register: the C library so protects
// the addresses that it stores (glibc, sysdeps/x86_64/pointer_guard.h).
func isDemangling(in *insn.Inst) bool {
	return isPlain(in) && in.OpSize == 8 && in.Opcode == 0x33 && in.HasMem() && in.Prefixes&insn.PrefixFS != 0
}

// takesDown reports an instruction that makes the stack shorter as the end of a
// function does.
func takesDown(in *insn.Inst) bool {
	if isPop(in) || isPlain(in) && in.Opcode == 0xc9 {
		return true
	}
	r, _, bytes, ok := constantOf(in, opAdd)
	return ok && r == insn.RSP && bytes == 8
}

// sumOf recognises add and lea as the sum of two whole registers.
func (b *body) sumOf(i int) (x, y insn.Reg, ok bool) {
	in := &b.insts[i]
	if !isPlain(in) || in.OpSize != 8 {
		return 0, 0, false
	}
	switch in.Opcode {
	case 0x01, 0x03:
		return rmOf(in), regOf(in), !in.HasMem()
	case 0x8d:
		o, ok := b.operandOf(i)
		return o.base, o.index, ok && o.base != none && o.index != none && o.scale == 1 && o.disp == 0
	}
	return 0, 0, false
}

// literalOf is the address that an instruction puts into a register, if it
// does not depend on any: lea of a RIP-relative operand, mov of a constant.
func (b *body) literalOf(i int) (abi.Addr, bool) {
	in := &b.insts[i]
	switch {
	case isLea(in) && in.OpSize == 8:
		o, ok := b.operandOf(i)
		return abi.Addr(o.disp), ok && o.base == none && o.index == none
	case isPlain(in) && in.Opcode&^7 == 0xb8 && in.OpSize == 4:
		return abi.Addr(uint32(in.Imm)), true
	case isPlain(in) && (in.Opcode&^7 == 0xb8 || in.Opcode == 0xc7 && !in.HasMem()) && in.OpSize == 8:
		return abi.Addr(in.Imm), true
	}
	return 0, false
}
