package plan

import (
	"math"
	"slices"
	"sort"

	"trapless/internal/abi"
)

// alignment of detours where the window leaves the choice: a fetch block.
const alignment = 16

// need is what a byte of rel32 must be.
type need struct {
	kind  needKind
	value byte
}

type needKind uint8

const (
	anyByte needKind = iota
	trapByte
	thisByte // value
)

// jumpBase is the address from which the window's rel32 counts.
func (w *Window) jumpBase() abi.Addr {
	switch {
	case w.Call:
		return w.End()
	case w.Cave != 0:
		return w.Cave + jmpLen
	}
	return w.Start + jmpLen
}

// NeedsBoard reports whether the window may jump to so few addresses that a
// springboard is needed there.
func (w *Window) NeedsBoard() bool {
	return slices.ContainsFunc(w.need[:], func(n need) bool { return n.kind == thisByte })
}

// firstIn is the first place for size bytes in a range that the window allows
// and from which its instructions have everything in reach.
func (w *Window) firstIn(r abi.Range, size int) (abi.Addr, bool) {
	return w.firstAllowed(intersect(r, w.reach), size)
}

// firstAllowed is the first place for size bytes in a range that the window
// allows.
func (w *Window) firstAllowed(r abi.Range, size int) (abi.Addr, bool) {
	if r.Len() < uint64(size) {
		return 0, false
	}
	at, ok := w.next(r.Start)
	if !ok || at > r.End-abi.Addr(size) {
		return 0, false
	}
	if aligned := (at + alignment - 1) &^ (alignment - 1); aligned <= r.End-abi.Addr(size) && w.Allows(aligned) {
		return aligned, true
	}
	return at, true
}

// next is the first address at or above a that the window allows.
func (w *Window) next(a abi.Addr) (abi.Addr, bool) {
	rel := int64(a - w.jumpBase())
	if rel > math.MaxInt32 {
		return 0, false
	}
	digits, ok := w.nextDigits(digitsOf(max(rel, math.MinInt32)))
	return w.jumpBase() + abi.Addr(digits.rel()), ok
}

// digits are the bytes of a rel32, lowest first, as a number that grows with
// it: the sign bit is turned over.
type digits [4]byte

const sign = 0x80

func digitsOf(rel int64) digits {
	return digits{byte(rel), byte(rel >> 8), byte(rel >> 16), byte(rel>>24) ^ sign}
}

func (d digits) rel() int64 {
	return int64(int32(uint32(d[0]) | uint32(d[1])<<8 | uint32(d[2])<<16 | uint32(d[3]^sign)<<24))
}

// nextDigits is the smallest number not below d whose constrained digits trap.
func (w *Window) nextDigits(d digits) (digits, bool) {
	for i := len(d) - 1; i >= 0; i-- {
		if w.fits(i, d[i]) {
			continue
		}
		// The digits above stay if this one can be raised, else they are
		// raised themselves; those below become as small as possible.
		for ; i < len(d); i++ {
			if v, ok := w.raise(i, d[i]); ok {
				d[i] = v
				for k := range i {
					d[k] = w.least(k)
				}
				return d, true
			}
		}
		return d, false
	}
	return d, true
}

// fits reports whether digit i may be v.
func (w *Window) fits(i int, v byte) bool {
	if i == 3 {
		v ^= sign
	}
	return w.need[i].allows(v)
}

func (n need) allows(v byte) bool {
	switch n.kind {
	case trapByte:
		return trapping[v]
	case thisByte:
		return v == n.value
	}
	return true
}

// raise is the smallest value above v that digit i may have.
func (w *Window) raise(i int, v byte) (byte, bool) {
	if v == math.MaxUint8 {
		return 0, false
	}
	return w.need[i].from(i, v+1)
}

// least is the smallest value that digit i may have: each kind of need allows one.
func (w *Window) least(i int) byte {
	v, _ := w.need[i].from(i, 0)
	return v
}

// from is the smallest value of digit i not below v that the need allows.
func (n need) from(i int, v byte) (byte, bool) {
	switch n.kind {
	case trapByte:
		next := nextTrap[i/3][v]
		return byte(next), next <= math.MaxUint8
	case thisByte:
		value := n.value
		if i == 3 {
			value ^= sign
		}
		return value, value >= v
	}
	return v, true
}

// nextTrap has for each value the smallest one not below it that is a trapping
// byte, or 256: for the lower digits, and for the highest.
var nextTrap = func() (next [2][256]uint16) {
	for top, turn := range []byte{0, sign} {
		found := uint16(256)
		for v := 255; v >= 0; v-- {
			if trapping[byte(v)^turn] {
				found = uint16(v)
			}
			next[top][v] = found
		}
	}
	return next
}()

// firstAmong is the first place for size bytes in ascending ranges, as far as they
// lie in r, that the window allows. It leaps from one allowed address to the next,
// because there may be thousands of ranges and few of those.
func (w *Window) firstAmong(list []abi.Range, r abi.Range, size int) (abi.Addr, bool) {
	for from := r.Start; ; {
		at, ok := w.next(from)
		if !ok || at >= r.End {
			return 0, false
		}
		i := sort.Search(len(list), func(i int) bool { return list[i].End > at })
		if i == len(list) {
			return 0, false
		}
		part := intersect(list[i], r)
		if part.Start >= r.End {
			return 0, false
		}
		if at, ok := w.firstAllowed(part, size); ok {
			return at, true
		}
		from = part.End
	}
}
