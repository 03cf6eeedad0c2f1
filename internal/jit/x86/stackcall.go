package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// stackOperands finds what stack_id reads.
func (u *unit) stackOperands(o *op) error {
	if o.val(bpfasm.R1).Kind != bpf.MapRef {
		return o.fail("the map is not the same on every path")
	}
	ml := &u.env.Layout.Maps[o.val(bpfasm.R1).Map]
	if h, _ := bpf.LookupHelper(o.in.Helper()); !h.TakesMap(ml.Kind) {
		return o.fail("it does not work on map %s", ml.Name)
	}
	o.defs, o.temps = reg(bpfasm.R0), vars(temp1)
	for r := bpfasm.R2; r <= bpfasm.R4; r++ {
		if _, ok := immediate(o.val(r), 8); !ok {
			o.uses |= u.pointer(o, r)
		}
	}
	return nil
}

// walkOperands finds what get_stack and get_stackid read besides the frame pointer,
// the stack pointer and the address of the site.
func (u *unit) walkOperands(o *op) error {
	flags := bpfasm.R3
	o.defs, o.temps = reg(bpfasm.R0), vars(temp1)
	if o.in.Helper() == bpfasm.FnGetStack {
		flags = bpfasm.R4
		o.uses |= u.pointer(o, bpfasm.R2)
		if _, ok := immediate(o.val(bpfasm.R3), 8); !ok {
			o.uses |= reg(bpfasm.R3)
		}
	} else if o.val(bpfasm.R2).Kind != bpf.MapRef {
		return o.fail("the map is not the same on every path")
	}
	const skipped, fastCompare, reuse, buildID = 0xff, 1 << 9, 1 << 10, 1 << 11 // include/uapi/linux/bpf.h
	switch v := o.val(flags); {
	case o.val(bpfasm.R1).Kind != bpf.Context:
		return o.fail("the context is not the same on every path")
	case !v.Known || v.Const&(skipped|buildID) != 0:
		return o.fail("flags are known and skip no frames, and ask for no build-ids")
	case v.Const&^(bpf.UserStack|fastCompare|reuse) != 0:
		return o.fail("there are no flags %#x", v.Const)
	}
	return nil
}

// walk emits get_stack or get_stackid.
func (g *generator) walk(o *op) {
	d := g.r(bpfasm.R0)
	sp := g.enterCall(5)
	g.Lea(d, g.stack(0))
	g.Store(8, asm.At(asm.RSP, 0), d)
	bp := asm.RBP
	if saved, ok := g.frame.saveOf(bp); ok {
		g.Load(8, d, g.stack(saved))
		bp = d
	}
	g.Store(8, asm.At(asm.RSP, 8), bp)
	g.MovRI(d, uint64(g.site.Addr))
	g.Store(8, asm.At(asm.RSP, 16), d)
	if o.in.Helper() == bpfasm.FnGetStack {
		g.putPointer(o, bpfasm.R2, d, 3)
		g.putNumber(o, bpfasm.R3, 4)
		c := g.env.Runtime.helpers[bpfasm.FnGetStack]
		g.callRoutine(&c, d)
	} else {
		g.callRoutine(&g.env.Runtime.maps[o.val(bpfasm.R2).Map].stack, d)
	}
	g.leaveCall(sp)
}

// stackID emits stack_id.
func (g *generator) stackID(o *op) {
	d := g.r(bpfasm.R0)
	sp := g.enterCall(3)
	for i := range int32(3) {
		r := bpfasm.R2 + bpfasm.Register(i)
		if _, ok := immediate(o.val(r), 8); ok {
			g.putNumber(o, r, i)
		} else {
			g.putPointer(o, r, d, i)
		}
	}
	g.callRoutine(&g.routines(o).stack, d)
	g.leaveCall(sp)
}
