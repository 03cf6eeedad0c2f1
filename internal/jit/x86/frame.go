package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// redZone is how far below its stack pointer a function may store, in bytes
// (System V ABI for x86-64, 3.2.2). The kernel keeps signal frames out of it.
const redZone = 128

// frame says where things lie on the target's stack. Offsets count from the
// stack pointer as the target left it, and are negative.
type frame struct {
	size  int32 // bytes in use, a multiple of 8
	move  int32 // how far the stack pointer is moved
	below int32 // how far below that the stack is in use
	saves []save
	flags int32 // where RAX holds the saved flags; 0 when flags are dead
	r10   int32 // what the eBPF frame pointer points to
}

// save is a register that is kept in memory while the programs run.
type save struct {
	reg     asm.Reg
	off     int32
	restore bool // false if it is only kept to be read through the context
}

func layoutFrame(u *unit, al allocation, site Site) frame {
	var f frame
	for r := asm.RAX; r <= asm.R15; r++ {
		live := site.LiveRegs.Has(r)
		if al.written.Has(r) && (live || al.read.Has(r)) {
			f.size += 8
			f.saves = append(f.saves, save{r, -f.size, live})
		}
	}
	if site.FlagsLive {
		f.size += 8
		f.flags = -f.size
	}
	if lo, hi := stackRange(u); lo < hi {
		f.r10 = -f.size - hi
		f.size += hi - lo
	}
	switch {
	case f.size == 0 && site.RedZoneLive:
		f.below = redZone
	case site.RedZoneLive:
		f.move = redZone + f.size
		f.shift(-redZone)
	case f.size > redZone:
		f.move = f.size
	default:
		f.below = f.size
	}
	return f
}

// shift moves everything.
func (f *frame) shift(by int32) {
	for i := range f.saves {
		f.saves[i].off += by
	}
	if f.flags != 0 {
		f.flags += by
	}
	f.r10 += by
}

// stackRange finds the part of the eBPF stack that is in use, in words of 8
// bytes.
func stackRange(u *unit) (lo, hi int32) {
	lo, hi = 0, -bpf.StackSize
	add := func(off int32, size int) {
		lo, hi = min(lo, off&^7), max(hi, (off+int32(size)+7)&^7)
	}
	for i := range u.ops {
		o := &u.ops[i]
		if !u.reached(i) || o.dead {
			continue
		}
		in := o.in
		switch in.Kind {
		case bpf.Load:
			if p := o.val(in.Src); p.Kind == bpf.Stack {
				add(p.Off+in.Off, in.Size)
			}
		case bpf.Store, bpf.AtomicRMW:
			if p := o.val(in.Dst); p.Kind == bpf.Stack {
				add(p.Off+in.Off, in.Size)
			}
		case bpf.CallHelper:
			if k := o.key; k.ml != nil && !k.known && !k.inReg {
				add(k.off, k.ml.KeySize)
			}
			if isCall(in, bpf.HelperRingbufOutput) {
				add(o.val(bpfasm.R2).Off, int(o.val(bpfasm.R3).Const))
			}
		}
	}
	return lo, hi
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
