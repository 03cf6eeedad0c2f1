package x86

import (
	"math"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf/routine"
)

// ring writes a record into the slot's ring. A run that is interrupted here
// leaves its claim, the stack pointer, for the signal handler to see, whose event is
// then missed. If the handler never came back, but jumped out, or if the thread
// ended, the claim is taken over by the next run that can tell.
// In a child that was forked in the meantime the gate is closed, and the
// parent's ring is left alone.
//
// Records of a map have any size and bear its number.
//
//	rdi slot, rsi data, rcx bytes left, r8 head, r9 record size, r10 the ring,
//	r11 the record's flags
func (r *assembler) ring(ofMap bool) {
	l := r.env.Layout
	saved := []asm.Reg{asm.RAX, asm.RCX, asm.RDX, asm.RSI, asm.RDI, asm.R8, asm.R9, asm.R10}
	if ofMap {
		saved = append(saved, asm.R11)
	}
	r.save(saved...)
	busy, full, done, out, free := r.NewLabel(), r.NewLabel(), r.NewLabel(), r.NewLabel(), r.NewLabel()
	r.Load(8, asm.RSI, r.arg(0))
	r.Load(8, asm.RCX, r.arg(1))
	r.Load(8, asm.RDI, r.arg(2))
	tooBig := r.NewLabel()
	if ofMap {
		r.roundSize(tooBig)
	}
	r.OpMI(asm.Cmp, 8, asm.At(asm.RDI, abi.SlotClaim), 0)
	r.Jcc(asm.NE, busy)
	r.Bind(free)
	r.Store(8, asm.At(asm.RDI, abi.SlotClaim), asm.RSP)
	r.Load(8, asm.R8, asm.At(asm.RDI, abi.SlotRingHead))
	r.Lea(asm.R9, asm.At(asm.RCX, abi.RecPayload))
	r.MovRR(8, asm.RAX, asm.R8)
	r.OpRM(asm.Sub, 8, asm.RAX, asm.At(asm.RDI, abi.SlotRingTail))
	r.OpRR(asm.Add, 8, asm.RAX, asm.R9)
	r.Jcc(asm.B, full)
	r.OpRI(asm.Cmp, 8, asm.RAX, int32(l.RingSize))
	r.Jcc(asm.A, full)
	if ofMap {
		r.OpRR(asm.Or, 8, asm.R9, asm.R11)
	}
	r.record()
	r.zero(asm.RAX)
	r.OpMI(asm.Cmp, 1, asm.Abs(r.env.Gate), 0)
	r.Jcc(asm.E, out)
	// Stores are seen in their order (SDM volume 3, 9.2.2), so this one
	// publishes the record. It pairs with the tracer's load of the head.
	r.Store(8, asm.At(asm.RDI, abi.SlotRingHead), asm.R8)
	r.Bind(done)
	r.StoreI(8, asm.At(asm.RDI, abi.SlotClaim), 0)
	r.Bind(out)
	r.Store(8, r.arg(0), asm.RAX)
	r.end()

	fail := int64(errAgain)
	r.Bind(full)
	r.IncM(8, asm.At(asm.RDI, abi.SlotDrops))
	r.MovRI(asm.RAX, uint64(fail))
	r.Jmp(done)
	r.Bind(busy)
	r.abandoned(free)
	r.IncM(8, asm.At(asm.RDI, abi.SlotMisses))
	r.MovRI(asm.RAX, uint64(fail))
	r.Jmp(out)
	if ofMap {
		r.Bind(tooBig)
		fail = errTooBig
		r.MovRI(asm.RAX, uint64(fail))
		r.Jmp(out)
	}
}

const errTooBig = -7 // -E2BIG

// roundSize checks the size in RCX, rounds it up to whole words, and leaves the
// record's flags in the upper half of R11. The words may reach up to 7 bytes
// behind the data, into the frame or the place of the value where these lie.
func (r *assembler) roundSize(tooBig asm.Label) {
	r.Lea(asm.RAX, asm.At(asm.RCX, -1))
	r.OpRI(asm.Cmp, 8, asm.RAX, abi.MaxRecord-abi.RecPayload)
	r.Jcc(asm.AE, tooBig)
	r.MovRR(8, asm.R11, asm.RCX)
	r.Neg(8, asm.R11)
	r.OpRI(asm.And, 8, asm.R11, 7)
	r.OpRR(asm.Add, 8, asm.RCX, asm.R11)
	r.ShiftI(asm.Shl, 8, asm.R11, 16)
	r.OpRM(asm.Or, 8, asm.R11, r.arg(3))
	r.ShiftI(asm.Shl, 8, asm.R11, 32)
}

// ownDepth is how far above the routine's stack pointer that of the same run may be where it
// claims the slot without the routine, in bytes. What is interrupted is farther away: a signal
// frame lies in between, of which the state of the x87 and SSE registers alone has 512 bytes
// (arch/x86/kernel/fpu/signal.c).
const ownDepth = 400

// abandoned goes to free if the run that has claimed the slot (RDI) cannot be one
// that is interrupted now. That is known on the stack that the C library has noted
// for the thread: what is interrupted there lies below us. What was on another
// stack, where handlers run, has ended. RAX, RDX and R8 are lost.
func (r *assembler) abandoned(free asm.Label) {
	at := r.env.Memory.Stack
	if at == 0 {
		return
	}
	no, low := r.NewLabel(), r.NewLabel()
	r.Load(8, asm.RAX, asm.FS(at))
	r.Load(8, asm.RDX, asm.FS(at+8))
	r.OpRR(asm.Add, 8, asm.RDX, asm.RAX)
	r.TestRR(8, asm.RAX, asm.RAX)
	r.Jcc(asm.NE, low)
	r.Lea(asm.RAX, asm.At(asm.RDX, -routine.MainStack))
	r.Bind(low)
	r.OpRR(asm.Cmp, 8, asm.RSP, asm.RAX)
	r.Jcc(asm.B, no)
	r.OpRR(asm.Cmp, 8, asm.RSP, asm.RDX)
	r.Jcc(asm.AE, no)
	r.Load(8, asm.R8, asm.At(asm.RDI, abi.SlotClaim))
	r.OpRR(asm.Cmp, 8, asm.R8, asm.RAX)
	r.Jcc(asm.B, free)
	r.Lea(asm.RAX, asm.At(asm.RSP, ownDepth))
	r.OpRR(asm.Cmp, 8, asm.R8, asm.RAX)
	r.Jcc(asm.BE, free)
	r.OpRR(asm.Cmp, 8, asm.R8, asm.RDX)
	r.Jcc(asm.AE, free)
	r.Bind(no)
}

// record writes a record from the head in R8 on: at once where it lies in one piece.
func (r *assembler) record() {
	l := r.env.Layout
	wraps, written, again := r.NewLabel(), r.NewLabel(), r.NewLabel()
	r.Lea(asm.R10, asm.At(asm.RDI, int32(l.RingOff)))
	r.Rdtsc()
	r.ShiftI(asm.Shl, 8, asm.RDX, 32)
	r.OpRR(asm.Or, 8, asm.RAX, asm.RDX)
	r.MovRR(8, asm.RDX, asm.R8)
	r.ringOffset(asm.RDX)
	r.OpRI(asm.Cmp, 8, asm.RDX, int32(l.RingSize-abi.MaxRecord))
	r.Jcc(asm.A, wraps)
	r.OpRR(asm.Add, 8, asm.R10, asm.RDX)
	r.Store(8, asm.At(asm.R10, abi.RecSize), asm.R9)
	r.Store(8, asm.At(asm.R10, abi.RecTSC), asm.RAX)
	r.Lea(asm.R8, asm.AtIndex(asm.R8, asm.RCX, 1, abi.RecPayload))
	r.Bind(again)
	r.Load(8, asm.RAX, asm.AtIndex(asm.RSI, asm.RCX, 1, -8))
	r.Store(8, asm.AtIndex(asm.R10, asm.RCX, 1, abi.RecPayload-8), asm.RAX)
	r.OpRI(asm.Sub, 8, asm.RCX, 8)
	r.Jcc(asm.NE, again)
	r.Jmp(written)

	r.Bind(wraps)
	r.put(asm.R9) // the size and the flags
	r.put(asm.RAX)
	word := r.NewLabel()
	r.Bind(word)
	r.Load(8, asm.RAX, asm.At(asm.RSI, 0))
	r.put(asm.RAX)
	r.OpRI(asm.Add, 8, asm.RSI, 8)
	r.OpRI(asm.Sub, 8, asm.RCX, 8)
	r.Jcc(asm.NE, word)
	r.Bind(written)
}

// ringMask makes an aligned offset in the ring of any number.
func ringMask(l *abi.Layout) int32 {
	if l.RingSize-8 > math.MaxInt32 {
		panic("BUG: jit: a ring is larger than its slot may be")
	}
	return int32(l.RingSize - 8)
}

// ringOffset makes d an offset in the ring, wherever the target has moved it to, and
// keeps it aligned.
func (r *assembler) ringOffset(d asm.Reg) {
	r.OpRI(asm.And, 8, d, ringMask(r.env.Layout))
}

// put stores a word at the head in R8, wherever the target has moved that to,
// and advances it. RDX is lost.
func (r *assembler) put(s asm.Reg) {
	r.MovRR(8, asm.RDX, asm.R8)
	r.ringOffset(asm.RDX)
	r.Store(8, asm.AtIndex(asm.R10, asm.RDX, 1, 0), s)
	r.OpRI(asm.Add, 8, asm.R8, 8)
}
