package plan

import (
	"cmp"
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// block is a stretch of instructions that are entered at the first one only and
// left at the last one only, calls aside.
type block struct {
	first, end int32   // indices of instructions, the second one exclusive
	exit       liveSet // what is live where control leaves the function behind it; 0 if it does not
}

// flow is the control flow graph of a function's instructions.
type flow struct {
	blocks []block
	of     []int32 // the block of each instruction
	succs  edges
	preds  edges
}

// edges are lists of blocks, one for each block.
type edges struct {
	first []int32 // where each block's list begins; one more at the end
	list  []int32
}

func (e *edges) of(b int32) []int32 { return e.list[e.first[b]:e.first[b+1]] }

// flow is the function's graph, made when first wanted.
func (b *body) flow() *flow {
	if b.graph == nil {
		g := &flow{}
		b.cut(g)
		b.connect(g)
		b.graph = g
	}
	return b.graph
}

// cut divides the instructions into blocks.
func (b *body) cut(g *flow) {
	leaders := newMarks(len(b.insts) + 1)
	leaders.add(0)
	for i := range b.insts {
		if b.ends(i) {
			leaders.add(i + 1)
		}
	}
	for _, e := range b.entries {
		if i, ok := b.find(e.to); ok {
			leaders.add(i)
		}
	}
	n := leaders.count()
	g.blocks = make([]block, 0, n)
	g.of = make([]int32, len(b.insts))
	for i := range b.insts {
		if leaders.has(i) {
			g.blocks = append(g.blocks, block{first: int32(i)})
		}
		last := len(g.blocks) - 1
		g.of[i] = int32(last)
		g.blocks[last].end = int32(i + 1)
	}
}

// ends reports whether the instruction with index i ends a block: whether control may
// go elsewhere than to the next one, by something else than a call.
func (b *body) ends(i int) bool {
	switch b.insts[i].Branch {
	case insn.BranchNone, insn.BranchSyscall:
		return false
	case insn.BranchCall, insn.BranchCallInd:
		return b.noReturn(i)
	}
	return true
}

// noReturn reports a call of a function that does not return.
func (b *body) noReturn(i int) bool {
	if len(b.f.NoReturn) == 0 {
		return false
	}
	in := &b.insts[i]
	to, ok := in.Target(b.addr(b.at[i]))
	if in.Branch == insn.BranchCallInd && in.RIPRel() {
		to, ok = b.addr(b.at[i])+abi.Addr(in.Len)+abi.Addr(int64(in.Disp)), true
	}
	if !ok {
		return false
	}
	_, ends := slices.BinarySearch(b.f.NoReturn, to)
	return ends
}

// connect finds the edges between the blocks.
func (b *body) connect(g *flow) {
	n := len(g.blocks)
	g.succs.first = make([]int32, n+1)
	g.succs.list = make([]int32, 0, 2*n)
	for k := range g.blocks {
		last := int(g.blocks[k].end) - 1
		g.succs.list = b.successors(g, g.succs.list, last)
		g.succs.first[k+1] = int32(len(g.succs.list))
		g.blocks[k].exit = b.exit(last)
	}
	g.preds = g.succs.reversed(n)
}

// reversed are the same edges the other way round.
func (e *edges) reversed(n int) edges {
	r := edges{first: make([]int32, n+2), list: make([]int32, len(e.list))}
	for _, to := range e.list {
		r.first[to+2]++
	}
	for k := range n {
		r.first[k+2] += r.first[k+1]
	}
	for from := range int32(n) {
		for _, to := range e.of(from) {
			r.list[r.first[to+1]] = from
			r.first[to+1]++
		}
	}
	r.first = r.first[:n+1]
	return r
}

// successors adds the blocks that may follow the block whose last instruction
// has index i.
func (b *body) successors(g *flow, list []int32, i int) []int32 {
	in := &b.insts[i]
	switch in.Branch {
	case insn.BranchCall, insn.BranchCallInd:
		if b.noReturn(i) {
			return list
		}
	case insn.BranchNone, insn.BranchSyscall, insn.BranchJcc, insn.BranchLoop, insn.BranchJmp:
	case insn.BranchJmpInd:
		for _, off := range b.targets(i) {
			k, _ := b.find(off)
			list = append(list, g.of[k])
		}
		return list
	default:
		return list
	}
	if in.Branch.Falls() && i+1 < len(b.insts) {
		list = append(list, g.of[i+1])
	}
	if !b.ends(i) {
		return list
	}
	if to, ok := in.Target(b.addr(b.at[i])); ok && b.inside(to) {
		k, _ := b.find(int(to - b.f.Start))
		list = append(list, g.of[k])
	}
	return list
}

// inside reports whether an address is an instruction of the function.
func (b *body) inside(a abi.Addr) bool {
	_, ok := b.find(int(a - b.f.Start))
	return ok
}

// indirectAt is the indirect jump with index i.
func (b *body) indirectAt(i int) *indirect {
	n, _ := slices.BinarySearchFunc(b.indirect, i, func(j indirect, i int) int { return cmp.Compare(j.inst, i) })
	return &b.indirect[n]
}

// targets are the offsets in the function that the indirect jump with index i
// leads to by tables.
func (b *body) targets(i int) []int { return b.indirectAt(i).targets }
