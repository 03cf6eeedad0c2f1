package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// traceOperands finds what trace_printk or trace_vprintk reads.
func (u *unit) traceOperands(o *op) error {
	if o.record.Size == 0 {
		return o.fail("the sizes of the format and of the arguments must be the same on every path")
	}
	o.uses, o.temps = vars(slotVar)|u.place(o, bpfasm.R1), vars(temp1, temp2)
	if o.in.Helper() == bpfasm.FnTraceVprintk {
		if o.val(bpfasm.R4).Const > 0 {
			o.uses |= u.place(o, bpfasm.R3)
		}
		return nil
	}
	for r := bpfasm.R3; r <= bpfasm.R5; r++ {
		if v := o.val(r); v.Kind != bpf.Unknown && !v.Known {
			o.uses |= reg(r)
		}
	}
	return nil
}

// place is what the address in r needs in registers when memory is copied.
func (u *unit) place(o *op, r bpfasm.Register) varSet {
	v := o.val(r)
	if v.Kind == bpf.Cell && v.Fixed {
		return u.address(o, v)
	}
	return u.pointer(o, r)
}

// trace emits trace_printk or trace_vprintk: it puts the record together in the
// frame and writes it to the ring.
func (g *generator) trace(o *op) {
	format := int(o.val(bpfasm.R2).Const)
	args := (o.record.Size - 8 - format) / 8
	at := func(off int) asm.Mem {
		p := o.record.At
		p.Off += int32(off)
		return g.ebpfStack(o, p)
	}
	g.StoreI(4, at(0), int32(format))
	g.StoreI(4, at(4), int32(args))
	if o.in.Helper() == bpfasm.FnTraceVprintk {
		g.copyFrom(o, bpfasm.R3, at, 8, 8*args)
	} else {
		for i := range args {
			g.traceArg(o, bpfasm.R3+bpfasm.Register(i), at(8+8*i))
		}
	}
	g.copyFrom(o, bpfasm.R1, at, 8+8*args, format)
	g.emitRecord(o, abi.RecTrace-1, bpf.Value{}, asm.Mem{}, func(d asm.Reg) {
		g.Lea(d, at(0))
		g.Store(8, asm.At(asm.RSP, 0), d)
		g.StoreI(8, asm.At(asm.RSP, 8), int32(o.record.Size))
	})
}

// traceArg stores one argument; what the program has not written is 0.
func (g *generator) traceArg(o *op, r bpfasm.Register, m asm.Mem) {
	v := o.val(r)
	switch {
	case v.Kind == bpf.Unknown:
		g.StoreI(8, m, 0)
	case v.Known:
		g.MovRI(g.v(temp2), v.Const)
		g.Store(8, m, g.v(temp2))
	default:
		g.Store(8, m, g.r(r))
	}
}

// copyFrom copies size bytes from where r points to at+off.
func (g *generator) copyFrom(o *op, r bpfasm.Register, at func(int) asm.Mem, off, size int) {
	if size == 0 {
		return
	}
	t := g.v(temp2)
	from := g.source(o, r)
	base := from.Disp
	for done := 0; done < size; {
		n := 8
		for n > size-done {
			n /= 2
		}
		from.Disp = base + int32(done)
		g.Load(n, t, from)
		g.Store(n, at(off+done), t)
		done += n
	}
}

// source is the memory that r points to. It may use temp1.
func (g *generator) source(o *op, r bpfasm.Register) asm.Mem {
	v := o.val(r)
	switch {
	case v.Kind == bpf.Stack:
		return g.ebpfStack(o, v)
	case v.Kind == bpf.Cell && v.Fixed:
		t := g.v(temp1)
		g.fixedAddress(t, v)
		return asm.At(t, 0)
	}
	return asm.At(g.r(r), 0)
}
