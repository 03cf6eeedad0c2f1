// Package bpf holds the programs that run at a hit, as eBPF instructions: the
// program type, what a program may refer to (context, maps, helpers), a
// verifier, and an interpreter.
//
// A program comes in as instructions of github.com/cilium/ebpf/asm, made by
// package lang or read from an object file. Verify decodes it, proves that
// it touches nothing but its context, its stack and its map cells, and returns
// a Verified program; only that can be interpreted or compiled. The package
// knows no machine code, no process and no address in a target.
package bpf

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// Program is a program as its author wrote it. Nothing about it is proven.
type Program struct {
	Name  string
	Input Input
	Insns asm.Instructions
	Maps  []abi.MapSpec // a map's number is its index here and in the arena's layout

	// Constants are the contents of maps that nothing writes to, by their
	// numbers: an object file's .rodata. They are the first value of the map,
	// which must lie where no other process can change it.
	Constants map[int][]byte
}

// Input is what a program finds in its registers. The zero value is a probe's
// input: r1 points to the target's registers, a read-only struct pt_regs.
type Input struct {
	// Memory says that r1 points to Size writable bytes instead, and that r2
	// is Size. Without bytes, r1 is 0.
	Memory bool
	Size   int
}

// String lists the instructions, one a line, each with its index.
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "program %s:\n", p.Name)
	for i, in := range p.Insns {
		if s := in.Symbol(); s != "" {
			fmt.Fprintf(&b, "%s:\n", s)
		}
		fmt.Fprintf(&b, "%5d: %v\n", i, in)
	}
	return b.String()
}

// ringNumber stands for the ring where a map number is expected.
const ringNumber = 1<<31 - 1

// LoadMap loads a reference to map number n into dst.
func LoadMap(dst asm.Register, n int) asm.Instruction { return asm.LoadMapPtr(dst, n) }

// LoadRing loads a reference to the slot's event ring into dst.
func LoadRing(dst asm.Register) asm.Instruction { return asm.LoadMapPtr(dst, ringNumber) }

// Call calls a helper.
func Call(helper asm.BuiltinFunc) asm.Instruction { return helper.Call() }

// LoadArg loads the n-th integer argument (0 to NumArgs-1) of the probed
// function from the context in ctx.
func LoadArg(dst, ctx asm.Register, n int) asm.Instruction {
	return asm.LoadMem(dst, ctx, int16(ArgOffset(n)), asm.DWord)
}

// Offsets in the context, which begins with struct pt_regs of the kernel on
// x86-64 (arch/x86/include/uapi/asm/ptrace.h). Fields have 8 bytes. Behind it
// are the integer arguments: those registers once more, in the order in which
// the calling convention of the probed function has them.
const (
	PtRegsR15 = 8 * iota
	PtRegsR14
	PtRegsR13
	PtRegsR12
	PtRegsBP
	PtRegsBX
	PtRegsR11
	PtRegsR10
	PtRegsR9
	PtRegsR8
	PtRegsAX
	PtRegsCX
	PtRegsDX
	PtRegsSI
	PtRegsDI
	PtRegsOrigAX // not readable
	PtRegsIP
	PtRegsCS    // not readable
	PtRegsFlags // not readable
	PtRegsSP
	PtRegsSS // not readable
	PtRegsEnd
)

// NumArgs is the number of integer arguments that are passed in registers in
// every calling convention.
const NumArgs = 6

// ArgOffset is the offset of an integer argument in the context.
func ArgOffset(n int) int32 { return PtRegsEnd + 8*int32(n) }

// ContextEnd is the size of the context in bytes.
const ContextEnd = PtRegsEnd + 8*NumArgs

// readableContext reports whether the 8-byte field at off may be read.
func readableContext(off int32) bool {
	switch off {
	case PtRegsOrigAX, PtRegsCS, PtRegsFlags, PtRegsSS:
		return false
	}
	return off >= 0 && off < ContextEnd
}

// fields are 8-byte fields of the context: bit i is that at 8*i.
type fields uint32

// UsesArguments reports whether the program may read an argument of the probed
// function by LoadArg.
func (v *Verified) UsesArguments() bool { return v.reads>>(PtRegsEnd/8) != 0 }

// UsesResult reports whether the program may read the register in which functions
// return integers.
func (v *Verified) UsesResult() bool { return v.reads>>(PtRegsAX/8)&1 != 0 }
