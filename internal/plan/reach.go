package plan

import (
	insn "trapless/internal/insn/x86"
)

// Limits of the search for where a value comes from.
const (
	depthBudget = 12 // values in a chain
	mostOrigins = 64 // places that a value may come from
)

// spend takes from what all searches of the function may look at together. It
// reports false when nothing is left: such code was written to be slow.
func (b *body) spend(n int) bool {
	b.effort -= n
	return b.effort > 0
}

// The effort that is put into a function: looks at an instruction.
const (
	leastEffort   = 10_000
	effortForInst = 50
)

// callerSaved are the registers that a call may change (System V ABI, 3.2.1).
const callerSaved = 1<<insn.RAX | 1<<insn.RCX | 1<<insn.RDX | 1<<insn.RSI | 1<<insn.RDI |
	1<<insn.R8 | 1<<insn.R9 | 1<<insn.R10 | 1<<insn.R11

// writes are the registers that the instruction with index i may change, in the
// function's eyes: a call returns to the next instruction.
func (b *body) writes(i int) insn.RegSet {
	in := &b.insts[i]
	switch in.Branch {
	case insn.BranchCall, insn.BranchCallInd:
		return callerSaved
	case insn.BranchSyscall: // as Linux has it (System V ABI, A.2.1)
		return 1<<insn.RAX | 1<<insn.RCX | 1<<insn.R11
	}
	return in.Effects().Write
}

// way is where control may come from.
type way struct {
	block int32
	taken bool // by the branch at its end, and not past it
}

// Blocks of ways that lead into the function.
const (
	fromCaller = -1 // from its caller
	fromPart   = -2 // from other code, which may be a part of the function that lies elsewhere
)

// waysTo are the ways to the start of a block. An
// indirect jump that takes an address from memory leads to each block whose
// address is known; one that is not understood leads there too, and to each
// block to which nothing else leads.
func (b *body) waysTo(g *flow, k int32) []way {
	var ways []way
	first := int(g.blocks[k].first)
	if first == 0 {
		ways = append(ways, way{block: fromCaller})
	}
	for _, e := range b.entriesIn(b.at[first]-1, b.at[first]+1) {
		if e.how == byInbound || e.how == byCall && first != 0 {
			ways = append(ways, way{block: fromPart})
			break
		}
	}
	for _, p := range g.preds.of(k) {
		last := int(g.blocks[p].end) - 1
		to, direct := b.insts[last].Target(b.addr(b.at[last]))
		jumps := direct && b.ends(last) && to == b.addr(b.at[first])
		if jumps && last+1 == first && b.insts[last].Branch.Falls() {
			ways = append(ways, way{p, false})
		}
		ways = append(ways, way{p, jumps})
	}
	taken := b.addressTaken(b.at[first])
	lost := b.wild && len(ways) == 0 && !b.isAlignment(first)
	if !taken && !lost {
		return ways
	}
	for _, j := range b.indirect {
		if !j.leaves && (j.kind == Unresolved && b.wild || j.kind == Pointed && taken) {
			ways = append(ways, way{g.of[j.inst], true})
		}
	}
	return ways
}

// isAlignment reports no-ops up to an aligned address, which nobody jumps to.
func (b *body) isAlignment(i int) bool {
	const least = 8 // bytes
	for ; i < len(b.insts) && isPadding(b.insts[i]); i++ {
		if b.addr(b.at[i]+int(b.insts[i].Len))%least == 0 {
			return true
		}
	}
	return false
}

// addressTaken reports whether the address of an offset is known to code or
// data.
func (b *body) addressTaken(off int) bool {
	for _, e := range b.entriesIn(off-1, off+1) {
		switch e.how {
		case byAddress, byData, byEndbr:
			return true
		}
	}
	return false
}

// origins are the instructions that may have written a register last before
// the one with index i; fromCaller and fromPart stand among them. It reports
// false if there are too many.
func (b *body) origins(i int, r insn.Reg) ([]int, bool) {
	g := b.flow()
	var found []int
	seen := map[int32]bool{}
	queue := []int32{g.of[i]}
	from := i - 1
	for len(queue) > 0 {
		k := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		j := from
		for ; j >= int(g.blocks[k].first) && !b.writes(j).Has(r); j-- {
			if !b.spend(1) {
				return nil, false
			}
		}
		if j >= int(g.blocks[k].first) {
			if found = append(found, j); len(found) > mostOrigins {
				return nil, false
			}
		} else {
			ways := b.waysTo(g, k)
			if !b.spend(len(ways)) {
				return nil, false
			}
			for _, w := range ways {
				switch {
				case w.block < 0:
					found = append(found, int(w.block))
				case !seen[w.block]:
					seen[w.block] = true
					queue = append(queue, w.block)
				}
			}
		}
		if len(queue) > 0 {
			from = int(g.blocks[queue[len(queue)-1]].end) - 1
		}
	}
	return found, true
}
