// Package reloc moves one instruction to another address so that it does
// there what it did here. It takes a decoded instruction with its bytes and
// returns new bytes, or a Refusal. It touches no process.
//
// An operand relative to RIP is rebased, a short branch becomes a long one,
// and a branch that exists only in a short form (jrcxz, loop) becomes a short
// hop over a long jump. Everything that depends on its own address in another
// way is refused, but for near calls, which have functions of their own. A near return and an indirect jump do not depend on it and
// stay as they are.
//
// The size of a moved instruction depends on the instruction alone, so that
// code can be laid out before its address is known.
//
// One difference remains visible: x87 state that the target saves (fnstenv,
// fxsave) names the moved address of the last x87 instruction.
package reloc

import (
	"encoding/binary"
	"math"

	"trapless/internal/abi"
	"trapless/internal/insn/x86"
)

const (
	rel32Len   = 4
	jmpLen     = 1 + rel32Len // e9 rel32
	shortLen   = 2            // opcode and rel8
	opJmpShort = 0xeb
	opJmp      = 0xe9
	opCall     = 0xe8
	opEscape   = 0x0f
)

// Size is the size in bytes that Move gives the instruction.
func Size(in x86.Inst) (int, error) {
	if r := refusal(in); r != nil {
		return 0, r
	}
	return size(in), nil
}

// Precondition: in can be moved.
func size(in x86.Inst) int {
	prefix := int(in.OpcodeOff)
	switch in.Branch {
	case x86.BranchJmp:
		return prefix + jmpLen
	case x86.BranchJcc:
		return prefixLen(in) + 1 + jmpLen
	case x86.BranchLoop:
		return prefix + 2*shortLen + jmpLen
	}
	return int(in.Len)
}

// prefixLen is the length of everything before the opcode and its escape.
func prefixLen(in x86.Inst) int {
	if in.Map == 1 {
		return int(in.OpcodeOff) - 1
	}
	return int(in.OpcodeOff)
}

// Move returns the instruction for the address to. It was decoded from code,
// which starts with its bytes, at the address from. A direct branch goes on to
// where it went.
func Move(in x86.Inst, code []byte, from, to abi.Addr) ([]byte, error) {
	target, _ := in.Target(from)
	return MoveBranch(in, code, from, to, target)
}

// MoveBranch is Move, but a direct branch goes to target. Other instructions
// ignore it.
func MoveBranch(in x86.Inst, code []byte, from, to, target abi.Addr) ([]byte, error) {
	if r := refusal(in); r != nil {
		return nil, r
	}
	switch in.Branch {
	case x86.BranchJmp, x86.BranchJcc:
		return widen(in, code, to, target)
	case x86.BranchLoop:
		return hop(in, code, to, target)
	}
	out := append([]byte(nil), code[:in.Len]...)
	if !in.RIPRel() {
		return out, nil
	}
	return putRel(in, out, int(in.DispOff), to, ripTarget(in, from))
}

// Reference is the address to which the instruction at the address at refers
// relative to itself: a RIP-relative operand or the target of a direct branch.
// Moved code must stay within 2 GB of it.
func Reference(in x86.Inst, at abi.Addr) (abi.Addr, bool) {
	if in.RIPRel() {
		return ripTarget(in, at), true
	}
	if in.Branch == x86.BranchAbs {
		return 0, false
	}
	return in.Target(at)
}

func ripTarget(in x86.Inst, at abi.Addr) abi.Addr {
	return at + abi.Addr(in.Len) + abi.Addr(int64(in.Disp))
}

// widen gives a jump its 32-bit form. Prefixes (branch hints, bnd) stay.
func widen(in x86.Inst, code []byte, to, target abi.Addr) ([]byte, error) {
	out := append([]byte(nil), code[:prefixLen(in)]...)
	if in.Branch == x86.BranchJmp {
		out = append(out, opJmp)
	} else {
		out = append(out, opEscape, 0x80|in.Opcode&0x0f)
	}
	return rel32(in, out, to, target)
}

// hop turns a branch that has a short form only into
//
//	jrcxz 1f; jmp 2f; 1: jmp target; 2:
func hop(in x86.Inst, code []byte, to, target abi.Addr) ([]byte, error) {
	out := append([]byte(nil), code[:in.OpcodeOff+1]...)
	return rel32(in, append(out, shortLen, opJmpShort, jmpLen, opJmp), to, target)
}

// rel32 ends out, which will be at the address to, with the distance to target.
func rel32(in x86.Inst, out []byte, to, target abi.Addr) ([]byte, error) {
	out = append(out, make([]byte, rel32Len)...)
	return putRel(in, out, len(out)-rel32Len, to, target)
}

// putRel sets the four bytes of out at field to the distance from out's end to
// target.
func putRel(in x86.Inst, out []byte, field int, to, target abi.Addr) ([]byte, error) {
	rel := int64(target - to - abi.Addr(len(out)))
	if rel < math.MinInt32 || rel > math.MaxInt32 {
		return nil, refuse(RIPRange, in, "refers to %v, which is out of reach of %v", target, to)
	}
	binary.LittleEndian.PutUint32(out[field:], uint32(int32(rel)))
	return out, nil
}
