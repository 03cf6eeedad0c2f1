package x86

import (
	"math"
	"math/bits"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// lookup puts the address of the thread's slot into slotVar. The tracer has
// checked that the target's thread pointers are what Env.Thread says.
//
// The table has the thread pointer at the position that it hashes to, seldom at
// the next one, or else the runtime searches. A thread without a slot goes on in the shared copy.
func (g *generator) lookup(i int) {
	l, s, tp := g.env.Layout, g.v(slotVar), g.v(temp1)
	if g.shared {
		address(g.Asm, s, g.env.Arena+abi.Addr(l.Slots+abi.SlotShared<<l.StrideShift))
		return
	}
	if g.env.Thread == FSBase {
		g.Rdfsbase(tp)
	} else {
		g.Load(8, tp, asm.FS(0))
	}
	hashTP(g.Asm, s, tp, l)
	g.compareTP(s, tp)
	miss, hit, found := g.NewLabel(), g.NewLabel(), g.NewLabel()
	g.Jcc(asm.NE, miss)
	g.Bind(found)
	g.ShiftI(asm.Shl, 8, s, uint8(l.StrideShift))
	g.OpRR(asm.Add, 8, s, g.v(temp2))
	g.Bind(hit)

	g.later(func() {
		g.Bind(miss)
		g.Inc(4, s)
		g.OpRI(asm.And, 4, s, int32(1)<<l.SlotBits-1)
		g.compareTP(s, tp)
		g.Jcc(asm.E, found)
		sp := g.enterCall(1)
		g.CallAddr(g.env.Runtime.slot)
		g.Load(8, s, asm.At(asm.RSP, 0))
		g.leaveCall(sp)
		g.Jcc(asm.E, g.labels[sharedCopy][i])
		g.Jmp(hit)
	})
	if !g.hasShared {
		g.hasShared = true
		g.first = i
		g.later(func() {
			g.shared = true
			g.mains()
		})
	}
}

// lookupTemps are the temporaries of a lookup: the thread pointer, and where the slots begin.
const lookupTemps = varSet(1<<temp1 | 1<<temp2)

// hashTP puts the position of a thread pointer in the table of them into d.
func hashTP(a *asm.Asm, d, tp asm.Reg, l *abi.Layout) {
	a.ImulI(4, d, tp, abi.HashTP)
	a.ShiftI(asm.Shr, 4, d, uint8(32-l.SlotBits))
}

// compareTP compares the thread pointer at a position of the table with the
// running thread's, and leaves the address of the first slot in temp2.
func (g *generator) compareTP(pos, tp asm.Reg) {
	l, slots := g.env.Layout, g.v(temp2)
	if dist := int64(l.TPTable) - int64(l.Slots); dist >= math.MinInt32 {
		address(g.Asm, slots, g.env.Arena+abi.Addr(l.Slots))
		g.OpMR(asm.Cmp, 8, asm.AtIndex(slots, pos, 8, int32(dist)), tp)
		return
	}
	address(g.Asm, slots, g.env.Arena+abi.Addr(l.TPTable))
	g.OpMR(asm.Cmp, 8, asm.AtIndex(slots, pos, 8, 0), tp)
	address(g.Asm, slots, g.env.Arena+abi.Addr(l.Slots)) // changes no flag
}

// hash puts the position of x in a table of 1<<size entries into d.
func (g *generator) hash(d, x asm.Reg, size uint) {
	g.MovRI(d, abi.HashMul)
	g.Imul(8, d, x)
	g.ShiftI(asm.Shr, 8, d, uint8(64-size))
}

// enterCall makes room for n words of arguments of a runtime routine at the
// stack pointer, below everything that is in use. leaveCall undoes it.
func (g *generator) enterCall(n int) int32 {
	sp := g.sp
	g.moveStack(g.below() + int32(8*n))
	return sp
}

// callRuntime calls a routine without arguments for its result, r0.
func (g *generator) callRuntime(routine abi.Addr) {
	sp := g.enterCall(1)
	g.CallAddr(routine)
	g.Load(8, g.r(bpfasm.R0), asm.At(asm.RSP, 0))
	g.leaveCall(sp)
}

// below is how far below the stack pointer the function's data reach.
func (g *generator) below() int32 {
	if g.fn != 0 {
		return 0
	}
	return g.frame.below
}

func (g *generator) leaveCall(sp int32) { g.moveStack(sp - g.sp) }

// mapCell emits HelperMapCell.
func (g *generator) mapCell(o *op) {
	k := &o.key
	switch {
	case k.ml.Kind == abi.PerSlotArray:
		g.arrayCell(o)
	case k.ml.KeySize > 8:
		g.longCell(o)
	default:
		g.hashCell(o)
	}
}

// arrayCell checks an index that is known only now.
func (g *generator) arrayCell(o *op) {
	k, d := &o.key, g.r(bpfasm.R0)
	switch {
	case k.known: // and out of range
		g.nullCell(o, d)
		return
	case k.inReg:
		g.MovRR(4, d, g.v(k.reg))
	default:
		g.Load(4, d, g.keyMem(o))
	}
	g.OpRI(asm.Cmp, 4, d, int32(k.ml.MaxEntries))
	out, in := g.NewLabel(), g.NewLabel()
	g.Jcc(asm.AE, out)
	g.cell(k.ml, d)
	g.Bind(in)
	g.later(func() {
		g.Bind(out)
		g.nullCell(o, d)
		if o.target < 0 {
			g.Jmp(in)
		}
	})
}

// nullCell leaves a null pointer in d, and goes where the program tests for it
// at once.
func (g *generator) nullCell(o *op, d asm.Reg) {
	g.OpRR(asm.Xor, 4, d, d)
	if o.target >= 0 {
		g.Jmp(g.label(g.follow(o.target)))
	}
}

// cell turns a checked position in d into the address of its cell.
func (g *generator) cell(ml *abi.MapLayout, d asm.Reg) {
	if ml.Shared() {
		g.sharedCell(ml, d)
		return
	}
	s := g.v(slotVar)
	if ml.Stride() == 8 {
		g.Lea(d, asm.AtIndex(s, d, 8, int32(ml.Cells)))
		return
	}
	g.scale(d, ml.Stride())
	g.Lea(d, asm.AtIndex(s, d, 1, int32(ml.Cells)))
}

// scale multiplies a position by a distance.
func (g *generator) scale(d asm.Reg, distance int) {
	if distance&(distance-1) == 0 {
		g.ShiftI(asm.Shl, 8, d, uint8(bits.TrailingZeros(uint(distance))))
		return
	}
	g.ImulI(8, d, d, int32(distance))
}

// hashCell looks a key of 8 bytes up where it hashes to. If the directory has
// another word there, or none, the runtime searches and enters it.
func (g *generator) hashCell(o *op) {
	k, d, t := &o.key, g.r(bpfasm.R0), g.v(temp1)
	ml := k.ml
	dir := g.env.Arena + abi.Addr(ml.Dir)
	miss, hit := g.NewLabel(), g.NewLabel()
	if k.known {
		g.knownCell(k, d, t, miss)
	} else {
		key := g.keyReg(k)
		switch {
		case !k.inReg:
			g.Load(8, key, g.keyMem(o))
		case k.inResult():
			g.MovRR(8, key, d)
		}
		g.hash(d, key, ml.DirBits)
		address(g.Asm, t, dir)
		g.Load(8, t, asm.AtIndex(t, d, 8, 0))
		g.OpRI(asm.Xor, 8, t, ml.KeyMask)
		g.OpRR(asm.Cmp, 8, t, key)
		g.Jcc(asm.NE, miss)
		g.OpRI(asm.Cmp, 8, key, ml.KeyMask) // an empty position looks like this key
		g.Jcc(asm.E, miss)
		g.cell(ml, d)
	}
	g.Bind(hit)
	g.later(func() { g.hashMiss(o, miss, hit) })
}

// keyMem is the memory where a key lies.
func (g *generator) keyMem(o *op) asm.Mem {
	if o.key.ptr.Kind == bpf.Stack {
		return g.ebpfStack(o, o.key.ptr)
	}
	return asm.At(g.r(bpfasm.R2), 0)
}

// keyReg is the register that holds the key while it is looked up.
func (g *generator) keyReg(k *key) asm.Reg {
	if k.inReg && !k.inResult() {
		return g.v(k.reg)
	}
	return g.v(temp2)
}

// knownCell compares the one directory word where a constant key hashes to.
func (g *generator) knownCell(k *key, d, t asm.Reg, miss asm.Label) {
	ml := k.ml
	pos := k.value * abi.HashMul >> (64 - ml.DirBits)
	word := int64(k.value) ^ int64(ml.KeyMask)
	if word == 0 {
		g.Jmp(miss)
		return
	}
	m := g.global(g.env.Arena + abi.Addr(ml.Dir+8*pos))
	if word >= math.MinInt32 && word <= math.MaxInt32 {
		g.OpMI(asm.Cmp, 8, m, int32(word))
	} else {
		g.MovRI(d, uint64(word))
		g.OpMR(asm.Cmp, 8, m, d)
	}
	g.Jcc(asm.NE, miss)
	g.Lea(d, asm.At(g.v(slotVar), int32(ml.Cells)+int32(pos)*int32(ml.Stride())))
}

func (g *generator) hashMiss(o *op, miss, hit asm.Label) {
	k, d := &o.key, g.r(bpfasm.R0)
	g.Bind(miss)
	sp := g.enterCall(2)
	switch {
	case k.known:
		g.MovRI(d, k.value)
		g.Store(8, asm.At(asm.RSP, 0), d)
	default:
		g.Store(8, asm.At(asm.RSP, 0), g.keyReg(k))
	}
	g.callCell(o, sp)
	g.Jmp(hit)
}

// callCell calls the runtime routine of a map. Its first argument is in place.
func (g *generator) callCell(o *op, sp int32) {
	d := g.r(bpfasm.R0)
	g.Store(8, asm.At(asm.RSP, 8), g.v(slotVar))
	g.CallAddr(g.env.Runtime.cells[o.val(bpfasm.R1).Map])
	g.Load(8, d, asm.At(asm.RSP, 0))
	g.leaveCall(sp)
	if o.target >= 0 {
		g.Jcc(asm.E, g.label(g.follow(o.target)))
	}
}

// longCell looks a key of several words up, by the runtime.
func (g *generator) longCell(o *op) {
	d := g.r(bpfasm.R0)
	sp := g.enterCall(2)
	g.Lea(d, g.keyMem(o))
	g.Store(8, asm.At(asm.RSP, 0), d)
	g.callCell(o, sp)
}

// countHit counts a run of a probe: in the slot's byte by one instruction, which
// says whether it was this very run that made it 0 again and has to carry.
func (g *generator) countHit(probe int) {
	sum := g.env.Arena + abi.Addr(g.env.Layout.HitSums+8*uint64(probe))
	if g.shared {
		m := g.global(sum)
		g.Lock()
		g.IncM(8, m)
		return
	}
	g.IncM(1, asm.At(g.v(slotVar), int32(g.env.Layout.Hits)+int32(probe)))
	carry, done := g.NewLabel(), g.NewLabel()
	g.Jcc(asm.E, carry)
	g.Bind(done)
	g.later(func() {
		g.Bind(carry)
		m := g.global(sum)
		g.Lock()
		g.OpMI(asm.Add, 8, m, abi.HitCarry)
		g.Jmp(done)
	})
}

// noteMiss counts a run that got less than it asked for, if d says so.
func (g *generator) noteMiss(o *op, d asm.Reg) {
	if !g.site.counts(o.prog) {
		return
	}
	miss, done := g.NewLabel(), g.NewLabel()
	g.TestRR(8, d, d)
	g.Jcc(asm.NE, miss)
	g.Bind(done)
	g.later(func() {
		g.Bind(miss)
		m := g.global(g.env.Arena + abi.Addr(g.env.Layout.Missed+8*uint64(g.site.Hits[o.prog])))
		g.Lock()
		g.IncM(8, m)
		g.Jmp(done)
	})
}

// ringOutput emits HelperRingbufOutput. The shared slot has no ring that only
// one thread writes to.
func (g *generator) ringOutput(o *op) {
	d, t := g.r(bpfasm.R0), g.v(temp1)
	if g.shared {
		g.countShared(d)
		g.noteMiss(o, d)
		return
	}
	call := func() {
		sp := g.enterCall(3)
		g.putPointer(o, bpfasm.R2, t, 0)
		g.StoreI(8, asm.At(asm.RSP, 8), int32(o.val(bpfasm.R3).Const))
		g.Store(8, asm.At(asm.RSP, 16), g.v(slotVar))
		g.CallAddr(g.env.Runtime.ring)
		g.Load(8, d, asm.At(asm.RSP, 0))
		g.leaveCall(sp)
		g.noteMiss(o, d)
	}
	if words, _, ok := fixedRecord(o.val(bpfasm.R3)); ok {
		g.writeRecord(o, words, 0, g.dataAt(o, bpfasm.R2), call)
		return
	}
	call()
}

// errAgain is what a program gets for an event that was dropped: -EAGAIN.
const errAgain = -11
