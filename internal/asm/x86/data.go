package x86

// Sizes are operand sizes in bytes: 1, 2, 4 or 8. A 4-byte operation on a
// register clears its upper half, smaller ones leave the rest as it was.

// MovRR is mov d, s.
func (a *Asm) MovRR(size int, d, s Reg) {
	a.rr(size, a.sized(0x88, size), s, d, byteOps(size, d, s)...)
}

// MovRI sets all 64 bits of d, by the shortest encoding that leaves the flags
// alone.
func (a *Asm) MovRI(d Reg, v uint64) {
	a.check(d)
	switch {
	case v>>32 == 0: // mov r32, imm32 clears the upper half
		a.head(head{size: 4, op: 0xb8 + opcode(d.low()), rexBits: d.high()})
		a.Long(uint32(v))
	case fits32(int64(v)): // mov r64, simm32
		a.rr(8, 0xc7, 0, d)
		a.Long(uint32(v))
	default:
		a.head(head{size: 8, op: 0xb8 + opcode(d.low()), rexBits: d.high()})
		a.Quad(v)
	}
}

// Load is mov d, m.
func (a *Asm) Load(size int, d Reg, m Mem) {
	a.rm(size, a.sized(0x8a, size), d, m, byteOps(size, d)...)
	a.finish()
}

// LoadZX loads size bytes and clears the rest of d.
func (a *Asm) LoadZX(size int, d Reg, m Mem) {
	switch size {
	case 1, 2:
		a.rm(4, a.sized(0x0fb6, size), d, m)
		a.finish()
	default:
		a.Load(size, d, m)
	}
}

// LoadSX loads size bytes and extends their sign to 64 bits.
func (a *Asm) LoadSX(size int, d Reg, m Mem) {
	switch size {
	case 1, 2:
		a.rm(8, a.sized(0x0fbe, size), d, m)
		a.finish()
	case 4:
		a.rm(8, 0x63, d, m)
		a.finish()
	default:
		a.Load(size, d, m)
	}
}

// MovZX moves the low size bytes of s and clears the rest of d.
func (a *Asm) MovZX(size int, d, s Reg) {
	switch size {
	case 1:
		a.rr(4, 0x0fb6, d, s, s)
	case 2:
		a.rr(4, 0x0fb7, d, s)
	default:
		a.MovRR(size, d, s)
	}
}

// MovSX moves the low size bytes of s and extends their sign to 64 bits.
func (a *Asm) MovSX(size int, d, s Reg) {
	switch size {
	case 1:
		a.rr(8, 0x0fbe, d, s, s)
	case 2:
		a.rr(8, 0x0fbf, d, s)
	case 4:
		a.rr(8, 0x63, d, s)
	default:
		a.MovRR(size, d, s)
	}
}

// Store is mov m, s.
func (a *Asm) Store(size int, m Mem, s Reg) {
	a.rm(size, a.sized(0x88, size), s, m, byteOps(size, s)...)
	a.finish()
}

// StoreI is mov m, v. For size 8 the value is sign-extended.
func (a *Asm) StoreI(size int, m Mem, v int32) {
	a.rm(size, a.sized(0xc6, size), 0, m)
	a.imm(size, v)
}

// Lea is lea d, m, with 64 bits. A segment has no effect on it.
func (a *Asm) Lea(d Reg, m Mem) {
	a.rm(8, 0x8d, d, m)
	a.finish()
}

// Xchg is xchg m, r, which is locked always.
func (a *Asm) Xchg(size int, m Mem, r Reg) {
	a.rm(size, a.sized(0x86, size), r, m, byteOps(size, r)...)
	a.finish()
}

// XchgRR is xchg x, y.
func (a *Asm) XchgRR(size int, x, y Reg) {
	a.rr(size, a.sized(0x86, size), y, x, byteOps(size, x, y)...)
}

// Cmpxchg is cmpxchg m, r: if m equals RAX, m = r, else RAX = m.
func (a *Asm) Cmpxchg(size int, m Mem, r Reg) {
	a.rm(size, a.sized(0x0fb0, size), r, m, byteOps(size, r)...)
	a.finish()
}

// Cmpxchg16b is cmpxchg16b m, which must be 16-byte aligned: if m equals RDX:RAX,
// m = RCX:RBX, else RDX:RAX = m.
func (a *Asm) Cmpxchg16b(m Mem) {
	a.rm(8, 0x0fc7, 1, m)
	a.finish()
}

// Xadd is xadd m, r: m += r, and r = what m was.
func (a *Asm) Xadd(size int, m Mem, r Reg) {
	a.rm(size, a.sized(0x0fc0, size), r, m, byteOps(size, r)...)
	a.finish()
}

// Lock makes the next instruction atomic. That must write to memory.
func (a *Asm) Lock() { a.Raw(0xf0) }

// Setcc sets the low byte of r to 0 or 1.
func (a *Asm) Setcc(c Cond, r Reg) { a.rr(1, 0x0f90+opcode(c), 0, r, r) }

// SetccM sets a byte in memory to 0 or 1.
func (a *Asm) SetccM(c Cond, m Mem) {
	a.rm(1, 0x0f90+opcode(c), 0, m)
	a.finish()
}

// Cmov is cmovcc d, s. With size 4 it clears the upper half of d in any case.
func (a *Asm) Cmov(c Cond, size int, d, s Reg) {
	a.wide(size)
	a.rr(size, 0x0f40+opcode(c), d, s)
}

// Push pushes a register.
func (a *Asm) Push(r Reg) {
	a.check(r)
	a.head(head{size: 4, op: 0x50 + opcode(r.low()), rexBits: r.high()})
}

// PushI pushes a sign-extended value of 64 bits.
func (a *Asm) PushI(v int32) {
	if fits8(int64(v)) {
		a.Raw(0x6a, byte(v))
		return
	}
	a.Raw(0x68)
	a.Long(uint32(v))
}

// PushM pushes 64 bits from memory.
func (a *Asm) PushM(m Mem) {
	a.rm(4, 0xff, 6, m)
	a.finish()
}

// Pop pops into a register.
func (a *Asm) Pop(r Reg) {
	a.check(r)
	a.head(head{size: 4, op: 0x58 + opcode(r.low()), rexBits: r.high()})
}

// PopM pops 64 bits into memory. An operand based on RSP is computed after RSP
// was raised.
func (a *Asm) PopM(m Mem) {
	a.rm(4, 0x8f, 0, m)
	a.finish()
}

// byteOps names the registers that are byte registers at this size.
func byteOps(size int, regs ...Reg) []Reg {
	if size == 1 {
		return regs
	}
	return nil
}
