package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// inlineRecord is the largest payload, in bytes, that is written where the program runs. Larger
// ones, and those whose size only the run knows, are left to the routine.
const inlineRecord = 64

// fixedRecord reports whether data of this size are written at once, and makes it whole words:
// those may reach up to 7 bytes behind the data (see assembler.roundSize).
func fixedRecord(size bpf.Value) (words, pad int, ok bool) {
	if !size.Known || size.Const == 0 || size.Const > inlineRecord {
		return 0, 0, false
	}
	words = int(size.Const+7) / 8
	return words, 8*words - int(size.Const), true
}

// recordRegs are the registers that the time stamp is read into.
var recordRegs = asm.Regs(asm.RAX, asm.RDX)

// writeRecord writes a record of so many words, which lie at from, as the routine (assembler.ring)
// does that call calls: for a claim of somebody else's, a full ring, and a record that goes around
// its end. The slot is the thread's own.
//
// RDTSC waits for whatever comes before it, and lets nothing begin that comes behind: so it stands
// where as little as possible is under way, behind the claim.
func (g *generator) writeRecord(o *op, words int, flags int32, from asm.Mem, call func()) {
	l, s, head, at := g.env.Layout, g.v(slotVar), g.v(temp1), g.r(bpfasm.R0)
	total := int32(abi.RecPayload + 8*words)
	last := int32(l.RingSize) - total // where a record may begin
	slow, undo, out := g.NewLabel(), g.NewLabel(), g.NewLabel()
	g.OpMI(asm.Cmp, 8, asm.At(s, abi.SlotClaim), 0)
	g.Jcc(asm.NE, slow)
	g.Store(8, asm.At(s, abi.SlotClaim), asm.RSP)
	g.Rdtsc()
	g.Load(8, head, asm.At(s, abi.SlotRingHead))
	g.MovRR(8, at, head)
	g.OpRM(asm.Sub, 8, at, asm.At(s, abi.SlotRingTail))
	g.OpRI(asm.Cmp, 8, at, last)
	g.Jcc(asm.A, undo)
	g.MovRR(4, at, head)
	g.OpRI(asm.And, 4, at, ringMask(l))
	g.OpRI(asm.Cmp, 4, at, last)
	g.Jcc(asm.A, undo)
	record := func(off int) asm.Mem { return asm.AtIndex(s, at, 1, int32(l.RingOff)+int32(off)) }
	if flags == 0 {
		g.StoreI(8, record(abi.RecSize), total)
	} else {
		g.StoreI(4, record(abi.RecSize), total)
		g.StoreI(4, record(abi.RecFlags), flags)
	}
	g.Store(4, record(abi.RecTSC), asm.RAX)
	g.Store(4, record(abi.RecTSC+4), asm.RDX)
	for i := range words {
		t := []asm.Reg{asm.RAX, asm.RDX}[i%2]
		g.Load(8, t, from)
		g.Store(8, record(abi.RecPayload+8*i), t)
		from.Disp += 8
	}
	g.publish(s, head, total, out)
	g.Bind(out)
	if o.defs&o.liveOut != 0 {
		g.OpRR(asm.Xor, 4, at, at)
	}
	done := g.NewLabel()
	g.Bind(done)
	g.later(func() {
		g.Bind(undo)
		g.StoreI(8, asm.At(s, abi.SlotClaim), 0)
		g.Bind(slow)
		call()
		g.Jmp(done)
	})
}

// publish shows the record behind the head to the tracer and gives the claim back. In a child that
// was forked in the meantime it does neither.
func (g *generator) publish(s, head asm.Reg, size int32, out asm.Label) {
	g.OpMI(asm.Cmp, 1, asm.Abs(g.env.Gate), 0)
	g.Jcc(asm.E, out)
	g.OpRI(asm.Add, 8, head, size)
	g.Store(8, asm.At(s, abi.SlotRingHead), head) // see assembler.ring
	g.StoreI(8, asm.At(s, abi.SlotClaim), 0)
}

// dataAt is the memory of data that an operation's register points to.
func (g *generator) dataAt(o *op, r bpfasm.Register) asm.Mem {
	if p := o.val(r); p.Kind == bpf.Stack {
		return g.ebpfStack(o, p)
	}
	return asm.At(g.r(r), 0)
}
