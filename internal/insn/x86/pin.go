package x86

// Pin is why an instruction cannot run at another address, even with its
// RIP-relative operand rebased and its branch displacement rewritten. The empty
// Pin means that it can.
type Pin string

const (
	PinCall        Pin = "call"             // pushes its own address
	PinSyscall     Pin = "syscall"          // the kernel sees, and may rewind, its address
	PinTrap        Pin = "trap"             // its signal handler sees its address
	PinFar         Pin = "far-branch"       // far calls, jumps and returns
	PinIRet        Pin = "interrupt-return" // iret, sysret, uiret ...
	PinTransaction Pin = "transaction"      // xbegin: aborts to an address of its own
	PinEIPRel      Pin = "eip-relative"     // address relative to a truncated RIP
	PinBranch16    Pin = "16-bit-branch"    // 66 prefix: AMD, or 32-bit mode, truncates RIP
)

// Movable reports whether the instruction can run elsewhere once its
// RIP-relative operand and its direct branch target have been corrected. Faults
// are another matter: see Effects.
func (i Inst) Movable() bool { return i.Pin() == "" }

// Pin is why the instruction cannot move, or empty.
func (i Inst) Pin() Pin {
	if p := pinOf[i.Branch]; p != "" {
		return p
	}
	if i.RIPRel() && i.AddrSize == 4 {
		return PinEIPRel
	}
	switch i.Branch {
	case BranchJmp, BranchJcc, BranchLoop, BranchJmpInd, BranchRet:
		if i.Prefixes&(PrefixOpSize|RexW) == PrefixOpSize {
			return PinBranch16
		}
	}
	return ""
}

var pinOf = [...]Pin{
	BranchCall:    PinCall,
	BranchCallInd: PinCall,
	BranchFarJmp:  PinFar,
	BranchFarCall: PinFar,
	BranchFarRet:  PinFar,
	BranchIRet:    PinIRet,
	BranchSyscall: PinSyscall,
	BranchTrap:    PinTrap,
	BranchXBegin:  PinTransaction,
	BranchAbs:     "",
}
