package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// A PerThread map has one entry in each slot, so that @start[tid] = nsecs and what
// reads and deletes it again are a few plain instructions.

// threadOperands completes what cellOperands has found.
func (u *unit) threadOperands(o *op) error {
	o.temps |= vars(temp1, temp2)
	if o.in.Helper() != bpfasm.FnMapUpdateElem {
		return nil
	}
	if flags := o.val(bpfasm.R4); !flags.Known {
		return o.fail("the flags must be the same on every path, and known")
	}
	o.uses |= u.pointer(o, bpfasm.R3)
	if p := o.val(bpfasm.R3); p.Kind == bpf.Stack && u.fnOf(o, p) == o.fn {
		o.findValue(p)
	}
	return nil
}

// findValue looks for a register that holds the value which lies on the stack, other than the
// result's. Nobody has to load it then, and perhaps not even to store it.
func (o *op) findValue(p bpf.Value) {
	w, ok := o.before.StackWord(p.Off, 8)
	if !ok || w.Kind != bpf.Scalar || w.ID == 0 {
		return
	}
	for r := bpfasm.R1; r < bpfasm.R10; r++ {
		if v := o.val(r); v.Kind == bpf.Scalar && v.ID == w.ID {
			o.value = r
			o.uses |= reg(r)
			return
		}
	}
}

// threadKey puts what the word of an entry with the key would be into d, and returns
// where that word is.
func (g *generator) threadKey(o *op, d asm.Reg) asm.Mem {
	key := g.shortKey(o)
	g.MovRI(d, abi.ThreadKey)
	g.OpRR(asm.Or, 8, d, key)
	return asm.At(g.v(slotVar), int32(o.key.ml.Cells)-8)
}

func (g *generator) threadLookup(o *op) {
	d := g.r(bpfasm.R0)
	at := g.threadKey(o, d)
	g.OpRM(asm.Cmp, 8, d, at)
	absent, out := g.NewLabel(), g.NewLabel()
	g.Jcc(asm.NE, absent)
	at.Disp += 8
	g.Lea(d, at)
	g.Bind(out)
	g.later(func() {
		g.Bind(absent)
		g.nullCell(o, d)
		if o.target < 0 {
			g.Jmp(out)
		}
	})
}

// Flags of map_update_elem (include/uapi/linux/bpf.h).
const (
	anyEntry = iota
	newEntry
	oldEntry
)

func (g *generator) threadUpdate(o *op) {
	d, t := g.r(bpfasm.R0), g.v(temp1)
	flags := o.val(bpfasm.R4).Const
	if flags > oldEntry {
		fail := int64(errInval)
		g.MovRI(d, uint64(fail))
		return
	}
	at := g.threadKey(o, d)
	wrong, other, put, out := g.NewLabel(), g.NewLabel(), g.NewLabel(), g.NewLabel()
	g.Load(8, t, at)
	switch flags {
	case newEntry:
		g.OpRR(asm.Cmp, 8, t, d)
		g.Jcc(asm.E, wrong)
	case oldEntry:
		g.OpRR(asm.Cmp, 8, t, d)
		g.Jcc(asm.NE, wrong)
	}
	g.TestRR(8, t, t)
	g.Jcc(asm.NE, other)
	g.Bind(put)
	value := at
	value.Disp += 8
	if o.value != bpfasm.R0 {
		g.Store(8, value, g.r(o.value))
	} else {
		g.Load(8, t, g.dataAt(o, bpfasm.R3))
		g.Store(8, value, t)
	}
	g.Store(8, at, d)
	g.OpRR(asm.Xor, 4, d, d)
	g.Bind(out)
	g.later(func() {
		g.Bind(other) // an entry of this thread, or one that is lost
		g.OpRR(asm.Cmp, 8, t, d)
		g.Jcc(asm.E, put)
		m := g.global(g.env.Arena + abi.HdrDrops)
		g.Lock()
		g.IncM(8, m)
		g.Jmp(put)
		g.Bind(wrong)
		fail := int64(errNoEnt)
		if flags == newEntry {
			fail = errExist
		}
		g.MovRI(d, uint64(fail))
		g.Jmp(out)
	})
}

func (g *generator) threadDelete(o *op) {
	d := g.r(bpfasm.R0)
	at := g.threadKey(o, d)
	g.OpRM(asm.Cmp, 8, d, at)
	absent, out := g.NewLabel(), g.NewLabel()
	g.Jcc(asm.NE, absent)
	g.StoreI(8, at, 0)
	g.OpRR(asm.Xor, 4, d, d)
	g.Bind(out)
	g.later(func() {
		g.Bind(absent)
		fail := int64(errNoEnt)
		g.MovRI(d, uint64(fail))
		g.Jmp(out)
	})
}

// Errors that helpers return (include/uapi/asm-generic/errno-base.h).
const (
	errNoEnt = -2
	errExist = -17
	errInval = -22
)
