package lang

import (
	"strconv"
	"strings"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// temp takes a scratch register. There must be one: a statement starts with
// four, and value needs none.
func (l *lowerer) temp() (asm.Register, func()) {
	if len(l.free) == 0 {
		panic("BUG: lang: no register is free")
	}
	r := l.free[0]
	l.free = l.free[1:]
	return r, func() { l.free = append([]asm.Register{r}, l.free...) }
}

// lend counts dst as free while f runs, since nothing is in it yet.
func (l *lowerer) lend(dst asm.Register, f func()) {
	free := l.free
	l.free = append([]asm.Register{dst}, free...)
	f()
	l.free = free
}

// homeOf is where the value lies when the expression is a variable.
func (l *lowerer) homeOf(x expr) (home, bool) {
	name := ""
	if h, ok := l.hoists[x]; ok {
		return h, true
	}
	switch x := x.(type) {
	case *varExpr:
		return l.homes[x.sym], true
	case *nameExpr:
		name = x.name
	case *callExpr:
		name = x.name
	}
	switch name {
	case builtinPid:
		return l.pid, true
	case builtinTid:
		return l.tid, true
	}
	return home{}, false
}

// operand returns a register with the value, which must not be written to.
func (l *lowerer) operand(x expr) (asm.Register, func()) {
	if h, ok := l.homeOf(x); ok && h.inReg {
		return h.reg, func() {}
	}
	r, release := l.temp()
	l.value(x, r)
	return r, release
}

// value computes an expression into a register. It needs no other but r0.
func (l *lowerer) value(x expr, dst asm.Register) {
	b := x.base()
	if b.con.known && pure(x) {
		l.movImm(dst, b.con.u)
		return
	}
	if h, ok := l.homeOf(x); ok {
		if h.inReg {
			l.mov(dst, h.reg)
		} else {
			l.load(dst, h.off)
		}
		return
	}
	switch x := x.(type) {
	case *fieldExpr:
		n, _ := l.argField(x)
		l.emit(bpf.LoadArg(dst, l.ctx, n))
		l.truncate(dst, x.typ)
	case *comptimeExpr:
		l.value(x.x, dst)
	case *callExpr:
		l.pureCall(x, dst)
	case *addrExpr:
		l.address(dst, l.locateInTarget(x.x))
	case *nameExpr:
		l.register(x.name, dst)
	case *castExpr:
		l.value(x.x, dst)
		l.convert(dst, b2t(x.x), x.to)
	case *unaryExpr:
		l.unary(x, dst)
	case *binaryExpr:
		if isCondition(x.op) {
			l.truth(x, dst)
			return
		}
		l.binary(x, dst)
	case *condExpr:
		l.choice(x, dst)
	case *incExpr:
		l.increment(x, &dst)
	default:
		bug(x)
	}
}

// register loads what the function was called with, or what it returns.
func (l *lowerer) register(name string, dst asm.Register) {
	if name == builtinRetval {
		l.emit(asm.LoadMem(dst, l.ctx, bpf.PtRegsAX, asm.DWord))
		return
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(name, "arg"))
	l.emit(bpf.LoadArg(dst, l.ctx, n))
}

// pureCall is a call that needs no helper.
func (l *lowerer) pureCall(x *callExpr, dst asm.Register) {
	switch x.name {
	case "reg":
		l.emit(asm.LoadMem(dst, l.ctx, registers[x.args[0].base().con.s], asm.DWord))
	case "bswap":
		l.value(x.args[0], dst)
		if size := map[uint8]asm.Size{2: asm.Half, 4: asm.Word, 8: asm.DWord}[x.typ.Size]; size != 0 {
			l.emit(asm.HostTo(asm.BE, dst, size))
		} else {
			l.truncate(dst, x.typ)
		}
	case CgroupPaths:
		l.value(x.args[0], dst)
	case "container_of":
		l.value(x.args[0], dst)
		if x.offset != 0 {
			l.aluImm(asm.Add, dst, -int32(x.offset))
		}
	case builtinRetval:
		l.value(&nameExpr{name: x.name}, dst)
	default: // the same number, of another type
		l.value(x.args[len(x.args)-1], dst)
	}
}

func (l *lowerer) unary(x *unaryExpr, dst asm.Register) {
	switch x.op {
	case '!':
		l.truth(x, dst)
	case '-':
		l.value(x.x, dst)
		l.aluImm(asm.Neg, dst, 0)
	default:
		l.value(x.x, dst)
		l.aluImm(asm.Xor, dst, -1)
	}
}

// truth makes dst 1 or 0.
func (l *lowerer) truth(x expr, dst asm.Register) {
	no, done := l.newLabel(), l.newLabel()
	l.lend(dst, func() { l.cond(x, no, false) })
	l.movImm(dst, 1)
	l.jumpTo(done)
	l.bind(no)
	l.movImm(dst, 0)
	l.bind(done)
}

// choice computes "cond ? x : y", and "x ?: y" with x once.
func (l *lowerer) choice(x *condExpr, dst asm.Register) {
	other, done := l.newLabel(), l.newLabel()
	if x.x == x.cond {
		l.value(x.x, dst)
		l.jumpImm(asm.JNE, dst, 0, done)
	} else {
		l.lend(dst, func() { l.cond(x.cond, other, false) })
		l.value(x.x, dst)
		l.jumpTo(done)
	}
	l.bind(other)
	l.value(x.y, dst)
	l.bind(done)
}

// increment computes ++ and --. The value of the expression goes to dst, if
// there is one.
func (l *lowerer) increment(x *incExpr, dst *asm.Register) {
	v := x.x.(*varExpr).sym
	h, by := l.homes[v], int32(1)
	if v.typ.Kind == Pointer {
		by = int32(v.typ.Elem.memory())
	}
	if x.op == tokDec {
		by = -by
	}
	r := h.reg
	if !h.inReg {
		r = asm.R0
		l.load(r, h.off)
	}
	if dst != nil && x.post {
		l.mov(*dst, r)
	}
	l.aluImm(asm.Add, r, by)
	l.truncate(r, v.typ)
	if !h.inReg {
		l.store(h.off, r)
	}
	if dst != nil && !x.post {
		l.mov(*dst, r)
	}
}

var aluOps = map[tokenKind]asm.ALUOp{
	'+': asm.Add, '-': asm.Sub, '*': asm.Mul, '/': asm.Div, '%': asm.Mod,
	'&': asm.And, '|': asm.Or, '^': asm.Xor, tokShl: asm.LSh, tokShr: asm.RSh,
}

func commutes(op tokenKind) bool {
	return op == '+' || op == '*' || op == '&' || op == '|' || op == '^'
}

// scaled is an operand that counts elements, in bytes.
func scaled(x expr, t *Type) expr {
	n := uint64(t.memory())
	if n == 1 {
		return x
	}
	b := exprBase{span: x.base().span, typ: int64Type}
	if con := x.base().con; con.known && pure(x) {
		b.con = constant{known: true, u: con.u * n}
	}
	size := &intExpr{exprBase{typ: int64Type, con: constant{known: true, u: n}}, n}
	return &binaryExpr{exprBase: b, op: '*', x: x, y: size}
}

// binary computes arithmetic: the left operand into dst, then the operation.
func (l *lowerer) binary(x *binaryExpr, dst asm.Register) {
	a, b := x.x, x.y
	if x.typ.Kind == Pointer {
		if b2t(a).Kind == Pointer {
			b = scaled(b, x.typ.Elem)
		} else {
			a = scaled(a, x.typ.Elem)
		}
	}
	if a.base().con.known && pure(a) && commutes(x.op) {
		a, b = b, a
	}
	op := aluOps[x.op]
	if x.typ.Signed && x.op == '/' {
		op = asm.SDiv
	} else if x.typ.Signed && x.op == '%' {
		op = asm.SMod
	}
	l.value(a, dst)
	switch con := b.base().con; {
	case x.op == '/' || x.op == '%':
		l.quotient(x, op, dst, b)
	case con.known && pure(b):
		l.binaryConst(op, x.op, dst, con.u)
	default:
		l.aluReg(op, dst, l.second(b, dst))
	}
	if x.typ.Kind == Bool {
		l.truncate(dst, boolType)
	}
}

// quotient divides dst by an expression. By zero, the result is 1 and a remark.
func (l *lowerer) quotient(x *binaryExpr, op asm.ALUOp, dst asm.Register, by expr) {
	if con := by.base().con; con.known && pure(by) && con.u != 0 {
		l.binaryConst(op, x.op, dst, con.u)
		return
	}
	r := l.second(by, dst)
	good, done := l.newLabel(), l.newLabel()
	l.jumpImm(asm.JNE, r, 0, good)
	l.remark(Remark{Span: x.span, From: x.from, Text: divisionText}, dst, r)
	l.movImm(r, 0)
	l.movImm(dst, 1)
	l.jumpTo(done)
	l.bind(good)
	l.aluReg(op, dst, r)
	l.bind(done)
}

func (l *lowerer) binaryConst(op asm.ALUOp, tok tokenKind, dst asm.Register, v uint64) {
	if tok == tokShl || tok == tokShr {
		v &= 63
	}
	if small(v) {
		l.aluImm(op, dst, int32(v))
		return
	}
	l.movImm(asm.R0, v)
	l.aluReg(op, dst, asm.R0)
}

// compareOps are the jumps for an operator and for its opposite, each for
// unsigned and signed values.
var compareOps = map[tokenKind][2][2]asm.JumpOp{
	tokEq: {{asm.JEq, asm.JEq}, {asm.JNE, asm.JNE}},
	tokNe: {{asm.JNE, asm.JNE}, {asm.JEq, asm.JEq}},
	'<':   {{asm.JLT, asm.JSLT}, {asm.JGE, asm.JSGE}},
	'>':   {{asm.JGT, asm.JSGT}, {asm.JLE, asm.JSLE}},
	tokLe: {{asm.JLE, asm.JSLE}, {asm.JGT, asm.JSGT}},
	tokGe: {{asm.JGE, asm.JSGE}, {asm.JLT, asm.JSLT}},
}

var mirrored = map[tokenKind]tokenKind{tokEq: tokEq, tokNe: tokNe, '<': '>', '>': '<', tokLe: tokGe, tokGe: tokLe}

// second computes the second operand of an operation whose first one is in r,
// and returns the register that it is in, for the next instruction to use.
// When no register is free, the first one waits on the stack meanwhile.
func (l *lowerer) second(x expr, r asm.Register) asm.Register {
	if h, ok := l.homeOf(x); ok && h.inReg {
		return h.reg
	}
	if len(l.free) > 0 {
		t, release := l.temp()
		l.value(x, t)
		release()
		return t
	}
	frame := l.frame
	off := l.push(8)
	l.store(off, r)
	l.value(x, r)
	l.mov(asm.R0, r)
	l.load(r, off)
	l.frame = frame
	return asm.R0
}

// cond jumps to the label if the expression is true, or false, as when says;
// else the code goes on. It needs one free register.
func (l *lowerer) cond(x expr, to label, when bool) {
	if con := x.base().con; con.known && pure(x) {
		if (con.u != 0) == when {
			l.jumpTo(to)
		}
		return
	}
	if _, ok := l.hoists[x]; !ok && l.special(x, to, when) {
		return
	}
	r, release := l.operand(x)
	release()
	op := asm.JNE
	if !when {
		op = asm.JEq
	}
	l.jumpImm(op, r, 0, to)
}

// special jumps where the expression's operator makes a jump of its own, and
// reports whether it does.
func (l *lowerer) special(x expr, to label, when bool) bool {
	switch x := x.(type) {
	case *unaryExpr:
		if x.op == '!' {
			l.cond(x.x, to, !when)
			return true
		}
	case *binaryExpr:
		switch x.op {
		case tokAndAnd, tokOrOr:
			l.connective(x, to, when)
			return true
		case '&':
			if when {
				l.testBits(x, to)
				return true
			}
		}
		if isCondition(x.op) {
			l.comparison(x, to, when)
			return true
		}
	}
	return false
}

// connective is && and ||.
func (l *lowerer) connective(x *binaryExpr, to label, when bool) {
	// "a && b" is false as soon as a is, "a || b" true as soon as a is.
	decided := x.op == tokOrOr
	if con := x.x.base().con; con.known && pure(x.x) {
		switch {
		case (con.u != 0) != decided:
			l.cond(x.y, to, when)
		case decided == when:
			l.jumpTo(to)
		}
		return
	}
	if decided == when {
		l.cond(x.x, to, when)
		l.cond(x.y, to, when)
		return
	}
	skip := l.newLabel()
	l.cond(x.x, skip, decided)
	l.cond(x.y, to, when)
	l.bind(skip)
}

// testBits jumps if "a & b" is not zero.
func (l *lowerer) testBits(x *binaryExpr, to label) {
	a, b := x.x, x.y
	if a.base().con.known && pure(a) {
		a, b = b, a
	}
	l.compare(a, b, asm.JSet, to)
}

func (l *lowerer) comparison(x *binaryExpr, to label, when bool) {
	a, b, op := x.x, x.y, x.op
	if a.base().con.known && pure(a) {
		a, b, op = b, a, mirrored[op]
	}
	opposite, signed := 0, 0
	if !when {
		opposite = 1
	}
	if signedComparison(b2t(a), b2t(b)) {
		signed = 1
	}
	l.compare(a, b, compareOps[op][opposite][signed], to)
}

// compare emits a jump that depends on two values.
func (l *lowerer) compare(a, b expr, op asm.JumpOp, to label) {
	left, ok := home{}, false
	if pure(b) { // else b may change the variable that a is
		left, ok = l.homeOf(a)
	}
	r := left.reg
	if !ok || !left.inReg {
		var release func()
		r, release = l.temp()
		defer release()
		l.value(a, r)
	}
	con := b.base().con
	switch {
	case !con.known || !pure(b):
		l.jumpReg(op, r, l.second(b, r), to)
	case small(con.u):
		l.jumpImm(op, r, int32(con.u), to)
	default:
		l.movImm(asm.R0, con.u)
		l.jumpReg(op, r, asm.R0, to)
	}
}
