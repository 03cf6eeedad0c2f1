package x86

import (
	"math/bits"
	"strings"
)

// Reg is a general register by its hardware number: 0 to 15, and 16 to 31
// with APX.
type Reg uint8

const (
	RAX Reg = iota
	RCX
	RDX
	RBX
	RSP
	RBP
	RSI
	RDI
	R8
	R9
	R10
	R11
	R12
	R13
	R14
	R15
)

var regNames = [32]string{
	"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
	"r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
	"r16", "r17", "r18", "r19", "r20", "r21", "r22", "r23",
	"r24", "r25", "r26", "r27", "r28", "r29", "r30", "r31",
}

// String is the register's 64-bit name.
func (r Reg) String() string { return regNames[r&31] }

// RegSet is a set of general registers: bit i stands for register i.
type RegSet uint32

// AllRegs holds every general register, APX's included.
const AllRegs RegSet = 1<<32 - 1

// Regs is the set of the given registers.
func Regs(rs ...Reg) RegSet {
	var s RegSet
	for _, r := range rs {
		s |= 1 << (r & 31)
	}
	return s
}

// Has reports whether r is in the set.
func (s RegSet) Has(r Reg) bool { return s>>(r&31)&1 != 0 }

// Add is the set with r.
func (s RegSet) Add(r Reg) RegSet { return s | 1<<(r&31) }

// Del is the set without r.
func (s RegSet) Del(r Reg) RegSet { return s &^ (1 << (r & 31)) }

// Len is the number of registers in the set.
func (s RegSet) Len() int { return bits.OnesCount32(uint32(s)) }

// only is the set's lowest register, if there is one.
func (s RegSet) only() (Reg, bool) {
	return Reg(bits.TrailingZeros32(uint32(s)) & 31), s != 0
}

// String lists the registers, separated by blanks.
func (s RegSet) String() string {
	var names []string
	for r := Reg(0); r < 32; r++ {
		if s.Has(r) {
			names = append(names, r.String())
		}
	}
	return strings.Join(names, " ")
}

// Flags is a set of bits of RFLAGS, at their hardware positions.
type Flags uint32

const (
	CF Flags = 1 << 0  // carry
	PF Flags = 1 << 2  // parity
	AF Flags = 1 << 4  // auxiliary carry
	ZF Flags = 1 << 6  // zero
	SF Flags = 1 << 7  // sign
	TF Flags = 1 << 8  // trap
	IF Flags = 1 << 9  // interrupt enable
	DF Flags = 1 << 10 // direction
	OF Flags = 1 << 11 // overflow
	AC Flags = 1 << 18 // alignment check
	ID Flags = 1 << 21 // cpuid available

	// StatusFlags are those that arithmetic sets.
	StatusFlags = CF | PF | AF | ZF | SF | OF
	// AllFlags are the flags above. What only a kernel can change is left out.
	AllFlags = StatusFlags | TF | IF | DF | AC | ID
)

// String lists the flags by their letters in the manual's order, with one star
// for those that no compiler uses.
func (f Flags) String() string {
	var b strings.Builder
	for _, n := range flagNames {
		if f&n.flag != 0 {
			b.WriteString(n.name)
		}
	}
	if f&^(StatusFlags|DF) != 0 {
		b.WriteByte('*')
	}
	return b.String()
}

var flagNames = [...]struct {
	flag Flags
	name string
}{{OF, "O"}, {DF, "D"}, {SF, "S"}, {ZF, "Z"}, {AF, "A"}, {PF, "P"}, {CF, "C"}}
