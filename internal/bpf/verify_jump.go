package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf/bound"
)

// jump follows a conditional jump on the ways that are possible.
func (w *walker) jump() *rejection {
	in := w.in
	dst, r := w.use(in.Dst)
	if r != nil {
		return r
	}
	src, r := w.operand()
	if r != nil {
		return r
	}
	from, ways := w.st, 0
	for _, taken := range []bool{false, true} {
		w.st = from.share()
		possible, r := w.assume(taken, *dst, *src)
		if r == nil && possible {
			ways++
			r = w.arrive(in.after(w.at, taken))
		}
		if r != nil {
			return r
		}
	}
	if ways > 0 {
		return nil
	}
	// Nothing gets here; but then compilers must find something behind it.
	w.st = from
	return w.arrive(in.Target)
}

// after is the instruction that follows a jump at i.
func (in *Insn) after(i int, taken bool) int {
	if taken {
		return in.Target
	}
	return i + 1
}

// assume narrows the state to the runs that take the jump, or do not. It
// reports false if there are none.
func (w *walker) assume(taken bool, dst, src value) (bool, *rejection) {
	in := w.in
	switch {
	case dst.kind == Scalar && src.kind == Scalar:
		return w.compare(taken, &dst, &src), nil
	case src.kind == Scalar && src.num.Is(0):
		return w.nullTest(taken, in.Dst, &dst)
	case dst.kind == Scalar && dst.num.Is(0) && (in.Jump == asm.JEq || in.Jump == asm.JNE):
		return w.nullTest(taken, in.Src, &src)
	case dst.kind != Scalar && src.kind != Scalar:
		return w.comparePointers(taken, &dst, &src)
	}
	r := in.Dst
	p := &dst
	if dst.kind == Scalar {
		r, p = in.Src, &src
	}
	return false, w.refuse(ReasonPointerComparison, fmt.Sprintf("%s is compared with a number", w.what(r, p)), "a pointer can be compared with 0, and with one into the same object")
}

// compare narrows two numbers, and with them all whose distance is known.
func (w *walker) compare(taken bool, dst, src *value) bool {
	in := w.in
	a, b, ok := bound.Refine(in.Jump, in.Wide, taken, dst.num, src.num)
	if !ok {
		return false
	}
	if a != dst.num && !w.narrow(in.Dst, dst, a) {
		return false
	}
	return !in.UseSrc || b == src.num || w.narrow(in.Src, src, b)
}

// narrow sets what a register can be, and all values that are linked with it.
// It reports false if one of them cannot be anything then.
func (w *walker) narrow(r asm.Register, old *value, now bound.Scalar) bool {
	if old.id == 0 {
		v := *w.st.reg(r)
		v.num = now
		w.st.set(r, v)
		return true
	}
	possible := true
	w.st.each(func(v *value) (value, bool) {
		if v.id != old.id || v.kind != old.kind {
			return value{}, false
		}
		c := *v
		n := now
		if d := int64(v.delta) - int64(old.delta); d != 0 {
			n = bound.ALU(asm.Add, true, now, bound.Const(uint64(d)))
		}
		if v.low {
			return value{}, false // its size is the slot's to know
		}
		meet, ok := v.num.Intersect(n)
		if !ok {
			possible = false
			return value{}, false
		}
		c.num = meet
		return c, c.num != v.num
	})
	return possible
}

// nullTest is a comparison of a pointer with 0.
func (w *walker) nullTest(taken bool, r asm.Register, p *value) (bool, *rejection) {
	in := w.in
	if !in.Wide || in.Jump != asm.JEq && in.Jump != asm.JNE {
		return false, w.refuse(ReasonPointerComparison, fmt.Sprintf("%s is compared with 0 in a way that says little", w.what(r, p)), "compare all 64 bits for == or !=")
	}
	null := taken == (in.Jump == asm.JEq)
	if p.kind.nonNull() == p.kind { // everything else is somewhere
		if !near(p) {
			return false, w.refuse(ReasonUnbounded, fmt.Sprintf("%s is compared, but it may point anywhere", w.what(r, p)), "bound what was added to it")
		}
		return !null, nil
	}
	w.st.each(func(v *value) (value, bool) {
		if v.kind != p.kind || v.inst != p.inst || v.obj != p.obj || v.ref != p.ref {
			return value{}, false
		}
		if null {
			return known(0), true
		}
		c := *v
		c.kind = v.kind.nonNull()
		return c, true
	})
	if null && p.ref != 0 {
		w.st.drop(p.ref)
	}
	return true, nil
}

// drop forgets a reference.
func (s *state) drop(id int32) {
	out := make([]ref, 0, len(s.refs))
	for _, r := range s.refs {
		if r.id != id {
			out = append(out, r)
		}
	}
	s.refs = out
}

// comparePointers compares two pointers into the same object by their offsets.
func (w *walker) comparePointers(taken bool, dst, src *value) (bool, *rejection) {
	in := w.in
	if in.Wide && dst.kind.memory() && src.kind.memory() && !sameObject(dst, src) && (in.Jump == asm.JEq || in.Jump == asm.JNE) {
		return true, nil // into different objects, or into the same: it may be
	}
	if !in.Wide || !dst.kind.memory() || !sameObject(dst, src) {
		return false, w.refuse(ReasonPointerComparison, fmt.Sprintf("%s is compared with %s", w.what(in.Dst, dst), w.what(in.Src, src)), "pointers into the same object can be compared, others only for == and !=")
	}
	op, ok := signedJump[in.Jump]
	if !ok {
		return false, w.refuse(ReasonPointerComparison, fmt.Sprintf("%s is compared in a way that addresses cannot be", w.what(in.Dst, dst)), "compare pointers as unsigned numbers")
	}
	if op != in.Jump && !(near(dst) && near(src)) {
		return false, w.refuse(ReasonUnbounded, fmt.Sprintf("%s is compared, but one of the pointers may point anywhere", w.what(in.Dst, dst)), "bound what was added to it")
	}
	a, b, possible := bound.Refine(op, true, taken, dst.num, src.num)
	if !possible {
		return false, nil
	}
	return w.narrow(in.Dst, dst, a) && w.narrow(in.Src, src, b), nil
}

// signedJump compares offsets, which may be negative, as addresses are compared
// as unsigned.
var signedJump = map[asm.JumpOp]asm.JumpOp{
	asm.JEq: asm.JEq, asm.JNE: asm.JNE,
	asm.JGT: asm.JSGT, asm.JGE: asm.JSGE, asm.JLT: asm.JSLT, asm.JLE: asm.JSLE,
}

// near reports whether a pointer's offset is so small that its address cannot
// have wrapped around: nothing lies in the lowest 64 KB of an address space, or
// in its upper half.
func near(v *value) bool { return v.num.Wide.SMin >= -1<<15 && v.num.Wide.SMax < 1<<40 }
