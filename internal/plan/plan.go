// Package plan decides how sites are patched. It takes the code of a function,
// the sites asked for in it and facts about the target, and returns a Window
// for each site that can be patched, and a Refusal with a stable reason for
// each that cannot.
//
// Analyze decodes the function from its start, so that instruction boundaries
// are certain, and collects everything that may enter a window elsewhere than
// at its start. A window then tells which addresses its jump may lead to
// (Allows), the bytes to write (Patch), and how its instructions run at
// another place (EmitRelocated). A Space knows the free stretches of the
// target's address space and picks the addresses that a window allows.
//
// # Why a window is safe
//
// Its first bytes become jmp rel32. A thread, a saved program counter or an
// unknown indirect jump may still arrive at an instruction boundary inside the
// window. Each such byte is therefore one of Traps, which raise SIGTRAP or
// SIGILL whatever follows, and the target's handlers continue at the moved
// instruction. For the bytes of rel32 this constrains the address jumped to;
// bytes after it are breakpoints. Known jumps into the inside would be correct
// but slow, and are avoided.
//
// A site whose instruction is at least five bytes long needs nothing of this:
// it has no inside (tactic single).
//
// A window need not start at its site. Where none can, it starts before it in
// the same block (tactic earlier), and several sites may lie in one window: the
// programs of each run just before its own instruction (Emit).
//
// What stays true of the target: calls stay calls and returns stay returns, so
// return addresses, exceptions, tracebacks and shadow stacks see the original
// code. An endbr64 at a site is displaced, because Linux does not enable
// indirect branch tracking in user mode.
//
// The package is pure: it knows bytes and addresses, no process, no file and
// no program. Its results depend on its arguments alone.
package plan

import (
	"slices"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	insn "trapless/internal/insn/x86"
)

// Func is a function, or a part of one that has a symbol of its own.
type Func struct {
	Name    string
	Aliases []string // further symbols at the same address
	Start   abi.Addr
	Code    []byte // the body
	Pad     []byte // what lies between the body's end and the next function, as far as it is known
	Entry   bool   // Start is a call's target that follows the ABI: not a .cold part, not a label
	Go      bool   // it runs on goroutine stacks and follows Go's ABI
	Asm     bool   // it is Go's, and was written in assembly

	// Inbound are addresses inside the function to which code outside of it
	// is known to jump: direct branches (see Sweep) and landing pads.
	Inbound []abi.Addr
	// Taken are addresses in the function that data may hold. Those that are
	// no instruction's are ignored.
	Taken []abi.Addr
	// ReadOnly reads memory that never changes, where switch tables may lie:
	// size bytes at an address, nil if they are not all known. An indirect jump
	// whose table is not found, or not understood, may lead anywhere in the
	// function. It may be nil.
	ReadOnly func(at abi.Addr, size int) []byte
	// Part reports whether a part of the function that lies elsewhere (.cold)
	// may hold an address. nil: that is not known.
	Part func(abi.Addr) bool
	// NoReturn are functions that do not return to their callers, the linkage
	// stubs that lead to them, and the slots in memory that hold their
	// addresses; ascending.
	NoReturn []abi.Addr
	// Sweep is what is known of the module's whole code, nil if that was not read.
	Sweep *Sweep
	// Fixed: the code is linked to a fixed address, so that it may hold its
	// addresses as constants.
	Fixed bool
	// InboundKnown says that Inbound is complete. Without it, windows of
	// several instructions need trap handlers.
	InboundKnown bool
	// Next is the function right behind Pad, nil if that is not known. Its first
	// instructions may be moved out for a site at this one's end. Windows of two
	// functions may therefore overlap: see Conflicts.
	Next *Func
}

// End is the address behind the body.
func (f *Func) End() abi.Addr { return f.Start + abi.Addr(len(f.Code)) }

// EntrySite is where a call of the function is counted: its start, or what
// follows Go's stack check, which runs again once the stack is larger.
func (f *Func) EntrySite() abi.Addr {
	if f.Go {
		if c, ok := FindStackCheck(f.Code); ok {
			return f.Start + abi.Addr(c.Len)
		}
	}
	return f.Start
}

// Facts are what a plan must know about the target.
type Facts struct {
	// TrapsHandled: SIGTRAP and SIGILL handlers continue at the moved
	// instruction. Without them, a window of several instructions is made
	// only where nothing but its start can be entered.
	TrapsHandled bool
	// SlowEntries: a window may have known entries inside, each of which
	// costs a trap. They are refused otherwise, even with trap handlers: code
	// may run with these signals blocked (in a thread that blocks all of them,
	// in the child of posix_spawn), and a trap then kills the target.
	SlowEntries bool
	// FaultsDefault: SIGSEGV, SIGBUS and SIGFPE are SIG_DFL.
	FaultsDefault bool
	// FaultsMapped: the handlers of these signals see the original program
	// counter of a moved instruction.
	FaultsMapped bool
	// NoTouch are ranges that no patch may overlap.
	NoTouch []NoTouch
	// Breakpoints: sites for which there is no jump may be breakpoints. A thread
	// that comes to one while it blocks SIGTRAP is killed, so this takes somebody
	// who knows that none does. (Boundaries trap too, but nothing that is known
	// leads to them.)
	Breakpoints bool
	// Blocked says who cannot take a trap: "thread 7 (worker) blocks SIGTRAP or SIGILL". It
	// is "" if everybody can.
	// Where an unknown jump may lead into a window, the trap would kill it.
	Blocked string
	// ShadowStack: some thread has one. A call then stays a call, or is refused:
	// what is pushed besides would not agree with it.
	ShadowStack bool
	// Space tells which addresses are free, for tactics that need certain ones.
	// Without it they count as free.
	Space *Space
	// Costliest is the last tactic, in the order of Tactics, that may be used;
	// empty stands for all.
	Costliest Tactic
}

// NoTouch is a range that no patch may overlap, and why.
type NoTouch struct {
	Range  abi.Range
	Reason Reason // RSeq or Blacklisted
	Name   string // for people
}

// Tactic is the way a site is patched.
type Tactic string

// The tactics, cheapest first.
const (
	Single   Tactic = "single" // one instruction of at least five bytes, or a direct call
	Multiple Tactic = "window" // several instructions, or one and the padding behind it
	// Earlier: the window starts at an earlier instruction of the same block,
	// and the programs run just before the site's own.
	Earlier Tactic = "earlier"
	// Pun: fewer than five bytes are written, and those behind them serve as
	// the end of the jump just as they are. A springboard lies where it leads.
	Pun Tactic = "pun"
	// Short: a jump of two bytes leads to one of five in padding near by.
	Short Tactic = "short"
	// Evict: other instructions near by move out to make room for that jump.
	Evict Tactic = "evict"
	// Trap: a breakpoint, whose handler goes on at the detour. Each hit costs
	// some microseconds.
	Trap Tactic = "trap"
)

// Tactics are all of them in the order in which they are tried.
var Tactics = []Tactic{Single, Multiple, Earlier, Pun, Short, Evict, Trap}

// allows reports whether a tactic may be used.
func (f *Facts) allows(t Tactic) bool {
	return f.Costliest == "" || slices.Index(Tactics, t) <= slices.Index(Tactics, f.Costliest)
}

// MaxLen is the greatest length of a window in bytes.
const MaxLen = 24

// Window is the plan for one or more sites: the bytes that a patch overwrites,
// and all that is needed to run them elsewhere.
type Window struct {
	Func   *Func
	Start  abi.Addr // first byte of the window
	Len    int      // bytes, at most MaxLen; less than five for the tactics pun, short, evict and trap
	Tactic Tactic   // of the first site
	Insts  []Inst   // the whole window, without gaps, but for bytes at its end that nothing runs
	Old    []byte   // what the target's bytes must be

	// Call: the site is a call, and remains one to another target, so at the
	// detour the return address has been pushed already: the stack pointer at
	// the site was 8 higher. The relocated code is a jump to the callee.
	Call bool

	// Sites are the places in the window where programs run, ascending. There
	// is none in a window that only makes room for others (Guests).
	Sites []Site

	// Cave is where the window's jump of five bytes lies, if not at Start, and
	// Host the window that has it among its bytes. Host must be in place before
	// this one, and for as long.
	Cave abi.Addr
	Host *Window
	// Guests are the windows whose caves lie in this one.
	Guests []*Window
	// Bare: the window is padding that nothing runs. It has no detour, but
	// guests.
	Bare bool
	// Behind are the windows whose bytes are the end of this one's jump,
	// ascending. They must be in place before this one, and for as long.
	Behind []*Window
	// Before is the window whose jump ends in the bytes of this one's: the two
	// springboards must be picked together (Space.PickBoards).
	Before *Window

	// What follows is that of the first site, for windows that have one alone.

	Site        abi.Addr
	AtEntry     bool
	RedZoneLive bool
	LiveRegs    asm.RegSet
	LiveFlags   insn.Flags
	FlagsLive   bool

	// Slow are boundaries inside the window to which known jumps lead. Each
	// such jump costs a trap.
	Slow []abi.Addr

	// Boosted: breakpoints at the sites lead to the detour, by their handler.
	Boosted bool

	noTraps string  // why no breakpoint may be here, "" if one may
	need    [4]need // what the bytes of rel32, lowest first, must be
	reach   abi.Range
}

// Site is a place in a window where programs run.
type Site struct {
	Addr abi.Addr // where the probe was asked for
	// Inst is the index of the instruction before which the programs run:
	// len(Window.Insts) for a site that is the window's end, an instruction
	// that cannot move itself (a call, a system call) and that nothing but the
	// instruction before it leads to.
	Inst int
	// AtEntry: the site is the EntrySite of a function that follows the ABI.
	AtEntry bool
	// RedZoneLive: the 128 bytes below the stack pointer may be in use. At an
	// entry they are not, unless the function also loops to its start.
	RedZoneLive bool
	// LiveRegs may be read before they are overwritten, from the site on.
	LiveRegs asm.RegSet
	// LiveFlags are the status flags of which that is true.
	LiveFlags insn.Flags
	FlagsLive bool // LiveFlags is not empty
}

// Inst is one instruction of a window.
type Inst struct {
	insn.Inst
	Off   int // from the window's start
	Moved int // offset in the relocated code without programs; the size there is reloc's
	Pad   bool
}

// End is the address behind the window, where the relocated code jumps back to.
func (w *Window) End() abi.Addr { return w.Start + abi.Addr(w.Len) }

// Extent is the window's bytes and those behind it that its jump ends in: no other
// patch may change them that the window does not know (Behind).
func (w *Window) Extent() abi.Range {
	r := w.Range()
	switch {
	case w.Boosted || w.Bare || w.Call:
	case w.Cave != 0:
		r.End = max(r.End, w.Start+shortLen)
	default:
		r.End = max(r.End, w.Start+jmpLen)
	}
	return r
}

// Alone reports whether the window needs no other one to be in place.
func (w *Window) Alone() bool { return w.Host == nil && len(w.Behind) == 0 }

// Range is the window's bytes.
func (w *Window) Range() abi.Range { return abi.Range{Start: w.Start, End: w.End()} }
