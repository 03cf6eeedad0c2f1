package lang

import (
	"math"
	"math/bits"
)

// Values that are known at compile time. Between literals the mathematical
// value counts: it is an error when no 64 bits hold it. Where a cast or a
// parameter's type takes part, the value is what the program would compute.

const errFold = "the value of this expression does not fit 64 bits"

// number is a literal: a magnitude and a sign.
type number struct {
	neg bool
	mag uint64 // 0 < mag <= 1<<63 where neg
}

func literalNumber(b *exprBase) number {
	if b.negative() {
		return number{true, -b.con.u}
	}
	return number{mag: b.con.u}
}

// set makes the expression a literal of the value, or fails if no integer
// type holds it.
func (b *exprBase) set(n number) bool {
	if n.mag == 0 || !n.neg {
		b.setLiteral(literalType(n.mag), n.mag)
		return true
	}
	if n.mag > 1<<63 {
		return false
	}
	b.setLiteral(negativeType(-int64(n.mag)), -n.mag)
	return true
}

func (c *checker) foldUnary(x *unaryExpr) {
	in := x.x.base()
	if !in.con.known || x.typ.Kind == bad {
		return
	}
	ok := true
	switch {
	case x.op == '!':
		literal := in.con.literal
		x.con = constant{known: true, literal: literal, u: b2u(in.con.u == 0)}
	case !in.con.literal && x.op == '-':
		x.con = constant{known: true, u: -in.con.u}
	case !in.con.literal:
		x.con = constant{known: true, u: ^in.con.u}
	case x.op == '~':
		ok = x.set(number{mag: ^in.con.u})
	default:
		n := literalNumber(in)
		n.neg = !n.neg
		ok = x.set(n)
	}
	if !ok {
		c.diags.Errorf(x.span, errFold)
		x.typ = badType
	}
}

func (c *checker) foldBinary(x *binaryExpr) {
	a, b := x.x.base(), x.y.base()
	if x.typ.Kind == bad || x.typ.Kind == Pointer || !a.typ.isScalar() && a.typ.Kind != String {
		return
	}
	switch {
	case a.typ.Kind == String && !(a.con.known && b.con.known):
		return
	case a.typ.Kind == String:
		x.con = constant{known: true, literal: true, u: b2u((a.con.s == b.con.s) == (x.op == tokEq))}
		return
	case b.con.known:
		c.lookAtRight(x, b)
	}
	if !a.con.known || !b.con.known {
		return
	}
	if !a.con.literal || !b.con.literal || a.typ.Kind != Int || b.typ.Kind != Int {
		literal := a.con.literal && b.con.literal
		x.con = constant{known: true, literal: literal, u: evalBinary(x.op, x.typ, a, b)}
		return
	}
	if x.typ.Kind == Bool {
		x.setLiteral(boolType, b2u(compareNumbers(x.op, literalNumber(a), literalNumber(b))))
		return
	}
	if n, ok := foldNumbers(x.op, literalNumber(a), literalNumber(b)); !ok || !x.set(n) {
		why := errFold
		if (x.op == '/' || x.op == '%') && b.con.u == 0 {
			why = "division by zero"
		}
		if x.op == tokShl || x.op == tokShr {
			why = "a literal is shifted by 0 to 63 bits"
		}
		c.diags.Errorf(x.span, "%s", why)
		x.typ = badType
	}
}

// lookAtRight warns of a right operand that cannot be meant.
func (c *checker) lookAtRight(x *binaryExpr, b *exprBase) {
	if x.x.base().con.literal {
		return // an error, where it matters
	}
	switch {
	case (x.op == '/' || x.op == '%') && b.con.u == 0:
		c.diags.Warnf(b.span, "division by zero")
	case (x.op == tokShl || x.op == tokShr) && b.con.u > 63:
		c.diags.Warnf(b.span, "shift counts are taken modulo 64")
	}
}

// compareNumbers compares literals by their mathematical value.
func compareNumbers(op tokenKind, a, b number) bool {
	cmp := 0
	switch {
	case a.neg != b.neg:
		cmp = 1
		if a.neg {
			cmp = -1
		}
	case a.mag != b.mag:
		cmp = 1
		if (a.mag < b.mag) != a.neg {
			cmp = -1
		}
	}
	switch op {
	case tokEq:
		return cmp == 0
	case tokNe:
		return cmp != 0
	case '<':
		return cmp < 0
	case '>':
		return cmp > 0
	case tokLe:
		return cmp <= 0
	case tokGe:
		return cmp >= 0
	case tokAndAnd:
		return a.mag != 0 && b.mag != 0
	}
	return a.mag != 0 || b.mag != 0 // tokOrOr
}

// foldNumbers computes with literals; it fails where 64 bits do not hold the
// result.
func foldNumbers(op tokenKind, a, b number) (number, bool) {
	switch op {
	case '+':
		return addNumbers(a, b)
	case '-':
		return addNumbers(a, number{!b.neg, b.mag})
	case '*':
		high, low := bits.Mul64(a.mag, b.mag)
		return number{a.neg != b.neg, low}, high == 0
	case '/':
		if b.mag == 0 {
			return a, false
		}
		return number{a.neg != b.neg, a.mag / b.mag}, true
	case '%':
		if b.mag == 0 {
			return a, false
		}
		return number{a.neg, a.mag % b.mag}, true
	}
	// The others work on bits. A mix of a negative value and one that only a
	// uint64 holds has no type.
	if a.neg && b.mag > math.MaxInt64 && !b.neg || b.neg && a.mag > math.MaxInt64 && !a.neg {
		return a, false
	}
	return bitNumbers(op, a, b)
}

func addNumbers(a, b number) (number, bool) {
	if a.neg == b.neg {
		sum, carry := bits.Add64(a.mag, b.mag, 0)
		return number{a.neg, sum}, carry == 0
	}
	if a.mag >= b.mag {
		return number{a.neg, a.mag - b.mag}, true
	}
	return number{b.neg, b.mag - a.mag}, true
}

func bitNumbers(op tokenKind, a, b number) (number, bool) {
	signed := a.neg || b.neg
	x, y := a.word(), b.word()
	switch op {
	case '&':
		x &= y
	case '|':
		x |= y
	case '^':
		x ^= y
	case tokShl, tokShr:
		if b.neg || b.mag > 63 {
			return a, false
		}
		if op == tokShl {
			x <<= y
			break
		}
		if signed {
			x = uint64(int64(x) >> y)
		} else {
			x >>= y
		}
	}
	if signed && int64(x) < 0 {
		return number{true, -x}, true
	}
	return number{mag: x}, true
}

func (n number) word() uint64 {
	if n.neg {
		return -n.mag
	}
	return n.mag
}

// evalBinary computes what a program would, from operands whose values are
// known. Typ is the type of the result.
func evalBinary(op tokenKind, typ Type, a, b *exprBase) uint64 {
	x, y := a.con.u, b.con.u
	switch op {
	case '+':
		x += y
	case '-':
		x -= y
	case '*':
		x *= y
	case '/', '%':
		x = divide(op, x, y, typ.Signed)
	case '&':
		x &= y
	case '|':
		x |= y
	case '^':
		x ^= y
	case tokShl:
		x <<= y & 63
	case tokShr:
		x >>= y & 63
	default:
		return b2u(compareWords(op, x, y, signedComparison(a.typ, b.typ)))
	}
	return typ.truncate(x)
}

// divide is the division of RFC 9669, 4.1, but for that by zero, which gives 1 as in
// bpftrace.
func divide(op tokenKind, x, y uint64, signed bool) uint64 {
	switch {
	case y == 0:
		return 1
	case !signed && op == '/':
		return x / y
	case !signed:
		return x % y
	case int64(y) == -1 && op == '/': // also where Go's division would overflow
		return -x
	case int64(y) == -1:
		return 0
	case op == '/':
		return uint64(int64(x) / int64(y))
	}
	return uint64(int64(x) % int64(y))
}

func compareWords(op tokenKind, x, y uint64, signed bool) bool {
	switch op {
	case tokEq:
		return x == y
	case tokNe:
		return x != y
	case tokAndAnd:
		return x != 0 && y != 0
	case tokOrOr:
		return x != 0 || y != 0
	}
	if signed {
		x ^= 1 << 63 // moves the signed order onto the unsigned one
		y ^= 1 << 63
	}
	switch op {
	case '<':
		return x < y
	case '>':
		return x > y
	case tokLe:
		return x <= y
	}
	return x >= y // tokGe
}
