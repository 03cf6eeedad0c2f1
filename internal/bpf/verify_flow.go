package bpf

import (
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// flow is what the verifier needs to know of a program's ways before it walks
// them.
type flow struct {
	code   *Code
	leader []bool      // ways meet or part here: what is known is kept
	order  []int       // position of each instruction in an order that prefers to go forwards
	head   []bool      // a way leads back here
	live   []regSet    // registers whose content somebody may still read
	loops  map[int]set // for each head that all ways into its loop go through, the leaders in it
	limits []int64     // numbers that the program compares with, sorted
}

// regSet is a set of registers: bit i stands for ri.
type regSet uint16

func regs(rs ...asm.Register) (s regSet) {
	for _, r := range rs {
		s |= 1 << r
	}
	return s
}

func (s regSet) has(r int) bool { return s>>r&1 != 0 }

// set is a set of instructions.
type set map[int]bool

func newFlow(c *Code) *flow {
	n := len(c.Insns)
	f := &flow{code: c, leader: make([]bool, n), order: make([]int, n), head: make([]bool, n), live: make([]regSet, n)}
	f.findLeaders()
	f.walk()
	f.liveness()
	f.findLimits()
	return f
}

// successors calls visit for each instruction of the same function that may
// follow instruction i. The one that is visited first is the one behind i.
func (f *flow) successors(i int, visit func(to int)) {
	in := &f.code.Insns[i]
	if !f.code.Ends(i) && in.Kind != JumpAlways {
		visit(i + 1)
	}
	if in.Kind == Jump || in.Kind == JumpAlways {
		visit(in.Target)
	}
}

// callsBack reports whether instruction i is a helper that calls a function.
func (c *Code) callsBack(i int) bool {
	in := &c.Insns[i]
	if in.Kind != CallHelper {
		return false
	}
	h := helperByID[in.Helper()]
	return h != nil && slices.Contains(h.Args[:], ArgFunc)
}

func (f *flow) findLeaders() {
	for _, fn := range f.code.Funcs {
		f.leader[fn.Start] = true
	}
	for i := range f.code.Insns {
		in := &f.code.Insns[i]
		switch {
		case in.Kind == Jump:
			f.leader[i+1], f.leader[in.Target] = true, true
		case in.Kind == JumpAlways:
			f.leader[in.Target] = true
		case in.Kind == CallFunc:
			f.leader[i+1] = true
		case f.code.callsBack(i):
			f.leader[i], f.leader[i+1] = true, true
		}
	}
}

// walk finds the order and the heads: from each function's start, depth first,
// and of two ways the one that leads further down comes last in the order, so
// that what follows a loop comes after it.
func (f *flow) walk() {
	const (
		unseen = iota
		open
		closed
	)
	mark := make([]uint8, len(f.code.Insns))
	next := len(f.code.Insns)
	type step struct {
		at   int
		todo []int
	}
	for _, fn := range f.code.Funcs {
		path := []step{{fn.Start, f.ways(fn.Start)}}
		mark[fn.Start] = open
		for len(path) > 0 {
			s := &path[len(path)-1]
			if len(s.todo) == 0 {
				mark[s.at] = closed
				next--
				f.order[s.at] = next
				path = path[:len(path)-1]
				continue
			}
			to := s.todo[0]
			s.todo = s.todo[1:]
			switch mark[to] {
			case unseen:
				mark[to] = open
				path = append(path, step{to, f.ways(to)})
			case open:
				f.head[to] = true
			}
		}
	}
}

// ways lists the successors, the one furthest down first.
func (f *flow) ways(i int) (out []int) {
	f.successors(i, func(to int) { out = append(out, to) })
	if len(out) == 2 && out[0] < out[1] {
		out[0], out[1] = out[1], out[0]
	}
	return out
}

// callUses are the registers that a call reads, and callDefs those that it
// destroys.
var (
	callUses = regs(asm.R1, asm.R2, asm.R3, asm.R4, asm.R5)
	callDefs = callUses | regs(asm.R0)
)

// liveness finds which registers are read before they are written.
func (f *flow) liveness() {
	c := f.code
	for changed := true; changed; {
		changed = false
		for i := len(c.Insns) - 1; i >= 0; i-- {
			var after regSet
			f.successors(i, func(to int) { after |= f.live[to] })
			uses, defs := c.Insns[i].registers()
			if now := after&^defs | uses; now != f.live[i] {
				f.live[i] = now
				changed = true
			}
		}
	}
}

// registers are those that an instruction reads, and those that it writes.
func (in *Insn) registers() (uses, defs regSet) {
	src := regSet(0)
	if in.UseSrc {
		src = regs(in.Src)
	}
	dst := regs(in.Dst)
	switch in.Kind {
	case ALU:
		if in.overwrites() {
			return src, dst
		}
		return src | dst, dst
	case LoadImm, LoadRef, LoadValue, LoadFunc:
		return 0, dst
	case Load:
		return src, dst
	case Store:
		return src | dst, 0
	case AtomicRMW:
		switch {
		case in.Atomic == asm.CmpXchg:
			return src | dst | regs(asm.R0), regs(asm.R0)
		case in.Fetches():
			return src | dst, src
		}
		return src | dst, 0
	case Jump:
		return src | dst, 0
	case CallHelper:
		if h := helperByID[in.Helper()]; h != nil {
			return callUses & (1<<(h.NumArgs()+1) - 1), callDefs
		}
		return callUses, callDefs
	case CallReg:
		return callUses | dst, callDefs
	case CallFunc:
		return callUses, callDefs
	case Exit:
		return regs(asm.R0), 0
	}
	return 0, 0
}

// maxLimits bounds the numbers that widening looks through.
const maxLimits = 128

// findLimits collects the constants of the program, and their neighbours.
func (f *flow) findLimits() {
	f.limits = []int64{math.MinInt32, -1, 0, 1, math.MaxInt32, math.MaxUint32}
	add := func(v int64) {
		if len(f.limits) < maxLimits {
			f.limits = append(f.limits, v-1, v, v+1)
		}
	}
	for i := range f.code.Insns {
		in := &f.code.Insns[i]
		if in.Kind == Jump && !in.UseSrc {
			add(in.Imm)
		}
	}
	for i := range f.code.Insns {
		in := &f.code.Insns[i]
		if in.Kind == LoadImm || in.Kind == ALU && in.ALU == asm.Mov && !in.UseSrc {
			add(in.Imm)
		}
	}
	for _, m := range f.code.Maps {
		add(int64(m.MaxEntries))
	}
	slices.Sort(f.limits)
	f.limits = slices.Compact(f.limits)
}

// findLoops finds the loops that can be told apart by how often they were run:
// those whose head all ways into them go through.
func (f *flow) findLoops() {
	if f.loops != nil {
		return
	}
	f.loops = map[int]set{}
	for i := range f.code.Insns {
		if f.code.callsBack(i) {
			f.loops[i] = set{i: true}
		}
	}
	preds := f.predecessors()
	for h := range f.head {
		if f.head[h] {
			if body := f.loop(h, preds); body != nil {
				f.loops[h] = body
			}
		}
	}
}

func (f *flow) predecessors() [][]int {
	preds := make([][]int, len(f.code.Insns))
	for i := range f.code.Insns {
		f.successors(i, func(to int) { preds[to] = append(preds[to], i) })
	}
	return preds
}

// loop collects, backwards from the ways that lead back to the head, what lies
// on them. It returns nil if that leads to the function's start past the head,
// or to code that cannot be reached, whose order says nothing.
func (f *flow) loop(h int, preds [][]int) set {
	body := set{h: true}
	start := f.code.Funcs[f.code.FuncAt(h)].Start
	var todo []int
	for _, p := range preds[h] {
		if f.order[p] >= f.order[h] {
			todo = append(todo, p)
		}
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if body[i] {
			continue
		}
		if i == start {
			return nil
		}
		body[i] = true
		todo = append(todo, preds[i]...)
	}
	return body
}

// enter says how often each loop was run again when the way goes from one
// instruction to another. No more than most laps are told apart.
func (f *flow) enter(laps []lap, from, to int, most int32) []lap {
	if len(laps) == 0 && f.loops[to] == nil {
		return nil
	}
	out := make([]lap, 0, len(laps)+1)
	again := false
	for _, l := range laps {
		if !f.loops[int(l.head)][to] {
			continue // left
		}
		if int(l.head) == to && f.loops[to][from] {
			l.count = min(l.count+1, most)
			again = true
		}
		out = append(out, l)
	}
	if f.loops[to] != nil && !again {
		out = slices.DeleteFunc(out, func(l lap) bool { return int(l.head) == to })
		out = append(out, lap{int32(to), 0})
	}
	return out
}
