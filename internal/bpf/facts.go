package bpf

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// Facts is what a compiler may rely on in a program that was proven to be
// safe: which numbers and pointers are the same whenever an instruction is
// reached, which branches are never taken, and the instructions with all that
// folded in. It proves nothing about safety.
type Facts struct {
	Insns  []Insn // a folded one loads a constant, or calls a helper by its number
	before []*Known
	result []Value
	branch []Branch

	records map[int]Reserved
	reserve []int // bytes of each function's records
}

// Reserved is a record that an instruction reserves. A function keeps its
// records below its stack until they are submitted.
type Reserved struct {
	Map  int
	Size int
	At   Value // the pointer to it
}

// Record finds the record that a pointer points to.
func (f *Facts) Record(p Value) (Reserved, bool) {
	for _, r := range f.records {
		if r.At == p {
			return r, true
		}
	}
	return Reserved{}, false
}

// RecordOf finds the record that instruction i takes a place for.
func (f *Facts) RecordOf(i int) (Reserved, bool) {
	r, ok := f.records[i]
	return r, ok
}

// Reserve is how many bytes function fn needs below its stack for records.
func (f *Facts) Reserve(fn int) int { return f.reserve[fn] }

// Before is what is known before instruction i, nil if it is never reached.
func (f *Facts) Before(i int) *Known { return f.before[i] }

// Result is what is known of the register that instruction i writes.
func (f *Facts) Result(i int) Value { return f.result[i] }

// Branch is what is known about the conditional jump i.
func (f *Facts) Branch(i int) Branch { return f.branch[i] }

// Known is what is known before an instruction of a function.
type Known struct {
	Regs  [11]Value
	words [units]word // of the function's own stack
}

// StackWord returns what is known of the size bytes (4 or 8) at r10+off, if
// they were written as one.
func (k *Known) StackWord(off int32, size int) (Value, bool) {
	pos := int(off) + StackSize
	if pos < 0 || pos+size > StackSize || pos%size != 0 {
		return Value{}, false
	}
	w := k.words[pos/4]
	return w.val, int(w.size) == size
}

// write records a store of v.
func (k *Known) write(pos, size int, v Value) {
	for u := max(0, pos/4); u <= min(units-1, (pos+size-1)/4); u++ {
		k.forget(u)
	}
	if size != 4 && size != 8 || pos < 0 || pos%size != 0 || pos+size > StackSize {
		return
	}
	k.words[pos/4] = word{val: v, size: uint8(size)}
	if size == 8 {
		k.words[pos/4+1] = word{tail: true}
	}
}

// forget makes a unit of the stack unknown, with the other half of its word.
func (k *Known) forget(u int) {
	if k.words[u].tail {
		u--
	}
	if k.words[u].size == 8 {
		k.words[u+1] = word{}
	}
	k.words[u] = word{}
}

func (k *Known) forgetStack() { k.words = [units]word{} }

// renew ends what an identity has meant so far, before it is given again.
func (k *Known) renew(of func(id int32) bool) {
	for r := range k.Regs {
		k.Regs[r] = k.Regs[r].anonymous(of)
	}
	for u := range k.words {
		k.words[u].val = k.words[u].val.anonymous(of)
	}
}

func (v Value) anonymous(of func(id int32) bool) Value {
	if v.ID == 0 || !of(v.ID) {
		return v
	}
	if v.Kind == CellOrNull { // a test would no longer tell which copies it is about
		return Value{Kind: Scalar}
	}
	v.ID = 0
	return v
}

// merge keeps in k what holds in o too, and reports whether k has changed. At
// is the instruction where the paths meet.
func (k *Known) merge(o *Known, at int) bool {
	old := *k
	for r := range k.Regs {
		k.Regs[r] = meet(k.Regs[r], o.Regs[r], joinID(at, r))
	}
	for u := range k.words {
		a, b := k.words[u], o.words[u]
		switch {
		case a == b || a.tail && b.tail:
		case a.size == b.size && a.size != 0:
			k.words[u].val = meet(a.val, b.val, joinID(at, len(k.Regs)+u))
		default:
			k.forget(u)
		}
	}
	return *k != old
}

// Analyse finds the facts of a program. Escapes says that pointers to the
// stack lie in registers or memory, so that any access may be one to the
// stack; a compiler that leaves no such pointer need not say so.
func Analyse(code *Code, layout *abi.Layout, escapes bool) *Facts {
	n := len(code.Insns)
	f := &Facts{Insns: slices.Clone(code.Insns), before: make([]*Known, n), result: make([]Value, n), branch: make([]Branch, n),
		records: map[int]Reserved{}, reserve: make([]int, len(code.Funcs))}
	a := &analyser{Facts: f, code: code, layout: layout, escapes: escapes, params: make([]*[6]Value, len(code.Funcs)), ways: code.ways()}
	main := &Known{}
	main.Regs[asm.R1] = Value{Kind: Context}
	if code.Input.Memory {
		main.Regs[asm.R1], main.Regs[asm.R2] = Value{Kind: Scalar}, Value{Kind: Scalar}
	}
	main.Regs[asm.R10] = Value{Kind: Stack}
	a.function(0, main)
	for _, n := range a.callOrder() {
		if a.params[n] == nil {
			continue // never called
		}
		entry := &Known{}
		copy(entry.Regs[:], a.params[n][:])
		entry.Regs[asm.R10] = Value{Kind: Stack, Func: int32(n)}
		a.function(n, entry)
	}
	a.fold()
	return f
}

// analyser runs a function's instructions on what is known until nothing
// changes any more.
type analyser struct {
	*Facts
	code    *Code
	layout  *abi.Layout
	escapes bool
	params  []*[6]Value // of each function, what all its calls have in r1 to r5
	ways    []int       // of each instruction, how many lead to it

	fn      int
	at      int
	in      *Insn
	after   Known
	pending map[int]bool
}

// callOrder lists the functions but the main one, callers before callees.
func (a *analyser) callOrder() []int {
	var order []int
	seen := make([]bool, len(a.code.Funcs))
	var visit func(n int)
	visit = func(n int) {
		seen[n] = true
		for _, c := range a.code.Funcs[n].Calls {
			if !seen[c] {
				visit(c)
			}
		}
		order = append(order, n)
	}
	visit(0)
	slices.Reverse(order)
	return order[1:]
}

func (a *analyser) function(n int, entry *Known) {
	f := &a.code.Funcs[n]
	a.fn = n
	a.before[f.Start] = entry
	a.pending = map[int]bool{f.Start: true}
	for len(a.pending) > 0 {
		for i := f.Start; i < f.End; i++ { // in order, for most programs only go forwards
			if a.pending[i] {
				delete(a.pending, i)
				a.step(i)
			}
		}
	}
}

// step runs one instruction.
func (a *analyser) step(i int) {
	a.at, a.in, a.after = i, &a.code.Insns[i], *a.before[i]
	in := a.in
	switch in.Kind {
	case ALU:
		a.define(in.Dst, a.alu())
	case LoadImm:
		a.define(in.Dst, constant(uint64(in.Imm)))
	case LoadRef:
		a.define(in.Dst, refValue(in))
	case LoadValue:
		a.define(in.Dst, a.valueAddress())
	case LoadFunc:
		a.define(in.Dst, Value{Kind: FuncRef, Func: int32(a.code.FuncAt(in.Target))})
	case Load:
		a.define(in.Dst, a.load())
	case Store:
		a.store()
	case AtomicRMW:
		a.atomic()
	case CallHelper:
		a.helper(in.Helper())
	case CallReg:
		if v := a.reg(in.Dst); v.Known {
			a.helper(asm.BuiltinFunc(v.Const))
		} else {
			a.clobberCall()
		}
	case CallFunc:
		a.call()
	case Jump:
		a.jump()
		return
	case JumpAlways:
		a.flow(in.Target, &a.after)
		return
	}
	if !a.code.Ends(i) {
		a.flow(i+1, &a.after)
	}
}

func (a *analyser) reg(r asm.Register) Value { return a.before[a.at].Regs[r] }

func (a *analyser) operand() Value {
	if a.in.UseSrc {
		return a.reg(a.in.Src)
	}
	return constant(uint64(a.in.Imm))
}

// some is a value that this instruction makes, and of which nothing is known.
func (a *analyser) some() Value { return Value{Kind: Scalar, ID: valueID(a.at)} }

// define says what the instruction leaves in a register.
func (a *analyser) define(r asm.Register, v Value) {
	if v.ID == valueID(a.at) {
		a.after.renew(func(id int32) bool { return id == v.ID })
	}
	a.after.Regs[r] = v
	a.result[a.at] = v
}

// ways counts, for each instruction, the jumps and the ways from the one before.
func (c *Code) ways() []int {
	n := make([]int, len(c.Insns))
	for _, f := range c.Funcs {
		n[f.Start]++
	}
	for i := range c.Insns {
		in := &c.Insns[i]
		if in.Kind == Jump || in.Kind == JumpAlways {
			n[in.Target]++
		}
		if in.Kind != JumpAlways && !c.Ends(i) {
			n[i+1]++
		}
	}
	return n
}

// flow says that the run goes on at instruction to, with k known. Where only
// one way leads, the newest is all there is; else what is known shrinks with
// every way, and every time that it is taken.
func (a *analyser) flow(to int, k *Known) {
	if a.dead(to) {
		return
	}
	if a.before[to] == nil || a.ways[to] == 1 && *a.before[to] != *k {
		k := *k
		a.before[to] = &k
		a.pending[to] = true
		return
	}
	k.renew(func(id int32) bool { return id >= joinID(to, 0) && id < valueID(to+1) })
	if a.before[to].merge(k, to) {
		a.pending[to] = true
	}
}

func (a *analyser) jump() {
	in := a.in
	dst, src := a.reg(in.Dst), a.operand()
	nullTest := in.Wide && src == constant(0) && (in.Jump == asm.JEq || in.Jump == asm.JNE)
	taken, not := a.after, a.after
	switch {
	case dst.Known && src.Known:
		a.decide(in.taken(dst.Const, src.Const))
	case nullTest && dst.Kind == CellOrNull:
		null, cell := &taken, &not
		if in.Jump == asm.JNE {
			null, cell = cell, null
		}
		null.resolve(dst, constant(0))
		now := dst
		now.Kind = Cell
		cell.resolve(dst, now)
		a.branch[a.at] = Either
	case nullTest && (dst.Static() || dst.Kind == Cell):
		a.decide(in.Jump == asm.JNE)
	default:
		a.branch[a.at] = Either
	}
	if a.branch[a.at] == Either && (a.dead(in.Target) || a.dead(a.at+1)) {
		a.decide(a.dead(a.at + 1))
	}
	if a.branch[a.at] != Never {
		a.flow(in.Target, &taken)
	}
	if a.branch[a.at] != Always {
		a.flow(a.at+1, &not)
	}
}

// dead reports whether a verifier knows that an instruction is never reached.
func (a *analyser) dead(i int) bool { return a.code.Dead != nil && a.code.Dead[i] }

func (a *analyser) decide(taken bool) {
	a.branch[a.at] = Never
	if taken {
		a.branch[a.at] = Always
	}
}

// resolve replaces every copy of a value by what a test has shown.
func (k *Known) resolve(old, now Value) {
	for r := range k.Regs {
		if k.Regs[r] == old {
			k.Regs[r] = now
		}
	}
	for u := range k.words {
		if w := &k.words[u]; w.size == 8 && w.val == old {
			w.val = now
		}
	}
}

// call passes r1 to r5 to a function. It may write to the caller's stack if it
// gets a pointer there.
func (a *analyser) call() {
	n := a.code.FuncAt(a.in.Target)
	var args [6]Value
	copy(args[1:], a.after.Regs[asm.R1:asm.R6])
	a.callWith(n, &args)
	a.clobberCall()
}

// callWith merges the arguments of one call of a function with the others'.
// Numbers' identities mean nothing there.
func (a *analyser) callWith(n int, args *[6]Value) {
	for i := range args {
		switch {
		case args[i].Kind == Cell && !args[i].Fixed:
			args[i].ID = 0
		case !args[i].Static() && !args[i].Known:
			args[i] = Value{Kind: Scalar}
		}
	}
	if a.params[n] == nil {
		p := *args
		a.params[n] = &p
		return
	}
	p := a.params[n]
	for i := range args {
		if p[i] != args[i] {
			p[i] = Value{Kind: Scalar}
		}
	}
}

// clobberCall is the effect of an unknown function on what is known.
func (a *analyser) clobberCall() {
	if a.escapes || a.passesStack() {
		a.after.forgetStack()
	}
	a.define(asm.R0, a.some())
	for r := asm.R1; r <= asm.R5; r++ {
		a.after.Regs[r] = Value{}
	}
}

func (a *analyser) passesStack() bool {
	for r := asm.R1; r <= asm.R5; r++ {
		if a.reg(r).Kind == Stack {
			return true
		}
	}
	return false
}

// fold replaces instructions whose result is the same number on every path.
func (a *analyser) fold() {
	for i := range a.Insns {
		in, v := &a.Insns[i], a.result[i]
		if a.before[i] == nil {
			continue
		}
		switch in.Kind {
		case ALU, Load:
			if v.Known {
				*in = Insn{Kind: LoadImm, Dst: in.Dst, Imm: int64(v.Const)}
			}
		case CallReg:
			if id := a.before[i].Regs[in.Dst]; id.Known {
				*in = Insn{Kind: CallHelper, Imm: int64(id.Const)}
			}
		}
	}
}
