package x86

import (
	"math/bits"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// begin emits what a program needs in its first instruction.
func (g *generator) begin(o *op) {
	if o.target >= 0 {
		g.OpMI(asm.Cmp, 1, asm.Abs(g.site.Gates[o.prog]), 0)
		g.Jcc(asm.E, g.label(g.follow(o.target)))
	}
	if g.progs[o.prog].spend {
		g.StoreI(4, g.stack(g.frame.fuel), bpf.DefaultFuel)
	}
	if g.progs[o.prog].tails {
		g.StoreI(4, g.stack(g.frame.tails), 0)
	}
	if o.defs&o.liveOut != 0 {
		g.materialize(o, g.r(bpfasm.R1), o.result)
	}
}

// materialize puts a value that is known without any register into one.
func (g *generator) materialize(o *op, d asm.Reg, v bpf.Value) {
	switch v.Kind {
	case bpf.Stack:
		g.Lea(d, g.ebpfStack(o, v))
	case bpf.Context:
		g.Lea(d, g.stack(g.frame.context+v.Off))
	case bpf.Cell:
		g.fixedAddress(d, v)
	case bpf.MapRef, bpf.RingRef, bpf.FuncRef:
		g.MovRI(d, 1) // nobody can do more with it than compare it with null
	default:
		panic("BUG: jit: a value that is not known is materialized")
	}
}

// storeContext writes the context, for a program that keeps the pointer to
// its context where the compiler loses sight of it. The flags are untouched.
func (g *generator) storeContext() {
	at := func(field int32) asm.Mem { return g.stack(g.frame.context + field) }
	for field, r := range contextRegs {
		g.Store(8, at(field), r)
	}
	for n, r := range g.site.Args.registers() {
		g.Store(8, at(bpf.ArgOffset(n)), r)
	}
	g.Lea(asm.RAX, g.stack(0))
	g.Store(8, at(bpf.PtRegsSP), asm.RAX)
	g.MovRI(asm.RAX, uint64(g.site.Addr))
	g.Store(8, at(bpf.PtRegsIP), asm.RAX)
	g.Load(8, asm.RAX, at(bpf.PtRegsAX))
}

// tailCount emits HelperTailCount.
func (g *generator) tailCount() {
	d, full, out := g.r(bpfasm.R0), g.NewLabel(), g.NewLabel()
	g.OpMI(asm.Cmp, 4, g.stack(g.frame.tails), bpf.MaxTailCalls)
	g.Jcc(asm.AE, full)
	g.IncM(4, g.stack(g.frame.tails))
	g.MovRI(d, 1)
	g.Bind(out)
	g.later(func() {
		g.Bind(full)
		g.MovRI(d, 0)
		g.Jmp(out)
	})
}

// charge takes fuel, and goes to spent when there is not enough.
func (g *generator) charge(o *op, spent asm.Label) {
	g.OpMI(asm.Sub, 4, g.stack(g.frame.fuel), int32(o.charge))
	g.Jcc(asm.S, spent)
}

// chargeHelper takes the fuel that a helper costs, and that of its bytes.
func (g *generator) chargeHelper(o *op) {
	spent := g.spent(o)
	charge := int32(o.charge)
	per, r := o.in.ChargeSize()
	size := o.val(r)
	if per != 0 && size.Known {
		charge += int32(uint32(size.Const)) / int32(per)
	}
	g.OpMI(asm.Sub, 4, g.stack(g.frame.fuel), charge)
	g.Jcc(asm.S, spent)
	if per == 0 || size.Known {
		return
	}
	t := g.v(temp1)
	g.MovRR(4, t, g.r(r))
	g.ShiftI(asm.Shr, 4, t, uint8(bits.TrailingZeros(uint(per))))
	g.OpMR(asm.Sub, 4, g.stack(g.frame.fuel), t)
	g.Jcc(asm.S, spent)
}

// call emits a call of a function of the program. Wherever it is called from,
// the stack pointer is the same in it.
func (g *generator) call(o *op) {
	spent := g.spent(o)
	g.charge(o, spent)
	g.callBody(o, &g.bodies[g.copyNumber()][o.callee], spent)
}

// callBody calls a function that has been paid for.
func (g *generator) callBody(o *op, b *body, spent asm.Label) {
	sp := g.sp
	g.moveStack(g.frame.funcs[o.callee].depth - 8 - sp)
	g.Call(b.entry)
	g.moveStack(sp - g.sp)
	if g.funcs[o.callee].spends {
		g.OpMI(asm.Cmp, 4, g.stack(g.frame.fuel), 0)
		g.Jcc(asm.L, spent)
	}
	if !b.wanted {
		b.wanted = true
		g.later(func() { g.function(o.callee) })
	}
}

// body is the function that is being emitted.
func (g *generator) body() *body { return &g.bodies[g.copyNumber()][g.fn] }

// function emits a function.
func (g *generator) function(n int) {
	f, frame := &g.funcs[n], &g.frame.funcs[n]
	b := &g.bodies[g.copyNumber()][n]
	g.fn, g.sp = n, frame.depth
	g.Bind(b.entry)
	g.moveStack(frame.size)
	for _, s := range frame.saves {
		g.Store(8, g.stack(s.off), s.reg)
	}
	if first := g.follow(f.first); first != g.following(f.first-1, f.end) {
		g.Jmp(g.label(first))
	}
	g.operations(f.first, f.end)
	g.Bind(b.exit)
	for _, s := range frame.saves {
		g.Load(8, s.reg, g.stack(s.off))
	}
	g.moveStack(-frame.size)
	g.Ret()
}

// exit leaves a function whose epilogue does not come next, or leaves the
// unit's result.
func (g *generator) exit(i int) {
	o := &g.ops[i]
	if o.returns && g.site.stackArgs > 0 {
		r := g.r(bpfasm.R0)
		g.Store(8, g.stack(8), r)
		g.TestRR(8, r, r) // nothing that follows changes the flags
		return
	}
	if o.returns {
		g.copy(asm.RAX, g.r(bpfasm.R0))
		return
	}
	if g.following(i, g.funcs[o.fn].end) >= 0 {
		g.Jmp(g.body().exit)
	}
}

// spent is where an operation goes on when the fuel is spent: in a function at
// its exit, for its caller looks at the fuel too; else where that is counted
// and the next program begins.
func (g *generator) spent(o *op) asm.Label {
	if o.fn != 0 {
		return g.body().exit
	}
	at := &g.progs[o.prog].spent[g.copyNumber()]
	if *at != nil {
		return **at
	}
	l := g.NewLabel()
	*at = &l
	g.later(func() {
		g.Bind(l)
		g.countMiss()
		g.Jmp(g.label(g.follow(g.progs[o.prog].next)))
	})
	return l
}

// countMiss counts a run that was not executed to its end. It changes no
// register.
func (g *generator) countMiss() {
	misses := g.env.Arena + abi.Addr(abi.HdrMisses)
	if near(g.Asm, misses) {
		g.Lock()
		g.IncM(8, asm.Abs(misses))
		return
	}
	spare := g.stack(g.frame.fuel)
	g.Store(8, spare, asm.RAX)
	g.MovRI(asm.RAX, uint64(misses))
	g.Lock()
	g.IncM(8, asm.At(asm.RAX, 0))
	g.Load(8, asm.RAX, spare)
}
