package lang

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// arity is how many arguments a function takes.
type arity struct{ min, max int }

// functions that are supported. Those of aggregations stand only where a map
// is assigned.
var functions = map[string]*arity{
	"avg": {1, 1}, "count": {0, 0}, "hist": {1, 2}, "lhist": {4, 4}, "max": {1, 1}, "min": {1, 1}, "stats": {1, 1}, "sum": {1, 1}, "tseries": {3, 4},
	"clear": {1, 1}, "delete": {1, 2}, "has_key": {1, 2}, "len": {1, 1}, "zero": {1, 1},
	"print": {1, 3}, "printf": {1, math.MaxInt}, "errorf": {1, math.MaxInt}, "warnf": {1, math.MaxInt}, "cat": {1, math.MaxInt},
	"system": {1, math.MaxInt}, "join": {1, 2}, "time": {0, 1}, "exit": {0, 1}, "fail": {1, math.MaxInt}, "static_assert": {2, 2},
	"str": {1, 2}, "strncmp": {3, 3}, "strcontains": {2, 2}, "strstr": {2, 2}, "strlen": {1, 1}, "strcap": {1, 1},
	"memcmp": {3, 3}, "str_concat": {2, 2}, "buf": {1, 2}, "getopt": {1, 3}, "nsecs": {0, 1}, "reg": {1, 1},
	"strftime": {2, 2}, "ntop": {1, 2}, "pton": {1, 1}, "macaddr": {1, 1}, "usym": {1, 1}, "bswap": {1, 1}, "uptr": {1, 1}, "container_of": {3, 3},
	"strerror": {1, 1}, "uaddr": {1, 1}, "signal_name": {1, 1}, "cgroup_path": {1, 2}, "cgroupid": {1, 1}, "kaddr": {1, 1},
	"is_array": {1, 1}, "is_integer": {1, 1}, "is_ptr": {1, 1}, "is_str": {1, 1}, "is_unsigned_integer": {1, 1}, "is_literal": {1, 1}, "is_scalar": {1, 1},
}

// call types a call.
func (c *checker) call(x *callExpr) Type {
	if isWrapped(x.name) {
		x.name = strings.TrimPrefix(x.name, "__builtin_")
	}
	f := functions[x.name]
	if f == nil {
		return c.otherCall(x)
	}
	if agg := aggregations[x.name]; agg != 0 {
		c.values(x.args)
		c.diags.Errorf(x.span, "%s() must be assigned directly to a map", x.name).Hint("as in @name = %s", c.diags.Source.Slice(x.span))
		return badType
	}
	if n := len(x.args); n < f.min || n > f.max {
		c.values(x.args)
		c.arity(x, f.min, f.max)
		return badType
	}
	switch x.name {
	case "printf":
		c.printf(x)
	case "print":
		return c.print(x)
	case "clear", "zero":
		c.wholeMap(x)
	case "exit":
		if len(x.args) == 1 {
			if t := c.value(x.args[0]); t.Kind != Int && t.Kind != bad {
				c.diags.Errorf(x.args[0].base().span, "exit() only supports integer arguments (%s provided)", t)
			}
		}
	default:
		return c.functionCall(x)
	}
	return noneType
}

// otherCall is a call of what is no supported function.
func (c *checker) otherCall(x *callExpr) Type {
	callable := x.name == builtinRetval || x.name == builtinPid || x.name == builtinTid || x.name == builtinComm || helperBuiltins[x.name].helper != 0 || constantNames[x.name] || otherBuiltins[x.name]
	isBuiltin := isArgName(x.name)
	switch {
	case x.name == builtinStack:
		return c.stackCall(x)
	case callable && (len(x.args) == 0 || ownNamespace(x)):
		x.args = nil // numbers are those of the process's own namespace in any case
		return c.builtin(x.name, x.base())
	case callable:
		c.diags.Errorf(x.span, "not supported yet: %s() with an argument", x.name)
		return badType
	case isBuiltin:
		c.diags.Errorf(x.span, "%s is no function", x.name).Hint("write %s", x.name)
		return badType
	}
	switch {
	case kernelNames[x.name]:
		c.diags.Errorf(x.nameAt, "%s() is about the kernel, trapless probes user space only", x.name)
	case unsupportedFunctions[x.name] || unsupportedBuiltins[x.name]:
		c.diags.Errorf(x.nameAt, "not supported yet: %s()", x.name)
	case c.foreign:
		c.values(x.args)
	default:
		c.values(x.args)
		d := c.diags.Errorf(x.nameAt, "Unknown function: '%s'", x.name)
		if near := nearest(x.name, functions); near != "" {
			d.Hint("did you mean %s()?", near)
		}
	}
	return badType
}

// ownNamespace reports whether a call is pid(curr_ns) or tid(curr_ns).
func ownNamespace(x *callExpr) bool {
	if x.name != builtinPid && x.name != builtinTid || len(x.args) != 1 {
		return false
	}
	n, ok := x.args[0].(*nameExpr)
	return ok && n.name == "curr_ns"
}

// values types arguments for the errors that are in them.
func (c *checker) values(args []expr) {
	for _, a := range args {
		if m, ok := a.(*mapExpr); ok {
			c.mapKeys(m)
			continue
		}
		c.value(a)
	}
}

// arity reports a wrong number of arguments, unless one of them is an error that
// was reported: who knows what was meant.
func (c *checker) arity(x *callExpr, least, most int) {
	for _, arg := range x.args {
		if _, bad := arg.(*badExpr); bad {
			return
		}
	}
	count := func(n int) string {
		if n == 1 {
			return "one argument"
		}
		return fmt.Sprintf("%d arguments", n)
	}
	given := fmt.Sprintf(" (%d provided)", len(x.args))
	switch {
	case most == 0:
		c.diags.Errorf(x.span, "%s() requires no arguments%s", x.name, given)
	case most == least:
		c.diags.Errorf(x.span, "%s() requires %s%s", x.name, count(least), given)
	case len(x.args) < least:
		c.diags.Errorf(x.span, "%s() requires at least %s%s", x.name, count(least), given)
	default:
		c.diags.Errorf(x.span, "%s() takes up to %s%s", x.name, count(most), given)
	}
}

// usedMap checks a map that a call names as a whole, and finds it.
func (c *checker) usedMap(m *mapExpr) *mapInfo {
	info := c.maps[m.name]
	if info == nil || info.agg == 0 {
		if c.suspect[m.name] && c.diags.ErrorCount() > 0 {
			return nil
		}
		d := c.diags.Errorf(m.span, "Undefined map: @%s", m.name)
		if near := nearest(m.name, c.maps); near != "" {
			d.Hint("did you mean @%s?", near)
		} else {
			d.Hint("no probe assigns to it")
		}
		return nil
	}
	return info
}

// wholeMap checks the argument of clear and zero.
func (c *checker) wholeMap(x *callExpr) {
	m, ok := x.args[0].(*mapExpr)
	switch {
	case !ok:
		if c.expr(x.args[0]).Kind != bad {
			c.diags.Errorf(x.args[0].base().span, "%s() expects a map argument", x.name)
		}
	case m.indexed:
		c.mapKeys(m)
		c.diags.Errorf(m.span, "%s() takes a whole map", x.name).Hint("write %s(@%s)", x.name, m.name)
	default:
		c.usedMap(m)
	}
}

func (c *checker) print(x *callExpr) Type {
	m, ok := x.args[0].(*mapExpr)
	switch {
	case ok && m.indexed && len(x.args) > 1:
		c.mapKeys(m)
		c.values(x.args[1:])
		c.diags.Errorf(x.args[1].base().span, "Non-map print() only takes 1 argument, %d found", len(x.args))
		return badType
	case ok && m.indexed:
		if info := c.maps[m.name]; info != nil && info.agg > 0 && info.agg != Plain {
			c.sameKeys(m, info, c.mapKeys(m))
			return noneType
		}
		return c.printable(m)
	case ok:
		c.usedMap(m)
		for i, a := range x.args[1:] {
			c.limit(a, []string{"number of entries", "divisor"}[i])
		}
		return noneType
	case len(x.args) > 1:
		c.values(x.args)
		c.diags.Errorf(x.args[1].base().span, "Non-map print() only takes 1 argument, %d found", len(x.args))
		return badType
	}
	return c.printable(x.args[0])
}

func (c *checker) printable(x expr) Type {
	if c.value(x).Kind == bad {
		return badType
	}
	return noneType
}

// limit checks a literal argument of print.
func (c *checker) limit(x expr, what string) {
	t := c.value(x)
	if t.Kind == bad {
		return
	}
	con := x.base().con
	if t.Kind != Int || !con.literal || x.base().negative() || con.u > math.MaxUint32 {
		c.diags.Errorf(x.base().span, "the %s is an integer literal from 0 to %d", what, uint32(math.MaxUint32))
	}
}

// printf checks arguments against the format.
func (c *checker) printf(x *callExpr) {
	for _, a := range x.args[1:] {
		c.value(a)
	}
	format := x.args[0].base()
	if c.value(x.args[0]).Kind == bad {
		return
	}
	if format.typ.Kind != String || !format.con.known {
		d := c.diags.Errorf(format.span, "the format is a string, this is %s", format.typ.a())
		if p, ok := x.args[0].(*paramExpr); ok {
			d.Hint("str($%s) takes the parameter as a string", p.number)
		}
		return
	}
	f, stray := parseFormat(format.con.s)
	if stray {
		c.diags.Warnf(format.span, "a '%%' starts no conversion and is printed as it is").Hint("write %%%% for a '%%'")
	}
	for _, conv := range f.Conv {
		if why := conv.unusable(); why != "" {
			c.diags.Errorf(format.span, "%s", why)
			return
		}
	}
	args := x.args[1:]
	switch {
	case len(args) < len(f.Conv):
		c.diags.Errorf(x.span, "not enough arguments for format string (%d supplied, %d expected)", len(args), len(f.Conv))
	case len(args) > len(f.Conv):
		at := args[len(f.Conv)].base().span.To(args[len(args)-1].base().span)
		c.diags.Errorf(at, "too many arguments for format string (%d supplied, %d expected)", len(args), len(f.Conv))
	default:
		for i, conv := range f.Conv {
			if why := conv.problem(b2t(args[i])); why != "" {
				c.diags.Errorf(args[i].base().span, "%s", why)
			}
		}
	}
}

// fromOption reports whether an expression is an option of the command line.
func fromOption(x expr) bool {
	call, ok := x.(*callExpr)
	return ok && call.name == "getopt"
}

// behindStart is the text of a parameter from a place on: $1 + 2, without the first two
// characters.
func (c *checker) behindStart(x expr) (string, bool) {
	sum, ok := x.(*binaryExpr)
	if !ok || sum.op != '+' {
		return "", false
	}
	p, isParam := sum.x.(*paramExpr)
	n, isNumber := sum.y.(*intExpr)
	if !isParam || !isNumber || c.value(p).Kind != String {
		return "", false
	}
	return p.con.s[min(n.value, uint64(len(p.con.s))):], true
}

// str makes a string of a parameter or a literal; of a parameter that is not
// given, the empty one. Anything else is a pointer to a string.
func (c *checker) str(x *callExpr) Type {
	if rest, ok := c.behindStart(x.args[0]); ok {
		x.setString(rest)
		return x.typ
	}
	if c.value(x.args[0]).Kind == bad {
		return badType
	}
	b := x.args[0].base()
	text := b.con.s
	if p, ok := x.args[0].(*paramExpr); ok {
		n, _, _ := digits(p.number, 10)
		text = ""
		if n >= 1 && n <= uint64(len(c.opts.Params)) {
			text = c.opts.Params[n-1]
		}
	} else if !b.con.literal || b.typ.Kind == Int && !fromOption(x.args[0]) {
		n, ok := c.strLength(x)
		switch {
		case b.typ.Kind == String: // it is one already
			n, x.cut = min(n, b.typ.Len-1), true
		case b.typ.Kind == Array && b.typ.Elem.memory() == 1:
			n, x.cut = min(n, b.typ.Count), true
		case b.typ.Kind != Int && b.typ.Kind != Pointer:
			c.diags.Errorf(b.span, "str() expects a string, integer or a pointer type as first argument (%s provided)", b.typ)
			ok = false
		}
		if !ok {
			return badType
		}
		x.cut = x.cut || len(x.args) == 2
		return textType(n)
	} else if b.typ.Kind == Int {
		text = literalText(b)
	} else if b.typ.Kind == Bool {
		text = strconv.FormatBool(b.con.u != 0)
	}
	if len(x.args) == 2 {
		c.value(x.args[1])
		if n := x.args[1].base().con; n.literal && uint64(len(text)) > n.u {
			text = text[:n.u]
		}
	}
	x.setString(text)
	return x.typ
}
