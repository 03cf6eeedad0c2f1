package reloc

import (
	"encoding/binary"

	"trapless/internal/abi"
	"trapless/internal/insn/x86"
)

// A near call can be moved in two ways.
//
// Retargeted: it stays where it is, a call of the same length, but leads to a
// stub, which goes on to the callee by a jump (RetargetCall, CalleeJump). The
// return address is the real one, and the processor's return stack is balanced.
// That needs five bytes.
//
// Emulated: the moved code pushes the original return address and jumps to the
// callee (EmulateCall). Unwinders, tracebacks and exceptions see nothing of it;
// the processor mispredicts the return. Not for threads with a shadow stack.

const (
	groupFF  = 0xff // inc, dec, call, call far, jmp, jmp far, push
	ffCall   = 2
	ffJmp    = 4
	ffPush   = 6
	padCall  = 0x2e // a segment prefix that a near call ignores
	quadLen  = 8
	rspBelow = 5 // bytes of lea 8(%rsp),%rsp
)

// IsPlainCall reports a direct call with a 32-bit relative address.
func IsPlainCall(in x86.Inst) bool {
	return in.Mode == x86.Mode64 && in.Branch == x86.BranchCall && in.ImmLen == rel32Len
}

// CanRetarget reports whether RetargetCall can handle the instruction: a direct
// call, or an indirect one of at least five bytes.
func CanRetarget(in x86.Inst) bool {
	return IsPlainCall(in) || isIndirectCall(in) && in.Len >= jmpLen
}

// CanEmulate reports whether EmulateCall can handle the instruction.
func CanEmulate(in x86.Inst) bool { return IsPlainCall(in) || isIndirectCall(in) }

// isIndirectCall reports a near indirect call whose operand can be that of a
// jump behind the push of the return address.
func isIndirectCall(in x86.Inst) bool {
	if in.Mode != x86.Mode64 || in.Branch != x86.BranchCallInd || in.Enc != x86.EncLegacy || in.Map != 0 ||
		in.Opcode != groupFF || in.Prefixes&(x86.PrefixOpSize|x86.PrefixLock) != 0 || in.AddrSize != 8 {
		return false
	}
	if !in.HasMem() {
		return in.ModRM&7 != 4 || in.Prefixes&x86.RexB != 0 // not call *%rsp
	}
	// What the call reads is not what it writes.
	return !isStackBased(in) || in.Disp >= 0
}

// isStackBased reports an operand that counts from the stack pointer.
func isStackBased(in x86.Inst) bool {
	base, ok := in.Base()
	return ok && base == x86.RSP
}

// RetargetCall returns the call at the address at so that it calls target:
// the same length, so that the return address stays what it was.
func RetargetCall(in x86.Inst, code []byte, at, target abi.Addr) ([]byte, error) {
	if !CanRetarget(in) {
		return nil, refuse(Call, in, "is no near call of at least five bytes")
	}
	if IsPlainCall(in) {
		out := append([]byte(nil), code[:in.Len]...)
		return putRel(in, out, int(in.ImmOff), at, target)
	}
	var out []byte
	for len(out)+jmpLen < int(in.Len) {
		out = append(out, padCall)
	}
	return rel32(in, append(out, opCall), at, target)
}

// CalleeJump returns a jump for the address to that goes where the call at the
// address from, decoded from code, went: for use behind the push of the return
// address. It fails if the callee's place is out of reach.
func CalleeJump(in x86.Inst, code []byte, from, to abi.Addr) ([]byte, error) {
	switch {
	case IsPlainCall(in):
		target, _ := in.Target(from)
		return rel32(in, []byte{opJmp}, to, target)
	case isIndirectCall(in):
		return withOperand(in, code, ffJmp, isStackBased(in), from, to)
	}
	return nil, refuse(Call, in, "is no near call that can be moved")
}

// CalleeJumpSize is the length of what CalleeJump returns.
// Precondition: CanEmulate.
func CalleeJumpSize(in x86.Inst) int {
	if IsPlainCall(in) {
		return jmpLen
	}
	if in.HasMem() && isStackBased(in) {
		return int(in.OpcodeOff) + 3 + rel32Len // opcode, ModRM, SIB
	}
	return int(in.Len)
}

// EmulateCall returns code for the address to that does what the call at the
// address from does:
//
//	push operand; lea 8(%rsp),%rsp   (through memory only: a fault comes before anything has changed)
//	push 1f(%rip)
//	jmp  callee
//	1: .quad the return address
//
// Nothing runs behind it: the callee returns to the original code.
func EmulateCall(in x86.Inst, code []byte, from, to abi.Addr) ([]byte, error) {
	if !CanEmulate(in) {
		return nil, refuse(Call, in, "is no near call that can be moved")
	}
	var out []byte
	if in.HasMem() {
		probe, err := withOperand(in, code, ffPush, false, from, to)
		if err != nil {
			return nil, err
		}
		out = append(probe, 0x48, 0x8d, 0x64, 0x24, 0x08)
	}
	out = append(out, groupFF, ffPush<<3|5)
	out = binary.LittleEndian.AppendUint32(out, uint32(CalleeJumpSize(in)))
	jmp, err := CalleeJump(in, code, from, to+abi.Addr(len(out)))
	if err != nil {
		return nil, err
	}
	out = append(out, jmp...)
	return binary.LittleEndian.AppendUint64(out, uint64(from)+uint64(in.Len)), nil
}

// EmulateCallSize is the length of what EmulateCall returns.
// Precondition: CanEmulate.
func EmulateCallSize(in x86.Inst) int {
	n := 2 + rel32Len + CalleeJumpSize(in) + quadLen
	if in.HasMem() {
		n += int(in.Len) + rspBelow
	}
	return n
}

// withOperand returns the instruction number op of the group FF with the
// operand of a call, which lies 8 bytes further from the stack pointer if
// pushed says so.
func withOperand(in x86.Inst, code []byte, op byte, pushed bool, from, to abi.Addr) ([]byte, error) {
	out := append([]byte(nil), code[:in.Len]...)
	modrm := int(in.ModRMOff)
	out[modrm] = out[modrm]&^(7<<3) | op<<3
	switch {
	case in.RIPRel():
		return putRel(in, out, int(in.DispOff), to, ripTarget(in, from))
	case in.HasMem() && pushed:
		disp := int64(in.Disp) + quadLen
		if disp != int64(int32(disp)) {
			return nil, refuse(RIPRange, in, "refers to the stack too far away")
		}
		out[modrm] = out[modrm]&^(3<<6) | 2<<6
		out = append(out[:modrm+1], code[in.SIBOff])
		out = binary.LittleEndian.AppendUint32(out, uint32(int32(disp)))
	}
	return out, nil
}
