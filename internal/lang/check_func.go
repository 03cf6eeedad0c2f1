package lang

import (
	"net/netip"
	"runtime"
	"strconv"
	"strings"

	"trapless/internal/bpf"
)

// functionCall types the calls that call leaves.
func (c *checker) functionCall(x *callExpr) Type {
	switch x.name {
	case "errorf", "warnf", "cat", "system":
		c.printf(x)
		return noneType
	case "time":
		return c.timeCall(x)
	case "join":
		return c.join(x)
	case "fail", "static_assert":
		return c.staticCheck(x)
	case "str":
		return c.str(x)
	case "strncmp":
		return c.strncmp(x)
	case "strcontains", "strstr", "memcmp", "str_concat", "strlen", "strcap":
		return c.stringCall(x)
	case "delete", "has_key":
		return c.entryCall(x)
	case "buf":
		return c.buf(x)
	case "len":
		return c.len(x)
	case "getopt":
		return c.getopt(x)
	case "nsecs":
		return c.nsecs(x)
	case "reg":
		return c.reg(x)
	case "uaddr":
		return c.uaddr(x)
	case "cgroupid":
		return c.cgroupID(x)
	case "kaddr":
		return c.kernelAddress(x)
	case ErrorNames, SignalNames, CgroupPaths:
		return c.nameCall(x)
	}
	return c.convertCall(x)
}

// convertCall types calls that make another kind of value of a number or of an
// array, and those that say what an expression is.
func (c *checker) convertCall(x *callExpr) Type {
	if strings.HasPrefix(x.name, "is_") {
		return c.isCall(x)
	}
	if x.name == "strftime" {
		return c.strftime(x)
	}
	if x.name == "container_of" {
		return c.containerOf(x)
	}
	arg := x.args[len(x.args)-1]
	t := c.value(arg)
	if t.Kind == bad {
		return badType
	}
	switch x.name {
	case "pton":
		return c.pton(x, arg.base())
	case "usym", "bswap", "uptr":
		return c.numberCall(x, t)
	case "macaddr":
		if n, raw := rawLen(arg); t.Kind != Pointer && t.memory() != 6 && (!raw || n != 6) {
			c.diags.Errorf(arg.base().span, "macaddr() argument must be 6 bytes in size, this is '%s'", t)
			return badType
		}
		return Type{Kind: MAC}
	}
	if len(x.args) == 2 { // ntop
		c.value(x.args[0])
	}
	if n := t.memory(); t.Kind != Int && n != 4 && n != 16 || t.Kind == String && t.Len == 0 {
		c.diags.Errorf(arg.base().span, "ntop() expects an integer or array argument of 4 or 16 bytes, got %s", t)
		return badType
	}
	return Type{Kind: Inet}
}

// numberCall types calls that take a number or a pointer.
func (c *checker) numberCall(x *callExpr, t Type) Type {
	if t.Kind != Int && t.Kind != Pointer {
		c.diags.Errorf(x.args[0].base().span, "%s() only supports integer or pointer arguments (%s provided)", x.name, t)
		return badType
	}
	switch x.name {
	case "usym":
		return Type{Kind: Symbol, Size: 8}
	case "uptr":
		return t
	}
	x.foldSwap(t)
	return intType(max(t.Size, 1), false)
}

// foldSwap swaps the bytes of what is known.
func (x *callExpr) foldSwap(t Type) {
	con := x.args[0].base().con
	if !con.known {
		return
	}
	out := uint64(0)
	for i := range int(t.Size) {
		out = out<<8 | con.u>>(8*i)&0xff
	}
	x.con = constant{known: true, u: out}
}

// isCall is a question about an expression, answered at compile time.
func (c *checker) isCall(x *callExpr) Type {
	if x.name == "is_scalar" {
		return c.isScalar(x)
	}
	t := c.value(x.args[0])
	if t.Kind == bad {
		return badType
	}
	yes := map[string]bool{
		"is_array": t.Kind == Array, "is_integer": t.Kind == Int, "is_ptr": t.Kind == Pointer, "is_str": t.Kind == String,
		"is_unsigned_integer": t.Kind == Int && !t.Signed, "is_literal": x.args[0].base().con.literal,
	}[x.name]
	x.con = constant{known: true, literal: true, u: b2u(yes)}
	return boolType
}

// isScalar is whether a map has no keys.
func (c *checker) isScalar(x *callExpr) Type {
	m, ok := x.args[0].(*mapExpr)
	if !ok || m.indexed {
		c.values(x.args)
		c.diags.Errorf(x.span, "%s() expects a map argument", x.name)
		return badType
	}
	info := c.usedMap(m)
	if info == nil {
		return badType
	}
	x.con = constant{known: true, literal: true, u: b2u(len(info.keys) == 0)}
	return boolType
}

// text is the value of an argument that must be a literal string.
func (c *checker) text(x expr, what string) (string, bool) {
	t := c.value(x)
	b := x.base()
	if t.Kind == bad {
		return "", false
	}
	if t.Kind != String || !b.con.known {
		c.diags.Errorf(b.span, "the %s is a string literal", what)
		return "", false
	}
	return b.con.s, true
}

func (c *checker) timeCall(x *callExpr) Type {
	if len(x.args) == 1 {
		c.text(x.args[0], "format of time()")
	}
	return noneType
}

func (c *checker) join(x *callExpr) Type {
	t := c.value(x.args[0])
	if t.Kind != Int && t.Kind != Pointer && t.Kind != bad {
		c.diags.Errorf(x.args[0].base().span, "join() only supports int or pointer arguments (%s provided)", t)
	}
	if len(x.args) == 2 {
		c.text(x.args[1], "separator of join()")
	}
	return noneType
}

// staticCheck is fail(), and static_assert() whose condition is false.
func (c *checker) staticCheck(x *callExpr) Type {
	if x.name == "static_assert" {
		t := c.value(x.args[0])
		message, ok := c.text(x.args[1], "message of static_assert()")
		con := x.args[0].base().con
		switch {
		case t.Kind == bad || !ok:
		case !con.known:
			c.diags.Errorf(x.args[0].base().span, "the condition is not known at compile time")
		case con.u == 0:
			c.diags.Errorf(x.span, "%s", message)
		}
		return noneType
	}
	c.printf(x)
	for _, a := range x.args[1:] {
		if !a.base().con.known {
			c.diags.Errorf(a.base().span, "fail() arguments need to be literals")
			return noneType
		}
	}
	text, _ := c.text(x.args[0], "format of fail()")
	c.diags.Errorf(x.span, "%s", text)
	return noneType
}

// strftime is a time that is printed as a date.
func (c *checker) strftime(x *callExpr) Type {
	format, ok := c.text(x.args[0], "format of strftime()")
	t := c.value(x.args[1])
	switch {
	case !ok || t.Kind == bad:
		return badType
	case t.Kind != Int:
		c.diags.Errorf(x.args[1].base().span, "strftime() only supports integer arguments (%s provided)", t)
		return badType
	case x.args[1].base().con.literal && x.args[1].base().negative():
		c.diags.Errorf(x.args[1].base().span, "strftime() does not accept negative timestamps")
		return badType
	}
	return Type{Kind: Time, Size: 8, Format: format}
}

// pton is the bytes of an address of the internet.
func (c *checker) pton(x *callExpr, b *exprBase) Type {
	if b.typ.Kind != String || !b.con.known {
		c.diags.Errorf(b.span, "pton() expects an string literal at the first argument")
		return badType
	}
	a, err := netip.ParseAddr(b.con.s)
	if err != nil || a.Zone() != "" {
		c.diags.Errorf(b.span, "pton() expects a valid IPv4/IPv6 address, got %s", b.con.s)
		return badType
	}
	x.con = constant{known: true, s: string(a.AsSlice())}
	elem := intType(1, false)
	return Type{Kind: Array, Count: len(x.con.s), Elem: &elem}
}

// buf reads bytes.
func (c *checker) buf(x *callExpr) Type {
	t := c.value(x.args[0])
	limit := min(textType(c.config.maxStrlen()).Len, maxString)
	switch {
	case t.Kind == bad:
		return badType
	case t.Kind == Array || t.Kind == String:
		limit = min(limit, alignUp(t.memory(), 8))
	case t.Kind != Int && t.Kind != Pointer || len(x.args) < 2:
		c.diags.Errorf(x.span, "buf() expects a length argument for non-array type %s", t)
		return badType
	}
	if len(x.args) == 2 {
		n := c.value(x.args[1])
		con := x.args[1].base().con
		switch {
		case n.Kind == bad:
			return badType
		case n.Kind != Int:
			c.diags.Errorf(x.args[1].base().span, "a length is an integer, this is %s", n.a())
			return badType
		case con.known && (int64(con.u) < 0 || con.literal && con.u == 0):
			c.diags.Errorf(x.args[1].base().span, "buf() reads at least one byte")
			return badType
		case con.known:
			limit = min(limit, max(8, alignUp(int(min(con.u, maxString)), 8)))
		}
	}
	return Type{Kind: Buffer, Len: limit}
}

// len is the number of entries of a map, of frames or of elements.
func (c *checker) len(x *callExpr) Type {
	if m, ok := x.args[0].(*mapExpr); ok && !m.indexed {
		info := c.usedMap(m)
		switch {
		case info == nil:
			return badType
		case len(info.keys) > 0 && !c.inTracer(x.span, "len() of a map"):
			return badType
		case len(info.keys) > 0:
			return int64Type
		}
		c.explicitKeys(x)
		return badType
	}
	t := c.value(x.args[0])
	switch t.Kind {
	case bad:
		return badType
	case Stack:
		c.diags.Errorf(x.span, "not supported yet: len() of a stack")
		return badType
	case Array:
		x.con = constant{known: true, u: uint64(t.Count)}
		return int64Type
	}
	c.diags.Errorf(x.args[0].base().span, "len() expects a map or stack to be provided")
	return badType
}

// explicitKeys reports a call that needs a map with keys.
func (c *checker) explicitKeys(x *callExpr) {
	c.diags.Errorf(x.span, "call to %s() expects a map with explicit keys (non-scalar map)", x.name)
}

// clocks are those of nsecs().
var clocks = set("monotonic boot tai sw_tai")

func (c *checker) nsecs(x *callExpr) Type {
	if len(x.args) == 0 {
		return uint64Type
	}
	name, ok := x.args[0].(*nameExpr)
	switch {
	case !ok || !clocks[name.name]:
		c.diags.Errorf(x.args[0].base().span, "Invalid timestamp mode: %s", c.diags.Source.Slice(x.args[0].base().span)).Hint("nsecs takes monotonic, boot, tai or sw_tai")
		return badType
	}
	return uint64Type
}

// registers are the offsets of registers in the context by their names.
var registers = map[string]int16{
	"r15": bpf.PtRegsR15, "r14": bpf.PtRegsR14, "r13": bpf.PtRegsR13, "r12": bpf.PtRegsR12, "bp": bpf.PtRegsBP, "bx": bpf.PtRegsBX,
	"r11": bpf.PtRegsR11, "r10": bpf.PtRegsR10, "r9": bpf.PtRegsR9, "r8": bpf.PtRegsR8, "ax": bpf.PtRegsAX, "cx": bpf.PtRegsCX,
	"dx": bpf.PtRegsDX, "si": bpf.PtRegsSI, "di": bpf.PtRegsDI, "ip": bpf.PtRegsIP, "pc": bpf.PtRegsIP, "sp": bpf.PtRegsSP,
}

func (c *checker) reg(x *callExpr) Type {
	name, ok := c.text(x.args[0], "name of a register")
	if !ok {
		return badType
	}
	if _, ok := registers[name]; !ok {
		d := c.diags.Errorf(x.args[0].base().span, "'%s' is not a valid register on this architecture (x86_64)", name)
		if near := nearest(name, registers); near != "" {
			d.Hint("did you mean %s?", near)
		} else {
			d.Hint("as in reg(\"ip\"), reg(\"sp\"), reg(\"ax\")")
		}
		return badType
	}
	for _, a := range c.probe.attach {
		if a.Kind != Uprobe && a.Kind != Uretprobe {
			c.diags.Errorf(x.span, "there are registers only in probes of the target").Note(a.Span, "this is none")
			return badType
		}
	}
	return uint64Type
}

// containerOf is the address of the struct whose member is pointed to.
func (c *checker) containerOf(x *callExpr) Type {
	t := c.value(x.args[0])
	of, ok1 := x.args[1].(*typeofExpr)
	member := strings.ReplaceAll(c.diags.Source.Slice(x.args[2].base().span), " ", "")
	if !ok1 {
		if n, ok := x.args[1].(*nameExpr); ok {
			of, ok1 = &typeofExpr{ref: &typeRef{span: n.span, name: n.name}}, true
		}
	}
	if !ok1 {
		c.diags.Errorf(x.args[1].base().span, "container_of() takes a type: typeof(struct name)")
		return badType
	}
	whole := c.resolve(of.ref)
	if t.Kind == bad || whole.Kind == bad {
		return badType
	}
	n, ok := c.offsetof(x.span, whole, strings.Split(member, "."))
	if !ok {
		return badType
	}
	x.offset = n
	return pointerTo(whole)
}

// constantBuiltin are builtins that are known when the script is compiled.
func (c *checker) constantBuiltin(name string, b *exprBase) (Type, bool) {
	if len(c.probe.attach) == 0 { // they were reported
		return badType, true
	}
	switch name {
	case "ncpus":
		n := uint64(runtime.NumCPU())
		b.setLiteral(literalType(n), n)
	case "cpid":
		if c.opts.Child == 0 {
			c.diags.Warnf(b.span, "there is no child process, so cpid is 0").Hint("-c COMMAND starts one")
		}
		b.setLiteral(intType(4, false), uint64(c.opts.Child))
	case "has_cpid":
		b.setLiteral(boolType, b2u(c.opts.Child != 0))
	case "usermode":
		b.setLiteral(intType(1, false), 1)
	case "probetype":
		kind := c.probe.attach[0].Kind
		text := kind.String()
		if kind == Begin || kind == End {
			text = "special"
		}
		b.setString(text)
	case "probe":
		b.setString(c.probe.attach[0].Full())
	default:
		return badType, false
	}
	return b.typ, true
}

// Full is the attach point with the whole name of its provider.
func (a *AttachPoint) Full() string {
	_, rest, found := strings.Cut(a.Text, ":")
	switch {
	case !found || a.Kind == Begin || a.Kind == End:
		return a.Kind.String()
	}
	return a.Kind.String() + ":" + strings.ReplaceAll(rest, strconv.Quote("")[:1], "")
}
