package plan

import (
	asm "trapless/internal/asm/x86"
	insn "trapless/internal/insn/x86"
)

// allGPRs are the registers that generated code may touch.
const allGPRs = asm.RegSet(1<<16 - 1)

// liveSet is what may be read before it is overwritten: general registers in
// the lower half, flags in the upper one.
type liveSet uint64

func live(r insn.RegSet, f insn.Flags) liveSet { return liveSet(r) | liveSet(f)<<32 }

const allLive = liveSet(insn.AllRegs) | liveSet(insn.AllFlags)<<32

// transfer is what an instruction, or a block, does to liveness: what is live
// before it is what it reads, and what is live behind it unless it is
// overwritten.
type transfer struct{ read, kill liveSet }

func (t transfer) before(behind liveSet) liveSet { return behind&^t.kill | t.read }

// liveness is the solution of the backward equations for one function. A signal
// handler's view of dead registers is not preserved.
type liveness struct {
	insts []transfer
	in    []liveSet // of each block
}

// liveAt is what is live before the instruction with index i.
func (b *body) liveAt(i int) (asm.RegSet, insn.Flags) {
	set := b.liveSetAt(i)
	return asm.RegSet(set)&allGPRs | asm.Regs(asm.RSP), insn.Flags(set>>32) & insn.StatusFlags
}

// Few questions are answered by looking ahead from their instructions, most of
// which have no long way to go. More are worth the solution for all.
const (
	fewAsked    = 4
	askedOf     = 64  // instructions of the function, for one more question
	aheadBudget = 200 // instructions to look at
)

func (b *body) liveSetAt(i int) liveSet {
	if b.asked++; b.lives == nil && b.asked <= fewAsked+len(b.insts)/askedOf {
		if set, ok := b.lookAhead(i); ok {
			return set
		}
	}
	if b.lives == nil {
		b.lives = b.solve()
	}
	g := b.flow()
	k := g.of[i]
	set := b.lives.behind(g, k)
	for j := int(g.blocks[k].end) - 1; j >= i; j-- {
		set = b.lives.insts[j].before(set)
	}
	return set
}

// ahead is a way that a look ahead has still to go: what on it was neither read
// nor overwritten up to an instruction.
type ahead struct {
	inst int
	open liveSet
}

// lookAhead is what is live before the instruction with index i, by following
// all ways from there. It reports false if they are too long.
func (b *body) lookAhead(i int) (live liveSet, ok bool) {
	var space, past [16]ahead
	queue, seen := append(space[:0], ahead{i, allLive}), past[:0]
	budget := aheadBudget
	for len(queue) > 0 {
		w := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for k := range seen { // what is known from another way to here
			if seen[k].inst == w.inst {
				w.open &^= seen[k].open
			}
		}
		seen = append(seen, w)
		for j := w.inst; ; j++ {
			if w.open &^= live; w.open == 0 {
				break
			}
			if budget--; budget == 0 || len(seen)+len(queue) > aheadBudget/2 {
				return 0, false
			}
			if j == len(b.insts) {
				live |= w.open
				break
			}
			t := b.transfer(j)
			live |= t.read & w.open
			w.open &^= t.read | t.kill
			if b.ends(j) {
				queue = b.branch(queue, j, w.open)
				live |= b.exit(j) & w.open
				break
			}
		}
	}
	return live, true
}

// branch adds the ways from the end of a block to others of the function.
func (b *body) branch(queue []ahead, j int, open liveSet) []ahead {
	in := &b.insts[j]
	switch in.Branch {
	case insn.BranchJcc, insn.BranchLoop:
		queue = append(queue, ahead{j + 1, open})
	case insn.BranchJmp:
	case insn.BranchJmpInd:
		for _, off := range b.targets(j) {
			k, _ := b.find(off)
			queue = append(queue, ahead{k, open})
		}
		return queue
	default:
		return queue
	}
	to, _ := in.Target(b.addr(b.at[j]))
	if k, ok := b.find(int(to - b.f.Start)); ok {
		queue = append(queue, ahead{k, open})
	}
	return queue
}

// solve computes what is live before each block.
func (b *body) solve() *liveness {
	g := b.flow()
	l := &liveness{insts: make([]transfer, len(b.insts)), in: make([]liveSet, len(g.blocks))}
	for i := range b.insts {
		l.insts[i] = b.transfer(i)
	}
	whole := make([]transfer, len(g.blocks))
	queue := make([]int32, len(g.blocks)) // a stack: at first the last block is on top
	queued := newMarks(len(g.blocks))
	for k := range g.blocks {
		whole[k] = l.whole(g.blocks[k])
		queue[k] = int32(k)
		queued.add(k)
	}
	for len(queue) > 0 {
		k := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		queued.remove(int(k))
		in := whole[k].before(l.behind(g, k))
		if in == l.in[k] {
			continue
		}
		l.in[k] = in
		for _, p := range g.preds.of(k) {
			if !queued.has(int(p)) {
				queued.add(int(p))
				queue = append(queue, p)
			}
		}
	}
	return l
}

// transfer is what the instruction with index i does.
func (b *body) transfer(i int) transfer {
	in := &b.insts[i]
	if in.Branch == insn.BranchCall || in.Branch == insn.BranchCallInd {
		return b.call(i)
	}
	e := in.Effects()
	return transfer{read: live(e.Read, e.FlagsRead), kill: live(e.FullWrite, e.FlagsMust)}
}

// whole is what a block does.
func (l *liveness) whole(k block) transfer {
	var t transfer
	for i := k.end - 1; i >= k.first; i-- {
		in := l.insts[i]
		t = transfer{in.before(t.read), t.kill | in.kill}
	}
	return t
}

// behind is what is live behind block number k.
func (l *liveness) behind(g *flow, k int32) liveSet {
	set := g.blocks[k].exit
	for _, s := range g.succs.of(k) {
		set |= l.in[s]
	}
	return set
}
