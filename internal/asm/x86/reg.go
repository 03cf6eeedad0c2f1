package x86

import (
	"math/bits"
	"strings"
)

// Reg is a general register by its hardware number (SDM volume 2, 2.1.5).
type Reg uint8

// The general registers, in hardware order.
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

	// NoReg stands for an absent base or index.
	NoReg Reg = 0xff
)

var regNames = [16]string{
	"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
	"r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
}

// String is the register's 64-bit name.
func (r Reg) String() string {
	if int(r) < len(regNames) {
		return regNames[r]
	}
	return "none"
}

// low is the part of the number that ModRM and SIB bytes hold, high the part
// that goes into a REX bit.
func (r Reg) low() byte  { return byte(r) & 7 }
func (r Reg) high() byte { return byte(r) >> 3 & 1 }

// RegSet is a set of general registers: bit i stands for register i.
type RegSet uint32

// Regs makes a set of its arguments.
func Regs(regs ...Reg) RegSet {
	var s RegSet
	for _, r := range regs {
		s = s.Add(r)
	}
	return s
}

// Has reports whether r is in the set.
func (s RegSet) Has(r Reg) bool { return s>>r&1 != 0 }

// Add returns the set with r.
func (s RegSet) Add(r Reg) RegSet { return s | 1<<r }

// Del returns the set without r.
func (s RegSet) Del(r Reg) RegSet { return s &^ (1 << r) }

// Len is the number of registers in the set.
func (s RegSet) Len() int { return bits.OnesCount32(uint32(s)) }

// String lists the names in hardware order, for messages and tests.
func (s RegSet) String() string {
	var names []string
	for r := RAX; r <= R15; r++ {
		if s.Has(r) {
			names = append(names, r.String())
		}
	}
	return "{" + strings.Join(names, " ") + "}"
}

// Cond is a condition code as it stands in the low four bits of Jcc, SETcc and
// CMOVcc (SDM volume 1, appendix B).
type Cond uint8

// The condition codes.
const (
	O Cond = iota
	NO
	B
	AE
	E
	NE
	BE
	A
	S
	NS
	P
	NP
	L
	GE
	LE
	G
)

// Not is the opposite condition.
func (c Cond) Not() Cond { return c ^ 1 }
