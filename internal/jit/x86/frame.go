package x86

import (
	"slices"

	bpfasm "github.com/cilium/ebpf/asm"

	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// redZone is how far below its stack pointer a function may store, in bytes
// (System V ABI for x86-64, 3.2.2). The kernel keeps signal frames out of it.
const redZone = 128

// frame says where things lie on the target's stack. Offsets count from the
// stack pointer as the target left it, and are negative.
//
// No function is active twice, so each has a place of its own, below those of
// all functions that call it: that whatever calls it, its frame is where the
// code expects it, and so are its callers'.
type frame struct {
	size    int32 // bytes in use by the main functions, a multiple of 8
	move    int32 // how far the stack pointer is moved
	below   int32 // how far below that the stack is in use
	saves   []save
	flags   int32 // where RAX holds the saved flags; 0 when flags are dead
	fuel    int32 // where the fuel is; 0 when none is needed
	tails   int32 // where tail calls are counted; 0 when there are none
	context int32 // where the context is; 0 when none is needed
	loop    int32 // where the main functions\' loops are kept; 0 without any
	funcs   []funcFrame
	deepest int32 // how far below the target's stack pointer all that reaches
}

// funcFrame is the frame of one function. That of the main functions is a part
// of frame, of which only r10 is here.
type funcFrame struct {
	depth int32 // how far the stack pointer is moved when the function is entered
	size  int32 // bytes below that
	saves []save
	loop  int32 // where its loops are kept; 0 without any
	r10   int32 // what the eBPF frame pointer points to
}

// save is a register that is kept in memory while the programs run.
type save struct {
	reg     asm.Reg
	off     int32
	restore bool // false if it is only kept to be read through the context
}

func layoutFrame(u *unit, al allocation, site Site) frame {
	f := frame{funcs: make([]funcFrame, len(u.funcs))}
	place := func(size int32) int32 {
		f.size += size
		return -f.size
	}
	for r := asm.RAX; r <= asm.R15; r++ {
		live := site.LiveRegs.Has(r)
		if al.written.Has(r) && (live || al.read.Has(r)) {
			f.saves = append(f.saves, save{r, place(8), live})
		}
	}
	if site.FlagsLive {
		f.flags = place(8)
	}
	if u.takesFuel() {
		f.fuel = place(8)
	}
	if slices.ContainsFunc(u.progs, func(p program) bool { return p.tails }) {
		f.tails = place(8)
	}
	if u.takesContext() {
		f.context = place(bpf.ContextEnd)
	}
	if size := u.funcs[0].loop; size > 0 {
		f.loop = place(size)
	}
	if lo, hi := u.stackRange(0); lo < hi {
		f.funcs[0].r10 = -f.size - hi
		f.size += hi - lo
	}
	switch {
	case f.size == 0 && site.RedZoneLive && len(u.funcs) == 1:
		f.below = redZone
	case site.RedZoneLive:
		f.move = redZone + f.size
		f.shift(-redZone)
	case f.size > redZone || len(u.funcs) > 1:
		f.move = f.size
	default:
		f.below = f.size
	}
	f.deepest = f.move + f.below
	f.layoutFuncs(u, al)
	return f
}

// layoutFuncs places the functions' frames, each below its callers'.
func (f *frame) layoutFuncs(u *unit, al allocation) {
	order := u.calleesFirst()
	slices.Reverse(order)
	f.funcs[0].depth, f.funcs[0].loop = f.move, f.loop
	for _, n := range order {
		ff := &f.funcs[n]
		if n != 0 {
			f.layoutFunc(u, n, al)
		}
		f.deepest = max(f.deepest, ff.depth+ff.size)
		for _, c := range u.funcs[n].calls {
			const returnAddress = 8
			f.funcs[c].depth = max(f.funcs[c].depth, ff.depth+ff.size+returnAddress)
		}
	}
}

func (f *frame) layoutFunc(u *unit, n int, al allocation) {
	ff := &f.funcs[n]
	for v := variable(bpfasm.R6); v <= variable(bpfasm.R9); v++ {
		if u.funcs[n].saves.has(v) {
			ff.size += 8
			ff.saves = append(ff.saves, save{al.reg[v], -ff.depth - ff.size, true})
		}
	}
	if size := u.funcs[n].loop; size > 0 {
		ff.size += size
		ff.loop = -ff.depth - ff.size
	}
	if lo, hi := u.stackRange(n); lo < hi {
		ff.r10 = -ff.depth - ff.size - hi
		ff.size += hi - lo
	}
}

// shift moves everything.
func (f *frame) shift(by int32) {
	for i := range f.saves {
		f.saves[i].off += by
	}
	for _, off := range []*int32{&f.flags, &f.fuel, &f.tails, &f.context, &f.loop} {
		if *off != 0 {
			*off += by
		}
	}
	f.funcs[0].r10 += by
}

// takesFuel reports whether a program has loops or calls.
func (u *unit) takesFuel() bool {
	for i := range u.progs {
		if u.progs[i].spend {
			return true
		}
	}
	return false
}

// takesContext reports whether a register ever points to the context.
func (u *unit) takesContext() bool {
	for i := range u.ops {
		o := &u.ops[i]
		if !u.live(i) {
			continue
		}
		if v, ok := u.passes(o); ok && v.Kind == bpf.Context || o.result.Kind == bpf.Context && o.defs&o.liveOut != 0 {
			return true
		}
	}
	return false
}

// stackRange finds the part of a function's stack that is in use, in words of
// 8 bytes: all of it when pointers to it are about.
func (u *unit) stackRange(fn int) (lo, hi int32) {
	if u.escapes {
		return -int32(u.funcs[fn].stack+7) &^ 7, 0
	}
	lo, hi = 0, -bpf.StackSize
	for i := range u.ops {
		o := &u.ops[i]
		if !u.live(i) {
			continue
		}
		u.touches(o, func(p bpf.Value, size int) {
			if u.fnOf(o, p) == fn {
				lo, hi = min(lo, p.Off&^7), max(hi, (p.Off+int32(size)+7)&^7)
			}
		})
	}
	return lo, hi
}

// touches calls f for each part of the stack that an operation reads or writes.
func (u *unit) touches(o *op, f func(p bpf.Value, size int)) {
	in := o.in
	access := func(r bpfasm.Register) {
		if p := o.val(r); p.Kind == bpf.Stack {
			p.Off += in.Off
			f(p, in.Size)
		}
	}
	switch in.Kind {
	case bpf.Load:
		if !o.free() {
			access(in.Src)
		}
	case bpf.Store, bpf.AtomicRMW:
		access(in.Dst)
	case bpf.CallHelper:
		u.reads(o, f)
		u.writes(o, f)
		if o.record.Size != 0 {
			f(o.record.At, o.record.Size)
		}
	}
}

// saveOf is where a register is kept.
func (f *frame) saveOf(r asm.Reg) (int32, bool) {
	for _, s := range f.saves {
		if s.reg == r {
			return s.off, true
		}
	}
	return 0, false
}
