package bound

import (
	"fmt"
	"math/rand/v2"

	"github.com/cilium/ebpf/asm"
)

// What the instructions do to single numbers of any width, from RFC 9669, 4.1
// to 4.3. Results of narrow operations have a zero upper half.

var aluOps = []asm.ALUOp{
	asm.Add, asm.Sub, asm.Mul, asm.Div, asm.SDiv, asm.Mod, asm.SMod, asm.Or, asm.And, asm.Xor,
	asm.LSh, asm.RSh, asm.ArSh, asm.Neg, asm.Mov,
}

var jumpOps = []asm.JumpOp{
	asm.JEq, asm.JNE, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSet, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE,
}

func (d domain) width(wide bool) Width {
	if wide {
		return d.wide
	}
	return d.low
}

func (d domain) compute(op asm.ALUOp, wide bool, x, y uint64) uint64 {
	w := d.width(wide)
	x, y = x&w.mask(), y&w.mask()
	sx, sy := w.signed(x), w.signed(y)
	count := y % uint64(w) // where w is a power of two, as it is in programs
	var v uint64
	switch op {
	case asm.Add:
		v = x + y
	case asm.Sub:
		v = x - y
	case asm.Mul:
		v = x * y
	case asm.Or:
		v = x | y
	case asm.And:
		v = x & y
	case asm.Xor:
		v = x ^ y
	case asm.LSh:
		v = x << count
	case asm.RSh:
		v = x >> count
	case asm.ArSh:
		v = uint64(sx >> count)
	case asm.Neg:
		v = -x
	case asm.Mov:
		v = y
	case asm.Div:
		if y != 0 {
			v = x / y
		}
	case asm.Mod:
		if v = x; y != 0 {
			v = x % y
		}
	case asm.SDiv:
		if sy == -1 {
			v = -x
		} else if sy != 0 {
			v = uint64(sx / sy)
		}
	case asm.SMod:
		if v = x; sy == -1 {
			v = 0
		} else if sy != 0 {
			v = uint64(sx % sy)
		}
	default:
		panic(fmt.Sprint("no such operation ", op))
	}
	return v & w.mask()
}

func (d domain) taken(op asm.JumpOp, wide bool, x, y uint64) bool {
	w := d.width(wide)
	x, y = x&w.mask(), y&w.mask()
	sx, sy := w.signed(x), w.signed(y)
	switch op {
	case asm.JEq:
		return x == y
	case asm.JNE:
		return x != y
	case asm.JGT:
		return x > y
	case asm.JGE:
		return x >= y
	case asm.JLT:
		return x < y
	case asm.JLE:
		return x <= y
	case asm.JSet:
		return x&y != 0
	case asm.JSGT:
		return sx > sy
	case asm.JSGE:
		return sx >= sy
	case asm.JSLT:
		return sx < sy
	case asm.JSLE:
		return sx <= sy
	}
	panic(fmt.Sprint("no such jump ", op))
}

// best is the smallest Scalar, form by form, with some numbers.
func (d domain) best(numbers []uint64) Scalar {
	s := d.constant(numbers[0])
	for _, v := range numbers[1:] {
		s = s.Union(d.constant(v))
	}
	return s
}

// members lists the numbers of a set; only for small widths.
func (d domain) members(s Scalar) (all []uint64) {
	for v := range d.wide.mask() + 1 {
		if d.contains(s, v) {
			all = append(all, v)
		}
	}
	return all
}

// random is a set that holds the numbers it was made of. Now and then it is
// larger than it needs to be, in one of its forms.
func (d domain) random(r *rand.Rand) (Scalar, []uint64) {
	numbers := make([]uint64, 1+r.IntN(4))
	for i := range numbers {
		numbers[i] = d.number(r)
		if i > 0 && r.IntN(2) == 0 { // near the one before
			numbers[i] = (numbers[i-1] + uint64(r.IntN(9)) - 4) & d.wide.mask()
		}
	}
	s, full := d.best(numbers), d.unknown()
	switch r.IntN(6) {
	case 0:
		s.Bits = full.Bits
	case 1:
		s.Wide = full.Wide
	case 2:
		s.Low = full.Low
	case 3:
		s.Bits, s.Low = full.Bits, full.Low
	case 4:
		s.Wide.UMin, s.Wide.UMax = full.Wide.UMin, full.Wide.UMax
	}
	if r.IntN(2) == 0 {
		s = d.tidy(s)
	}
	return s, numbers
}

// number prefers those at borders.
func (d domain) number(r *rand.Rand) uint64 {
	m := d.wide.mask()
	switch r.IntN(4) {
	case 0:
		return r.Uint64() & m
	case 1:
		return uint64(r.IntN(9)-4) & m
	case 2:
		return (uint64(1)<<r.IntN(int(d.wide)) + uint64(r.IntN(3)) - 1) & m
	}
	return (d.low.mask() ^ uint64(r.IntN(5)) + d.low.sign()*uint64(r.IntN(2))) & m
}
