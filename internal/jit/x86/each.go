package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// eachOperands finds what for_each_map_elem reads.
func (u *unit) eachOperands(o *op) error {
	ref := o.val(bpfasm.R1)
	if ref.Kind != bpf.MapRef {
		return o.fail("the map is not the same on every path")
	}
	ml := &u.env.Layout.Maps[ref.Map]
	if h, _ := bpf.LookupHelper(o.in.Helper()); !h.TakesMap(ml.Kind) {
		return o.fail("it does not work on map %s", ml.Name)
	}
	if err := u.callbackOperands(o); err != nil {
		return err
	}
	if !ml.Shared() { // also for the entries that follow
		o.uses |= vars(slotVar)
		o.keeps = vars(slotVar)
	}
	return nil
}

// each emits for_each_map_elem. What is kept of it lies in the frame, for the
// function may use every register but that of the slot.
func (g *generator) each(o *op) {
	ref := o.val(bpfasm.R1)
	ml := &g.env.Layout.Maps[ref.Map]
	kept := g.frame.funcs[g.fn].loop
	d, spent := g.r(bpfasm.R0), g.spent(o)
	b := &g.bodies[g.copyNumber()][o.callee]
	head, done := g.NewLabel(), g.NewLabel()
	g.StoreI(8, g.stack(kept+routine.EachPosition), 0)
	g.StoreI(8, g.stack(kept+routine.EachRound), 0)
	g.keepArg(o, kept+routine.EachArg, d)
	g.Bind(head)
	g.OpMI(asm.Sub, 4, g.stack(g.frame.fuel), bpf.CostEach)
	g.Jcc(asm.S, spent)
	sp := g.enterCall(2)
	g.Lea(d, g.stack(kept))
	g.Store(8, asm.At(asm.RSP, 0), d)
	if !ml.Shared() {
		g.Store(8, asm.At(asm.RSP, 8), g.v(slotVar))
	}
	g.callRoutine(&g.env.Runtime.maps[ref.Map].next, d)
	g.leaveCall(sp)
	g.Jcc(asm.E, done)
	g.OpRI(asm.Cmp, 8, d, routine.EachGoOn)
	g.Jcc(asm.E, head)
	g.charge(o, spent)
	g.eachArgs(o, kept)
	g.callBody(o, b, spent)
	g.IncM(8, g.stack(kept+routine.EachRound))
	g.TestRR(8, d, d)
	g.Jcc(asm.E, head)
	g.Bind(done)
	g.Load(8, d, g.stack(kept+routine.EachRound))
}

// eachArgs passes the map, the key, the value and the argument.
func (g *generator) eachArgs(o *op, kept int32) {
	if g.funcTakes(o, bpfasm.R1) {
		g.materialize(o, g.r(bpfasm.R1), o.val(bpfasm.R1))
	}
	if g.funcTakes(o, bpfasm.R2) {
		g.Lea(g.r(bpfasm.R2), g.stack(kept+routine.EachKey))
	}
	if g.funcTakes(o, bpfasm.R3) {
		g.Load(8, g.r(bpfasm.R3), g.stack(kept+routine.EachValue))
	}
	if g.funcTakes(o, bpfasm.R4) {
		g.Load(8, g.r(bpfasm.R4), g.stack(kept+routine.EachArg))
	}
}
