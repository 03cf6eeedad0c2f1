package bound

import "math/bits"

// Range limits numbers of some width, as unsigned and as signed ones: a number
// belongs to it if it lies between both pairs of limits.
type Range struct {
	UMin, UMax uint64
	SMin, SMax int64
}

func fullRange(w Width) Range { return Range{0, w.mask(), w.least(), w.most()} }

func constRange(v uint64, w Width) Range {
	v &= w.mask()
	return Range{v, v, w.signed(v), w.signed(v)}
}

func (r Range) contains(v uint64, w Width) bool {
	s := w.signed(v)
	return r.UMin <= v && v <= r.UMax && r.SMin <= s && s <= r.SMax
}

func (r Range) empty() bool { return r.UMin > r.UMax || r.SMin > r.SMax }

func (r Range) union(o Range) Range {
	return Range{min(r.UMin, o.UMin), max(r.UMax, o.UMax), min(r.SMin, o.SMin), max(r.SMax, o.SMax)}
}

func (r Range) intersect(o Range) Range {
	return Range{max(r.UMin, o.UMin), min(r.UMax, o.UMax), max(r.SMin, o.SMin), min(r.SMax, o.SMax)}
}

func (r Range) within(o Range) bool {
	return o.UMin <= r.UMin && r.UMax <= o.UMax && o.SMin <= r.SMin && r.SMax <= o.SMax
}

// unsigned and signedOnly are ranges of which only one pair is limited.
func unsigned(low, high uint64, w Width) Range { return Range{low, high, w.least(), w.most()} }
func signedOnly(low, high int64, w Width) Range {
	return Range{0, w.mask(), low, high}
}

// number is a sum, a difference or a product that may need more bits than w:
// high*2^64+low, in two's complement.
type number struct {
	high int64
	low  uint64
}

func signedNumber(v int64) number { return number{v >> 63, uint64(v)} }

func (a number) add(b number) number {
	low, carry := bits.Add64(a.low, b.low, 0)
	return number{a.high + b.high + int64(carry), low}
}

func (a number) sub(b number) number {
	low, borrow := bits.Sub64(a.low, b.low, 0)
	return number{a.high - b.high - int64(borrow), low}
}

func (a number) less(b number) bool {
	return a.high < b.high || a.high == b.high && a.low < b.low
}

// mulSigned multiplies two 64-bit numbers.
func mulSigned(a, b int64) number {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if a < 0 {
		high -= uint64(b)
	}
	if b < 0 {
		high -= uint64(a)
	}
	return number{int64(high), low}
}

// lap says how often w bits wrap around on the way from 0 to the number, or for
// signed numbers from the least one.
func (a number) lap(w Width) number {
	if w == 64 {
		return number{0, uint64(a.high)}
	}
	return number{a.high >> w, a.low>>w | uint64(a.high)<<(64-w)}
}

// wrapUnsigned limits the lower bits of all numbers between two: they keep
// their order unless one of them wraps more often than another.
func wrapUnsigned(low, high number, w Width) (uint64, uint64) {
	if low.lap(w) != high.lap(w) {
		return 0, w.mask()
	}
	return low.low & w.mask(), high.low & w.mask()
}

func wrapSigned(low, high number, w Width) (int64, int64) {
	bias := number{0, w.sign()}
	if low.add(bias).lap(w) != high.add(bias).lap(w) {
		return w.least(), w.most()
	}
	return w.signed(low.low), w.signed(high.low)
}

func (r Range) add(o Range, w Width) (out Range) {
	out.UMin, out.UMax = wrapUnsigned(number{0, r.UMin}.add(number{0, o.UMin}), number{0, r.UMax}.add(number{0, o.UMax}), w)
	out.SMin, out.SMax = wrapSigned(signedNumber(r.SMin).add(signedNumber(o.SMin)), signedNumber(r.SMax).add(signedNumber(o.SMax)), w)
	return out
}

func (r Range) sub(o Range, w Width) (out Range) {
	out.UMin, out.UMax = wrapUnsigned(number{0, r.UMin}.sub(number{0, o.UMax}), number{0, r.UMax}.sub(number{0, o.UMin}), w)
	out.SMin, out.SMax = wrapSigned(signedNumber(r.SMin).sub(signedNumber(o.SMax)), signedNumber(r.SMax).sub(signedNumber(o.SMin)), w)
	return out
}

func (r Range) mul(o Range, w Width) (out Range) {
	product := func(a, b uint64) number {
		high, low := bits.Mul64(a, b)
		return number{int64(high), low}
	}
	out.UMin, out.UMax = wrapUnsigned(product(r.UMin, o.UMin), product(r.UMax, o.UMax), w)
	low := mulSigned(r.SMin, o.SMin)
	high := low
	for _, p := range []number{mulSigned(r.SMin, o.SMax), mulSigned(r.SMax, o.SMin), mulSigned(r.SMax, o.SMax)} {
		if p.less(low) {
			low = p
		}
		if high.less(p) {
			high = p
		}
	}
	out.SMin, out.SMax = wrapSigned(low, high, w)
	return out
}

// and, or: the limits that do not follow from the bits alone.
func (r Range) and(o Range, w Width) Range { return unsigned(0, min(r.UMax, o.UMax), w) }
func (r Range) or(o Range, w Width) Range  { return unsigned(max(r.UMin, o.UMin), w.mask(), w) }

// Shifts take the limits of the count, which are less than w.

func (r Range) lsh(least, most int, w Width) Range {
	out := fullRange(w)
	if bits.Len64(r.UMax)+most <= int(w) {
		out.UMin, out.UMax = r.UMin<<least, r.UMax<<most
	}
	fits := func(v int64) bool { return w.signed(uint64(v)<<most)>>most == v }
	if fits(r.SMin) && fits(r.SMax) {
		out.SMin, out.SMax = min(r.SMin<<least, r.SMin<<most), max(r.SMax<<least, r.SMax<<most)
	}
	return out
}

func (r Range) rsh(least, most int, w Width) Range {
	return unsigned(r.UMin>>most, r.UMax>>least, w)
}

func (r Range) arsh(least, most int, w Width) Range {
	return signedOnly(min(r.SMin>>least, r.SMin>>most), max(r.SMax>>least, r.SMax>>most), w)
}

// div divides as eBPF does: by zero gives 0 (RFC 9669, 4.1).
func (r Range) div(o Range, w Width) Range {
	if o.UMax == 0 {
		return unsigned(0, 0, w)
	}
	low := r.UMin / o.UMax
	if o.UMin == 0 {
		low = 0
	}
	return unsigned(low, r.UMax/max(1, o.UMin), w)
}

// mod gives the dividend where the divisor is zero.
func (r Range) mod(o Range, w Width) Range {
	switch {
	case r.UMax < o.UMin || o.UMax == 0:
		return r
	case o.UMin == 0:
		return unsigned(0, r.UMax, w)
	}
	return unsigned(0, min(r.UMax, o.UMax-1), w)
}

// sdiv divides the limits by those of the negative and of the positive
// divisors: between these the quotient rises or falls throughout.
func (r Range) sdiv(o Range, w Width) Range {
	if r.SMin == w.least() && o.SMin <= -1 && -1 <= o.SMax {
		return fullRange(w) // the least number divided by -1 overflows
	}
	out := Range{SMin: w.most(), SMax: w.least()}
	take := func(v int64) { out.SMin, out.SMax = min(out.SMin, v), max(out.SMax, v) }
	divide := func(low, high int64) {
		if low <= high {
			take(r.SMin / low)
			take(r.SMin / high)
			take(r.SMax / low)
			take(r.SMax / high)
		}
	}
	divide(o.SMin, min(o.SMax, -1))
	divide(max(o.SMin, 1), o.SMax)
	if o.SMin <= 0 && 0 <= o.SMax {
		take(0)
	}
	return signedOnly(out.SMin, out.SMax, w)
}

// smod has the dividend's sign, and is nearer to zero than the divisor.
func (r Range) smod(o Range, w Width) Range {
	if o.SMin <= 0 && 0 <= o.SMax {
		return signedOnly(min(0, r.SMin), max(0, r.SMax), w)
	}
	// The least number has no absolute value, but its complement is one less.
	most := max(^o.SMin, o.SMax-1)
	return signedOnly(max(min(0, r.SMin), -most), min(max(0, r.SMax), most), w)
}
