package x86

import "trapless/internal/abi"

// Jmp jumps to a label: by two bytes when it is bound and near, else by five.
func (a *Asm) Jmp(l Label) {
	if a.short(l, 0xeb) {
		return
	}
	a.Raw(0xe9)
	a.relLabel(l, 4)
}

// Jcc jumps to a label if the condition holds: by two bytes when it is bound
// and near, else by six.
func (a *Asm) Jcc(c Cond, l Label) {
	if a.short(l, 0x70|byte(c)) {
		return
	}
	a.Raw(0x0f, 0x80|byte(c))
	a.relLabel(l, 4)
}

// Jrcxz jumps if RCX is zero and changes no flag. The label must be within 127
// bytes.
func (a *Asm) Jrcxz(l Label) {
	a.Raw(0xe3)
	a.relLabel(l, 1)
}

// Call calls a label.
func (a *Asm) Call(l Label) {
	a.Raw(0xe8)
	a.relLabel(l, 4)
}

// short emits the two-byte form of a branch if its label is known to be near.
func (a *Asm) short(l Label, op byte) bool {
	if !a.known(l) || a.labels[l] == unbound {
		return false
	}
	rel := int64(a.labels[l] - (len(a.buf) + 2))
	if !fits8(rel) {
		return false
	}
	a.Raw(op, byte(rel))
	return true
}

// relLabel emits a relative field of size bytes that ends the instruction.
func (a *Asm) relLabel(l Label, size int) {
	at := len(a.buf)
	for range size {
		a.Raw(0)
	}
	a.fixups = append(a.fixups, fixup{at: at, end: len(a.buf), size: size, label: l})
}

// JmpAddr jumps to a fixed address within 2 GB, always by five bytes.
func (a *Asm) JmpAddr(to abi.Addr) {
	a.Raw(0xe9)
	a.relAddr(to)
}

// JccAddr jumps to a fixed address within 2 GB if the condition holds, always
// by six bytes.
func (a *Asm) JccAddr(c Cond, to abi.Addr) {
	a.Raw(0x0f, 0x80|byte(c))
	a.relAddr(to)
}

// CallAddr calls a fixed address within 2 GB.
func (a *Asm) CallAddr(to abi.Addr) {
	a.Raw(0xe8)
	a.relAddr(to)
}

func (a *Asm) relAddr(to abi.Addr) {
	rel := int64(to - a.PC() - 4)
	if !fits32(rel) {
		a.fail("branch to %v is out of reach of %v", to, a.PC())
	}
	a.Long(uint32(rel))
}

// JmpReg jumps to the address in r.
func (a *Asm) JmpReg(r Reg) { a.rr(4, 0xff, 4, r) }

// CallReg calls the address in r.
func (a *Asm) CallReg(r Reg) { a.rr(4, 0xff, 2, r) }

// JmpMem jumps to the address that m holds.
func (a *Asm) JmpMem(m Mem) {
	a.rm(4, 0xff, 4, m)
	a.finish()
}

// CallMem calls the address that m holds.
func (a *Asm) CallMem(m Mem) {
	a.rm(4, 0xff, 2, m)
	a.finish()
}

// Ret returns.
func (a *Asm) Ret() { a.Raw(0xc3) }

// Pushfq pushes the flags.
func (a *Asm) Pushfq() { a.Raw(0x9c) }

// Popfq pops the flags.
func (a *Asm) Popfq() { a.Raw(0x9d) }

// Lahf copies SF, ZF, AF, PF and CF to AH.
func (a *Asm) Lahf() { a.Raw(0x9f) }

// Sahf copies AH to SF, ZF, AF, PF and CF.
func (a *Asm) Sahf() { a.Raw(0x9e) }

// Syscall enters the kernel; RCX and R11 are lost.
func (a *Asm) Syscall() { a.Raw(0x0f, 0x05) }

// Rdtsc reads the time stamp counter into EDX:EAX and clears the upper halves.
func (a *Asm) Rdtsc() { a.Raw(0x0f, 0x31) }

// Rdtscp does the same, and reads IA32_TSC_AUX into ECX.
func (a *Asm) Rdtscp() { a.Raw(0x0f, 0x01, 0xf9) }

// Rdfsbase reads the FS base. The kernel must have enabled it
// (AT_HWCAP2 bit 1, Documentation/arch/x86/x86_64/fsgs.rst).
func (a *Asm) Rdfsbase(r Reg) { a.rr(8, 0xf30fae, 0, r) }

// Pause tells the processor that this is a waiting loop.
func (a *Asm) Pause() { a.Raw(0xf3, 0x90) }

// Int3 raises SIGTRAP; the PC is then behind it.
func (a *Asm) Int3() { a.Raw(0xcc) }

// Ud2 raises SIGILL.
func (a *Asm) Ud2() { a.Raw(0x0f, 0x0b) }

// nops are the recommended no-ops of 1 to 9 bytes (SDM volume 2, NOP).
var nops = [10][]byte{
	1: {0x90},
	2: {0x66, 0x90},
	3: {0x0f, 0x1f, 0x00},
	4: {0x0f, 0x1f, 0x40, 0x00},
	5: {0x0f, 0x1f, 0x44, 0x00, 0x00},
	6: {0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00},
	7: {0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00},
	8: {0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00},
	9: {0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00},
}

// Nop emits n bytes that do nothing, in as few instructions as possible.
func (a *Asm) Nop(n int) {
	for n > 0 {
		k := min(n, len(nops)-1)
		a.Raw(nops[k]...)
		n -= k
	}
}
