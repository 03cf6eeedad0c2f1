package x86

import (
	"errors"

	"trapless/internal/abi"
)

// Mode is the operating mode of the processor that would run the code.
type Mode uint8

const (
	Mode64 Mode = iota // 64-bit mode
	Mode32             // protected or compatibility mode, 32-bit code segment
)

// MaxLen is the longest instruction a processor accepts, in bytes
// (SDM volume 2, 2.3.11).
const MaxLen = 15

// The errors of Decode. They are plain sentinels, so that decoding at an
// arbitrary address, where failure is normal, allocates nothing.
var (
	// ErrTruncated: the bytes end before the instruction does.
	ErrTruncated = errors.New("x86: bytes end inside the instruction")
	// ErrInvalid: no processor runs these bytes (#UD), or they are unknown.
	ErrInvalid = errors.New("x86: invalid or unknown instruction")
	// ErrAmbiguous: Intel and AMD processors disagree on the length. This is
	// a near branch with a 66 prefix in 64-bit mode: Intel ignores the
	// prefix and takes a rel32, AMD honours it and takes a rel16.
	ErrAmbiguous = errors.New("x86: near branch with a 66 prefix: its length depends on the processor's maker")
)

// Encoding is the way an instruction's opcode is introduced.
type Encoding uint8

const (
	EncLegacy Encoding = iota // opcode maps 0, 0F, 0F38, 0F3A, with or without REX
	Enc3DNow                  // 0F 0F, opcode after the operands
	EncVEX                    // C4, C5
	EncXOP                    // 8F with map 8, 9 or 10
	EncEVEX                   // 62, AVX-512 and APX
	EncREX2                   // D5, APX
)

// Prefixes is a set of prefix facts. The bits REX.W, R, X and B stand for the
// equivalent (uninverted) bits of REX2, VEX, XOP and EVEX too.
type Prefixes uint32

const (
	PrefixOpSize   Prefixes = 1 << iota // 66
	PrefixAddrSize                      // 67
	PrefixLock                          // F0
	PrefixRepne                         // F2
	PrefixRep                           // F3
	PrefixES                            // 26
	PrefixCS                            // 2E
	PrefixSS                            // 36
	PrefixDS                            // 3E
	PrefixFS                            // 64
	PrefixGS                            // 65
	PrefixREX                           // a REX that takes effect
	RexB                                // extends ModRM.rm, SIB.base or the opcode's register
	RexX                                // extends SIB.index
	RexR                                // extends ModRM.reg
	RexW                                // 64-bit operand size, or an opcode bit
	RexB4                               // bit 4 of the register that RexB extends (APX, EVEX)
	RexX4                               // bit 4 of the register that RexX extends (APX)
	RexR4                               // bit 4 of the register that RexR extends (APX, EVEX)
)

// Branch says how an instruction passes control on.
type Branch uint8

const (
	BranchNone    Branch = iota // to the next instruction
	BranchJmp                   // jmp rel
	BranchJcc                   // jcc rel
	BranchLoop                  // jcxz, jecxz, jrcxz, loop, loope, loopne: rel8 only
	BranchCall                  // call rel
	BranchJmpInd                // jmp through a register or memory
	BranchCallInd               // call through a register or memory
	BranchRet                   // near return
	BranchFarJmp                // far jmp, direct or through memory
	BranchFarCall               // far call, direct or through memory
	BranchFarRet                // far return
	BranchIRet                  // iret, sysret, sysexit, uiret, rsm, eretu ...
	BranchSyscall               // syscall, sysenter, int 80
	BranchTrap                  // int n, int3, int1, into, ud0, ud1, ud2, hlt
	BranchXBegin                // xbegin rel: falls through, or aborts to its target
	BranchAbs                   // jmpabs (APX): absolute 64-bit target
)

// Falls reports whether control may reach the next instruction in memory,
// be it after a call or a system call has returned.
func (k Branch) Falls() bool {
	switch k {
	case BranchJmp, BranchJmpInd, BranchRet, BranchFarJmp, BranchFarRet, BranchIRet, BranchAbs:
		return false
	}
	return true
}

// Inst is one decoded instruction: a plain comparable value that keeps no
// reference to the bytes it came from. Offsets count from the instruction's
// first byte (its first prefix); an offset of 0 means that the part is absent.
type Inst struct {
	Imm  int64  // first immediate, sign-extended; a branch's displacement; a moffs address
	Disp int32  // displacement of the memory operand, sign-extended and, for an EVEX disp8, scaled
	Imm2 uint16 // second immediate: enter's level, insertq's second, a far pointer's selector

	row uint16 // what tables.go says about it

	Prefixes Prefixes
	Mode     Mode
	Enc      Encoding
	Map      uint8 // 0 one byte, 1 0F, 2 0F38, 3 0F3A; VEX, XOP and EVEX: their map number
	Opcode   byte
	ModRM    byte
	SIB      byte
	Branch   Branch

	// VVVV is the register that VEX, XOP or EVEX names besides those of
	// ModRM, 0 to 31, uninverted. It is meaningful only if the opcode has one.
	VVVV uint8
	// Ctl is the last byte of an EVEX prefix (z, L'L, b, V', aaa), and
	// L in bit 5 for VEX and XOP.
	Ctl byte

	Len       uint8 // 1 to MaxLen
	ExtOff    uint8 // the REX, REX2, VEX, XOP or EVEX prefix, if ExtLen is not 0
	ExtLen    uint8 // its length: 1 REX, 2 or 3 VEX, 3 XOP, 4 EVEX, 2 REX2
	OpcodeOff uint8 // the opcode byte (the last one, 0F escapes precede it); may be 0
	ModRMOff  uint8
	SIBOff    uint8
	DispOff   uint8 // displacement of the memory operand
	DispLen   uint8 // 0, 1, 2 or 4
	ImmOff    uint8 // first immediate, branch displacement or moffs
	ImmLen    uint8 // 0, 1, 2, 4 or 8
	Imm2Off   uint8
	Imm2Len   uint8 // 0, 1 or 2
	OpSize    uint8 // operand size in effect: 2, 4 or 8 (for byte instructions too)
	AddrSize  uint8 // address size in effect: 2, 4 or 8
}

// Mnemonic is the instruction's name in Intel's spelling, without operands.
func (i Inst) Mnemonic() string { return names[rows[i.row].name] }

// HasMem reports whether ModRM names memory. String instructions, moffs and
// implicit stack accesses are not ModRM operands.
func (i Inst) HasMem() bool {
	return i.ModRMOff != 0 && i.ModRM < 0xc0 && rows[i.row].attr&attrModReg == 0
}

// RIPRel reports whether the memory operand is relative to the address of the
// next instruction. With a 67 prefix that address is truncated to 32 bits, and
// the instruction cannot be moved.
func (i Inst) RIPRel() bool {
	return i.Mode == Mode64 && i.DispLen == 4 && i.ModRM&0xc7 == 0x05
}

// Base is the base register of the memory operand.
func (i Inst) Base() (Reg, bool) {
	base, _ := i.memRegs()
	return base.only()
}

// Index is the general register that indexes the memory operand; vector
// indices (VSIB) do not count.
func (i Inst) Index() (Reg, bool) {
	_, index := i.memRegs()
	return index.only()
}

// Target is where a direct branch at the given address goes to. It reports
// false for everything else, far branches included.
func (i Inst) Target(at abi.Addr) (abi.Addr, bool) {
	switch i.Branch {
	case BranchJmp, BranchJcc, BranchLoop, BranchCall, BranchXBegin:
	case BranchAbs:
		return abi.Addr(i.Imm), true
	default:
		return 0, false
	}
	to := at + abi.Addr(i.Len) + abi.Addr(i.Imm)
	if i.Mode == Mode32 {
		to &= 0xffffffff
		if i.OpSize == 2 {
			to &= 0xffff
		}
	}
	return to, true
}
