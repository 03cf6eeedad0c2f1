package plan

import (
	asm "trapless/internal/asm/x86"
	insn "trapless/internal/insn/x86"
)

// scanBudget bounds the instructions that a liveness scan looks at. What lies
// beyond counts as reading everything.
const scanBudget = 96

// allGPRs are the registers that generated code may touch.
const allGPRs = asm.RegSet(1<<16 - 1)

// liveSet is what may be read before it is overwritten.
type liveSet struct {
	regs  insn.RegSet
	flags insn.Flags
}

var allLive = liveSet{insn.AllRegs, insn.StatusFlags}

// step is one instruction of a scan. Successors are indices of steps; where
// control goes to a place that the scan does not know, everything is live.
type step struct {
	eff     insn.Effects
	next    []int
	unknown bool
	in      liveSet
}

// liveAt is what is live before the instruction with index i: a bounded scan
// along the control flow of this function, then the usual backward equations
// to a fixed point. Calls, returns, indirect jumps and the function's end make
// everything live: a caller may rely on any register that this function does
// not change (gcc's -fipa-ra), and a signal handler's view of dead registers
// is not preserved.
func (b *body) liveAt(i int) (asm.RegSet, insn.Flags) {
	steps := b.scan(i)
	for changed := true; changed; {
		changed = false
		for k := len(steps) - 1; k >= 0; k-- {
			in := steps[k].transfer(steps)
			changed = changed || in != steps[k].in
			steps[k].in = in
		}
	}
	regs := asm.RegSet(steps[0].in.regs)&allGPRs | asm.Regs(asm.RSP)
	return regs, steps[0].in.flags & insn.StatusFlags
}

// transfer is what is live before a step, given what is live before those that
// follow it.
func (s *step) transfer(steps []step) liveSet {
	out := liveSet{}
	if s.unknown {
		out = allLive
	}
	for _, k := range s.next {
		out.regs |= steps[k].in.regs
		out.flags |= steps[k].in.flags
	}
	return liveSet{
		regs:  out.regs&^s.eff.FullWrite | s.eff.Read,
		flags: out.flags&^s.eff.FlagsMust | s.eff.FlagsRead,
	}
}

// scan collects the instructions reachable from the one with index i. The
// first step is that one.
func (b *body) scan(i int) []step {
	index := map[int]int{i: 0} // of an instruction, to its step
	order := []int{i}
	var steps []step
	for k := 0; k < len(order); k++ {
		s := step{eff: b.insts[order[k]].Effects()}
		succ, known := b.successors(order[k])
		s.unknown = !known
		for _, n := range succ {
			at, seen := index[n]
			if !seen && len(order) == scanBudget {
				s.unknown = true
				continue
			}
			if !seen {
				at = len(order)
				index[n] = at
				order = append(order, n)
			}
			s.next = append(s.next, at)
		}
		steps = append(steps, s)
	}
	return steps
}

// successors are the instructions that may run after the one with index i, and
// whether these are all.
func (b *body) successors(i int) (next []int, all bool) {
	in := b.insts[i]
	switch in.Branch {
	case insn.BranchNone, insn.BranchJcc, insn.BranchLoop, insn.BranchJmp:
	default:
		return nil, false
	}
	all = true
	if in.Branch.Falls() {
		next, all = b.follow(next, b.at[i]+int(in.Len))
	}
	if to, ok := in.Target(b.addr(b.at[i])); ok {
		var known bool
		off := -1
		if to >= b.f.Start && to < b.f.End() {
			off = int(to - b.f.Start)
		}
		next, known = b.follow(next, off)
		all = all && known
	}
	return next, all
}

// follow adds the instruction at an offset, if there is one.
func (b *body) follow(next []int, off int) ([]int, bool) {
	i, ok := b.find(off)
	if !ok {
		return next, false
	}
	return append(next, i), true
}
