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

// liveness is the solution of the backward equations for one function.
//
// Calls, returns, indirect jumps and the function's end make everything live: a
// caller may rely on any register that this function does not change (gcc's
// -fipa-ra), and a signal handler's view of dead registers is not preserved.
type liveness struct {
	insts []transfer
	in    []liveSet // of each block
}

// liveAt is what is live before the instruction with index i.
func (b *body) liveAt(i int) (asm.RegSet, insn.Flags) {
	if b.lives == nil {
		b.lives = b.solve()
	}
	g := b.flow()
	k := g.of[i]
	set := b.lives.behind(g, k)
	for j := int(g.blocks[k].end) - 1; j >= i; j-- {
		set = b.lives.insts[j].before(set)
	}
	return asm.RegSet(set)&allGPRs | asm.Regs(asm.RSP), insn.Flags(set>>32) & insn.StatusFlags
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
		return transfer{read: allLive}
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
	if g.blocks[k].away {
		return allLive
	}
	var set liveSet
	for _, s := range g.succs.of(k) {
		set |= l.in[s]
	}
	return set
}
