package bound

import "github.com/cilium/ebpf/asm"

// ALU is the result of an arithmetic instruction (RFC 9669, 4.1 and 4.2) of 64
// bits, or of 32, which clears the upper half. NEG has no second operand; the
// moves have no first.
func ALU(op asm.ALUOp, wide bool, a, b Scalar) Scalar {
	x, ok := a.Known()
	y, too := b.Known()
	if ok && too {
		if v, ok := constALU(op, wide, x, y); ok {
			return Const(v)
		}
	}
	return std.alu(op, wide, a, b)
}

// constALU computes the common operations where both operands are known.
func constALU(op asm.ALUOp, wide bool, x, y uint64) (uint64, bool) {
	switch op {
	case asm.Add:
		x += y
	case asm.Sub:
		x -= y
	case asm.And:
		x &= y
	case asm.Or:
		x |= y
	case asm.Xor:
		x ^= y
	case asm.Mov:
		x = y
	case asm.Mul:
		x *= y
	default:
		return 0, false
	}
	if !wide {
		x = uint64(uint32(x))
	}
	return x, true
}

func (d domain) alu(op asm.ALUOp, wide bool, a, b Scalar) Scalar {
	switch op {
	case asm.Mov:
		if wide {
			return b
		}
		return d.zeroExtend(b)
	case asm.MovSX8:
		return d.signExtend(b, 8, wide)
	case asm.MovSX16:
		return d.signExtend(b, 16, wide)
	case asm.MovSX32:
		return d.signExtend(b, d.low, wide)
	case asm.Neg:
		return d.alu(asm.Sub, wide, d.constant(0), a)
	case asm.LSh, asm.RSh, asm.ArSh:
		return d.shift(op, wide, a, b)
	case asm.Div, asm.Mod, asm.SDiv, asm.SMod:
		return d.divide(op, wide, a, b)
	case asm.And:
		return d.and(a, b, wide)
	}
	t, f := ringOp(op)
	if !wide {
		return d.fromLow(t(a.Bits.cast(d.low), b.Bits.cast(d.low), d.low), f(a.Low, b.Low, d.low))
	}
	return d.tidy(Scalar{t(a.Bits, b.Bits, d.wide), f(a.Wide, b.Wide, d.wide), f(a.Low, b.Low, d.low)})
}

// ringOp returns the operations whose lower bits depend on lower bits alone.
func ringOp(op asm.ALUOp) (func(a, b Tnum, w Width) Tnum, func(a, b Range, w Width) Range) {
	switch op {
	case asm.Add:
		return Tnum.add, Range.add
	case asm.Sub:
		return Tnum.sub, Range.sub
	case asm.Mul:
		return Tnum.mul, Range.mul
	case asm.Or:
		return func(a, b Tnum, _ Width) Tnum { return a.or(b) }, Range.or
	case asm.Xor:
		return func(a, b Tnum, _ Width) Tnum { return a.xor(b) }, func(_, _ Range, w Width) Range { return fullRange(w) }
	}
	panic("BUG: bound: arithmetic instruction was not decoded")
}

func (d domain) and(a, b Scalar, wide bool) Scalar {
	t, low := a.Bits.and(b.Bits), a.Low.and(b.Low, d.low)
	if !wide {
		return d.fromLow(t.cast(d.low), low)
	}
	return d.tidy(Scalar{t, a.Wide.and(b.Wide, d.wide), low})
}

// shift masks the count as eBPF does.
func (d domain) shift(op asm.ALUOp, wide bool, a, b Scalar) Scalar {
	w, t, r := d.wide, a.Bits, a.Wide
	if !wide {
		w, t, r = d.low, a.Bits.cast(d.low), a.Low
	}
	least, most := d.count(b, w)
	low := fullRange(d.low)
	var f func(Range, int, int, Width) Range
	switch op {
	case asm.LSh:
		f = Range.lsh
		if most < int(d.low) {
			low = a.Low.lsh(least, most, d.low)
		}
		if wide && least >= int(d.wide-d.low) { // nothing is left of the upper half
			r = a.Low
		}
	case asm.RSh:
		f = Range.rsh
	default:
		f = Range.arsh
	}
	r = f(r, least, most, w)
	bits := t.shift(op, least, w)
	for n := least + 1; n <= most; n++ {
		bits = bits.union(t.shift(op, n, w))
	}
	if !wide {
		return d.fromLow(bits, r)
	}
	return d.tidy(Scalar{bits, r, low})
}

// count limits the count of a shift of w bits.
func (d domain) count(b Scalar, w Width) (least, most int) {
	if w&(w-1) != 0 { // only in tests
		return 0, int(w) - 1
	}
	b = d.and(b, d.constant(uint64(w)-1), true)
	return int(b.Wide.UMin), int(b.Wide.UMax)
}

func (t Tnum) shift(op asm.ALUOp, n int, w Width) Tnum {
	switch op {
	case asm.LSh:
		return t.lsh(n, w)
	case asm.RSh:
		return t.rsh(n)
	}
	return t.arsh(n, w)
}

func (d domain) divide(op asm.ALUOp, wide bool, a, b Scalar) Scalar {
	w, t, x, y := d.wide, b.Bits, a.Wide, b.Wide
	if !wide {
		w, t, x, y = d.low, b.Bits.cast(d.low), a.Low, b.Low
	}
	known := Tnum{0, w.mask()}
	var r Range
	switch op {
	case asm.Div:
		r = x.div(y, w)
		if n, ok := log2(t); ok {
			known = a.Bits.cast(w).rsh(n)
		}
	case asm.Mod:
		r = x.mod(y, w)
		if _, ok := log2(t); ok {
			known = a.Bits.cast(w).and(tnumConst(t.Value - 1))
		}
	case asm.SDiv:
		r = x.sdiv(y, w)
	default:
		r = x.smod(y, w)
	}
	if !wide {
		return d.fromLow(known, r)
	}
	return d.tidy(Scalar{known, r, fullRange(d.low)})
}

// log2 is the exponent of a known power of two.
func log2(t Tnum) (int, bool) {
	if !t.Known() || t.Value == 0 || t.Value&(t.Value-1) != 0 {
		return 0, false
	}
	n := 0
	for t.Value>>n != 1 {
		n++
	}
	return n, true
}
