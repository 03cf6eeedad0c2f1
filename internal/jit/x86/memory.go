package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// memory is the operand of an access through r.
func (g *generator) memory(o *op, r bpfasm.Register) asm.Mem {
	p := o.val(r)
	p.Off += o.in.Off
	switch {
	case p.Kind == bpf.Stack:
		return g.ebpfStack(o, p)
	case p.Fixed:
		return g.fixedCell(p)
	}
	return asm.At(g.r(r), o.in.Off)
}

// fixedCell is the memory that a pointer to a known value points to. It may use
// temp1.
func (g *generator) fixedCell(p bpf.Value) asm.Mem {
	ml := &g.env.Layout.Maps[p.Map]
	if ml.Shared() {
		return g.global(g.sharedAddress(p))
	}
	return asm.At(g.v(slotVar), int32(ml.Cells)+p.Index*int32(ml.Stride())+p.Off)
}

// sharedAddress is what a pointer to a known value that all threads share points to.
func (g *generator) sharedAddress(p bpf.Value) abi.Addr {
	ml := &g.env.Layout.Maps[p.Map]
	off := int64(p.Index)*int64(ml.Stride()) + int64(p.Off)
	if at, ok := g.env.Constants[int(p.Map)]; ok {
		return at + abi.Addr(off)
	}
	return g.env.Arena + abi.Addr(int64(ml.Values)+off)
}

// fixedAddress puts the address of a known value into d.
func (g *generator) fixedAddress(d asm.Reg, p bpf.Value) {
	ml := &g.env.Layout.Maps[p.Map]
	if ml.Shared() {
		address(g.Asm, d, g.sharedAddress(p))
		return
	}
	g.Lea(d, g.fixedCell(p))
}

func (g *generator) load(o *op) {
	in := o.in
	d := g.r(in.Dst)
	if o.val(in.Src).Kind == bpf.Context {
		g.loadContext(o, d)
		return
	}
	g.loadMem(in, d, g.memory(o, in.Src))
}

func (g *generator) loadMem(in *bpf.Insn, d asm.Reg, m asm.Mem) {
	if in.Signed {
		g.LoadSX(in.Size, d, m)
	} else {
		g.LoadZX(in.Size, d, m)
	}
}

// loadContext loads one of the target's registers, or a part of one: from the
// register if the programs leave it alone, else from where it was saved.
func (g *generator) loadContext(o *op, d asm.Reg) {
	in := o.in
	off := contextOffset(o)
	shift := uint8(off&7) * 8
	switch field := off &^ 7; field {
	case bpf.PtRegsIP:
		ip := uint64(g.site.Addr) >> shift
		g.MovRI(d, cut(ip, in.Size, in.Signed))
		return
	case bpf.PtRegsSP:
		g.Lea(d, g.stack(0))
	default:
		src, _ := g.site.contextReg(field)
		if saved, ok := g.frame.saveOf(src); ok {
			g.loadMem(in, d, g.stack(saved+off&7))
			return
		}
		g.copy(d, src)
	}
	if shift != 0 {
		g.ShiftI(asm.Shr, 8, d, shift)
	}
	switch {
	case in.Size == 8:
	case in.Signed:
		g.MovSX(in.Size, d, d)
	default:
		g.MovZX(in.Size, d, d)
	}
}

// cut keeps the low size bytes of v, extended to 64 bits.
func cut(v uint64, size int, signed bool) uint64 {
	n := 64 - 8*size
	if signed {
		return uint64(int64(v<<n) >> n)
	}
	return v << n >> n
}

func (g *generator) store(o *op) {
	in := o.in
	m := g.memory(o, in.Dst)
	if imm, ok := o.constant(in.Size); ok {
		g.StoreI(in.Size, m, int32(cut(uint64(int64(imm)), min(in.Size, 4), true)))
		return
	}
	g.Store(in.Size, m, g.number(o, in.Src))
}

// atomic emits a read-modify-write. In the thread's own slot and on the stack
// one plain instruction is enough, for nobody but a signal handler of the same
// thread can come in between instructions.
func (g *generator) atomic(o *op) {
	in := o.in
	m := g.memory(o, in.Dst)
	locked := g.locked(o)
	switch in.Atomic {
	case bpfasm.AddAtomic, bpfasm.AndAtomic, bpfasm.OrAtomic, bpfasm.XorAtomic:
		g.lock(locked)
		g.update(o, m)
	case bpfasm.FetchAdd:
		g.lock(locked)
		g.Xadd(in.Size, m, g.r(in.Src))
	case bpfasm.Xchg: // locked in any case
		g.Xchg(in.Size, m, g.r(in.Src))
	case bpfasm.CmpXchg:
		g.MovRR(8, asm.RAX, g.r(bpfasm.R0))
		g.lock(locked)
		g.Cmpxchg(in.Size, m, g.number(o, in.Src))
		g.MovRR(in.Size, g.r(bpfasm.R0), asm.RAX)
	default:
		g.fetchUpdate(in, m, locked)
	}
}

// locked reports whether others may update the memory too: all but the stack and
// the cells of the thread's own slot.
func (g *generator) locked(o *op) bool {
	switch o.val(o.in.Dst).Kind {
	case bpf.Stack:
		return false
	case bpf.Cell:
		return g.shared || g.env.Layout.Maps[o.val(o.in.Dst).Map].Shared()
	}
	return true
}

func (g *generator) lock(locked bool) {
	if locked {
		g.Lock()
	}
}

// update emits an atomic operation whose old value nobody wants.
func (g *generator) update(o *op, m asm.Mem) {
	in := o.in
	op := updateOps[in.Atomic]
	imm, ok := immediate(o.val(in.Src), in.Size)
	switch {
	case ok && op == asm.Add && imm == 1:
		g.IncM(in.Size, m)
	case ok:
		g.OpMI(op, in.Size, m, imm)
	default:
		g.OpMR(op, in.Size, m, g.number(o, in.Src))
	}
}

var updateOps = map[bpfasm.AtomicOp]asm.Op{
	bpfasm.AddAtomic: asm.Add,
	bpfasm.AndAtomic: asm.And, bpfasm.FetchAnd: asm.And,
	bpfasm.OrAtomic: asm.Or, bpfasm.FetchOr: asm.Or,
	bpfasm.XorAtomic: asm.Xor, bpfasm.FetchXor: asm.Xor,
}

// fetchUpdate emits an operation that the processor does not have with a
// result: a loop that ends when nobody has written in between.
func (g *generator) fetchUpdate(in *bpf.Insn, m asm.Mem, locked bool) {
	t, src := g.v(temp2), g.r(in.Src)
	g.Load(in.Size, asm.RAX, m)
	again := g.NewLabel()
	g.Bind(again)
	g.MovRR(8, t, asm.RAX)
	g.OpRR(updateOps[in.Atomic], 8, t, src)
	g.lock(locked)
	g.Cmpxchg(in.Size, m, t)
	g.Jcc(asm.NE, again)
	g.MovRR(in.Size, src, asm.RAX)
}
