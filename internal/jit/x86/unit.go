package x86

import (
	"math"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// variable is something that lives in one register as long as it lives: an
// eBPF register r0 to r9, the slot's address, or a temporary of one operation.
type variable int

const (
	slotVar variable = 10
	temp1   variable = 11
	temp2   variable = 12
	numVars          = 13
)

// varSet is a set of variables: bit i stands for variable i.
type varSet uint32

func vars(vs ...variable) (s varSet) {
	for _, v := range vs {
		s |= 1 << v
	}
	return s
}

func (s varSet) has(v variable) bool { return s>>v&1 != 0 }

// byteSet is a set of bytes of the eBPF stack, from its lowest.
type byteSet [bpf.StackSize / 64]uint64

func (s *byteSet) add(off int32, size int) {
	for i := int(off) + bpf.StackSize; size > 0; i, size = i+1, size-1 {
		s[i/64] |= 1 << (i % 64)
	}
}

func (s *byteSet) del(off int32, size int) {
	for i := int(off) + bpf.StackSize; size > 0; i, size = i+1, size-1 {
		s[i/64] &^= 1 << (i % 64)
	}
}

func (s *byteSet) intersects(off int32, size int) bool {
	for i := int(off) + bpf.StackSize; size > 0; i, size = i+1, size-1 {
		if s[i/64]>>(i%64)&1 != 0 {
			return true
		}
	}
	return false
}

func (s *byteSet) union(o *byteSet) {
	for i := range s {
		s[i] |= o[i]
	}
}

// op is one instruction of a unit, with what analysis found out about it.
type op struct {
	in     *bpf.Insn
	before *bpf.State // nil when it is never reached
	branch bpf.Branch
	next   int // the operation that follows, if no jump is taken
	target int // the operation that a jump leads to, or a HelperMapCell call without a cell; -1 when there is none
	joins  int // ways that lead here

	key    key  // of a HelperMapCell call
	lookup bool // the slot's address is not known yet on some path
	dead   bool // nothing that it does is ever seen
	uses   varSet
	defs   varSet
	temps  varSet
	fixed  asm.RegSet // registers that it overwrites for itself

	liveIn, liveOut varSet
	stackIn         byteSet
}

func (o *op) val(r bpfasm.Register) bpf.Value { return o.before.Regs[r] }

// key says where the key of a HelperMapCell call is found.
type key struct {
	ml    *abi.MapLayout
	known bool   // it is value
	value uint64 // of a known key
	inReg bool   // it is in reg
	reg   variable
	off   int32 // else it is on the stack, at r10+off; so is a key of several words
}

// inResult reports whether the key is in the register that the result goes to.
func (k *key) inResult() bool { return k.inReg && k.reg == variable(bpfasm.R0) }

// unit is the programs of a site, one after the other, as one sequence. An
// operation that ends a program leads to the beginning of the next one.
type unit struct {
	ops []op // the last one stands for what follows the programs
	env *Env
}

func newUnit(progs []*bpf.Verified, env *Env) *unit {
	u := &unit{env: env}
	for _, p := range progs {
		base, insns := len(u.ops), p.Insns()
		end := base + len(insns)
		for i := range insns {
			o := op{in: &insns[i], before: p.Before(i), branch: p.Branch(i), next: base + i + 1, target: -1}
			switch {
			case p.Ends(i):
				o.next = end
			case o.in.Kind == bpf.Jump:
				o.target = base + o.in.Target
			case o.in.Kind == bpf.JumpAlways:
				o.next = base + o.in.Target
			}
			if o.branch == bpf.Always {
				o.next = o.target
			}
			if o.branch != bpf.Either {
				o.target = -1
			}
			u.ops = append(u.ops, o)
		}
	}
	u.ops = append(u.ops, op{in: &bpf.Insn{Kind: bpf.Exit}, next: -1, target: -1})
	return u
}

// end is the operation that stands for what follows.
func (u *unit) end() int { return len(u.ops) - 1 }

// successors calls f for each operation that may follow operation i.
func (u *unit) successors(i int, f func(int)) {
	o := &u.ops[i]
	if o.next >= 0 {
		f(o.next)
	}
	if o.target >= 0 {
		f(o.target)
	}
}

// reached reports whether operation i can be executed.
func (u *unit) reached(i int) bool { return u.ops[i].before != nil }

// analyse finds the operations' operands, where the slot is looked up, and
// what is live where.
func (u *unit) analyse() {
	for i := range u.ops {
		if u.reached(i) {
			u.successors(i, func(s int) { u.ops[s].joins++ })
		}
	}
	for i := range u.ops {
		if u.reached(i) {
			u.foldNullTest(i)
			u.operands(&u.ops[i])
		}
	}
	u.liveness()
	// Only operations that are not dead look the slot up; that makes more
	// variables live.
	u.placeLookups()
	u.liveness()
}

// foldNullTest makes a test of a cell for null that follows the call at once a
// part of the call: only its cold path has to test.
func (u *unit) foldNullTest(i int) {
	o := &u.ops[i]
	if !isCall(o.in, bpf.HelperMapCell) || o.next == u.end() {
		return
	}
	test := &u.ops[o.next]
	in := test.in
	if test.joins != 1 || in.Kind != bpf.Jump || in.Dst != bpfasm.R0 || test.target < 0 || test.val(bpfasm.R0).Kind != bpf.CellOrNull {
		return
	}
	test.before = nil
	if o.next, o.target = test.target, test.next; in.Jump == bpfasm.JEq {
		o.next, o.target = o.target, o.next
	}
}

// placeLookups lets an operation look the slot up if it needs it and there is
// a way to it on which no operation did so before.
func (u *unit) placeLookups() {
	known := make([]bool, len(u.ops))
	for i := 1; i < len(known); i++ {
		known[i] = true
	}
	for i := range u.ops {
		if !u.reached(i) {
			continue
		}
		o := &u.ops[i]
		if !o.dead && o.uses.has(slotVar) && !known[i] {
			o.lookup = true
			o.uses &^= vars(slotVar)
			o.defs |= vars(slotVar)
			o.temps |= u.lookupTemps()
		}
		after := known[i] || o.lookup
		u.successors(i, func(s int) { known[s] = known[s] && after })
	}
}

// liveness finds, backwards, what each operation's successors need, and which
// operations nobody needs.
func (u *unit) liveness() {
	for i := u.end() - 1; i >= 0; i-- {
		if !u.reached(i) {
			continue
		}
		o := &u.ops[i]
		o.liveOut = 0
		var stack byteSet
		u.successors(i, func(s int) {
			o.liveOut |= u.ops[s].liveIn
			stack.union(&u.ops[s].stackIn)
		})
		o.dead = !u.hasEffect(o, &stack)
		o.liveIn, o.stackIn = o.liveOut, stack
		if !o.dead {
			o.liveIn = o.liveOut&^o.defs | o.uses
			u.stackEffect(o)
		}
	}
}

// hasEffect reports whether anybody can see that the operation ran.
func (u *unit) hasEffect(o *op, stackOut *byteSet) bool {
	switch o.in.Kind {
	case bpf.Jump:
		return o.target >= 0
	case bpf.JumpAlways, bpf.Exit:
		return false // a jump is emitted where the order demands one
	case bpf.Store, bpf.AtomicRMW:
		p := o.val(o.in.Dst)
		if p.Kind != bpf.Stack {
			return true
		}
		if o.in.Kind == bpf.Store && o.in.UseSrc && o.val(o.in.Src).Static() {
			return false // it is never read from there
		}
		return stackOut.intersects(p.Off+o.in.Off, o.in.Size) || o.defs&o.liveOut != 0
	case bpf.CallHelper:
		if isCall(o.in, bpf.HelperExit) || isCall(o.in, bpf.HelperRingbufOutput) {
			return true
		}
		if isCall(o.in, bpf.HelperMapCell) && o.key.ml.Kind == abi.PerSlotHash {
			return true // it enters the key
		}
		if o.target >= 0 {
			return true
		}
	}
	return o.defs&o.liveOut != 0
}

// stackEffect turns what is live on the stack after an operation into what is
// live before.
func (u *unit) stackEffect(o *op) {
	in := o.in
	switch in.Kind {
	case bpf.Load:
		if p := o.val(in.Src); p.Kind == bpf.Stack {
			o.stackIn.add(p.Off+in.Off, in.Size)
		}
	case bpf.Store:
		if p := o.val(in.Dst); p.Kind == bpf.Stack {
			o.stackIn.del(p.Off+in.Off, in.Size)
		}
	case bpf.AtomicRMW:
		if p := o.val(in.Dst); p.Kind == bpf.Stack {
			o.stackIn.add(p.Off+in.Off, in.Size)
		}
	case bpf.CallHelper:
		if isCall(in, bpf.HelperRingbufOutput) {
			o.stackIn.add(o.val(bpfasm.R2).Off, int(o.val(bpfasm.R3).Const))
		}
		if k := &o.key; k.ml != nil && !k.known && !k.inReg {
			o.stackIn.add(k.off, k.ml.KeySize)
		}
	}
}

func isCall(in *bpf.Insn, h bpfasm.BuiltinFunc) bool {
	return in.Kind == bpf.CallHelper && bpfasm.BuiltinFunc(in.Imm) == h
}

// immediate reports whether the value is a constant that an instruction can
// hold as its sign-extended 32-bit immediate, for an operation of size bytes.
func immediate(v bpf.Value, size int) (int32, bool) {
	c := int64(v.Const)
	if size < 8 {
		c = int64(int32(c))
	}
	return int32(c), v.Known && c >= math.MinInt32 && c <= math.MaxInt32
}
