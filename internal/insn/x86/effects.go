package x86

// Effects is what an instruction reads and writes, for liveness. Everything is
// rounded to the safe side: Read, Write, FlagsRead, FlagsWrite and the memory
// facts may claim too much; FullWrite and FlagsMust may claim too little.
//
// Only the instruction itself counts: the registers that a callee or a branch
// target reads are its caller's business. An instruction that enters the
// kernel, a hypervisor or an enclave reads and writes everything.
type Effects struct {
	Read      RegSet // registers that the outcome may depend on, addresses included
	Write     RegSet // registers that may change
	FullWrite RegSet // registers surely overwritten as a whole; may be in Read too

	FlagsRead  Flags // flags that the outcome may depend on
	FlagsWrite Flags // flags that may change
	FlagsMust  Flags // flags surely set to a value that the old one does not influence
	FlagsUndef Flags // part of FlagsWrite: left undefined by the manuals, in practice kept or set

	MemRead  bool // reads memory, the stack included
	MemWrite bool // writes memory, the stack included
	Faults   Faults
}

// Faults is the set of ways in which an instruction may fault.
type Faults uint8

const (
	FaultMemory    Faults = 1 << iota // a memory operand: #PF, #GP, #SS, #AC
	FaultStack                        // an implicit stack access: push, pop, call, ret, enter, leave
	FaultDivide                       // #DE
	FaultFloat                        // #MF or #XM, where the target has unmasked them
	FaultPrivilege                    // #GP or #UD, depending on privilege or a control register
	FaultTrap                         // always: int3, ud2 ...
)

// CanFault reports whether an ordinary run may fault: by a memory operand, a
// division, a privilege or a trap. Stack accesses and floating-point exceptions
// (masked unless a program asks for them) do not count; Faults has them.
func (e Effects) CanFault() bool { return e.Faults&^(FaultStack|FaultFloat) != 0 }

// Effects is what the instruction reads and writes.
func (i Inst) Effects() Effects {
	r := &rows[i.row]
	c := collector{i: &i, r: r}
	c.Read = i.MemRegs()
	for k, o := range &r.ops {
		if o == opNone {
			break
		}
		if k == 0 && r.attr&attrND != 0 && i.Ctl&evexB != 0 {
			c.register(Reg(i.VVVV), o&^accRead)
			o = o&opPlace | o&opSize | accRead
		}
		c.operand(o)
	}
	c.idiom()
	c.flags()
	c.faults()
	return c.Effects
}

// collector gathers the effects of one instruction.
type collector struct {
	Effects
	i   *Inst
	r   *row
	rep bool // a count in rcx, perhaps 0, decides whether anything happens
}

// operand adds what happens to one operand.
func (c *collector) operand(o operand) {
	switch o & opPlace {
	case opRM, opM, opXM:
		if c.i.HasMem() {
			c.memory(o, FaultMemory)
		} else if o&opPlace == opRM {
			c.register(c.i.rmReg(), o)
		}
	case opR:
		c.register(c.i.rmReg(), o)
	case opReg:
		c.register(c.i.regReg(), o)
	case opOpc:
		c.register(c.i.extended(c.i.Opcode&7, RexB, RexB4), o)
	case opV:
		c.register(Reg(c.i.VVVV), o)
	case opFixed:
		c.register(Reg(o>>opFixedShift), o)
	case opSrc:
		c.string(RSI, o)
	case opDst:
		c.string(RDI, o)
	case opMoffs, opMemIn:
		c.memory(o, FaultMemory)
	case opPush, opPop:
		c.memory(o, FaultStack)
		c.Read |= 1 << RSP
		c.Write |= 1 << RSP
	}
}

// register adds an access to a register.
func (c *collector) register(n Reg, o operand) {
	if o&opSize == sz8 && n >= 4 && n <= 7 && o&opPlace != opFixed && c.i.highByte() {
		n -= 4
	}
	if o&(accRead|accCond) != 0 {
		c.Read = c.Read.Add(n)
	}
	if o&(accWrite|accCond) != 0 {
		c.Write = c.Write.Add(n)
		if o&accCond == 0 && c.full(o) {
			c.FullWrite = c.FullWrite.Add(n)
		}
	}
}

// full reports whether a write of the operand's size overwrites the whole
// register: in 64-bit mode a 32-bit write clears the upper half.
func (c *collector) full(o operand) bool {
	if c.rep {
		return false
	}
	switch o & opSize {
	case sz32, sz64, szY:
		return true
	case szV:
		return c.i.OpSize >= 4
	case szA:
		return c.i.AddrSize >= 4
	}
	return false
}

// memory adds a memory access.
func (c *collector) memory(o operand, f Faults) {
	if o&(accRead|accCond) != 0 {
		c.MemRead = true
	}
	if o&(accWrite|accCond) != 0 {
		c.MemWrite = true
	}
	if o&opAccess != 0 {
		c.Faults |= f
	}
}

// string adds an access through rsi or rdi, which then steps by the direction
// flag, perhaps as often as rcx says.
func (c *collector) string(n Reg, o operand) {
	c.memory(o, FaultMemory)
	c.Read = c.Read.Add(n)
	if c.r.attr&attrRep == 0 {
		return // maskmov and the like: an address only
	}
	c.Write = c.Write.Add(n)
	if c.i.Prefixes&(PrefixRep|PrefixRepne) != 0 {
		c.rep = true
		c.Read = c.Read.Add(RCX)
		c.Write = c.Write.Add(RCX)
	}
}

// idiom knows that xor and sub of a register with itself do not depend on it.
func (c *collector) idiom() {
	if c.r.attr&attrIdiom != 0 && c.i.ModRM >= 0xc0 && c.i.rmReg() == c.i.regReg() {
		c.Read = 0
	}
}

// flags adds the flags.
func (c *collector) flags() {
	f := &flagEffects[c.r.flags]
	c.FlagsRead = f.read
	c.FlagsWrite = f.must | f.may | f.undef
	c.FlagsMust = f.must
	c.FlagsUndef = f.undef
	if c.r.attr&attrNF != 0 && c.i.Ctl&evexNF != 0 {
		c.FlagsWrite, c.FlagsMust, c.FlagsUndef = 0, 0, 0
	}
	if c.rep {
		c.FlagsMust = 0
	}
	if c.r.attr&attrCount != 0 {
		mask := int64(31)
		if c.i.OpSize == 8 && c.r.ops[0]&opSize == szV { // REX.W means nothing to a byte
			mask = 63
		}
		if c.i.Imm&mask == 0 {
			c.FlagsMust = 0
		}
	}
	if c.r.attr&attrAll != 0 {
		c.Read, c.Write, c.FullWrite = AllRegs, AllRegs, 0
		c.FlagsRead, c.FlagsWrite, c.FlagsMust, c.FlagsUndef = AllFlags, AllFlags, 0, 0
		c.MemRead, c.MemWrite = true, true
	}
}

// faults adds the faults that are not those of an operand.
func (c *collector) faults() {
	if c.r.attr&attrDiv != 0 {
		c.Faults |= FaultDivide
	}
	if c.r.attr&attrFP != 0 {
		c.Faults |= FaultFloat
	}
	if c.r.attr&attrPriv != 0 {
		c.Faults |= FaultPrivilege
	}
	if c.r.br == BranchTrap {
		c.Faults |= FaultTrap
	}
}

// highByte reports whether the byte registers 4 to 7 are ah, ch, dh and bh.
func (i *Inst) highByte() bool {
	return i.Enc == EncLegacy && i.Prefixes&PrefixREX == 0
}

// extended is register n with the bits that two prefixes add.
func (i *Inst) extended(n byte, bit3, bit4 Prefixes) Reg {
	return Reg(n | bit(i.Prefixes, bit3)<<3 | bit(i.Prefixes, bit4)<<4)
}

func (i *Inst) rmReg() Reg  { return i.extended(i.ModRM&7, RexB, RexB4) }
func (i *Inst) regReg() Reg { return i.extended(i.ModRM>>3&7, RexR, RexR4) }

// MemRegs is the set of general registers in the memory operand's address.
func (i Inst) MemRegs() RegSet {
	base, index := i.memRegs()
	return base | index
}

// memRegs is the base and the index of the memory operand, each a set of at
// most one register, but for 16-bit addresses, whose pairs count as bases.
func (i *Inst) memRegs() (base, index RegSet) {
	if !i.HasMem() {
		return 0, 0
	}
	if i.AddrSize == 2 {
		return mem16Regs[i.ModRM&7] &^ noBase(i.ModRM&0xc7 == 6), 0
	}
	noDisp := i.ModRM < 0x40
	rm := i.ModRM & 7
	if rm != 4 {
		if rm == 5 && noDisp {
			return 0, 0
		}
		return Regs(i.rmReg()), 0
	}
	if i.SIB&7 != 5 || !noDisp {
		base = Regs(i.extended(i.SIB&7, RexB, RexB4))
	}
	x := i.extended(i.SIB>>3&7, RexX, RexX4)
	if x != RSP && rows[i.row].attr&attrVSIB == 0 {
		index = Regs(x)
	}
	return base, index
}

// mem16Regs are the registers of a 16-bit address, by ModRM.rm.
var mem16Regs = [8]RegSet{
	1<<RBX | 1<<RSI, 1<<RBX | 1<<RDI, 1<<RBP | 1<<RSI, 1<<RBP | 1<<RDI,
	1 << RSI, 1 << RDI, 1 << RBP, 1 << RBX,
}

func noBase(absolute bool) RegSet {
	if absolute {
		return AllRegs
	}
	return 0
}
