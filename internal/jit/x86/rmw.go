package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// foldUpdates makes one atomic instruction of each load, addition and store
// that update a map's value, as compilers write *value += k. The kernel's
// programs lose updates there that run on several processors at a time; one
// instruction loses none, and on the thread's own cell it is a plain one.
//
// Only the value in memory may be wanted afterwards: the register of the sum
// must be dead. Precondition: liveness is known; afterwards it has to be found
// anew.
func (u *unit) foldUpdates() {
	for i := range u.ops {
		if u.live(i) {
			u.foldUpdate(i)
		}
	}
}

func (u *unit) foldUpdate(i int) {
	load := &u.ops[i]
	if !load.updatable() {
		return
	}
	add, store := u.straight(load), (*op)(nil)
	if add != nil && add.adds(load) {
		store = u.straight(add)
	}
	if store == nil || !store.storesBack(load) {
		return
	}
	before := *store.before
	fold := bpf.Insn{Kind: bpf.AtomicRMW, Atomic: bpfasm.AddAtomic, Size: load.in.Size, Dst: store.in.Dst, Src: add.in.Src, Off: store.in.Off, UseSrc: true}
	if k, ok := add.addend(); ok {
		fold.Src = add.in.Dst
		before.Regs[fold.Src] = bpf.Value{Kind: bpf.Scalar, Known: true, Const: k}
	}
	load.in, add.in = &bpf.Insn{Kind: bpf.JumpAlways}, &bpf.Insn{Kind: bpf.JumpAlways}
	for _, o := range []*op{load, add} {
		o.uses, o.defs, o.temps, o.fixed, o.result = 0, 0, 0, 0, bpf.Value{}
	}
	store.in, store.before = &fold, &before
	store.uses, store.temps = 0, 0
	u.atomicOperands(store)
}

// updatable reports whether an operation loads from a map's value what an atomic
// instruction could update.
func (o *op) updatable() bool {
	in := o.in
	return in.Kind == bpf.Load && !in.Signed && (in.Size == 8 || in.Size == 4) && in.Dst != in.Src && o.val(in.Src).Kind == bpf.Cell && o.arg == 0
}

// straight is the operation that comes next, if no other way leads there.
func (u *unit) straight(o *op) *op {
	if o.next < 0 || o.next == u.end || o.target >= 0 || o.charge > 0 {
		return nil
	}
	next := &u.ops[o.next]
	if next.joins != 1 || !u.live(o.next) {
		return nil
	}
	return next
}

// adds reports whether an operation adds a number to what load has loaded.
func (o *op) adds(load *op) bool {
	in := o.in
	if in.Kind != bpf.ALU || in.Dst != load.in.Dst || in.ALU != bpfasm.Add && in.ALU != bpfasm.Sub || !in.Wide && load.in.Size == 8 {
		return false
	}
	if _, ok := o.addend(); ok {
		return true
	}
	return in.ALU == bpfasm.Add && in.Src != in.Dst && in.Src != bpfasm.R10 && o.val(in.Src).Kind == bpf.Scalar
}

// addend is the number that an addition adds, if it is known.
func (o *op) addend() (uint64, bool) {
	k, ok := o.constant(8)
	if o.in.ALU == bpfasm.Sub {
		k = -k
	}
	return uint64(int64(k)), ok
}

// storesBack reports whether an operation stores the sum where load found the
// number, and nobody wants the sum itself.
func (o *op) storesBack(load *op) bool {
	in := o.in
	return in.Kind == bpf.Store && in.UseSrc && in.Src == load.in.Dst && in.Dst == load.in.Src && in.Off == load.in.Off &&
		in.Size == load.in.Size && o.val(in.Dst) == load.val(load.in.Src) && !o.liveOut.has(variable(in.Src))
}
