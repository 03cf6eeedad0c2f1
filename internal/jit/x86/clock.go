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
//	rdi header, rsi number of the publication, r8 counter, r9 time, r10 scale,
//	r11 tries left
func (r *assembler) clock() {
	r.save(asm.RAX, asm.RDX, asm.RSI, asm.RDI, asm.R8, asm.R9, asm.R10, asm.R11)
	again, later := r.NewLabel(), r.NewLabel()
	r.global(asm.RDI, abi.HdrClock)
	r.MovRI(asm.R11, clockTries)
	r.Bind(again)
	r.Load(8, asm.RSI, asm.At(asm.RDI, 0))
	r.MovRR(4, asm.RAX, asm.RSI)
	r.OpRI(asm.And, 4, asm.RAX, 1)
	r.ImulI(4, asm.RAX, asm.RAX, abi.ClockSize)
	field := func(off int32) asm.Mem { return asm.AtIndex(asm.RDI, asm.RAX, 1, 8+off) }
	r.Load(8, asm.R8, field(abi.ClockTSC))
	r.Load(8, asm.R9, field(abi.ClockNS))
	r.Load(8, asm.R10, field(abi.ClockMult))
	r.Dec(4, asm.R11)
	out := r.NewLabel()
	r.Jcc(asm.E, out)
	r.OpRM(asm.Cmp, 8, asm.RSI, asm.At(asm.RDI, 0))
	r.Jcc(asm.NE, again)
	r.Bind(out)
	r.Rdtsc()
	r.ShiftI(asm.Shl, 8, asm.RDX, 32)
	r.OpRR(asm.Or, 8, asm.RAX, asm.RDX)
	r.OpRR(asm.Sub, 8, asm.RAX, asm.R8)
	r.Jcc(asm.AE, later)
	r.zero(asm.RAX)
	r.Bind(later)
	r.Mul(8, asm.R10)
	r.ShiftI(asm.Shl, 8, asm.RDX, 32)
	r.ShiftI(asm.Shr, 8, asm.RAX, 32)
	r.OpRR(asm.Or, 8, asm.RAX, asm.RDX)
	r.OpRR(asm.Add, 8, asm.RAX, asm.R9)
	r.Store(8, r.arg(0), asm.RAX)
	r.end()
}
