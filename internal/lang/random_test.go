package lang

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// oracle makes random expressions and computes them in Go, by the rules of the
// language's documents and none of the compiler's code.
type oracle struct {
	*rand.Rand
	args [6]uint64
	vars int // variables $v0, ... that hold the arguments

	constants bool // write the arguments' values instead of their names
}

// term is an expression with its value. The value of a narrow type is kept
// extended to 64 bits.
type term struct {
	text    string
	bits    int
	signed  bool
	flex    bool // a literal that is not negative
	boolean bool
	v       uint64
}

// is puts a value into the type's range.
func (t term) is(v uint64) term {
	switch {
	case t.boolean:
		t.v = 0
		if v != 0 {
			t.v = 1
		}
	case t.signed && t.bits == 8:
		t.v = uint64(int8(v))
	case t.signed && t.bits == 16:
		t.v = uint64(int16(v))
	case t.signed && t.bits == 32:
		t.v = uint64(int32(v))
	case t.bits == 8:
		t.v = uint64(uint8(v))
	case t.bits == 16:
		t.v = uint64(uint16(v))
	case t.bits == 32:
		t.v = uint64(uint32(v))
	default:
		t.v = v
	}
	return t
}

func (o *oracle) leaf() term {
	n := o.IntN(6)
	t := term{text: fmt.Sprintf("arg%d", n), bits: 64, v: o.args[n]}
	if o.constants {
		t.text = fmt.Sprintf("(uint64)%d", o.args[n])
	} else if n < o.vars {
		t.text = fmt.Sprintf("$v%d", n)
	}
	if o.IntN(2) == 0 {
		return o.cast(t)
	}
	return t
}

func (o *oracle) literal() term {
	v := o.Uint64() >> (1 + o.IntN(63))
	return term{text: fmt.Sprint(v), bits: max(8, 1<<bits.Len(uint(bits.Len64(v)))), signed: true, flex: true, v: v}
}

func (o *oracle) cast(x term) term {
	if o.IntN(12) == 0 {
		return term{text: "(bool)" + x.text, bits: 8, boolean: true}.is(x.v)
	}
	t := term{bits: 8 << o.IntN(4), signed: o.IntN(2) == 0}
	name := fmt.Sprintf("int%d", t.bits)
	if !t.signed {
		name = "u" + name
	}
	t.text = fmt.Sprintf("(%s)%s", name, x.text)
	return t.is(x.v)
}

// expr makes an expression that is no literal.
func (o *oracle) expr(depth int) term {
	if depth == 0 {
		return o.leaf()
	}
	switch o.IntN(10) {
	case 0:
		return o.unary(o.expr(depth - 1))
	case 1:
		x := o.expr(depth - 1)
		x.text = "(" + x.text + ")"
		return o.cast(x)
	case 2:
		return o.choice(o.expr(depth-1), o.expr(depth-1), o.expr(depth-1))
	}
	a, b := o.expr(depth-1), o.expr(depth-1-o.IntN(depth))
	switch o.IntN(6) {
	case 0:
		a = o.literal()
	case 1:
		b = o.literal()
	}
	return o.binary(a, b)
}

func (o *oracle) unary(x term) term {
	t := term{bits: 64, signed: x.signed}
	switch op := o.IntN(3); {
	case op == 0 || x.boolean:
		t = term{bits: 8, boolean: true}
		t.text = "!(" + x.text + ")"
		if x.v == 0 {
			t.v = 1
		}
	case op == 1:
		t.text, t.v = "-("+x.text+")", -x.v
	default:
		t.text, t.v = "~("+x.text+")", ^x.v
	}
	return t
}

func (o *oracle) choice(c, x, y term) term {
	if x.boolean != y.boolean {
		x, y = o.unary(x), o.unary(y)
		for !x.boolean {
			x = o.unary(x)
		}
		for !y.boolean {
			y = o.unary(y)
		}
	}
	t := term{text: fmt.Sprintf("((%s) ? (%s) : (%s))", c.text, x.text, y.text), boolean: x.boolean}
	t.signed = x.signed || y.signed // wide enough for both, since values are kept extended
	t.v = y.v
	if c.v != 0 {
		t.v = x.v
	}
	t.bits = 64
	if x.boolean {
		t.bits = 8
	} else if x.bits == y.bits && x.signed == y.signed {
		t.bits = x.bits
	} else if b := max(x.bits, y.bits); x.signed == y.signed {
		t.bits = b
	} else if x.signed && x.bits > y.bits || y.signed && y.bits > x.bits {
		t.bits = b
	} else {
		t.bits = min(64, 2*b)
	}
	return t
}

func (o *oracle) binary(a, b term) term {
	as, bs := a.signed, b.signed
	if a.flex {
		as = bs && !b.boolean
	}
	if b.flex {
		bs = as && !a.boolean
	}
	if a.flex && b.boolean {
		as = true
	}
	if b.flex && a.boolean {
		bs = true
	}
	signed := as || bs
	ops := []string{"+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "==", "!=", "<", ">", "<=", ">=", "&&", "||"}
	op := ops[o.IntN(len(ops))]
	t := term{text: fmt.Sprintf("((%s) %s (%s))", a.text, op, b.text), bits: 64, signed: signed || op == "-"}
	x, y := a.v, b.v
	truth := func(c bool) term {
		t.bits, t.signed, t.boolean = 8, false, true
		if c {
			t.v = 1
		}
		return t
	}
	switch op {
	case "==":
		return truth(x == y)
	case "!=":
		return truth(x != y)
	case "&&":
		return truth(x != 0 && y != 0)
	case "||":
		return truth(x != 0 || y != 0)
	case "<":
		return truth(signed && int64(x) < int64(y) || !signed && x < y)
	case ">":
		return truth(signed && int64(x) > int64(y) || !signed && x > y)
	case "<=":
		return truth(signed && int64(x) <= int64(y) || !signed && x <= y)
	case ">=":
		return truth(signed && int64(x) >= int64(y) || !signed && x >= y)
	}
	v := arith(op, x, y, signed)
	if a.boolean && b.boolean {
		return truth(v != 0)
	}
	t.v = v
	return t
}

// arith is Go's arithmetic, with eBPF's answers where Go has none.
func arith(op string, x, y uint64, signed bool) uint64 {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "&":
		return x & y
	case "|":
		return x | y
	case "^":
		return x ^ y
	case "<<":
		return x << (y % 64)
	case ">>":
		return x >> (y % 64)
	case "/":
		if y == 0 {
			return 1
		}
		if signed {
			return uint64(int64(x) / int64(y))
		}
		return x / y
	}
	if y == 0 {
		return 1
	}
	if signed {
		return uint64(int64(x) % int64(y))
	}
	return x % y
}

func TestRandomExpressions(t *testing.T) {
	n := 3000
	if testing.Short() {
		n = 300
	}
	for seed := range uint64(n) {
		o := &oracle{Rand: rand.New(rand.NewPCG(seed, 1))}
		for i := range o.args {
			o.args[i] = o.Uint64() >> o.IntN(64)
			if o.IntN(3) == 0 {
				o.args[i] = -o.args[i]
			}
			if o.IntN(8) == 0 {
				o.args[i] = []uint64{0, 1, ^uint64(0), 1 << 63, 64, 0x80}[o.IntN(6)]
			}
		}
		src := "uprobe:a:f { "
		switch o.IntN(4) {
		case 0:
			o.constants = true
		case 1:
			o.vars = o.IntN(7)
			for i := range o.vars {
				src += fmt.Sprintf("$v%d = arg%d; ", i, i)
			}
		}
		x := o.expr(1 + o.IntN(6))
		b := newBench(t, src+"print("+x.text+") }", Options{})
		want := "print " + fmt.Sprint(x.v)
		if x.boolean {
			want = "print " + fmt.Sprint(x.v != 0)
		} else if x.signed {
			want = "print " + fmt.Sprint(int64(x.v))
		}
		if got := b.run(0, o.args[:]...); got != want {
			t.Fatalf("seed %d, arguments %d:\n%s\n= %s, want %s\n%s", seed, o.args, x.text, got, want, b.script.Probes[0].Prog)
		}
	}
}
