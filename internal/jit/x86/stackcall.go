package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

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
