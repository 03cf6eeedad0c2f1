package bound

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// Scalar is a set of 64-bit numbers: those whose bits agree with Bits, that lie
// in Wide, and whose lower 32 bits lie in Low. It is comparable. The zero value
// is the number 0.
type Scalar struct {
	Bits Tnum
	Wide Range
	Low  Range
}

// domain is the pair of widths that a Scalar is about.
type domain struct{ wide, low Width }

var std = domain{64, 32}

// Const is one number.
func Const(v uint64) Scalar { return std.constant(v) }

// Unknown is every number.
func Unknown() Scalar { return std.unknown() }

// Between is every number from low to high, unsigned.
func Between(low, high uint64) Scalar { return std.between(low, high) }

// Bytes is what size bytes of memory can hold, extended to 64 bits.
func Bytes(size int, signed bool) Scalar {
	if signed {
		return std.signExtend(Unknown(), Width(8*size), true)
	}
	return Between(0, math.MaxUint64>>(64-8*size))
}

func (d domain) constant(v uint64) Scalar {
	return Scalar{tnumConst(v), constRange(v, d.wide), constRange(v, d.low)}
}

func (d domain) unknown() Scalar {
	return Scalar{Tnum{0, d.wide.mask()}, fullRange(d.wide), fullRange(d.low)}
}

func (d domain) between(low, high uint64) Scalar {
	s := d.unknown()
	s.Wide.UMin, s.Wide.UMax = low, high
	return d.tidy(s)
}

// Known returns the number if there is only one.
func (s Scalar) Known() (uint64, bool) { return s.Bits.Value, s.Bits.Known() }

// Is reports whether v is the only number.
func (s Scalar) Is(v uint64) bool { return s.Bits == tnumConst(v) }

// Contains reports whether v belongs to the set.
func (s Scalar) Contains(v uint64) bool { return std.contains(s, v) }

func (d domain) contains(s Scalar, v uint64) bool {
	return s.Bits.Contains(v) && s.Wide.contains(v, d.wide) && s.Low.contains(v&d.low.mask(), d.low)
}

// Within reports whether all of s belongs to o, as far as can be seen.
func (s Scalar) Within(o Scalar) bool {
	return s.Bits.within(o.Bits) && s.Wide.within(o.Wide) && s.Low.within(o.Low)
}

// Union is the numbers of both.
func (s Scalar) Union(o Scalar) Scalar {
	return Scalar{s.Bits.union(o.Bits), s.Wide.union(o.Wide), s.Low.union(o.Low)}
}

// Intersect is what belongs to both; false if nothing does.
func (s Scalar) Intersect(o Scalar) (Scalar, bool) { return std.intersect(s, o) }

func (d domain) intersect(s, o Scalar) (Scalar, bool) {
	b, ok := s.Bits.intersect(o.Bits)
	if !ok {
		return s, false
	}
	return d.reduce(Scalar{b, s.Wide.intersect(o.Wide), s.Low.intersect(o.Low)})
}

// tidy is reduce where the set cannot be empty. Operands whose limits
// contradict each other, so that they stand for nothing, can still lead to an
// empty result; every set is right then.
func (d domain) tidy(s Scalar) Scalar {
	if t, ok := d.reduce(s); ok {
		return t
	}
	return d.unknown()
}

// maxReductions bounds the rounds of reduce. Few are ever needed.
const maxReductions = 8

// reduce lets what is known in one form narrow the others. It reports false if
// nothing belongs to the set.
func (d domain) reduce(s Scalar) (Scalar, bool) {
	for range maxReductions {
		t := s
		if !d.fromBits(&t) {
			return t, false
		}
		agree(&t.Wide, d.wide)
		agree(&t.Low, d.low)
		d.lowFromWide(&t)
		d.wideFromLow(&t)
		if t.Wide.empty() || t.Low.empty() || !d.bitsFromRanges(&t) {
			return t, false
		}
		if t == s {
			break
		}
		s = t
	}
	return s, true
}

// fromBits takes limits from the known bits.
func (d domain) fromBits(s *Scalar) bool {
	s.Wide = s.Wide.intersect(bitsRange(s.Bits, d.wide))
	s.Low = s.Low.intersect(bitsRange(s.Bits.cast(d.low), d.low))
	return !s.Wide.empty() && !s.Low.empty()
}

func bitsRange(t Tnum, w Width) Range {
	sign := w.sign()
	return Range{
		t.Value, t.Value | t.Mask,
		w.signed(t.Value | t.Mask&sign), w.signed(t.Value | t.Mask&^sign),
	}
}

// agree lets unsigned and signed limits narrow each other, where one of them
// says that all numbers have the same sign.
func agree(r *Range, w Width) {
	if low, high := w.signed(r.UMin), w.signed(r.UMax); low <= high {
		r.SMin, r.SMax = max(r.SMin, low), min(r.SMax, high)
	}
	if low, high := uint64(r.SMin)&w.mask(), uint64(r.SMax)&w.mask(); low <= high {
		r.UMin, r.UMax = max(r.UMin, low), min(r.UMax, high)
		return
	}
	// Signed limits on both sides of zero leave out the middle of the unsigned
	// numbers, and the other way round.
	if most := uint64(r.SMax) & w.mask(); r.UMin > most {
		r.UMin = max(r.UMin, uint64(r.SMin)&w.mask())
	} else if least := uint64(r.SMin) & w.mask(); r.UMax < least {
		r.UMax = min(r.UMax, most)
	}
}

// lowFromWide limits the lower half where the upper half is the same throughout.
func (d domain) lowFromWide(s *Scalar) {
	low := func(v uint64) uint64 { return v & d.low.mask() }
	if s.Wide.UMin>>d.low == s.Wide.UMax>>d.low {
		s.Low.UMin, s.Low.UMax = max(s.Low.UMin, low(s.Wide.UMin)), min(s.Low.UMax, low(s.Wide.UMax))
		if a, b := d.low.signed(s.Wide.UMin), d.low.signed(s.Wide.UMax); a <= b {
			s.Low.SMin, s.Low.SMax = max(s.Low.SMin, a), min(s.Low.SMax, b)
		}
	}
	// Numbers from -2^31 to 2^31-1 are the same with 32 bits.
	if s.Wide.SMin >= d.low.least() && s.Wide.SMax <= d.low.most() {
		s.Low.SMin, s.Low.SMax = max(s.Low.SMin, s.Wide.SMin), min(s.Low.SMax, s.Wide.SMax)
	}
	if s.Wide.SMin>>d.low == s.Wide.SMax>>d.low {
		s.Low.UMin, s.Low.UMax = max(s.Low.UMin, low(uint64(s.Wide.SMin))), min(s.Low.UMax, low(uint64(s.Wide.SMax)))
	}
}

// wideFromLow moves limits to the next number whose lower half is possible.
func (d domain) wideFromLow(s *Scalar) {
	half := d.low.mask()
	s.Wide.UMin, s.Wide.UMax = max(s.Wide.UMin, s.Wide.UMin&^half|s.Low.UMin), min(s.Wide.UMax, s.Wide.UMax&^half|s.Low.UMax)
	s.Wide.SMin = max(s.Wide.SMin, s.Wide.SMin&^int64(half)|int64(s.Low.UMin))
	s.Wide.SMax = min(s.Wide.SMax, s.Wide.SMax&^int64(half)|int64(s.Low.UMax))
	if s.Wide.SMin >= d.low.least() && s.Wide.SMax <= d.low.most() {
		s.Wide.SMin, s.Wide.SMax = max(s.Wide.SMin, s.Low.SMin), min(s.Wide.SMax, s.Low.SMax)
	}
}

// bitsFromRanges takes known bits from the limits.
func (d domain) bitsFromRanges(s *Scalar) bool {
	wide, ok := s.Bits.intersect(tnumRange(s.Wide.UMin, s.Wide.UMax))
	if !ok {
		return false
	}
	low := tnumRange(s.Low.UMin, s.Low.UMax)
	low.Mask |= d.wide.mask() &^ d.low.mask()
	s.Bits, ok = wide.intersect(low)
	return ok
}

// Widen is a set with all numbers of s and next, where next is what s has grown
// to in a loop. The limits jump to the next of the given ones, which are sorted,
// so that a loop comes to rest soon. With no limits they jump to the last.
func (s Scalar) Widen(next Scalar, limits []int64) Scalar { return std.widen(s, next, limits) }

func (d domain) widen(s, next Scalar, limits []int64) Scalar {
	out := s.Union(next)
	out.Wide = widenRange(s.Wide, out.Wide, limits, d.wide)
	out.Low = widenRange(s.Low, out.Low, limits, d.low)
	if out.Bits != s.Bits {
		// Low bits that were always the same stay, as in a pointer that moves
		// by 8; the others are as free as the limits allow.
		free := d.wide.mask() &^ (out.Bits.Mask&-out.Bits.Mask - 1)
		if high := tnumRange(out.Wide.UMin, out.Wide.UMax).Mask; high != 0 {
			free &= high | out.Bits.Mask
		}
		out.Bits = Tnum{out.Bits.Value &^ free, out.Bits.Mask | free}
	}
	return d.tidy(out)
}

func widenRange(old, now Range, limits []int64, w Width) Range {
	if now.UMin < old.UMin {
		now.UMin = below(now.UMin, limits)
	}
	if now.UMax > old.UMax {
		now.UMax = above(now.UMax, limits, w)
	}
	if now.SMin < old.SMin {
		now.SMin = belowSigned(now.SMin, limits, w)
	}
	if now.SMax > old.SMax {
		now.SMax = aboveSigned(now.SMax, limits, w)
	}
	return now
}

// below is the largest limit that is not above v, and so on.
func below(v uint64, limits []int64) uint64 {
	best := uint64(0)
	for _, l := range limits {
		if l >= 0 && uint64(l) <= v {
			best = uint64(l)
		}
	}
	return best
}

func above(v uint64, limits []int64, w Width) uint64 {
	for _, l := range limits {
		if l >= 0 && uint64(l) >= v {
			return min(uint64(l), w.mask())
		}
	}
	return w.mask()
}

func belowSigned(v int64, limits []int64, w Width) int64 {
	best := w.least()
	for _, l := range limits {
		if l <= v {
			best = max(best, l)
		}
	}
	return best
}

func aboveSigned(v int64, limits []int64, w Width) int64 {
	for _, l := range limits {
		if l >= v {
			return min(l, w.most())
		}
	}
	return w.most()
}

// signExtend repeats bit n-1 of the lower n bits in all higher ones, or clears
// the upper half again for a 32-bit operation.
func (d domain) signExtend(s Scalar, n Width, wide bool) Scalar {
	out := d.unknown()
	out.Bits = s.Bits.extend(n, d.wide)
	out.Wide.SMin, out.Wide.SMax = n.least(), n.most()
	if s.Wide.SMin >= n.least() && s.Wide.SMax <= n.most() {
		out.Wide.SMin, out.Wide.SMax = s.Wide.SMin, s.Wide.SMax
	}
	if n == d.low {
		out.Wide.SMin, out.Wide.SMax = max(out.Wide.SMin, s.Low.SMin), min(out.Wide.SMax, s.Low.SMax)
	}
	out = d.tidy(out)
	if !wide {
		return d.zeroExtend(out)
	}
	return out
}

// zeroExtend clears the upper half.
func (d domain) zeroExtend(s Scalar) Scalar {
	return d.fromLow(s.Bits.cast(d.low), s.Low)
}

func (d domain) fromLow(t Tnum, low Range) Scalar {
	return d.tidy(Scalar{t, Range{low.UMin, low.UMax, 0, int64(low.UMax)}, low})
}

// swapBytes reverses the lower size bytes and clears the others.
func (t Tnum) swapBytes(size int) Tnum {
	n := 64 - 8*size
	return Tnum{bits.ReverseBytes64(t.Value << n), bits.ReverseBytes64(t.Mask << n)}.cast(Width(8 * size))
}

// Swap is a byte swap of size bytes, or where the order is right already, the
// truncation to them.
func Swap(s Scalar, size int, reverse bool) Scalar {
	switch {
	case reverse:
		out := Unknown()
		out.Bits = s.Bits.swapBytes(size)
		return std.tidy(out)
	case size == 8:
		return s
	}
	return std.and(s, Const(math.MaxUint64>>(64-8*size)), true)
}

// String is the kernel verifier's notation.
func (s Scalar) String() string {
	if v, ok := s.Known(); ok {
		return fmt.Sprint(int64(v))
	}
	var parts []string
	add := func(show bool, name string, v any) {
		if show {
			parts = append(parts, fmt.Sprintf("%s=%v", name, v))
		}
	}
	w, l := s.Wide, s.Low
	add(w.SMin != math.MinInt64, "smin", w.SMin)
	add(w.SMax != math.MaxInt64, "smax", w.SMax)
	add(w.UMin != 0, "umin", w.UMin)
	add(w.UMax != math.MaxUint64, "umax", w.UMax)
	add(l.SMin != math.MinInt32 && l.SMin != w.SMin, "smin32", l.SMin)
	add(l.SMax != math.MaxInt32 && l.SMax != w.SMax, "smax32", l.SMax)
	add(l.UMin != 0 && l.UMin != w.UMin, "umin32", l.UMin)
	add(l.UMax != math.MaxUint32 && l.UMax != w.UMax, "umax32", l.UMax)
	add(s.Bits.Mask != math.MaxUint64, "var_off", s.Bits)
	return "scalar(" + strings.Join(parts, ",") + ")"
}
