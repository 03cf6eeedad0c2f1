package x86

import (
	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
)

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
