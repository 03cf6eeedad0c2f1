package x86

import (
	"slices"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// isRoutine reports whether a helper is a routine of the runtime that is made
// only for programs that call such.
func isRoutine(h bpfasm.BuiltinFunc) bool {
	switch h {
	case bpfasm.FnMapLookupElem, bpfasm.FnMapUpdateElem, bpfasm.FnMapDeleteElem, bpfasm.FnGetSmpProcessorId, bpfasm.FnGetNumaNodeId, bpfasm.FnGetPrandomU32,
		bpfasm.FnRingbufSubmit, bpfasm.FnPerfEventOutput, bpfasm.FnTracePrintk, bpfasm.FnTraceVprintk, bpf.HelperStackID,
		bpfasm.FnGetStack, bpfasm.FnGetStackid, bpfasm.FnForEachMapElem, bpfasm.FnMapLookupPercpuElem:
		return true
	case bpf.HelperGetCurrentPidTgid:
		return false // the process needs none
	}
	return slices.ContainsFunc(routine.Helpers(), func(r routine.Helper) bool { return r.ID == h })
}

// mapOf is the map that r1 refers to, on which the helper works.
func (u *unit) mapOf(o *op) (*abi.MapLayout, error) {
	if o.val(bpfasm.R1).Kind != bpf.MapRef {
		return nil, o.fail("the map is not the same on every path")
	}
	ml := &u.env.Layout.Maps[o.val(bpfasm.R1).Map]
	if h, _ := bpf.LookupHelper(o.in.Helper()); !h.TakesMap(ml.Kind) {
		return nil, o.fail("it does not work on map %s", ml.Name)
	}
	return ml, nil
}

// mapOperands finds what map_lookup_elem, map_update_elem and map_delete_elem
// read.
func (u *unit) mapOperands(o *op) error {
	ml, err := u.mapOf(o)
	if err != nil {
		return err
	}
	u.cellOperands(o)
	if o.result.Static() {
		return nil
	}
	if ml.Kind == abi.PerThread {
		return u.threadOperands(o)
	}
	o.temps |= vars(temp1)
	if o.in.Helper() == bpfasm.FnMapLookupElem && ml.IsHash() && ml.KeyWords() == 1 {
		o.temps |= vars(temp2)
	}
	if o.in.Helper() == bpfasm.FnMapUpdateElem {
		o.uses |= u.pointer(o, bpfasm.R3)
		if _, ok := immediate(o.val(bpfasm.R4), 8); !ok {
			o.uses |= reg(bpfasm.R4)
		}
	}
	return nil
}

// slotValueOperands finds what map_lookup_percpu_elem reads.
func (u *unit) slotValueOperands(o *op) error {
	if _, err := u.mapOf(o); err != nil {
		return err
	}
	u.cellOperands(o)
	o.uses &^= vars(slotVar)
	o.temps |= vars(temp1)
	if _, ok := immediate(o.val(bpfasm.R3), 8); !ok {
		o.uses |= reg(bpfasm.R3)
	}
	return nil
}

// slotValue emits map_lookup_percpu_elem.
func (g *generator) slotValue(o *op) {
	d := g.r(bpfasm.R0)
	sp := g.enterCall(2)
	g.putKey(o, d)
	g.putNumber(o, bpfasm.R3, 1)
	g.callRoutine(&g.routines(o).lookupSlot, d)
	g.leaveCall(sp)
}

// pointer is what an address that is passed to a routine needs in registers.
func (u *unit) pointer(o *op, r bpfasm.Register) varSet {
	if o.val(r).Kind == bpf.Stack {
		return 0
	}
	return reg(r)
}

// putPointer makes an address the n-th argument of a routine, through d.
func (g *generator) putPointer(o *op, r bpfasm.Register, d asm.Reg, n int32) {
	if p := o.val(r); p.Kind == bpf.Stack {
		g.Lea(d, g.ebpfStack(o, p))
		g.Store(8, asm.At(asm.RSP, 8*n), d)
		return
	}
	g.Store(8, asm.At(asm.RSP, 8*n), g.r(r))
}

// putNumber makes a number the n-th argument of a routine.
func (g *generator) putNumber(o *op, r bpfasm.Register, n int32) {
	if imm, ok := immediate(o.val(r), 8); ok {
		g.StoreI(8, asm.At(asm.RSP, 8*n), imm)
		return
	}
	g.Store(8, asm.At(asm.RSP, 8*n), g.r(r))
}

// putKey makes the key the first argument of a routine: by its value if it has
// up to 8 bytes, else by its address. It uses d.
func (g *generator) putKey(o *op, d asm.Reg) {
	k := &o.key
	first := asm.At(asm.RSP, 0)
	switch {
	case k.ml.KeyWords() > 1:
		g.Lea(d, g.keyMem(o))
	case k.known:
		g.MovRI(d, k.value)
	case k.inReg && k.ml.KeySize == 8:
		g.Store(8, first, g.v(k.reg))
		return
	case k.inReg:
		g.MovZX(k.ml.KeySize, d, g.v(k.reg))
	default:
		g.loadKey(d, g.keyMem(o), k.ml.KeySize)
	}
	g.Store(8, first, d)
}

// loadKey loads a key of up to 8 bytes, and no byte behind it.
func (g *generator) loadKey(d asm.Reg, m asm.Mem, size int) {
	switch size {
	case 1, 2, 4, 8:
		g.LoadZX(size, d, m)
		return
	}
	t := g.v(temp1)
	g.OpRR(asm.Xor, 4, d, d)
	base := m.Disp
	for b := size - 1; b >= 0; b-- {
		m.Disp = base + int32(b)
		g.ShiftI(asm.Shl, 8, d, 8)
		g.LoadZX(1, t, m)
		g.OpRR(asm.Or, 8, d, t)
	}
}

// mapLookup emits map_lookup_elem.
func (g *generator) mapLookup(o *op) {
	switch {
	case o.key.ml.Kind == abi.PerThread:
		g.threadLookup(o)
		return
	case !o.key.ml.IsHash():
		g.arrayCell(o)
		return
	case o.key.ml.KeyWords() == 1:
		g.shortLookup(o)
		return
	}
	d := g.r(bpfasm.R0)
	sp := g.enterCall(2)
	g.putKey(o, d)
	g.putSlot(o, 1)
	g.callRoutine(&g.routines(o).lookup, d)
	g.leaveCall(sp)
	if o.target >= 0 {
		g.Jcc(asm.E, g.label(g.follow(o.target)))
	}
}

// shortLookup looks a key of up to 8 bytes up where it hashes to. If another one is
// there, the runtime searches.
func (g *generator) shortLookup(o *op) {
	k, d, t := &o.key, g.r(bpfasm.R0), g.v(temp1)
	ml := k.ml
	key := g.shortKey(o)
	miss, out := g.NewLabel(), g.NewLabel()
	g.hash(d, key, ml.DirBits)
	if ml.IsTable() {
		// The state is read before the key: then the key was written before.
		g.cell(ml, d)
		g.OpMI(asm.Cmp, 1, asm.At(d, abi.EntryState), abi.PhasePresent)
		g.Jcc(asm.NE, miss)
		g.OpRM(asm.Cmp, 8, key, asm.At(d, int32(ml.Stride())))
		g.Jcc(asm.NE, miss)
		g.useEntry(ml, d)
	} else {
		address(g.Asm, t, g.env.Arena+abi.Addr(ml.Dir))
		g.Load(8, t, asm.AtIndex(t, d, 8, 0))
		g.OpRI(asm.Xor, 8, t, ml.KeyMask)
		g.OpRR(asm.Cmp, 8, t, key)
		g.Jcc(asm.NE, miss)
		if ml.KeySize == 8 { // an empty position looks like this key
			g.OpRI(asm.Cmp, 8, key, ml.KeyMask)
			g.Jcc(asm.E, miss)
		}
		g.cell(ml, d)
	}
	g.Bind(out)
	g.later(func() {
		g.Bind(miss)
		sp := g.enterCall(2)
		g.Store(8, asm.At(asm.RSP, 0), key)
		g.putSlot(o, 1)
		g.callRoutine(&g.routines(o).lookup, d)
		g.leaveCall(sp)
		if o.target >= 0 {
			g.Jcc(asm.E, g.label(g.follow(o.target)))
		}
		g.Jmp(out)
	})
}

// useEntry notes that the entry of an LRUHash that d points to is used.
func (g *generator) useEntry(ml *abi.MapLayout, d asm.Reg) {
	if ml.Kind != abi.LRUHash {
		return
	}
	mark, done := g.NewLabel(), g.NewLabel()
	g.OpMI(asm.Cmp, 1, asm.At(d, abi.EntryUsed), 0)
	g.Jcc(asm.E, mark)
	g.Bind(done)
	g.later(func() {
		g.Bind(mark)
		g.StoreI(1, asm.At(d, abi.EntryUsed), 1)
		g.Jmp(done)
	})
}

// shortKey is the register that holds a key of up to 8 bytes, extended by zeros.
func (g *generator) shortKey(o *op) asm.Reg {
	k, t := &o.key, temp2
	switch {
	case k.inReg && k.ml.KeySize == 8 && !k.inResult():
		return g.v(k.reg)
	case k.known:
		g.MovRI(g.v(t), k.value)
	case k.inReg:
		g.MovZX(k.ml.KeySize, g.v(t), g.v(k.reg))
	default:
		g.loadKey(g.v(t), g.keyMem(o), k.ml.KeySize)
	}
	return g.v(t)
}

// putSlot makes the slot the n-th argument of a routine, where it wants one.
func (g *generator) putSlot(o *op, n int32) {
	if !o.key.ml.Shared() {
		g.Store(8, asm.At(asm.RSP, 8*n), g.v(slotVar))
	}
}

// mapUpdate emits map_update_elem.
func (g *generator) mapUpdate(o *op) {
	d := g.r(bpfasm.R0)
	if o.key.ml.Kind == abi.PerThread {
		g.threadUpdate(o)
		return
	}
	sp := g.enterCall(4)
	g.putKey(o, d)
	g.putPointer(o, bpfasm.R3, d, 1)
	g.putNumber(o, bpfasm.R4, 2)
	g.putSlot(o, 3)
	g.callRoutine(&g.routines(o).update, d)
	g.leaveCall(sp)
}

// mapDelete emits map_delete_elem.
func (g *generator) mapDelete(o *op) {
	d := g.r(bpfasm.R0)
	if o.key.ml.Kind == abi.PerThread {
		g.threadDelete(o)
		return
	}
	sp := g.enterCall(1)
	g.putKey(o, d)
	g.callRoutine(&g.routines(o).remove, d)
	g.leaveCall(sp)
}

// routines are those of the map that an operation works on.
func (g *generator) routines(o *op) *mapRoutines {
	return &g.env.Runtime.maps[o.val(bpfasm.R1).Map]
}

// callRoutine calls a compiled routine whose arguments are in place, and puts
// its result into d. The zero flag tells whether that is 0.
func (g *generator) callRoutine(r *compiled, d asm.Reg) {
	g.CallAddr(r.at)
	g.Load(8, d, asm.At(asm.RSP, 0))
	g.routineStack = max(g.routineStack, r.stack)
}

// sharedCell turns a checked position in d into the address of its value in a
// map that all threads share.
func (g *generator) sharedCell(ml *abi.MapLayout, d asm.Reg) {
	t := g.v(temp1)
	g.scale(d, ml.Entry())
	address(g.Asm, t, g.env.Arena+abi.Addr(ml.Values))
	g.OpRR(asm.Add, 8, d, t)
}
