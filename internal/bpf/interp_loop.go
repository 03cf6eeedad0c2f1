package bpf

import "github.com/cilium/ebpf/asm"

// maxLoop is the largest number of rounds of bpf_loop (include/linux/bpf.h,
// BPF_MAX_LOOPS).
const maxLoop = 1 << 23

// loop is a bpf_loop that runs.
type loop struct {
	fn    *Func
	count uint64
	round uint64
	arg   uint64
}

// loop is helper bpf_loop (count, function, argument, flags): it calls the
// function with the number of the round and the argument, until it returns
// something else than 0, and returns the number of rounds.
func (x *run) loop() error {
	for r := asm.R1; r <= asm.R4; r++ {
		if _, err := x.get(r); err != nil {
			return err
		}
	}
	l := &loop{count: x.r[asm.R1], arg: x.r[asm.R3]}
	for i := range x.code.Funcs {
		if f := &x.code.Funcs[i]; i > 0 && funcRef(f.Start) == x.r[asm.R2] {
			l.fn = f
		}
	}
	switch {
	case l.fn == nil:
		return x.fail(ErrAccess, "r2 is no function")
	case x.r[asm.R4] != 0:
		return x.fail(ErrAccess, "the flags are not 0")
	case len(x.frames) == MaxFrames:
		return x.fail(ErrAccess, "more than %d functions are active", MaxFrames)
	}
	back := x.at + 1
	x.have &^= 0x3f
	if l.count > maxLoop {
		e := int64(errTooBig)
		x.set(asm.R0, uint64(e))
		x.at = back
		return nil
	}
	x.push(back)
	x.frames[len(x.frames)-1].loop = l
	return x.round(l)
}

// round calls the function once more, or ends the loop.
func (x *run) round(l *loop) error {
	if l.round == l.count {
		x.set(asm.R0, l.round)
		x.pop()
		return nil
	}
	if err := x.spend(l.fn.End - l.fn.Start); err != nil {
		return err
	}
	f := x.frames[len(x.frames)-1]
	f.written = [StackSize]bool{}
	x.have = 1 << asm.R10
	x.set(asm.R1, l.round)
	x.set(asm.R2, l.arg)
	x.at = l.fn.Start
	return nil
}

// again is the end of a round.
func (x *run) again(l *loop) error {
	l.round++
	if x.r[asm.R0] != 0 {
		l.count = l.round
	}
	return x.round(l)
}
