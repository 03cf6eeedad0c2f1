package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
)

// clock emits ktime_get_ns: what the routine of the same name does, for a counter that
// is less than 2^32 ticks ahead of the published one, so that one multiplication of 64
// bits scales it. abi.MaxClockMult sees to it that the product fits.
func (g *generator) clock() {
	d, clock, number := g.r(bpfasm.R0), g.v(temp1), g.v(temp2)
	slow, out := g.NewLabel(), g.NewLabel()
	address(g.Asm, clock, g.env.Arena+abi.HdrClock)
	g.Load(8, number, asm.At(clock, 0))
	g.MovRR(4, d, number)
	g.OpRI(asm.And, 4, d, 1)
	g.Lea(d, asm.AtIndex(d, d, abi.ClockSize/8-1, 0))
	g.Lea(d, asm.AtIndex(clock, d, 8, 8)) // the copy
	g.Rdtsc()
	g.OpRM(asm.Sub, 4, asm.RAX, asm.At(d, abi.ClockTSC))
	g.OpRM(asm.Sbb, 4, asm.RDX, asm.At(d, abi.ClockTSC+4))
	g.Jcc(asm.NE, slow)
	g.ImulM(8, asm.RAX, asm.At(d, abi.ClockMult))
	g.ShiftI(asm.Shr, 8, asm.RAX, 32)
	g.OpRM(asm.Add, 8, asm.RAX, asm.At(d, abi.ClockNS))
	g.OpRM(asm.Cmp, 8, number, asm.At(clock, 0))
	g.Jcc(asm.NE, slow)
	g.copy(d, asm.RAX)
	g.Bind(out)
	g.later(func() {
		g.Bind(slow)
		g.callRuntime(g.env.Runtime.clock)
		g.Jmp(out)
	})
}

// clockTries is how often the clock is read again when it was published in the
// meantime, which happens about once a second.
const clockTries = 3

// clock scales the time stamp counter as abi.HdrClock says. A counter that is
// behind the published one, for it was read on another processor, counts as
// equal.
//
//	rdi header, rsi number of the publication, r8 the copy, r9 tries left
func (r *assembler) clock() {
	r.save(asm.RAX, asm.RDX, asm.RSI, asm.RDI, asm.R8, asm.R9)
	again, later, out := r.NewLabel(), r.NewLabel(), r.NewLabel()
	r.global(asm.RDI, abi.HdrClock)
	r.MovRI(asm.R9, clockTries)
	r.Bind(again)
	r.Load(8, asm.RSI, asm.At(asm.RDI, 0))
	r.MovRR(4, asm.R8, asm.RSI)
	r.OpRI(asm.And, 4, asm.R8, 1)
	r.ImulI(4, asm.R8, asm.R8, abi.ClockSize)
	r.OpRR(asm.Add, 8, asm.R8, asm.RDI)
	field := func(off int32) asm.Mem { return asm.At(asm.R8, 8+off) }
	r.Rdtsc()
	r.ShiftI(asm.Shl, 8, asm.RDX, 32)
	r.OpRR(asm.Or, 8, asm.RAX, asm.RDX)
	r.OpRM(asm.Sub, 8, asm.RAX, field(abi.ClockTSC))
	r.Jcc(asm.AE, later)
	r.zero(asm.RAX)
	r.Bind(later)
	r.Load(8, asm.RDX, field(abi.ClockMult))
	r.Mul(8, asm.RDX)
	r.ShiftI(asm.Shl, 8, asm.RDX, 32)
	r.ShiftI(asm.Shr, 8, asm.RAX, 32)
	r.OpRR(asm.Or, 8, asm.RAX, asm.RDX)
	r.OpRM(asm.Add, 8, asm.RAX, field(abi.ClockNS))
	r.OpRM(asm.Cmp, 8, asm.RSI, asm.At(asm.RDI, 0))
	r.Jcc(asm.E, out)
	r.Dec(4, asm.R9)
	r.Jcc(asm.NE, again)
	r.Bind(out)
	r.Store(8, r.arg(0), asm.RAX)
	r.end()
}
