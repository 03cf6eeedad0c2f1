// Package bound computes with what is known about numbers: which bits they
// have, and between which limits they lie. It is the arithmetic of the eBPF
// verifier and knows no registers and no programs.
//
// A Scalar stands for a set of 64-bit numbers. Every operation returns a set
// that holds each result that a member of one operand and a member of the
// other can give; it may hold more. The representation is the one that the
// kernel's documentation describes (Documentation/bpf/verifier.rst, "Register
// value tracking"): a tnum, and signed and unsigned limits of all 64 bits and
// of the lower 32.
//
// The arithmetic is written for any two widths, so that tests can compare it
// with all numbers of a few bits; programs use 64 and 32.
package bound

import (
	"fmt"
	"math/bits"
)

// Width is a number of bits, 1 to 64.
type Width uint8

// mask has the width's bits set.
func (w Width) mask() uint64 { return ^uint64(0) >> (64 - w) }

// sign is the width's highest bit.
func (w Width) sign() uint64 { return 1 << (w - 1) }

// signed reads the lower bits as a two's complement number.
func (w Width) signed(v uint64) int64 { return int64(v<<(64-w)) >> (64 - w) }

// least and most are the limits of signed numbers.
func (w Width) least() int64 { return w.signed(w.sign()) }
func (w Width) most() int64  { return int64(w.mask() >> 1) }

// Tnum says of each bit whether it is 0, 1 or unknown: a number x belongs to it
// if x&^Mask == Value. No bit is set in both.
type Tnum struct{ Value, Mask uint64 }

func tnumConst(v uint64) Tnum { return Tnum{v, 0} }

// tnumRange is the smallest tnum with all numbers between two.
func tnumRange(low, high uint64) Tnum {
	m := ^uint64(0) >> bits.LeadingZeros64(low^high)
	if low == high {
		m = 0
	}
	return Tnum{low &^ m, m}
}

// Known reports whether only one number belongs to it.
func (t Tnum) Known() bool { return t.Mask == 0 }

// Contains reports whether v belongs to it.
func (t Tnum) Contains(v uint64) bool { return v&^t.Mask == t.Value }

// String is the kernel's notation: known bits, then unknown ones.
func (t Tnum) String() string { return fmt.Sprintf("(%#x; %#x)", t.Value, t.Mask) }

// within reports whether all that belongs to t belongs to o.
func (t Tnum) within(o Tnum) bool { return t.Mask&^o.Mask == 0 && (t.Value^o.Value)&^o.Mask == 0 }

// cast keeps the lower bits.
func (t Tnum) cast(w Width) Tnum { return Tnum{t.Value & w.mask(), t.Mask & w.mask()} }

func (t Tnum) union(o Tnum) Tnum {
	m := t.Mask | o.Mask | (t.Value ^ o.Value)
	return Tnum{t.Value &^ m, m}
}

// intersect reports false if nothing belongs to both.
func (t Tnum) intersect(o Tnum) (Tnum, bool) {
	if (t.Value^o.Value)&^(t.Mask|o.Mask) != 0 {
		return t, false
	}
	m := t.Mask & o.Mask
	return Tnum{(t.Value | o.Value) &^ m, m}, true
}

// add lets carries be unknown where they differ between the smallest and the
// largest sum.
func (t Tnum) add(o Tnum, w Width) Tnum {
	low := t.Value + o.Value
	high := low + t.Mask + o.Mask
	m := (low ^ high | t.Mask | o.Mask) & w.mask()
	return Tnum{low & w.mask() &^ m, m}
}

// sub does the same with the smallest and the largest difference.
func (t Tnum) sub(o Tnum, w Width) Tnum {
	d := t.Value - o.Value
	m := ((d - o.Mask) ^ (d + t.Mask) | t.Mask | o.Mask) & w.mask()
	return Tnum{d & w.mask() &^ m, m}
}

func (t Tnum) and(o Tnum) Tnum {
	v := t.Value & o.Value
	return Tnum{v, (t.Value | t.Mask) & (o.Value | o.Mask) &^ v}
}

func (t Tnum) or(o Tnum) Tnum {
	v := t.Value | o.Value
	return Tnum{v, (t.Mask | o.Mask) &^ v}
}

func (t Tnum) xor(o Tnum) Tnum {
	m := t.Mask | o.Mask
	return Tnum{(t.Value ^ o.Value) &^ m, m}
}

// mul adds o, shifted, for each bit of t that is set, and lets it be added or
// not for each that is unknown.
func (t Tnum) mul(o Tnum, w Width) Tnum {
	if t.Known() && o.Known() {
		return tnumConst(t.Value * o.Value & w.mask())
	}
	if bits.OnesCount64(t.Value|t.Mask) > bits.OnesCount64(o.Value|o.Mask) {
		t, o = o, t
	}
	var sum Tnum
	for may := t.Value | t.Mask; may != 0; may &= may - 1 {
		i := bits.TrailingZeros64(may)
		more := sum.add(o.lsh(i, w), w)
		if t.Mask>>i&1 != 0 {
			more = more.union(sum)
		}
		sum = more
	}
	return sum
}

func (t Tnum) lsh(n int, w Width) Tnum { return Tnum{t.Value << n, t.Mask << n}.cast(w) }
func (t Tnum) rsh(n int) Tnum          { return Tnum{t.Value >> n, t.Mask >> n} }

// arsh repeats the sign bit, be it known or not.
func (t Tnum) arsh(n int, w Width) Tnum {
	return Tnum{uint64(w.signed(t.Value) >> n), uint64(w.signed(t.Mask) >> n)}.cast(w)
}

// extend copies bit n-1 into all higher bits.
func (t Tnum) extend(n, w Width) Tnum {
	return Tnum{uint64(n.signed(t.Value)), uint64(n.signed(t.Mask))}.cast(w)
}
