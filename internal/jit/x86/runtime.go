package x86

import (
	"fmt"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
)

// Runtime is where the routines lie that detours call on their cold paths.
//
// A routine takes its arguments from the stack, at the return address and
// above, leaves its result in the place of the first one, and preserves every
// register but the flags; the zero flag is set where it says so. It may be
// interrupted at any instruction by a signal handler that calls it again, and
// it waits for nobody.
type Runtime struct {
	slot  abi.Addr   // () slot's address; ZF: it is the shared slot
	cells []abi.Addr // by map, hashes only: (key or address of the key, slot) cell; ZF: null
	ring  abi.Addr   // (address of the data, size, slot) 0 or -EAGAIN
	clock abi.Addr   // () CLOCK_MONOTONIC in nanoseconds

	// When Env.Helpers is set:
	cpu     abi.Addr // () number of the processor
	node    abi.Addr // () its NUMA node
	random  abi.Addr // () 32 bits
	output  abi.Addr // (address of the data, size, slot, map number plus one) 0 or an error; only with rings
	maps    []mapRoutines
	helpers map[bpfasm.BuiltinFunc]compiled
}

// NewRuntime compiles the routines for the address base. Env.Runtime is not
// used. The code must be run within 2 GB of the gate.
func NewRuntime(base abi.Addr, env *Env) ([]byte, *Runtime, error) {
	if env.Layout.StrideShift > 30 {
		return nil, nil, fmt.Errorf("%w: slots of %d bytes", ErrCompile, uint64(1)<<env.Layout.StrideShift)
	}
	a := asm.New(base)
	rt := &Runtime{cells: make([]abi.Addr, len(env.Layout.Maps))}
	r := &assembler{Asm: a, env: env}
	rt.slot = r.begin()
	r.slot()
	for i := range env.Layout.Maps {
		ml := &env.Layout.Maps[i]
		if ml.Kind != abi.PerSlotHash {
			continue
		}
		rt.cells[i] = r.begin()
		if ml.KeyWords() == 1 {
			r.shortCell(ml)
		} else {
			r.longCell(ml)
		}
	}
	rt.clock = r.begin()
	r.clock()
	if env.Layout.RingSize != 0 {
		rt.ring = r.begin()
		r.ring(false)
	}
	if env.Helpers {
		var err error
		m := &routineMaker{a, env}
		if rt.maps, err = m.maps(); err != nil {
			return nil, nil, err
		}
		if rt.helpers, err = m.helpers(); err != nil {
			return nil, nil, err
		}
		rt.cpu = r.begin()
		r.cpu()
		rt.node = r.begin()
		r.numaNode()
		rt.random = r.begin()
		r.random()
		if env.Layout.RingSize != 0 {
			rt.output = r.begin()
			r.ring(true)
		}
	}
	code, err := a.Bytes()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: runtime: %w", ErrCompile, err)
	}
	return code, rt, nil
}

// assembler emits one routine after the other.
type assembler struct {
	*asm.Asm
	env   *Env
	saved []asm.Reg
}

const routineAlign = 16

func (r *assembler) begin() abi.Addr {
	r.Align(routineAlign)
	r.saved = nil
	return r.PC()
}

func (r *assembler) save(regs ...asm.Reg) {
	r.saved = regs
	for _, s := range regs {
		r.Push(s)
	}
}

// end restores the registers and returns. The flags are as they were before.
func (r *assembler) end() {
	for i := len(r.saved) - 1; i >= 0; i-- {
		r.Pop(r.saved[i])
	}
	r.Ret()
}

// arg is the n-th argument; the result is in the place of the first.
func (r *assembler) arg(n int) asm.Mem {
	return asm.At(asm.RSP, int32(8*(len(r.saved)+1+n)))
}

// global puts the address of an offset in the arena into d.
func (r *assembler) global(d asm.Reg, off uint64) {
	address(r.Asm, d, r.env.Arena+abi.Addr(off))
}

func (r *assembler) zero(d asm.Reg) { r.OpRR(asm.Xor, 4, d, d) }

// position puts the position of the word in RSI in a table of 1<<size entries
// into RDX.
func (r *assembler) position(size uint) {
	r.MovRI(asm.RDX, abi.HashMul)
	r.Imul(8, asm.RDX, asm.RSI)
	r.ShiftI(asm.Shr, 8, asm.RDX, uint8(64-size))
}

// slot finds the running thread's slot, or takes a free one for it. It gives up
// after ProbeLimit positions, which at the usual load never happens: a thread
// without a slot would search at every hit.
//
//	rsi thread pointer, rdi table, rdx position, ecx positions left
func (r *assembler) slot() {
	l := r.env.Layout
	r.save(asm.RAX, asm.RCX, asm.RDX, asm.RSI, asm.RDI)
	next, probe, hit, claim, shared := r.NewLabel(), r.NewLabel(), r.NewLabel(), r.NewLabel(), r.NewLabel()
	if r.env.Thread == FSBase {
		r.Rdfsbase(asm.RSI)
	} else {
		r.Load(8, asm.RSI, asm.FS(0))
	}
	hashTP(r.Asm, asm.RDX, asm.RSI, l)
	r.global(asm.RDI, l.TPTable)
	r.MovRI(asm.RCX, uint64(min(abi.ProbeLimit, 1<<l.SlotBits)))
	r.Bind(probe)
	entry := asm.AtIndex(asm.RDI, asm.RDX, 8, 0)
	r.Load(8, asm.RAX, entry)
	r.OpRR(asm.Cmp, 8, asm.RAX, asm.RSI)
	r.Jcc(asm.E, hit)
	r.TestRR(8, asm.RAX, asm.RAX)
	r.Jcc(asm.E, claim)
	r.Bind(next)
	r.Inc(4, asm.RDX)
	r.OpRI(asm.And, 4, asm.RDX, int32(1)<<l.SlotBits-1)
	r.Dec(4, asm.RCX)
	r.Jcc(asm.NE, probe)

	r.Bind(shared)
	r.global(asm.RDI, l.Slots+abi.SlotShared<<l.StrideShift)
	r.Store(8, r.arg(0), asm.RDI)
	r.zero(asm.RAX) // sets ZF
	r.end()

	r.Bind(claim)
	r.checkSharedTP(shared)
	r.Lock()
	r.Cmpxchg(8, entry, asm.RSI)
	r.Jcc(asm.E, hit)
	r.OpRR(asm.Cmp, 8, asm.RAX, asm.RSI)
	r.Jcc(asm.NE, next)

	r.Bind(hit)
	r.ShiftI(asm.Shl, 8, asm.RDX, uint8(l.StrideShift))
	r.global(asm.RDI, l.Slots)
	r.OpRR(asm.Add, 8, asm.RDI, asm.RDX)
	r.Store(8, r.arg(0), asm.RDI)
	r.TestRR(8, asm.RDI, asm.RDI) // clears ZF
	r.end()
}

// checkSharedTP leaves RAX zero, or goes to shared if several threads have the
// thread pointer in RSI.
func (r *assembler) checkSharedTP(shared asm.Label) {
	again := r.NewLabel()
	r.Push(asm.RDI)
	r.global(asm.RDI, abi.HdrSharedTP)
	r.MovRI(asm.RAX, abi.SharedTPs)
	r.Bind(again)
	r.OpMR(asm.Cmp, 8, asm.AtIndex(asm.RDI, asm.RAX, 8, -8), asm.RSI)
	found := r.NewLabel()
	r.Jcc(asm.E, found)
	r.Dec(4, asm.RAX)
	r.Jcc(asm.NE, again)
	r.Bind(found)
	r.Pop(asm.RDI)
	r.TestRR(4, asm.RAX, asm.RAX)
	r.Jcc(asm.NE, shared)
}

// enter counts a new key of a map, with R9 as the counter's address, or goes
// to full. RAX is lost.
func (r *assembler) enter(ml *abi.MapLayout, full asm.Label) {
	r.global(asm.R9, ml.Used)
	r.MovRI(asm.RAX, 1)
	r.Lock()
	r.Xadd(8, asm.At(asm.R9, 0), asm.RAX)
	r.OpRI(asm.Cmp, 8, asm.RAX, int32(ml.MaxEntries))
	r.Jcc(asm.AE, full)
}

// leave takes back what enter counted.
func (r *assembler) leave() {
	r.Lock()
	r.DecM(8, asm.At(asm.R9, 0))
}

// next goes to the next directory position (RDX) while there are tries (ECX).
func (r *assembler) next(ml *abi.MapLayout, probe asm.Label) {
	r.Inc(4, asm.RDX)
	r.OpRI(asm.And, 4, asm.RDX, int32(1)<<ml.DirBits-1)
	r.Dec(4, asm.RCX)
	r.Jcc(asm.NE, probe)
}

// tries puts the number of positions to look at into RCX.
func (r *assembler) tries(ml *abi.MapLayout) {
	r.MovRI(asm.RCX, uint64(min(abi.ProbeLimit, 1<<ml.DirBits)))
}

// ends emits the ways out of a search: full and drop, with a null pointer, and
// hit, with the cell of position RDX in the slot that is the second argument.
func (r *assembler) ends(ml *abi.MapLayout, full, drop, hit asm.Label) {
	r.Bind(drop)
	r.global(asm.R9, abi.HdrDrops)
	r.Lock()
	r.IncM(8, asm.At(asm.R9, 0))
	r.zero(asm.RAX)
	r.Store(8, r.arg(0), asm.RAX) // ZF is still set
	r.end()
	r.Bind(full)
	r.leave()
	r.Jmp(drop)
	r.Bind(hit)
	r.ImulI(8, asm.RDX, asm.RDX, int32(ml.Stride()))
	r.OpRI(asm.Add, 8, asm.RDX, int32(ml.Cells))
	r.OpRM(asm.Add, 8, asm.RDX, r.arg(1))
	r.Store(8, r.arg(0), asm.RDX)
	r.TestRR(8, asm.RDX, asm.RDX) // clears ZF
	r.end()
}

// shortCell finds or enters a key of 8 bytes; the layout is with abi.MapLayout.
//
//	rsi key, rdi directory, rdx position, ecx tries left, r8 the key's word
func (r *assembler) shortCell(ml *abi.MapLayout) {
	r.save(asm.RAX, asm.RCX, asm.RDX, asm.RSI, asm.RDI, asm.R8, asm.R9)
	probe, next, hit, claim := r.NewLabel(), r.NewLabel(), r.NewLabel(), r.NewLabel()
	full, drop, special := r.NewLabel(), r.NewLabel(), r.NewLabel()
	r.Load(8, asm.RSI, r.arg(0))
	r.global(asm.RDI, ml.Dir)
	r.MovRR(8, asm.R8, asm.RSI)
	r.OpRI(asm.Xor, 8, asm.R8, ml.KeyMask)
	r.Jcc(asm.E, special)
	r.position(ml.DirBits)
	r.tries(ml)
	entry := asm.AtIndex(asm.RDI, asm.RDX, 8, 0)
	r.Bind(probe)
	r.Load(8, asm.RAX, entry)
	r.OpRR(asm.Cmp, 8, asm.RAX, asm.R8)
	r.Jcc(asm.E, hit)
	r.TestRR(8, asm.RAX, asm.RAX)
	r.Jcc(asm.E, claim)
	r.Bind(next)
	r.next(ml, probe)
	r.Jmp(drop)

	r.Bind(claim)
	r.enter(ml, full)
	r.zero(asm.RAX)
	r.Lock()
	r.Cmpxchg(8, entry, asm.R8)
	r.Jcc(asm.E, hit)
	r.leave()
	r.OpRR(asm.Cmp, 8, asm.RAX, asm.R8)
	r.Jcc(asm.E, hit)
	r.Jmp(next)

	r.Bind(special)
	r.specialKey(ml, full, hit)
	r.ends(ml, full, drop, hit)
}

// specialKey finds or enters the key whose word means that a position is
// empty. It has a position of its own.
func (r *assembler) specialKey(ml *abi.MapLayout, full, hit asm.Label) {
	entry := asm.AtIndex(asm.RDI, asm.RDX, 8, 0)
	r.MovRI(asm.RDX, 1<<ml.DirBits)
	r.OpMI(asm.Cmp, 8, entry, 0)
	r.Jcc(asm.NE, hit)
	r.enter(ml, full)
	r.zero(asm.RAX)
	r.MovRI(asm.R8, 1)
	r.Lock()
	r.Cmpxchg(8, entry, asm.R8)
	r.Jcc(asm.E, hit)
	r.leave()
	r.Jmp(hit)
}

// longCell finds or enters a key of several words.
//
//	rsi key, rdi directory, rdx position, ecx tries left, r8 the hash's upper
//	half, r10 the directory word of our own node, 0 while there is none
func (r *assembler) longCell(ml *abi.MapLayout) {
	r.save(asm.RAX, asm.RCX, asm.RDX, asm.RSI, asm.RDI, asm.R8, asm.R9, asm.R10, asm.R11)
	probe, match, next, hit := r.NewLabel(), r.NewLabel(), r.NewLabel(), r.NewLabel()
	empty, claim, full, drop := r.NewLabel(), r.NewLabel(), r.NewLabel(), r.NewLabel()
	r.Load(8, asm.RSI, r.arg(0))
	r.hashKey(ml)
	r.global(asm.RDI, ml.Dir)
	r.zero(asm.R10)
	r.tries(ml)
	entry := asm.AtIndex(asm.RDI, asm.RDX, 8, 0)
	r.Bind(probe)
	r.Load(8, asm.RAX, entry)
	r.TestRR(8, asm.RAX, asm.RAX)
	r.Jcc(asm.E, empty)
	r.Bind(match)
	r.matchNode(ml, next)
	r.Jmp(hit)
	r.Bind(next)
	r.next(ml, probe)
	r.Jmp(drop)

	r.Bind(empty)
	r.TestRR(8, asm.R10, asm.R10)
	r.Jcc(asm.NE, claim)
	r.newNode(ml, drop)
	r.Bind(claim)
	r.enter(ml, full)
	r.zero(asm.RAX)
	r.Lock()
	r.Cmpxchg(8, entry, asm.R10)
	r.Jcc(asm.E, hit)
	r.leave()
	r.Jmp(match) // RAX is the word that another thread has put there
	r.ends(ml, full, drop, hit)
}

// hashKey computes abi.HashKey of the key at RSI: RDX becomes the position, R8
// the upper half.
func (r *assembler) hashKey(ml *abi.MapLayout) {
	r.zero(asm.RDX)
	r.MovRI(asm.RAX, abi.HashMul)
	for off := range int32(ml.KeyWords()) {
		r.ShiftI(asm.Rol, 8, asm.RDX, 32)
		r.OpRM(asm.Xor, 8, asm.RDX, asm.At(asm.RSI, 8*off))
		r.Imul(8, asm.RDX, asm.RAX)
	}
	r.MovRR(8, asm.R8, asm.RDX)
	r.ShiftI(asm.Shr, 8, asm.R8, 32)
	r.ShiftI(asm.Shr, 8, asm.RDX, uint8(64-ml.DirBits))
}

// matchNode goes to other unless the directory word in RAX names a node with
// the key. R9, R11 and RAX are lost.
func (r *assembler) matchNode(ml *abi.MapLayout, other asm.Label) {
	r.MovRR(8, asm.R9, asm.RAX)
	r.ShiftI(asm.Shr, 8, asm.R9, 32)
	r.OpRR(asm.Cmp, 4, asm.R9, asm.R8)
	r.Jcc(asm.NE, other)
	r.Dec(4, asm.RAX) // clears the upper half
	r.OpRI(asm.Cmp, 4, asm.RAX, int32(ml.NodeCount))
	r.Jcc(asm.AE, other)
	r.node(ml)
	for off := range int32(ml.KeyWords()) {
		r.Load(8, asm.R11, asm.At(asm.RSI, 8*off))
		r.OpRM(asm.Cmp, 8, asm.R11, asm.At(asm.R9, 8*off))
		r.Jcc(asm.NE, other)
	}
}

// node puts the address of node RAX into R9. RAX is lost.
func (r *assembler) node(ml *abi.MapLayout) {
	r.ImulI(8, asm.RAX, asm.RAX, int32(8*ml.KeyWords()))
	r.global(asm.R9, ml.Nodes+8)
	r.OpRR(asm.Add, 8, asm.R9, asm.RAX)
}

// newNode takes a node, writes the key into it, and puts the word that names
// it into R10. Without one it goes to drop.
func (r *assembler) newNode(ml *abi.MapLayout, drop asm.Label) {
	r.global(asm.R9, ml.Used)
	r.OpMI(asm.Cmp, 8, asm.At(asm.R9, 0), int32(ml.MaxEntries))
	r.Jcc(asm.AE, drop)
	r.global(asm.R9, ml.Nodes)
	r.MovRI(asm.RAX, 1)
	r.Lock()
	r.Xadd(8, asm.At(asm.R9, 0), asm.RAX)
	r.OpRI(asm.Cmp, 8, asm.RAX, int32(ml.NodeCount))
	r.Jcc(asm.AE, drop)
	r.Lea(asm.R10, asm.At(asm.RAX, 1))
	r.node(ml)
	for off := range int32(ml.KeyWords()) {
		r.Load(8, asm.R11, asm.At(asm.RSI, 8*off))
		r.Store(8, asm.At(asm.R9, 8*off), asm.R11)
	}
	r.MovRR(8, asm.R11, asm.R8)
	r.ShiftI(asm.Shl, 8, asm.R11, 32)
	r.OpRR(asm.Or, 8, asm.R10, asm.R11)
}
