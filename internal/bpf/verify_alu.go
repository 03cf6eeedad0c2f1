package bpf

import (
	"fmt"
	"math"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf/bound"
)

func (w *walker) alu() *rejection {
	in := w.in
	src, r := w.operand()
	if r != nil {
		return r
	}
	if in.ALU == asm.Mov && in.Wide {
		if in.UseSrc {
			return w.define(in.Dst, w.st.link(in.Src))
		}
		return w.define(in.Dst, *src)
	}
	dst := src
	if !in.overwrites() {
		if dst, r = w.use(in.Dst); r != nil {
			return r
		}
	}
	if dst.kind == Scalar && src.kind == Scalar {
		return w.define(in.Dst, w.compute(dst, src))
	}
	return w.pointerALU(dst, src)
}

// compute is the result of an operation on numbers.
func (w *walker) compute(dst, src *value) value {
	in := w.in
	if in.ALU == asm.Swap {
		return scalar(bound.Swap(dst.num, in.Size, in.Swap == asm.BE))
	}
	v := scalar(bound.ALU(in.ALU, in.Wide, dst.num, src.num))
	switch {
	case in.ALU == asm.Mov && in.UseSrc && src.num.Wide.UMax <= math.MaxUint32: // what the upper half held already
		return w.st.link(in.Src)
	case in.Wide && (in.ALU == asm.Add || in.ALU == asm.Sub):
		v.id, v.delta = moved(dst, src, in.ALU)
	}
	return v
}

// moved is the identity of a value that a constant was added to.
func moved(dst, src *value, op asm.ALUOp) (id, delta int32) {
	c, ok := src.isKnown()
	if !ok || dst.id == 0 || dst.low {
		return 0, 0
	}
	dist := int64(c)
	if op == asm.Sub {
		dist = -dist
	}
	// Distances that may themselves wrap around say nothing.
	if dist < math.MinInt32 || dist > math.MaxInt32 {
		return 0, 0
	}
	sum := int64(dst.delta) + dist
	if sum < math.MinInt32 || sum > math.MaxInt32 {
		return 0, 0
	}
	return dst.id, int32(sum)
}

// pointerALU allows a pointer to move, and two into the same object to be
// subtracted.
func (w *walker) pointerALU(dst, src *value) *rejection {
	in := w.in
	if in.overwrites() {
		return w.refuse(ReasonPointerPart, fmt.Sprintf("a part of %s is taken", w.what(in.Src, src)), "copy all 64 bits")
	}
	if in.Wide && in.ALU == asm.Sub && dst.kind.memory() && src.kind.memory() {
		return w.distance(dst, src)
	}
	p, n, reg := dst, src, in.Dst
	if src.kind != Scalar && in.UseSrc {
		p, n, reg = src, dst, in.Src
	}
	if p.kind.nonNull() != p.kind {
		return w.maybeNull(reg, p)
	}
	if p.kind != Context && !p.kind.memory() {
		return w.refuse(ReasonReference, fmt.Sprintf("%s is used as a number", w.what(reg, p)), "a reference can only be passed to a helper")
	}
	switch {
	case n.kind != Scalar:
		return w.refuse(ReasonPointerArithmetic, fmt.Sprintf("%s and %s are combined", w.what(in.Dst, dst), w.what(in.Src, src)),
			"only pointers into the same object can be subtracted")
	case !in.Wide:
		return w.refuse(ReasonPointerPart, fmt.Sprintf("a part of %s is taken", w.what(reg, p)), "use the 64-bit instruction")
	case in.ALU == asm.Sub && p == src:
		return w.refuse(ReasonPointerArithmetic, fmt.Sprintf("%s is subtracted from a number", w.what(reg, p)), "subtract the number from the pointer")
	case in.ALU != asm.Add && in.ALU != asm.Sub:
		return w.refuse(ReasonPointerArithmetic, fmt.Sprintf("%s is used as a number", w.what(reg, p)), "a pointer can only be moved by addition and subtraction")
	}
	v := *p
	v.num = bound.ALU(in.ALU, true, p.num, n.num)
	v.id, v.delta = moved(p, n, in.ALU)
	return w.define(in.Dst, v)
}

// distance is the difference of two pointers.
func (w *walker) distance(a, b *value) *rejection {
	if !sameObject(a, b) {
		return w.refuse(ReasonPointerArithmetic, fmt.Sprintf("%s and %s are not known to point into the same object", w.what(w.in.Dst, a), w.what(w.in.Src, b)),
			"subtract only pointers that were made from the same one")
	}
	return w.define(w.in.Dst, scalar(bound.ALU(asm.Sub, true, a.num, b.num)))
}

// sameObject reports whether the distance of two pointers is that of their
// numbers.
func sameObject(a, b *value) bool {
	if a.kind != b.kind || a.obj != b.obj || a.ref != b.ref {
		return false
	}
	switch a.kind {
	case Stack, InputMem, Record, Context:
		return true
	}
	return a.inst != 0 && a.inst == b.inst
}

func (w *walker) maybeNull(r asm.Register, v *value) *rejection {
	return w.refuse(ReasonMaybeNull, fmt.Sprintf("%s may be 0", w.what(r, v)),
		fmt.Sprintf("test it first: if (!%s) return 0", regText(r, true)))
}

// what names a register and what it holds.
func (w *walker) what(r asm.Register, v *value) string {
	return fmt.Sprintf("%s (%s)", regText(r, true), v.kind.describe())
}
