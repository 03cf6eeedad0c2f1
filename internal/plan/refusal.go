package plan

import (
	"fmt"

	"trapless/internal/abi"
)

// Reason is a stable word for why a site is not patched. Programs may compare
// it; it never changes its meaning.
type Reason string

// The reasons.
const (
	NoCode          Reason = "no-code"            // the function has no bytes, or its addresses make no sense
	OutsideFunction Reason = "outside-function"   // the site is not in the function
	NotABoundary    Reason = "not-a-boundary"     // the site is inside an instruction
	Undecodable     Reason = "undecodable"        // the bytes up to the site, or at it, are no known code
	AmbiguousCode   Reason = "ambiguous-code"     // a jump into an instruction: the bytes have two readings
	TooShort        Reason = "too-short"          // the code ends before five bytes are found
	SyscallInside   Reason = "syscall-in-window"  // the kernel would look at, or set, an address in the window
	CallInside      Reason = "call-in-window"     // a return address would point into the detour
	Immovable       Reason = "immovable"          // an instruction depends on its address, or is privileged
	JumpInside      Reason = "jump-target-inside" // known code jumps into the window
	IndirectJump    Reason = "indirect-jump"      // unknown code may jump into the window, and there are no trap handlers
	Faults          Reason = "faults"             // a fault would show the target an address in the detour
	BlockedSignals  Reason = "blocked-signals"    // the code runs while a trap would kill the target
	RSeq            Reason = "rseq"               // a restartable sequence
	Blacklisted     Reason = "blacklisted"        // code that trapless itself depends on, or that must not be probed
	WindowOverlap   Reason = "window-overlap"     // the site lies in the window of another site
	NoSpringboard   Reason = "no-springboard"     // no free address leads to bytes that trap
)

// Refusal is the typed reason why a site is not patched.
type Refusal struct {
	Site   abi.Addr
	Reason Reason
	Detail string // for people: where it stopped, and what can be done
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("no probe at %v: %s: %s", r.Site, r.Reason, r.Detail)
}

func refuse(site abi.Addr, reason Reason, format string, args ...any) *Refusal {
	return &Refusal{site, reason, fmt.Sprintf(format, args...)}
}
