package bound

import "github.com/cilium/ebpf/asm"

// Refine is what is known of the operands of a conditional jump that was taken,
// or was not. It reports false if that cannot happen.
func Refine(op asm.JumpOp, wide, taken bool, a, b Scalar) (Scalar, Scalar, bool) {
	return std.refine(op, wide, taken, a, b)
}

// opposite is the jump that is taken where op is not. JSET has none.
var opposite = map[asm.JumpOp]asm.JumpOp{
	asm.JEq: asm.JNE, asm.JNE: asm.JEq,
	asm.JGT: asm.JLE, asm.JLE: asm.JGT, asm.JGE: asm.JLT, asm.JLT: asm.JGE,
	asm.JSGT: asm.JSLE, asm.JSLE: asm.JSGT, asm.JSGE: asm.JSLT, asm.JSLT: asm.JSGE,
}

func (d domain) refine(op asm.JumpOp, wide, taken bool, a, b Scalar) (Scalar, Scalar, bool) {
	if op == asm.JSet {
		return d.refineBits(wide, taken, a, b)
	}
	if !taken {
		op = opposite[op]
	}
	w := d.wide
	x, y := &a.Wide, &b.Wide
	if !wide {
		w, x, y = d.low, &a.Low, &b.Low
	}
	possible := true
	switch op {
	case asm.JEq:
		possible = d.equal(wide, &a, &b)
	case asm.JNE:
		possible = differ(x, y, w)
	case asm.JGT, asm.JGE:
		possible = below2(&y.UMin, &y.UMax, &x.UMin, &x.UMax, op == asm.JGT)
	case asm.JLT, asm.JLE:
		possible = below2(&x.UMin, &x.UMax, &y.UMin, &y.UMax, op == asm.JLT)
	case asm.JSGT, asm.JSGE:
		possible = below2(&y.SMin, &y.SMax, &x.SMin, &x.SMax, op == asm.JSGT)
	default:
		possible = below2(&x.SMin, &x.SMax, &y.SMin, &y.SMax, op == asm.JSLT)
	}
	if !possible {
		return a, b, false
	}
	a, ok := d.reduce(a)
	b, too := d.reduce(b)
	return a, b, ok && too
}

// equal leaves in both what both can be.
func (d domain) equal(wide bool, a, b *Scalar) bool {
	x, y := *a, *b
	if wide {
		both, ok := d.intersect(x, y)
		*a, *b = both, both
		return ok
	}
	high := d.wide.mask() &^ d.low.mask()
	t, ok := x.Bits.cast(d.low).intersect(y.Bits.cast(d.low))
	if !ok {
		return false
	}
	low := x.Low.intersect(y.Low)
	a.Low, b.Low = low, low
	a.Bits = Tnum{x.Bits.Value&high | t.Value, x.Bits.Mask&high | t.Mask}
	b.Bits = Tnum{y.Bits.Value&high | t.Value, y.Bits.Mask&high | t.Mask}
	return true
}

// differ takes a known number away from the ends of the other's range.
func differ(x, y *Range, w Width) bool {
	if y.UMin == y.UMax {
		return exclude(x, y.UMin, w)
	}
	if x.UMin == x.UMax {
		return exclude(y, x.UMin, w)
	}
	return true
}

func exclude(r *Range, v uint64, w Width) bool {
	s := w.signed(v)
	if r.UMin == r.UMax && r.UMin == v || r.SMin == r.SMax && r.SMin == s {
		return false
	}
	switch v {
	case r.UMin:
		r.UMin++
	case r.UMax:
		r.UMax--
	}
	switch s {
	case r.SMin:
		r.SMin++
	case r.SMax:
		r.SMax--
	}
	return true
}

// below2 narrows x and y where x < y, or x <= y if not strict.
func below2[T int64 | uint64](xMin, xMax, yMin, yMax *T, strict bool) bool {
	if *xMin > *yMax || strict && *xMin == *yMax {
		return false
	}
	if !strict {
		*xMax, *yMin = min(*xMax, *yMax), max(*yMin, *xMin)
		return true
	}
	// Neither overflows: x's least number is less than y's largest.
	*xMax, *yMin = min(*xMax, *yMax-1), max(*yMin, *xMin+1)
	return true
}

// refineBits is about JSET: a and b have a bit in common.
func (d domain) refineBits(wide, taken bool, a, b Scalar) (Scalar, Scalar, bool) {
	m := d.wide.mask()
	if !wide {
		m = d.low.mask()
	}
	x, y := &a.Bits, &b.Bits
	if taken {
		common := (x.Value | x.Mask) & (y.Value | y.Mask) & m
		if common == 0 {
			return a, b, false
		}
		if common&(common-1) == 0 { // the only bit that can be
			*x = Tnum{x.Value | common, x.Mask &^ common}
			*y = Tnum{y.Value | common, y.Mask &^ common}
		}
	} else {
		if x.Value&y.Value&m != 0 {
			return a, b, false
		}
		inX, inY := y.Value&m, x.Value&m
		x.Mask, y.Mask = x.Mask&^inX, y.Mask&^inY
	}
	a, ok := d.reduce(a)
	b, too := d.reduce(b)
	return a, b, ok && too
}
