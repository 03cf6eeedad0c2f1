package reloc

import (
	"fmt"

	"trapless/internal/insn/x86"
)

// Reason says in a stable word why an instruction cannot be moved: a Pin of
// the decoder, or one of the reasons below.
type Reason string

// Reasons that are not the decoder's pins: they are about user mode and about
// the new place.
const (
	RIPRange   Reason = "rip-range"  // what it refers to is out of reach of the new place
	Privileged Reason = "privileged" // it faults in user mode, or does input or output
	Mode       Reason = "mode"       // it is not 64-bit code
)

// The pins for which a patch has rules of its own.
const (
	Call    = Reason(x86.PinCall)
	Syscall = Reason(x86.PinSyscall)
)

// details say in a sentence what a pin means.
var details = map[x86.Pin]string{
	x86.PinCall:        "pushes its own address",
	x86.PinSyscall:     "enters the kernel, which looks at its address and may rewind it",
	x86.PinTrap:        "raises a signal that shows its address",
	x86.PinFar:         "changes the code segment",
	x86.PinIRet:        "returns from an interrupt",
	x86.PinTransaction: "begins a transaction",
	x86.PinEIPRel:      "refers to a RIP-relative address of 32 bits",
	x86.PinBranch16:    "has an operand size prefix, by which some processors cut its target to 16 bits",
}

// Refusal is the error of this package.
type Refusal struct {
	Reason Reason
	Detail string // for people: what the instruction is, and what is wrong with it
}

func (r *Refusal) Error() string { return "cannot be moved: " + r.Detail }

func refuse(r Reason, in x86.Inst, format string, args ...any) *Refusal {
	return &Refusal{Reason: r, Detail: in.Mnemonic() + " " + fmt.Sprintf(format, args...)}
}

// refusal is why in cannot be moved anywhere, nil if it can.
func refusal(in x86.Inst) *Refusal {
	if in.Mode != x86.Mode64 {
		return refuse(Mode, in, "is not 64-bit code")
	}
	if pin := in.Pin(); pin != "" {
		return refuse(Reason(pin), in, "%s", details[pin])
	}
	if in.Effects().Faults&x86.FaultPrivilege != 0 {
		return refuse(Privileged, in, "is privileged")
	}
	return nil
}
