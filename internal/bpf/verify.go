package bpf

import (
	"container/heap"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf/bound"
)

// Verified is a program that was proven to touch nothing but its input, its
// stack, its maps' values and its records, and to use nothing that it has not
// written. Only Verify makes one, and Trust.
type Verified struct {
	code  *Code
	reads fields
}

// Name is the program's name.
func (v *Verified) Name() string { return v.code.Name }

// Code is the decoded program. The caller must not change it.
func (v *Verified) Code() *Code { return v.code }

// effort is how hard the verifier tries. It begins with little: what is known
// is joined wherever ways meet, which is fast whatever the program does. Only a
// program that is refused then is looked at with more care. All efforts together
// have a bound: under a second for a program of MaxInsns instructions, of a program
// of 100 a quarter. (Of 360 programs of bcc's tools none needed more than the first
// effort, and two steps an instruction.)
type effort struct {
	shapes    bool  // states with different kinds of pointers are kept apart
	constants bool  // and those with different known numbers
	laps      int32 // so many rounds of each loop are told apart
	parts     int   // states that are kept apart at one place
	steps     int   // work for each instruction: looking at one is 1, see verifier.work
	more      int   // and besides
}

var efforts = []effort{
	{parts: 16, steps: 64, more: 1 << 12},
	{shapes: true, parts: 16, steps: 16, more: 1 << 14},
	{shapes: true, laps: 64, parts: 512, steps: 8, more: 1 << 16},
	{shapes: true, constants: true, laps: 1 << 11, parts: 1 << 12, steps: 8, more: 1 << 16},
}

// budget is how much work an effort may be for a program.
func (e *effort) budget(c *Code) int { return e.steps*len(c.Insns) + e.more }

// Verify decodes and verifies a program. It refuses, with an InsnError that
// names the instruction, whatever is not certain. See verifier for how.
func Verify(p *Program) (*Verified, error) { return verify(p, options{}) }

// options are for tests.
type options struct {
	watch   func(at int, s *state) // called before each instruction that is looked at, with -1 when all begins anew
	missing bool                   // helpers that the engine does not have are accepted
	effort  int                    // the number of efforts that are made, 0 for all
}

func verify(p *Program, o options) (*Verified, error) {
	code, err := Decode(p)
	if err != nil {
		return nil, err
	}
	v := &verifier{prog: p, code: code, flow: newFlow(code), options: o}
	var refused *rejection
	for i, e := range efforts {
		if e.laps > 0 {
			v.flow.findLoops()
		}
		v.begin(e)
		r := v.run()
		if r == nil {
			return v.finish()
		}
		// A limit of effort says less than what was wrong before it, and so
		// does a single one of many rounds.
		if refused == nil || r.reason != ReasonTooComplex && !e.constants {
			refused = r
		}
		if !v.lossy || i+1 == o.effort {
			break // it will not get better
		}
	}
	return nil, v.explain(refused)
}

// verifier proves by abstract interpretation: it runs the program with values
// that stand for many (type value), over all ways, until nothing new comes up.
//
// What is known is kept at leaders, where ways part or meet, once for each
// chain of calls that leads there: a called function is looked at anew for each
// of its callers. States that arrive at the same place are joined (type
// joiner); at the heads of loops limits that grow are widened, so that a loop
// comes to rest after a few rounds. That a loop ends is not proven: fuel bounds
// it when it runs.
//
// A function that a helper calls may run any number of times: the call is like
// the head of a loop around it.
//
// Nothing is believed of what memory holds that others can write to: a load
// from a map's value, a record or the input gives any number.
type verifier struct {
	prog *Program
	code *Code
	flow *flow

	effort effort
	ctxs   []*callChain
	chains map[link]int
	queue  workQueue
	steps  int   // instructions that were looked at
	work   int   // steps, and what comparing and joining states costs, in as many steps
	lossy  bool  // a join has forgotten something
	depths []int // bytes of the stack that each function uses
	dead   []bool
	reads  fields

	options
}

// callChain is a chain of calls.
type callChain struct {
	link
	depth int
	nodes map[int]*node
}

// link is a call from an instruction of a chain.
type link struct{ parent, site int }

// node is a leader in a chain of calls.
type node struct {
	chain, at int
	parts     []*arrival
	index     map[uint64][]*arrival // by what must be the same in states that are joined
	others    map[uint64]*arrival   // the first of those that could be joined with some loss
}

// arrival is what is known at a node.
type arrival struct {
	node   *node
	st     *state
	joins  int
	queued bool
}

// rejection is why a program is refused.
type rejection struct {
	at     int
	st     *state
	reason Reason
	text   string
	hint   string
}

func (v *verifier) begin(e effort) {
	v.effort, v.steps, v.work, v.lossy, v.queue = e, 0, 0, false, nil
	v.ctxs, v.chains = nil, map[link]int{}
	v.depths = make([]int, len(v.code.Funcs))
	v.dead, v.reads = slices.Repeat([]bool{true}, len(v.code.Insns)), 0
	v.chainOf(-1, -1)
	if v.watch != nil {
		v.watch(-1, nil)
	}
}

// chainOf returns the number of the chain that a call makes.
func (v *verifier) chainOf(parent, site int) int {
	l := link{parent, site}
	n, ok := v.chains[l]
	if !ok {
		n = len(v.ctxs)
		v.chains[l] = n
		c := &callChain{link: l, nodes: map[int]*node{}}
		if parent >= 0 {
			c.depth = v.ctxs[parent].depth + 1
		}
		v.ctxs = append(v.ctxs, c)
	}
	return n
}

func (v *verifier) entry() *state {
	f := &frameState{site: -1}
	f.regs[asm.R1] = value{kind: Context}
	if v.code.Input.Memory {
		f.regs[asm.R1] = value{kind: InputMem, size: int32(v.code.Input.Size)}
		if v.code.Input.Size == 0 {
			f.regs[asm.R1] = known(0)
		}
		f.regs[asm.R2] = known(uint64(v.code.Input.Size))
	}
	f.regs[asm.R10] = value{kind: Stack}
	s := &state{}
	s.push(f)
	return s
}

// run looks at everything until nothing new comes up.
func (v *verifier) run() *rejection {
	w := &walker{verifier: v, st: v.entry()}
	if r := w.arrive(0); r != nil {
		return r
	}
	for len(v.queue) > 0 {
		a := heap.Pop(&v.queue).(*item).arrival
		a.queued = false
		w := &walker{verifier: v, st: a.st.share(), chain: a.node.chain, at: a.node.at}
		if r := w.walk(); r != nil {
			return r
		}
	}
	return nil
}

// finish ends a verification that found nothing wrong.
func (v *verifier) finish() (*Verified, error) {
	if r := v.stackSizes(); r != nil {
		return nil, v.explain(r)
	}
	v.code.Dead = v.dead // nothing is proven of these
	return &Verified{code: v.code, reads: v.reads}, nil
}

// arrive says that a way leads to a leader. It keeps what is new.
func (w *walker) arrive(to int) *rejection {
	w.forgetDead(to)
	if w.effort.laps > 0 {
		if laps := w.flow.enter(w.st.top().laps, w.at, to, w.effort.laps); !slices.Equal(laps, w.st.top().laps) {
			w.st.edit(w.st.depth()).laps = laps
		}
	}
	n := w.ctxs[w.chain].nodes[to]
	if n == nil {
		n = &node{chain: w.chain, at: to, index: map[uint64][]*arrival{}, others: map[uint64]*arrival{}}
		w.ctxs[w.chain].nodes[to] = n
	}
	least := w.st.hash(effort{})
	exact := least
	if w.effort.shapes {
		exact = w.st.hash(w.effort)
	}
	a := w.meeting(n, least, exact)
	if a == nil {
		if len(n.parts) >= w.effort.parts {
			return w.tooComplex()
		}
		a = &arrival{node: n, st: w.st.share()}
		n.parts = append(n.parts, a)
		n.index[exact] = append(n.index[exact], a)
		if n.others[least] == nil {
			n.others[least] = a
		}
		w.enqueue(a)
		return nil
	}
	j := joiner{}
	if w.widens(a) {
		j.widen, j.limits = true, w.flow.limits
		if a.joins > maxRaises {
			j.limits = nil
		}
	}
	joined, changed := j.join(a.st, w.st)
	w.work += len(w.st.frames)
	if changed {
		a.st = joined
		a.joins++
		w.lossy = true
		w.enqueue(a)
	}
	return nil
}

// meeting finds what the state is to be joined with, nil if it is to be kept
// apart.
func (w *walker) meeting(n *node, least, exact uint64) *arrival {
	for i, a := range n.index[exact] {
		w.work += i & 1
		if a.st.fits(w.st) && (!w.effort.shapes || a.st.sameShape(w.st, w.effort.constants)) {
			return a
		}
	}
	if a := n.others[least]; a != nil && len(n.parts) >= w.effort.parts && a.st.fits(w.st) {
		return a
	}
	return nil
}

// Joins at the head of a loop before its numbers are widened, and before they
// are widened to the last.
const (
	freeJoins = 2
	maxRaises = 24
)

// widens reports whether numbers that grow are to be widened: where a loop is
// closed, unless its rounds are told apart.
func (w *walker) widens(a *arrival) bool {
	at := a.node.at
	if a.joins < freeJoins || !w.flow.head[at] && !w.code.callsBack(at) {
		return false
	}
	for _, l := range a.st.top().laps {
		if int(l.head) == at {
			return l.count == w.effort.laps
		}
	}
	return true
}

// forgetDead drops the registers that nobody reads any more.
func (w *walker) forgetDead(to int) {
	live := w.flow.live[to] | regs(asm.R10)
	for r := range w.st.top().regs {
		if !live.has(r) && w.st.top().regs[r].kind != Unknown {
			w.st.set(asm.Register(r), value{})
		}
	}
}

func (w *walker) tooComplex() *rejection {
	return w.refuse(ReasonTooComplex,
		fmt.Sprintf("the program has too many ways: it was given up after %d steps, at most %d for one of %d instructions", w.steps, w.effort.budget(w.code), len(w.code.Insns)),
		"bound the loops by constants, or split the program")
}

// enqueue has an arrival looked at: those in called functions first, and in a
// function in the order of its ways.
func (v *verifier) enqueue(a *arrival) {
	if a.queued {
		return
	}
	a.queued = true
	heap.Push(&v.queue, &item{a, v.ctxs[a.node.chain].depth, v.flow.order[a.node.at]})
}

type item struct {
	*arrival
	depth, order int
}

type workQueue []*item

func (q workQueue) Len() int { return len(q) }
func (q workQueue) Less(i, j int) bool {
	if q[i].depth != q[j].depth {
		return q[i].depth > q[j].depth
	}
	return q[i].order < q[j].order
}
func (q workQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *workQueue) Push(x any)   { *q = append(*q, x.(*item)) }
func (q *workQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// walker follows one way, from a leader to the next.
type walker struct {
	*verifier
	st    *state
	chain int
	at    int
	in    *Insn
	imm   value // its immediate operand
}

// walk follows the instructions until ways part or meet.
func (w *walker) walk() *rejection {
	for {
		w.steps++
		w.work++
		if w.work > w.effort.budget(w.code) {
			return w.tooComplex()
		}
		w.in = &w.code.Insns[w.at]
		w.dead[w.at] = false
		if w.watch != nil {
			w.watch(w.at, w.st)
		}
		goesOn, r := w.step()
		if r != nil || !goesOn {
			return r
		}
		if w.flow.leader[w.at+1] {
			return w.arrive(w.at + 1)
		}
		w.at++
	}
}

// step runs one instruction. It reports whether the next one follows.
func (w *walker) step() (goesOn bool, r *rejection) {
	in := w.in
	switch in.Kind {
	case ALU:
		r = w.alu()
	case LoadImm:
		r = w.define(in.Dst, known(uint64(in.Imm)))
	case LoadRef:
		v := value{kind: MapRef, obj: int32(in.Imm)}
		if in.Imm == ringNumber {
			v = value{kind: RingRef}
		}
		r = w.define(in.Dst, v)
	case LoadValue:
		r = w.loadValue()
	case LoadFunc:
		r = w.define(in.Dst, value{kind: FuncRef, obj: int32(w.code.FuncAt(in.Target))})
	case Load:
		r = w.load()
	case Store:
		r = w.store()
	case AtomicRMW:
		r = w.atomic()
	case Jump:
		return false, w.jump()
	case JumpAlways:
		return false, w.arrive(in.Target)
	case CallHelper, CallReg:
		return w.call()
	case CallFunc:
		return false, w.enterFunc()
	default:
		return false, w.exit()
	}
	return r == nil, r
}

// define says what the instruction leaves in a register.
func (w *walker) define(r asm.Register, v value) *rejection {
	w.st.set(r, v)
	return nil
}

// use returns what is in a register that the instruction reads.
func (w *walker) use(r asm.Register) (*value, *rejection) {
	v := w.st.reg(r)
	switch v.kind {
	case Unknown:
		return v, w.refuse(ReasonUninitialised, fmt.Sprintf("%v may not have been written", r), w.whyUnknown(r))
	case Released:
		return v, w.refuse(ReasonReleased, fmt.Sprintf("%s pointed into a record that was submitted or discarded", regText(r, true)),
			"do not use a record after ringbuf_submit or ringbuf_discard")
	case Mixed:
		return v, w.refuse(ReasonMixed, fmt.Sprintf("%v holds different kinds of things on different paths", r),
			"use it before the paths meet, or keep pointers and numbers in separate variables")
	}
	return v, nil
}

// whyUnknown guesses what the author did not think of.
func (w *walker) whyUnknown(r asm.Register) string {
	switch {
	case r >= asm.R1 && r <= asm.R5:
		return "a call destroys r1 to r5: keep what is needed later in r6 to r9 or on the stack"
	case r >= asm.R6 && len(w.st.frames) > 1:
		return "a function finds only its arguments, in r1 to r5"
	case r == asm.R0 && w.in.Kind == Exit:
		return "set r0 before exit"
	}
	return "write it on every path that leads here"
}

// operand is the second operand of an arithmetic instruction or a jump.
func (w *walker) operand() (*value, *rejection) {
	if w.in.UseSrc {
		return w.use(w.in.Src)
	}
	w.imm = known(uint64(w.in.Imm))
	return &w.imm, nil
}

func (w *walker) refuse(why Reason, text, hint string) *rejection {
	return &rejection{w.at, w.st, why, text, hint}
}

// loadValue points to a map's first value.
func (w *walker) loadValue() *rejection {
	in, m := w.in, &w.code.Maps[w.in.Imm]
	v := value{kind: MapValue, obj: int32(in.Imm), inst: -1 - int32(in.Imm), fixed: true, num: bound.Const(uint64(int64(in.Off)))}
	switch m.Kind {
	case abi.Array:
	case abi.PerSlotArray:
		v.kind = Cell
	default:
		return w.refuse(ReasonMapType, fmt.Sprintf("the values of %s have no fixed place", mapName(m)),
			"only the value of an array can be addressed directly")
	}
	return w.define(in.Dst, v)
}
