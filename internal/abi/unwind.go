package abi

// A table of unwind rules lets code in the target walk its own stack. It lies in the arena: a word that tells
// which rows hold, the number of the first one in its upper half and how many there are in the lower, and
// UnwindHead bytes behind its start the rows. A row is two words: the address from which on a rule holds, up to
// the next row's, and the rule. Rows are sorted. A new table is written beside the old one and then shown by
// that word, so a walk that is under way may see rows of neither, and may be wrong, but nothing else.
//
// A map of stacks (StackTrace) has a power of two of entries, whose numbers are the stacks'. An entry is
// stackHead bytes and then the addresses, innermost first. Its first word is the stack's hash, and 0 where it is
// free; a thread takes it by one compare-and-swap. The second word is the number of addresses, written last: 0
// while they are not there, and whoever comes to the entry with the same hash writes them then.
const (
	UnwindHead    = 64
	UnwindRowSize = 16

	StackHash  = -16 // from an entry's first address
	StackCount = -8
	stackHead  = 16
)

// StackTries is the number of entries that a new stack may take.
const StackTries = 16

// UnwindRule says how the caller's registers are found. CFA is the stack pointer before the call, the
// return address lies right below it. Bits 0 to 3 are the kind of the CFA; bit 4 says that the caller's frame
// pointer is in memory; bits 8 to 31 are a signed offset, in bytes, that belongs to the CFA; bits 32 to 63 are
// the signed offset of the caller's frame pointer from the CFA.
type UnwindRule uint64

// Kinds of CFA.
const (
	UnwindFrame    = 0 // nothing is known: the frame pointer leads to the caller's, and to the return address
	UnwindSP       = 1 // the stack pointer + offset
	UnwindBP       = 2 // the frame pointer + offset
	UnwindAtBP     = 3 // the word at the frame pointer + offset
	UnwindAtSP     = 4 // the word at the stack pointer + offset
	UnwindStub     = 5 // the stack pointer + 8, + 8 more from the instruction at address%16 == offset on: linkage tables
	UnwindSignal   = 6 // the stack pointer points to the ucontext of an interrupted context
	UnwindEnd      = 7 // there is no caller
	UnwindRefused  = 8 // the rule cannot be said in this form
	UnwindKindMask = 15
	UnwindSavedBP  = 1 << 4
	UnwindBPAtBP   = 1 << 5 // with UnwindAtBP: the caller's frame pointer is the word at the frame pointer
)

// Places in struct ucontext of the kernel on x86-64 (include/uapi/asm-generic/ucontext.h, and struct
// sigcontext_64 of arch/x86/include/uapi/asm/sigcontext.h).
const (
	UcontextBP = 120
	UcontextSP = 160
	UcontextIP = 168
)

// NewUnwindRule makes a rule without a saved frame pointer. Offsets have 24 bits.
func NewUnwindRule(kind int, off int32) UnwindRule {
	return UnwindRule(kind) | UnwindRule(uint32(off)<<8)
}

// SaveBP says that the caller's frame pointer is at an offset from the CFA.
func (r UnwindRule) SaveBP(off int32) UnwindRule {
	return r&0xffffffff | UnwindSavedBP | UnwindRule(uint64(uint32(off))<<32)
}

// Kind is the kind of the CFA.
func (r UnwindRule) Kind() int { return int(r & UnwindKindMask) }

// Offset belongs to the CFA.
func (r UnwindRule) Offset() int32 { return int32(uint32(r)) >> 8 }

// BP is the offset of the caller's frame pointer from the CFA, false if the frame pointer is unchanged.
func (r UnwindRule) BP() (int32, bool) { return int32(r >> 32), r&UnwindSavedBP != 0 }
