package x86

// Op is one of the eight operations that share their encodings; its value is
// the opcode digit.
type Op uint8

// The two-operand operations.
const (
	Add Op = iota
	Or
	Adc
	Sbb
	And
	Sub
	Xor
	Cmp
)

// OpRR is op d, s.
func (a *Asm) OpRR(op Op, size int, d, s Reg) {
	a.rr(size, a.sized(opcode(op)<<3, size), s, d, byteOps(size, d, s)...)
}

// OpRM is op d, m.
func (a *Asm) OpRM(op Op, size int, d Reg, m Mem) {
	a.rm(size, a.sized(opcode(op)<<3|2, size), d, m, byteOps(size, d)...)
	a.finish()
}

// OpMR is op m, s.
func (a *Asm) OpMR(op Op, size int, m Mem, s Reg) {
	a.rm(size, a.sized(opcode(op)<<3, size), s, m, byteOps(size, s)...)
	a.finish()
}

// OpRI is op d, v. For size 8 the value is sign-extended.
func (a *Asm) OpRI(op Op, size int, d Reg, v int32) {
	code, isize := a.immForm(size, v)
	a.rr(size, code, Reg(op), d, byteOps(size, d)...)
	a.imm(isize, v)
}

// OpMI is op m, v. For size 8 the value is sign-extended.
func (a *Asm) OpMI(op Op, size int, m Mem, v int32) {
	code, isize := a.immForm(size, v)
	a.rm(size, code, Reg(op), m)
	a.imm(isize, v)
}

// immForm chooses between a full immediate and a sign-extended byte.
func (a *Asm) immForm(size int, v int32) (opcode, int) {
	code := a.sized(0x80, size)
	if size != 1 && fits8(int64(v)) {
		return 0x83, 1
	}
	return code, size
}

// TestRR is test x, y.
func (a *Asm) TestRR(size int, x, y Reg) {
	a.rr(size, a.sized(0x84, size), y, x, byteOps(size, x, y)...)
}

// TestRI is test x, v. For size 8 the value is sign-extended.
func (a *Asm) TestRI(size int, x Reg, v int32) {
	a.rr(size, a.sized(0xf6, size), 0, x, byteOps(size, x)...)
	a.imm(size, v)
}

// TestMI is test m, v. For size 8 the value is sign-extended.
func (a *Asm) TestMI(size int, m Mem, v int32) {
	a.rm(size, a.sized(0xf6, size), 0, m)
	a.imm(size, v)
}

// Shift is a shift or rotation; its value is the opcode digit.
type Shift uint8

// The shifts.
const (
	Rol Shift = 0
	Ror Shift = 1
	Shl Shift = 4
	Shr Shift = 5
	Sar Shift = 7
)

// ShiftI shifts d by a constant, which the processor masks to 5 bits, or 6
// with size 8.
func (a *Asm) ShiftI(op Shift, size int, d Reg, n uint8) {
	if n == 1 {
		a.rr(size, a.sized(0xd0, size), Reg(op), d, byteOps(size, d)...)
		return
	}
	a.rr(size, a.sized(0xc0, size), Reg(op), d, byteOps(size, d)...)
	a.Raw(n)
}

// ShiftCL shifts d by CL.
func (a *Asm) ShiftCL(op Shift, size int, d Reg) {
	a.rr(size, a.sized(0xd2, size), Reg(op), d, byteOps(size, d)...)
}

// Neg is neg d.
func (a *Asm) Neg(size int, d Reg) { a.unary(size, 0xf6, 3, d) }

// Not is not d; it changes no flag.
func (a *Asm) Not(size int, d Reg) { a.unary(size, 0xf6, 2, d) }

// Mul multiplies RAX by s, unsigned, into RDX:RAX.
func (a *Asm) Mul(size int, s Reg) { a.unary(size, 0xf6, 4, s) }

// Div divides RDX:RAX by s, unsigned: quotient in RAX, remainder in RDX.
func (a *Asm) Div(size int, s Reg) { a.unary(size, 0xf6, 6, s) }

// IDiv divides RDX:RAX by s, signed: quotient in RAX, remainder in RDX.
func (a *Asm) IDiv(size int, s Reg) { a.unary(size, 0xf6, 7, s) }

// Inc adds one and leaves the carry flag alone.
func (a *Asm) Inc(size int, d Reg) { a.unary(size, 0xfe, 0, d) }

// Dec subtracts one and leaves the carry flag alone.
func (a *Asm) Dec(size int, d Reg) { a.unary(size, 0xfe, 1, d) }

func (a *Asm) unary(size int, op opcode, digit, r Reg) {
	a.rr(size, a.sized(op, size), digit, r, byteOps(size, r)...)
}

// IncM adds one to memory and leaves the carry flag alone.
func (a *Asm) IncM(size int, m Mem) {
	a.rm(size, a.sized(0xfe, size), 0, m)
	a.finish()
}

// DecM subtracts one from memory and leaves the carry flag alone.
func (a *Asm) DecM(size int, m Mem) {
	a.rm(size, a.sized(0xfe, size), 1, m)
	a.finish()
}

// Imul is imul d, s: the low half of the product.
func (a *Asm) Imul(size int, d, s Reg) {
	a.wide(size)
	a.rr(size, 0x0faf, d, s)
}

// ImulI is imul d, s, v.
func (a *Asm) ImulI(size int, d, s Reg, v int32) {
	a.wide(size)
	if fits8(int64(v)) {
		a.rr(size, 0x6b, d, s)
		a.imm(1, v)
		return
	}
	a.rr(size, 0x69, d, s)
	a.imm(size, v)
}

// ImulM is imul d, m.
func (a *Asm) ImulM(size int, d Reg, m Mem) {
	a.wide(size)
	a.rm(size, 0x0faf, d, m)
	a.finish()
}

// Bsr sets d to the index of the highest bit set in s; d is undefined when s
// is zero, which the zero flag tells.
func (a *Asm) Bsr(size int, d, s Reg) {
	a.wide(size)
	a.rr(size, 0x0fbd, d, s)
}

// Bswap reverses the bytes of d; the size is 4 or 8.
func (a *Asm) Bswap(size int, d Reg) {
	a.check(d)
	if size != 4 && size != 8 {
		a.fail("bswap of %d bytes", size)
	}
	a.head(head{size: size, op: 0x0fc8 + opcode(d.low()), rexBits: d.high()})
}

// Cdq extends the sign of EAX into EDX.
func (a *Asm) Cdq() { a.Raw(0x99) }

// Cqo extends the sign of RAX into RDX.
func (a *Asm) Cqo() { a.Raw(0x48, 0x99) }
