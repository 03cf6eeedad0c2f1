package plan

import (
	"fmt"
	"math"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	insn "trapless/internal/insn/x86"
	"trapless/internal/reloc"
)

// PCPair says where an instruction of a window runs now.
type PCPair struct{ Orig, Moved abi.Addr }

// RelocatedSize is the number of bytes that EmitRelocated will emit; it does
// not depend on the address.
func (w *Window) RelocatedSize() int {
	if w.Call {
		return jmpLen
	}
	last := w.Insts[len(w.Insts)-1]
	n := last.Moved + movedSize(last)
	if w.fallsOut() {
		n += jmpLen
	}
	return n
}

// EmitRelocated emits the window's instructions for where the assembler
// stands, and the jump back behind the window. It returns the new place of
// each instruction. It fails if something that they refer to is out of reach.
//
// A branch from the window into its own inside goes to the moved instruction;
// one to its start goes there, because that is a hit.
func (w *Window) EmitRelocated(a *asm.Asm) ([]PCPair, error) {
	if w.Call {
		target, _ := w.Insts[0].Target(w.Start)
		a.JmpAddr(target)
		return nil, nil
	}
	base := a.PC()
	var pairs []PCPair
	for _, in := range w.Insts {
		if isBreakpointPad(in) {
			continue
		}
		from, to := w.Start+abi.Addr(in.Off), base+abi.Addr(in.Moved)
		code, err := reloc.MoveBranch(in.Inst, w.Old[in.Off:], from, to, w.movedTarget(in, base))
		if err != nil {
			return nil, fmt.Errorf("instruction at %v: %w", from, err)
		}
		pairs = append(pairs, PCPair{from, to})
		a.Raw(code...)
	}
	if w.fallsOut() {
		a.JmpAddr(w.End())
	}
	return pairs, nil
}

// movedTarget is where a direct branch goes once the window was moved to base.
func (w *Window) movedTarget(in Inst, base abi.Addr) abi.Addr {
	target, ok := in.Target(w.Start + abi.Addr(in.Off))
	if !ok || target == w.Start {
		return target
	}
	for _, other := range w.Insts {
		if target == w.Start+abi.Addr(other.Off) && !isBreakpointPad(other) {
			return base + abi.Addr(other.Moved)
		}
	}
	return target
}

// layOut gives each instruction its offset in the relocated code.
// Precondition: each can be moved, but for breakpoints in padding.
func (w *Window) layOut() {
	at := 0
	for i := range w.Insts {
		w.Insts[i].Moved = at
		at += movedSize(w.Insts[i])
	}
}

func movedSize(in Inst) int {
	if isBreakpointPad(in) {
		return 0
	}
	n, err := reloc.Size(in.Inst)
	if err != nil {
		panic("BUG: plan: a window holds an instruction that cannot be moved: " + err.Error())
	}
	return n
}

// isBreakpointPad reports padding that is never reached and stays where it is.
func isBreakpointPad(in Inst) bool { return in.Pad && in.Branch == insn.BranchTrap }

// fallsOut reports whether control can leave the window at its end.
func (w *Window) fallsOut() bool {
	last := w.Insts[len(w.Insts)-1]
	return !isBreakpointPad(last) && last.Branch.Falls()
}

// margin is more than any instruction's length, moved or not.
const margin = 64

// setReach intersects what the window's instructions refer to.
func (w *Window) setReach() {
	lo, hi := abi.Addr(0), abi.Addr(math.MaxUint64)
	limit := func(to abi.Addr) {
		lo = max(lo, below(to, math.MaxInt32-margin))
		hi = min(hi, above(to, math.MaxInt32-margin))
	}
	limit(w.End())
	for _, in := range w.Insts {
		if to, ok := reloc.Reference(in.Inst, w.Start+abi.Addr(in.Off)); ok {
			limit(to)
		}
	}
	w.reach = abi.Range{Start: lo, End: max(lo, hi)}
}

func below(a abi.Addr, n uint64) abi.Addr {
	if uint64(a) < n {
		return 0
	}
	return a - abi.Addr(n)
}

func above(a abi.Addr, n uint64) abi.Addr {
	if a > math.MaxUint64-abi.Addr(n) {
		return math.MaxUint64
	}
	return a + abi.Addr(n)
}
