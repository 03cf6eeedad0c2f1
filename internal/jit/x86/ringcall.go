package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// ringOperands finds what helpers read that write records.
func (u *unit) ringOperands(o *op) error {
	o.defs = reg(bpfasm.R0)
	switch o.in.Helper() {
	case bpfasm.FnRingbufReserve:
		if !o.free() {
			return o.fail("the ring and the size must be the same on every path")
		}
		o.temps = vars(temp1)
	case bpfasm.FnRingbufDiscard:
		if _, ok := u.record(o); !ok {
			return o.fail("the record is not the same on every path")
		}
	case bpfasm.FnRingbufSubmit:
		r, ok := u.record(o)
		if !ok {
			return o.fail("the record is not the same on every path")
		}
		o.uses, o.temps = vars(slotVar), vars(temp1)
		u.recordFixed(o, bpf.Value{Kind: bpf.Scalar, Known: true, Const: uint64(r.Size)})
	case bpfasm.FnRingbufQuery:
		o.uses = vars(slotVar)
		if !o.val(bpfasm.R2).Known {
			o.uses |= reg(bpfasm.R2)
		}
	case bpf.HelperRingbufOutput:
		if o.val(bpfasm.R1).Kind == bpf.RingRef {
			return u.eventOperands(o)
		}
		return u.outputOperands(o, bpfasm.R1, bpfasm.R2, bpfasm.R3)
	case bpfasm.FnPerfEventOutput:
		return u.outputOperands(o, bpfasm.R2, bpfasm.R4, bpfasm.R5)
	case bpfasm.FnTracePrintk, bpfasm.FnTraceVprintk:
		return u.traceOperands(o)
	}
	return nil
}

// eventOperands are those of an event of the script's own.
func (u *unit) eventOperands(o *op) error {
	o.uses, o.temps = vars(slotVar)|u.pointer(o, bpfasm.R2), vars(temp1)
	if size := o.val(bpfasm.R3); !size.Known || size.Const == 0 || size.Const%8 != 0 {
		return o.fail("the event does not consist of words")
	}
	u.recordFixed(o, o.val(bpfasm.R3))
	return nil
}

func (u *unit) outputOperands(o *op, ring, data, size bpfasm.Register) error {
	if o.val(ring).Kind != bpf.MapRef || !u.env.Layout.Maps[o.val(ring).Map].IsRing() {
		return o.fail("the map is not the same on every path, or takes no records")
	}
	o.uses, o.temps = vars(slotVar)|u.pointer(o, data), vars(temp1)
	if _, ok := immediate(o.val(size), 8); !ok {
		o.uses |= reg(size)
	}
	u.recordFixed(o, o.val(size))
	return nil
}

// recordFixed says which registers are overwritten where a record is written without a call.
func (u *unit) recordFixed(o *op, size bpf.Value) {
	if _, _, ok := fixedRecord(size); ok {
		o.fixed = recordRegs
	}
}

// record is the record that r1 points to.
func (u *unit) record(o *op) (bpf.Reserved, bool) {
	return u.progs[o.prog].facts.Record(o.val(bpfasm.R1))
}

// output emits ringbuf_output or perf_event_output to a map.
func (g *generator) output(o *op, ring, data, size bpfasm.Register) {
	g.emitRecord(o, int(o.val(ring).Map), o.val(size), g.dataAt(o, data), func(d asm.Reg) {
		g.putPointer(o, data, d, 0)
		g.putNumber(o, size, 1)
	})
}

// unrolledClear is how many bytes are cleared without a loop.
const unrolledClear = 128

// reserve emits ringbuf_reserve: it clears the record's place, in which the
// target may have left anything.
func (g *generator) reserve(o *op) {
	size := int32(o.record.Size+7) &^ 7
	at := func(off int32) asm.Mem {
		p := o.result
		p.Off += off
		return g.ebpfStack(o, p)
	}
	if size <= unrolledClear {
		for off := int32(0); off < size; off += 8 {
			g.StoreI(8, at(off), 0)
		}
	} else {
		t, again, m := g.v(temp1), g.NewLabel(), at(size)
		m.Index, m.Scale = t, 1
		g.MovRI(t, uint64(-int64(size)))
		g.Bind(again)
		g.StoreI(8, m, 0)
		g.OpRI(asm.Add, 8, t, 8)
		g.Jcc(asm.NE, again)
	}
	if o.defs&o.liveOut != 0 {
		g.materialize(o, g.r(bpfasm.R0), o.result)
	}
}

// ringQuery emits ringbuf_query. All rings of a thread are one.
func (g *generator) ringQuery(o *op) {
	d := g.r(bpfasm.R0)
	word := func(off int32) asm.Mem { return asm.At(g.v(slotVar), off) }
	tell := map[uint64]func(){
		bpf.RingAvailable: func() {
			g.Load(8, d, word(abi.SlotRingHead))
			g.OpRM(asm.Sub, 8, d, word(abi.SlotRingTail))
		},
		bpf.RingSize:     func() { g.MovRI(d, g.env.Layout.RingSize) },
		bpf.RingConsumed: func() { g.Load(8, d, word(abi.SlotRingTail)) },
		bpf.RingProduced: func() { g.Load(8, d, word(abi.SlotRingHead)) },
	}
	if flags := o.val(bpfasm.R2); flags.Known {
		if f := tell[flags.Const]; f != nil {
			f()
		} else {
			g.MovRI(d, 0)
		}
		return
	}
	out := g.NewLabel()
	for flags := uint64(bpf.RingAvailable); flags <= bpf.RingProduced; flags++ {
		next := g.NewLabel()
		g.OpRI(asm.Cmp, 8, g.r(bpfasm.R2), int32(flags))
		g.Jcc(asm.NE, next)
		tell[flags]()
		g.Jmp(out)
		g.Bind(next)
	}
	g.MovRI(d, 0)
	g.Bind(out)
}

// submit emits ringbuf_submit.
func (g *generator) submit(o *op) {
	r, _ := g.record(o)
	size := bpf.Value{Kind: bpf.Scalar, Known: true, Const: uint64(r.Size)}
	g.emitRecord(o, r.Map, size, g.dataAt(o, bpfasm.R1), func(d asm.Reg) {
		g.putPointer(o, bpfasm.R1, d, 0)
		g.StoreI(8, asm.At(asm.RSP, 8), int32(r.Size))
	})
}

// emitRecord writes a record with the data at from, or calls the runtime for it, which put passes the
// address and the size. The shared slot has no ring that only one thread writes to.
func (g *generator) emitRecord(o *op, ring int, size bpf.Value, from asm.Mem, put func(d asm.Reg)) {
	d := g.r(bpfasm.R0)
	if g.shared {
		g.countShared(d)
		g.noteMiss(o, d)
		return
	}
	call := func() {
		sp := g.enterCall(4)
		put(d)
		g.Store(8, asm.At(asm.RSP, 16), g.v(slotVar))
		g.StoreI(8, asm.At(asm.RSP, 24), int32(ring)+1)
		g.CallAddr(g.env.Runtime.output)
		g.Load(8, d, asm.At(asm.RSP, 0))
		g.leaveCall(sp)
		g.noteMiss(o, d)
	}
	if words, pad, ok := fixedRecord(size); ok {
		g.writeRecord(o, words, int32(pad)<<16|int32(ring+1), from, call)
		return
	}
	call()
}

// countShared counts a record of a thread without a slot as lost.
func (g *generator) countShared(d asm.Reg) {
	m := g.global(g.env.Arena + abi.HdrMisses)
	g.Lock()
	g.IncM(8, m)
	fail := int64(errAgain)
	g.MovRI(d, uint64(fail))
}
