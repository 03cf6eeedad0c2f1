package lang

import (
	"fmt"
	"strconv"
	"strings"

	"trapless/internal/bpf"
	"trapless/internal/diag"
)

// value types an expression that must have a value.
func (c *checker) value(x expr) Type {
	t := c.expr(x)
	if t.Kind == None {
		b := x.base()
		what := "this"
		if call, ok := x.(*callExpr); ok {
			what = call.name + "()"
		}
		c.diags.Errorf(b.span, "%s has no value", what)
		b.typ = badType
	}
	return b2t(x)
}

func b2t(x expr) Type { return x.base().typ }

// expr types an expression.
func (c *checker) expr(x expr) Type {
	b := x.base()
	b.con = constant{}
	switch x := x.(type) {
	case *intExpr:
		b.setLiteral(literalType(x.value), x.value)
	case *boolExpr:
		b.setLiteral(boolType, b2u(x.value))
	case *strExpr:
		b.setString(x.value)
	case *paramCountExpr:
		n := uint64(len(c.opts.Params))
		b.setLiteral(literalType(n), n)
	case *paramExpr:
		c.param(x)
	case *nameExpr:
		if isWrapped(x.name) {
			x.name = strings.TrimPrefix(x.name, "__builtin_")
		}
		b.typ = c.builtin(x.name, b)
		x.marker = isArgName(x.name) && c.probe.isUsdt()
	case *varExpr:
		c.variable(x)
	case *mapExpr:
		b.typ = c.readMap(x)
	case *callExpr:
		b.typ = c.call(x)
	case *unaryExpr:
		c.unary(x)
	case *binaryExpr:
		c.value(x.x)
		c.value(x.y)
		x.typ = c.binaryType(x.op, x.opAt, x.x, x.y)
		c.foldBinary(x)
	case *condExpr:
		c.cond(x)
	case *castExpr:
		c.cast(x)
	case *incExpr:
		c.increment(x)
	default:
		c.otherExpr(x)
	}
	return b.typ
}

// name types a bare name.
func (c *checker) name(x *nameExpr) {
	if isWrapped(x.name) {
		x.name = strings.TrimPrefix(x.name, "__builtin_")
	}
	x.marker = isArgName(x.name) && c.probe.isUsdt()
	x.typ = c.builtin(x.name, x.base())
}

// otherExpr types what expr leaves.
func (c *checker) otherExpr(x expr) {
	switch x := x.(type) {
	case *tupleExpr:
		c.tuple(x)
	case *fieldExpr:
		c.field(x)
	case *indexExpr:
		c.index(x)
	case *derefExpr:
		c.deref(x)
	case *addrExpr:
		c.addr(x)
	case *blockExpr:
		c.blockValue(x)
	case *fnExpr:
		c.callFn(x)
	case *sizeofExpr:
		c.sizeof(x)
	case *typeofExpr:
		c.diags.Errorf(x.span, "a type is no value")
		x.typ = badType
	case *comptimeExpr:
		x.typ, x.con = c.value(x.x), x.x.base().con
		if x.typ.Kind != bad && !x.con.known {
			c.diags.Errorf(x.span, "Unable to resolve comptime expression")
			x.typ = badType
		}
	case *badExpr:
		x.typ = badType
	}
}

func (b *exprBase) setLiteral(t Type, u uint64) {
	b.typ, b.con = t, constant{known: true, literal: true, u: u}
}

func (b *exprBase) setString(s string) {
	b.typ, b.con = textType(len(s)), constant{known: true, literal: true, s: s}
}

// literalText is a literal as an error message shows it.
func literalText(b *exprBase) string {
	switch {
	case b.typ.Kind == String:
		return strconv.Quote(b.con.s)
	case b.typ.Signed:
		return fmt.Sprint(int64(b.con.u))
	}
	return fmt.Sprint(b.con.u)
}

// param is a parameter of the script: an integer if it reads as one, else a
// string; 0 if it was not given.
func (c *checker) param(x *paramExpr) {
	n, _, err := digits(x.number, 10)
	if err != nil || n == 0 {
		c.diags.Errorf(x.span, "parameters are numbered from $1")
		x.typ = badType
		return
	}
	if n > uint64(len(c.opts.Params)) {
		c.diags.Warnf(x.span, "Positional parameter $%d is empty or not provided.", n)
		x.setLiteral(literalType(0), 0)
		return
	}
	text := c.opts.Params[n-1]
	positive, negative := strings.CutPrefix(text, "-")
	u, err := parseInt(positive)
	switch {
	case text == "":
		x.setLiteral(literalType(0), 0)
	case err != nil || negative && u > 1<<63:
		x.setString(text)
	case negative && u > 0:
		x.setLiteral(negativeType(-int64(u)), -u)
	default:
		x.setLiteral(literalType(u), u)
	}
}

// builtin is a name that is no call.
func (c *checker) builtin(name string, b *exprBase) Type {
	switch {
	case name == builtinPid, name == builtinTid:
		return intType(4, false)
	case name == builtinComm:
		return textType(commSize - 1)
	case helperBuiltins[name].helper != 0:
		return helperBuiltins[name].typ
	case name == builtinStack:
		return c.stackType(Type{Kind: Stack, Len: 8 * defaultDepth, Format: c.config.stackMode()}, b)
	case name == builtinRetval:
		return c.retval(b)
	case name == "func":
		return c.funcName(b)
	case processFacts[name].typ.Kind != None:
		return c.processFact(name)
	case name == "username":
		return Type{Kind: User, Size: 8}
	case name == "args":
		return c.args(b)
	case isArgName(name):
		return c.arg(name, b)
	case constantNames[name]:
		t, _ := c.constantBuiltin(name, b)
		return t
	case c.isEnumConstant(name):
		k := c.types.consts[name]
		t := enumType(k.enum)
		b.typ, b.con = t, constant{known: true, literal: true, u: k.value}
		return t
	case kernelNames[name]:
		c.diags.Errorf(b.span, "%s is about the kernel, trapless probes user space only", name)
	case unsupportedBuiltins[name]:
		c.diags.Errorf(b.span, "not supported yet: %s", name)
	case functions[name] != nil || unsupportedFunctions[name]:
		c.diags.Errorf(b.span, "%s is a function", name).Hint("call it: %s(...)", name)
	case c.foreign:
	default:
		d := c.diags.Errorf(b.span, "Unknown identifier: '%s'", name)
		if near := nearest(name, set("pid arg0 arg1 arg2 arg3 arg4 arg5 retval true false")); near != "" {
			d.Hint("did you mean %s?", near)
		} else if c.find(name) != nil {
			d.Hint("did you mean $%s?", name)
		}
	}
	return badType
}

func (c *checker) isEnumConstant(name string) bool {
	_, ok := c.types.consts[name]
	return ok
}

// retval is what the function returned.
func (c *checker) retval(b *exprBase) Type {
	t := c.only(Uretprobe, builtinRetval, b)
	if c.opts.Types == nil || t.Kind == bad {
		return t
	}
	if _, result, ok := c.opts.Types.Args(&c.probe.attach[0]); ok && result.Kind == Pointer {
		return result
	}
	return t
}

// args are the parameters of the probed function, which debug information knows.
func (c *checker) args(b *exprBase) Type {
	if t := c.only(Uprobe, "args", b); t.Kind == bad {
		return t
	}
	if c.opts.Types != nil {
		if l, _, ok := c.opts.Types.Args(&c.probe.attach[0]); ok {
			return Type{Kind: Struct, Layout: l}
		}
	}
	c.diags.Errorf(b.span, "the parameters of the function are not known").Hint("without debug information they are arg0, arg1, ...")
	return badType
}

// funcName is the probed function.
func (c *checker) funcName(b *exprBase) Type {
	for _, a := range c.probe.attach {
		if a.Kind != Uprobe && a.Kind != Uretprobe {
			c.diags.Errorf(b.span, "func exists only in uprobes and uretprobes").Note(a.Span, "this is none")
			return badType
		}
	}
	return Type{Kind: Symbol, Size: 8}
}

// only reports a builtin that exists in probes of one kind only.
func (c *checker) only(kind ProbeKind, name string, b *exprBase) Type {
	for _, a := range c.probe.attach {
		if a.Kind == kind {
			continue
		}
		d := c.diags.Errorf(b.span, "%s exists only in %ss", name, kind).Note(a.Span, "this is none")
		if kind == Uprobe && a.Kind == Uretprobe {
			d.Hint("keep it in a map at the entry: @%s[tid] = %s", name, name)
		}
		return badType
	}
	return uint64Type
}

// arg is an argument of the probed function.
func (c *checker) arg(name string, b *exprBase) Type {
	if c.probe.isUsdt() {
		return c.markerArg(name, b)
	}
	if t := c.only(Uprobe, name, b); t.Kind == bad {
		return t
	}
	n, err := strconv.Atoi(strings.TrimPrefix(name, "arg"))
	if err != nil || n >= bpf.NumArgs {
		c.diags.Errorf(b.span, "not supported yet: %s", name).
			Hint("arg0 to arg%d are in registers, further ones on the stack", bpf.NumArgs-1)
		return badType
	}
	return uint64Type
}

func (c *checker) variable(x *varExpr) {
	v := c.find(x.name)
	if v == nil {
		c.undefined(x)
		return
	}
	x.sym = v
	v.uses++
	if !v.assigned {
		c.diags.Warnf(x.span, "Variable used before it was assigned: $%s", x.name).Note(v.decl, "declared here")
	}
	x.typ = v.typ
	if v.typ.Kind == None { // declared, and no assignment was seen so far
		x.typ = badType
		if c.final {
			v.typ, x.typ = int64Type, int64Type
		}
	}
}

func (c *checker) unary(x *unaryExpr) {
	t := c.value(x.x)
	switch {
	case t.Kind == bad:
		x.typ = badType
	case x.op == '!' && t.isTruth():
		x.typ = boolType
	case t.Kind != Int:
		c.diags.Errorf(x.span, "The %s operator can not be used on expressions of type '%s'", operatorText(x.op), t)
		x.typ = badType
	case t.Signed:
		x.typ = int64Type
	default:
		x.typ = uint64Type
	}
	c.foldUnary(x)
}

// binaryType is the type of "x op y", whose operands have their types.
func (c *checker) binaryType(op tokenKind, opAt diag.Span, x, y expr) Type {
	a, b := b2t(x), b2t(y)
	t := resultType(op, a, b)
	if t.Kind == bad && a.Kind != bad && b.Kind != bad {
		c.badOperands(opAt, op, a, b)
	}
	return t
}

// badOperands reports an operator between values that it cannot be used on.
func (c *checker) badOperands(at diag.Span, op tokenKind, a, b Type) {
	switch op {
	case tokEq, tokNe, '<', '>', tokLe, tokGe:
		c.diags.Errorf(at, "Type mismatch for '%s': comparing %s with %s", operatorText(op), a, b)
	default:
		c.diags.Errorf(at, "The %s operator can not be used on expressions of types %s, %s", operatorText(op), a, b)
	}
}

// resultType is the type of an operation on values of two types, bad if there
// is no such operation.
func resultType(op tokenKind, a, b Type) Type {
	switch {
	case a.Kind == bad || b.Kind == bad:
		return badType
	case (op == tokEq || op == tokNe) && comparableTypes(a, b):
		return boolType
	case a.Kind == Symbol && b.Kind == Int && isCondition(op), b.Kind == Symbol && a.Kind == Int && isCondition(op):
		return boolType
	case !a.isTruth() || !b.isTruth():
		return badType
	case a.Kind == Pointer || b.Kind == Pointer:
		return pointerResult(op, a, b)
	case isCondition(op) || a.Kind == Bool && b.Kind == Bool:
		return boolType
	}
	a, b = a.adapt(b), b.adapt(a)
	if a.Signed || b.Signed || op == '-' {
		return int64Type
	}
	return uint64Type
}

// pointerResult is the type of an operation on a pointer.
func pointerResult(op tokenKind, a, b Type) Type {
	switch {
	case isCondition(op):
		return boolType
	case a.Kind == Pointer && b.Kind == Int && (op == '+' || op == '-'):
		return a
	case b.Kind == Pointer && a.Kind == Int && op == '+':
		return b
	case a.Kind == Pointer && b.Kind == Pointer && op == '-':
		return int64Type
	}
	return badType
}

// isCondition reports whether the operator compares or connects truth values.
func isCondition(op tokenKind) bool {
	switch op {
	case tokAndAnd, tokOrOr, tokEq, tokNe, '<', '>', tokLe, tokGe:
		return true
	}
	return false
}

// adapt gives the type of a literal the sign of what it is combined with.
func (t Type) adapt(other Type) Type {
	if t.flexible && !other.flexible && other.Kind == Int {
		t.Signed = other.Signed
	}
	return t
}

// signedComparison reports whether x and y are compared as signed values.
func signedComparison(x, y Type) bool {
	return x.adapt(y).Signed || y.adapt(x).Signed
}

func (c *checker) cond(x *condExpr) {
	c.condition(x.cond)
	a := b2t(x.cond)
	if x.x != x.cond {
		a = c.expr(x.x)
	}
	b := c.expr(x.y)
	if x.x != x.cond && a.Kind == None && b.Kind == None {
		x.typ = noneType
		return
	}
	a, b = c.stored(x.x.base(), a), c.stored(x.y.base(), b)
	t, ok := promote(a, b)
	if !ok {
		c.diags.Errorf(x.span, "Branches must return the same type or compatible types: have '%s' and '%s'", a, b)
		t = badType
	}
	x.typ = t
	if cond := x.cond.base().con; cond.known && t.Kind != bad {
		branch := x.y.base()
		if cond.u != 0 {
			branch = x.x.base()
		}
		x.con = branch.con
		x.con.literal = false
	}
}

// increment types ++ and --.
func (c *checker) increment(x *incExpr) {
	v, ok := x.x.(*varExpr)
	if !ok {
		c.incrementMap(x, x.x.(*mapExpr))
		return
	}
	c.variable(v)
	if v.typ.Kind == bad {
		x.typ = badType
		return
	}
	if v.typ.Kind == Pointer {
		x.typ = v.typ
		return
	}
	if v.typ.Kind != Int {
		c.diags.Errorf(x.span, "The %s operator can not be used on expressions of type '%s'", operatorText(x.op), v.typ)
		x.typ = badType
		return
	}
	x.typ = uint64Type
	if v.typ.Signed || x.op == tokDec {
		x.typ = int64Type
	}
	if v.sym.fixed {
		x.typ = v.sym.typ
	}
	c.widen(v.sym, x.typ)
	v.typ = v.sym.typ
}
