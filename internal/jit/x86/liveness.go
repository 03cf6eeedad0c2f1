package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// liveness finds, backwards, what each operation's successors need, and which
// operations nobody needs.
func (u *unit) liveness() {
	for i := range u.ops {
		o := &u.ops[i]
		o.liveIn, o.liveOut, o.stackIn = 0, 0, byteSet{}
	}
	for _, n := range u.calleesFirst() {
		f := &u.funcs[n]
		for changed := true; changed; {
			changed = false
			for i := f.end - 1; i >= f.first; i-- {
				if u.reached(i) && u.flowBack(i) {
					changed = true
				}
			}
		}
	}
}

// flowBack finds what is live before operation i, and reports whether that is
// more than was known.
func (u *unit) flowBack(i int) bool {
	o := &u.ops[i]
	if o.callee != 0 {
		needs := u.ops[u.funcs[o.callee].first].liveIn & vars(slotVar)
		if o.in.Kind == bpf.CallFunc {
			const args = 1<<bpfasm.R1 | 1<<bpfasm.R2 | 1<<bpfasm.R3 | 1<<bpfasm.R4 | 1<<bpfasm.R5
			needs |= u.ops[u.funcs[o.callee].first].liveIn & args
		}
		if o.lookup {
			needs &^= vars(slotVar)
		}
		o.uses |= needs
	}
	o.liveOut = 0
	var stack byteSet
	u.successors(i, func(s int) {
		o.liveOut |= u.ops[s].liveIn
		stack.union(&u.ops[s].stackIn)
	})
	liveIn, stackIn := o.liveIn, o.stackIn
	o.dead = !u.hasEffect(o, &stack)
	o.liveIn, o.stackIn = o.liveOut, stack
	if !o.dead {
		o.liveIn = o.liveOut&^o.defs | o.uses
		u.stackEffect(o)
	}
	return liveIn != o.liveIn || stackIn != o.stackIn
}

// summarize finds what callers have to know of each function.
func (u *unit) summarize() {
	const saved = 1<<bpfasm.R6 | 1<<bpfasm.R7 | 1<<bpfasm.R8 | 1<<bpfasm.R9
	for _, n := range u.calleesFirst() {
		f := &u.funcs[n]
		for i := f.first; i < f.end; i++ {
			o := &u.ops[i]
			if !u.live(i) {
				continue
			}
			if o.callee != 0 {
				c := &u.funcs[o.callee]
				o.temps, o.fixed = o.temps|c.clobbers&vars(temp1, temp2), c.fixed
				f.spends = f.spends || c.spends
			}
			f.saves |= o.defs & saved
			f.clobbers |= (o.defs | o.temps) &^ saved
			f.fixed |= o.fixed | o.across
			f.spends = f.spends || o.charge > 0
		}
	}
}

// hasEffect reports whether anybody can see that the operation ran.
func (u *unit) hasEffect(o *op, stackOut *byteSet) bool {
	if o.charge > 0 || o.returns || o.begins && (u.progs[o.prog].spend || u.progs[o.prog].tails) {
		return true
	}
	if o.hit {
		return u.follow(o.next) != u.follow(u.progs[o.prog].next)
	}
	if o.begins && o.target >= 0 && u.follow(o.next) != u.follow(o.target) {
		return true
	}
	switch o.in.Kind {
	case bpf.Jump:
		return o.target >= 0 && u.follow(o.next) != u.follow(o.target)
	case bpf.JumpAlways:
		return false // a jump is emitted where the order demands one
	case bpf.Exit:
		return o.fn != 0
	case bpf.Store, bpf.AtomicRMW:
		p := o.val(o.in.Dst)
		if p.Kind != bpf.Stack || u.escapes || u.fnOf(o, p) != o.fn {
			return true
		}
		return stackOut.intersects(p.Off+o.in.Off, o.in.Size) || o.defs&o.liveOut != 0
	case bpf.CallHelper:
		switch o.in.Helper() {
		case bpf.HelperGetCurrentPidTgid, bpf.HelperBitLength, bpfasm.FnKtimeGetNs, bpfasm.FnKtimeGetCoarseNs, bpfasm.FnGetSmpProcessorId, bpfasm.FnGetNumaNodeId,
			bpfasm.FnGetPrandomU32, bpfasm.FnGetFuncIp, bpfasm.FnGetAttachCookie, bpfasm.FnRingbufDiscard, bpfasm.FnRingbufQuery, bpfasm.FnMapLookupPercpuElem, bpf.HelperContext:
		case bpf.HelperMapCell:
			// A hash enters the key.
			if o.key.ml.IsHash() || o.target >= 0 {
				return true
			}
		case bpfasm.FnMapLookupElem:
			if o.target >= 0 {
				return true
			}
		default:
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
		if p := o.val(in.Src); p.Kind == bpf.Stack && !o.free() && u.fnOf(o, p) == o.fn {
			o.stackIn.add(p.Off+in.Off, in.Size)
		}
	case bpf.Store:
		if p := o.val(in.Dst); p.Kind == bpf.Stack && u.fnOf(o, p) == o.fn {
			o.stackIn.del(p.Off+in.Off, in.Size)
		}
	case bpf.AtomicRMW:
		if p := o.val(in.Dst); p.Kind == bpf.Stack && u.fnOf(o, p) == o.fn {
			o.stackIn.add(p.Off+in.Off, in.Size)
		}
	case bpf.CallFunc:
		for r := bpfasm.R1; r <= bpfasm.R5; r++ {
			if o.val(r).Kind == bpf.Stack {
				o.stackIn.addAll()
			}
		}
	case bpf.CallHelper:
		if o.callee != 0 && o.val(bpfasm.R3).Kind == bpf.Stack {
			o.stackIn.addAll()
		}
		u.reads(o, func(p bpf.Value, size int) {
			if u.fnOf(o, p) == o.fn {
				o.stackIn.add(p.Off, size)
			}
		})
	}
}

// free reports whether a result needs no operand: it is known without.
func (o *op) free() bool { return o.result.Static() && o.result.Kind != bpf.PidTgid }

// reads calls f for each part of the stack that a helper reads.
func (u *unit) reads(o *op, f func(p bpf.Value, size int)) {
	u.eachPointer(o, func(i int, t bpf.ArgType, p bpf.Value) {
		switch t {
		case bpf.ArgKey:
			if k := &o.key; !k.known && !k.inReg {
				f(p, k.ml.KeySize)
			}
		case bpf.ArgValue:
			if o.value == bpfasm.R0 {
				f(p, o.key.ml.ValueSize)
			}
		case bpf.ArgRead, bpf.ArgReadOrNull:
			f(p, o.sizeArg(i+1, p))
		case bpf.ArgRecord:
			if r, ok := u.record(o); ok {
				f(p, r.Size)
			}
		}
	})
}

// writes calls f for each part of the stack that a helper writes.
func (u *unit) writes(o *op, f func(p bpf.Value, size int)) {
	u.eachPointer(o, func(i int, t bpf.ArgType, p bpf.Value) {
		if t == bpf.ArgWrite || t == bpf.ArgWriteOrNull {
			f(p, o.sizeArg(i+1, p))
		}
	})
}

// eachPointer calls f for each argument of a helper that points to a known place
// of the stack, with its index.
func (u *unit) eachPointer(o *op, f func(i int, t bpf.ArgType, p bpf.Value)) {
	h, reason := bpf.LookupHelper(o.in.Helper())
	if reason != "" {
		return
	}
	for i := range h.NumArgs() {
		if p := o.val(bpfasm.R1 + bpfasm.Register(i)); p.Kind == bpf.Stack {
			f(i, h.Args[i], p)
		}
	}
}

// sizeArg is the size of the memory that p points to, which is argument i: all
// that follows of the stack, when it is not known.
func (o *op) sizeArg(i int, p bpf.Value) int {
	size := o.val(bpfasm.R1 + bpfasm.Register(i))
	if size.Known && size.Const <= uint64(-p.Off) {
		return int(size.Const)
	}
	return int(-p.Off)
}

// fnOf is the function whose stack a pointer points to.
func (u *unit) fnOf(o *op, p bpf.Value) int { return u.progs[o.prog].funcs[p.Func] }

// letsStackEscape reports whether a pointer to the stack is put into a register.
func (u *unit) letsStackEscape() bool {
	for i := range u.ops {
		o := &u.ops[i]
		if !u.live(i) {
			continue
		}
		if o.result.Kind == bpf.Stack && o.defs&o.liveOut != 0 {
			return true
		}
		if v, ok := u.passes(o); ok && v.Kind == bpf.Stack || o.takesFrame() {
			return true
		}
	}
	return false
}
