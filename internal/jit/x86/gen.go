package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// generator emits the code of one detour.
type generator struct {
	*asm.Asm
	*unit
	site  Site
	env   *Env
	alloc allocation
	frame frame

	labels [2][]asm.Label // of each operation, in the hot and in the shared copy
	bodies [2][]body      // of each function, likewise
	shared bool           // the shared copy is being emitted: updates are locked
	fn     int            // the function that is being emitted
	sp     int32          // how far the stack pointer is below the target's
	first  int            // the operation where the shared copy begins
	cold   []func()       // what EmitCold is to emit

	hasShared    bool // there is a shared copy
	routineStack int  // what the deepest routine needs that is called
}

// body is the code of a function.
type body struct {
	wanted      bool // something calls it
	entry, exit asm.Label
}

// Values of generator.labels' first index.
const (
	hotCopy    = 0
	sharedCopy = 1
)

// detour emits the path that a hit takes.
func (g *generator) detour() {
	if g.follow(0) == g.end {
		return
	}
	g.newLabels()
	over := g.NewLabel()
	if g.frame.context != 0 {
		g.moveStack(g.frame.move)
		g.storeContext()
		g.moveStack(-g.frame.move)
	}
	if g.frame.flags != 0 {
		g.moveStack(g.frame.move)
		g.saveFlags()
		g.gate(over)
	} else {
		g.gate(over)
		g.moveStack(g.frame.move)
	}
	for _, s := range g.frame.saves {
		if s.reg != asm.RAX || g.frame.flags == 0 {
			g.Store(8, g.stack(s.off), s.reg)
		}
	}
	g.mains()
	g.Bind(g.labels[hotCopy][g.end])
	for _, s := range g.frame.saves {
		if s.restore && (s.reg != asm.RAX || g.frame.flags == 0) {
			g.Load(8, s.reg, g.stack(s.off))
		}
	}
	if g.frame.flags == 0 {
		g.moveStack(-g.frame.move)
		g.Bind(over)
		return
	}
	g.Bind(over)
	g.restoreFlags()
	g.moveStack(-g.frame.move)
}

func (g *generator) newLabels() {
	for c := range g.labels {
		g.labels[c] = make([]asm.Label, len(g.ops))
		for i := range g.ops {
			g.labels[c][i] = g.NewLabel()
		}
		g.bodies[c] = make([]body, len(g.funcs))
		for n := range g.funcs {
			g.bodies[c][n] = body{entry: g.NewLabel(), exit: g.NewLabel()}
		}
	}
	// Both copies end in the same place.
	g.labels[sharedCopy][g.end] = g.labels[hotCopy][g.end]
}

// gate jumps over the programs while they may not run. Who calls a routine has
// come through it.
func (g *generator) gate(over asm.Label) {
	if g.routine {
		return
	}
	at := g.site.Gate
	if at == 0 {
		at = g.env.Gate
	}
	g.OpMI(asm.Cmp, 1, asm.Abs(at), 0)
	g.Jcc(asm.E, over)
}

// saveFlags keeps RAX, and the arithmetic flags in the place for flags. LAHF
// takes all but OF, which SETO adds; PUSHF and POPF would cost ten times more.
func (g *generator) saveFlags() {
	if off, ok := g.frame.saveOf(asm.RAX); ok {
		g.Store(8, g.stack(off), asm.RAX)
	}
	g.Lahf()
	g.Setcc(asm.O, asm.RAX)
	g.Store(8, g.stack(g.frame.flags), asm.RAX)
}

// restoreFlags adds 0x7f to AL, which overflows exactly if OF was set.
func (g *generator) restoreFlags() {
	g.Load(8, asm.RAX, g.stack(g.frame.flags))
	g.OpRI(asm.Add, 1, asm.RAX, 0x7f)
	g.Sahf()
	if off, ok := g.frame.saveOf(asm.RAX); ok && g.site.LiveRegs.Has(asm.RAX) {
		g.Load(8, asm.RAX, g.stack(off))
	}
}

// moveStack lowers the stack pointer without changing a flag.
func (g *generator) moveStack(by int32) {
	if by != 0 {
		g.Lea(asm.RSP, asm.At(asm.RSP, -by))
		g.sp += by
	}
}

// stack is the memory at off from the stack pointer as the target left it.
func (g *generator) stack(off int32) asm.Mem { return asm.At(asm.RSP, off+g.sp) }

// ebpfStack is the memory that a pointer to a stack points to.
func (g *generator) ebpfStack(o *op, p bpf.Value) asm.Mem {
	return g.stack(g.frame.funcs[g.fnOf(o, p)].r10 + p.Off)
}

// mains emits the operations of the main functions in their order; in the shared
// copy those from the first on that looks up the slot, for only there the copy
// is entered, unless a jump leads back.
func (g *generator) mains() {
	from := 0
	if g.shared && !g.loops {
		from = g.first
	}
	g.operations(from, g.end)
}

func (g *generator) operations(from, end int) {
	for i := from; i < end; i++ {
		if !g.live(i) {
			continue
		}
		g.Bind(g.label(i))
		g.op(i)
		if g.ops[i].next < 0 {
			if g.ops[i].stops {
				g.Jmp(g.body().exit)
			}
			continue // it has left the function
		}
		if to := g.follow(g.ops[i].next); to != g.following(i, end) {
			g.Jmp(g.label(to))
		}
	}
}

// following is the operation whose code comes after that of i.
func (g *generator) following(i, end int) int {
	for i++; i < end && !g.live(i); i++ {
	}
	if i == end && (g.shared || end != g.end) {
		return -1 // nothing comes after the shared copy, or a function
	}
	return i
}

func (g *generator) label(i int) asm.Label { return g.labels[g.copyNumber()][i] }

// copyNumber is the copy that is being emitted.
func (g *generator) copyNumber() int {
	if g.shared {
		return sharedCopy
	}
	return hotCopy
}

// later makes EmitCold emit f, in the copy and function that are being emitted
// now.
func (g *generator) later(f func()) {
	shared, fn := g.shared, g.fn
	g.cold = append(g.cold, func() {
		g.shared, g.fn, g.sp = shared, fn, g.frame.funcs[fn].depth+g.frame.funcs[fn].size
		f()
	})
}

// emitCold emits the cold paths, which may ask for more of them.
func (g *generator) emitCold() {
	for len(g.cold) > 0 {
		f := g.cold[0]
		g.cold = g.cold[1:]
		f()
	}
}

func (g *generator) op(i int) {
	o := &g.ops[i]
	if o.lookup {
		g.lookup(i)
	}
	in := o.in
	switch {
	case o.begins:
		g.begin(o)
		return
	case o.hit:
		g.countHit(g.site.Hits[o.prog])
		return
	}
	if isCall(in, bpfasm.FnRingbufReserve) {
		if o.charge > 0 {
			g.chargeHelper(o)
		}
		g.reserve(o)
		return
	}
	if o.free() && o.defs != 0 {
		if o.charge > 0 {
			g.chargeHelper(o)
		}
		g.materialize(o, g.r(in.Dst), o.result)
		return
	}
	switch in.Kind {
	case bpf.ALU:
		g.alu(o)
	case bpf.LoadImm:
		g.MovRI(g.r(in.Dst), uint64(in.Imm))
	case bpf.Load:
		if o.arg != 0 {
			g.Load(8, g.r(in.Dst), g.stack(int32(8*o.arg)))
			return
		}
		g.load(o)
	case bpf.Store:
		g.store(o)
	case bpf.AtomicRMW:
		g.atomic(o)
	case bpf.Jump:
		g.jump(o)
	case bpf.JumpAlways:
		g.charge(o, g.spent(o))
	case bpf.CallFunc:
		g.call(o)
	case bpf.Exit:
		g.exit(i)
	case bpf.CallHelper:
		if o.charge > 0 && o.callee == 0 {
			g.chargeHelper(o)
		}
		switch in.Helper() {
		case bpfasm.FnLoop:
			g.loop(o)
		case bpfasm.FnForEachMapElem:
			g.each(o)
		case bpfasm.FnMapLookupElem:
			g.mapLookup(o)
		case bpfasm.FnMapUpdateElem:
			g.mapUpdate(o)
		case bpfasm.FnMapDeleteElem:
			g.mapDelete(o)
		case bpfasm.FnMapLookupPercpuElem:
			g.slotValue(o)
		case bpf.HelperStackID:
			g.stackID(o)
		case bpfasm.FnGetStack, bpfasm.FnGetStackid:
			g.walk(o)
		case bpf.HelperTailCount:
			g.tailCount()
		case bpf.HelperContext: // known without
		case bpf.HelperBitLength:
			g.bitLength()
		case bpf.HelperExit:
			g.StoreI(8, g.global(g.env.Arena+abi.HdrStop), 1)
		case bpf.HelperMapCell:
			g.mapCell(o)
		case bpf.HelperRingbufOutput:
			if o.val(bpfasm.R1).Kind == bpf.RingRef {
				g.ringOutput(o)
			} else {
				g.output(o, bpfasm.R1, bpfasm.R2, bpfasm.R3)
			}
		case bpfasm.FnPerfEventOutput:
			g.output(o, bpfasm.R2, bpfasm.R4, bpfasm.R5)
		case bpfasm.FnRingbufSubmit:
			g.submit(o)
		case bpfasm.FnRingbufDiscard:
		case bpfasm.FnRingbufQuery:
			g.ringQuery(o)
		case bpfasm.FnTracePrintk, bpfasm.FnTraceVprintk:
			g.trace(o)
		default:
			g.helper(o)
		}
	}
}

// r is the register of an eBPF register other than the frame pointer.
func (g *generator) r(r bpfasm.Register) asm.Reg {
	if r == bpfasm.R10 {
		panic("BUG: jit: the frame pointer has no register")
	}
	return g.v(variable(r))
}

// number is the register that holds an operand; the frame pointer is computed.
func (g *generator) number(o *op, r bpfasm.Register) asm.Reg {
	if r != bpfasm.R10 {
		return g.r(r)
	}
	t := g.v(temp1)
	g.Lea(t, g.ebpfStack(o, o.val(r)))
	return t
}

// v is the register of a variable.
func (g *generator) v(v variable) asm.Reg {
	r := g.alloc.reg[v]
	if r == asm.NoReg {
		panic("BUG: jit: a variable without a register is used")
	}
	return r
}

// address puts an address into d, by the shortest instruction.
func address(a *asm.Asm, d asm.Reg, to abi.Addr) {
	if to>>32 != 0 && near(a, to) {
		a.Lea(d, asm.Abs(to))
	} else {
		a.MovRI(d, uint64(to))
	}
}

// near reports whether code here can refer to an address relative to its own.
func near(a *asm.Asm, to abi.Addr) bool {
	const reach = 1<<31 - 1<<10 // less the longest instruction, and displacements
	dist := int64(to - a.PC())
	return -reach < dist && dist < reach
}

// global is the memory at an address. It may use temp1.
func (g *generator) global(to abi.Addr) asm.Mem {
	if near(g.Asm, to) {
		return asm.Abs(to)
	}
	t := g.v(temp1)
	g.MovRI(t, uint64(to))
	return asm.At(t, 0)
}
