package lang

import "strings"

// Limits of strings, in bytes without the zero byte that ends them.
const (
	defaultStrlen = 127
	maxStrlen     = 2000
	maxString     = maxStrlen + 8
)

// keyWords is the number of words of a key.
func keyWords(keys []Type) int {
	n := 0
	for _, t := range keys {
		n += t.Words()
	}
	return n
}

// keyType is the type of a part of a key. A string takes the place that it may
// need, and no more than a key may have.
func (c *checker) keyType(x *exprBase, t Type) Type {
	switch {
	case t.Kind != String:
		return t
	case x.con.known:
		t = textType(len(x.con.s))
	}
	if t.Len > 8*maxKeys {
		if x.con.known || !x.cut {
			c.diags.Warnf(x.span, "strings are cut to %d bytes in a key", 8*maxKeys-1)
		}
		t.Len = 8 * maxKeys
	}
	return t
}

// strLength is the second argument of str(), or the limit that holds without. An
// argument that is not known is cut to that.
func (c *checker) strLength(x *callExpr) (int, bool) {
	if len(x.args) < 2 {
		return c.config.maxStrlen(), true
	}
	t := c.value(x.args[1])
	b := x.args[1].base()
	switch {
	case t.Kind == bad:
		return 0, false
	case t.Kind != Int:
		c.diags.Errorf(b.span, "a length is an integer, this is %s", t.a())
		return 0, false
	case !b.con.known:
		return c.config.maxStrlen(), true
	case int64(b.con.u) < 1 || b.con.u > maxStrlen:
		c.diags.Errorf(b.span, "a string has 1 to %d bytes, not %d", maxStrlen, int64(b.con.u))
		return 0, false
	}
	return int(b.con.u), true
}

// strncmp checks strncmp(string, string, length).
func (c *checker) strncmp(x *callExpr) Type {
	a, b := c.value(x.args[0]), c.value(x.args[1])
	n, ok := c.literal(x.args[2], "number of bytes")
	switch {
	case !ok || a.Kind == bad || b.Kind == bad:
		return badType
	case a.Kind != String || b.Kind != String:
		c.diags.Errorf(x.span, "strncmp() only supports string arguments (%s and %s provided)", a, b)
		return badType
	case n < 0:
		c.diags.Errorf(x.args[2].base().span, "Builtin strncmp requires a non-negative literal")
		return badType
	}
	s, t := x.args[0].base().con, x.args[1].base().con
	if s.known && t.known {
		cut := func(s string) string { return s[:min(len(s), int(n))] }
		x.con = constant{known: true, u: b2u(cut(s.s) != cut(t.s))}
	}
	return uint64Type
}

// stringCall checks functions whose arguments are strings.
func (c *checker) stringCall(x *callExpr) Type {
	known := true
	for i, a := range x.args {
		if x.name == "memcmp" && i == 2 {
			continue
		}
		t := c.value(a)
		switch {
		case t.Kind == bad:
			return badType
		case x.name == "memcmp" && (t.Kind == String || t.Kind == Array || t.Kind == Struct || t.Kind == Tuple || t.Kind == Record):
		case t.Kind != String:
			c.diags.Errorf(a.base().span, "%s() only supports string arguments (%s provided)", x.name, t)
			return badType
		}
		known = known && a.base().con.known
	}
	a := x.args[0].base()
	switch x.name {
	case "strlen":
		if known {
			x.con = constant{known: true, u: uint64(len(untilZero([]byte(a.con.s))))}
		}
		return uint64Type
	case "strcap":
		x.con = constant{known: true, u: uint64(c.textLen(a))}
		return int64Type
	case "memcmp":
		return c.memcmp(x)
	}
	return c.twoStrings(x, known)
}

// twoStrings types functions of two strings.
func (c *checker) twoStrings(x *callExpr, known bool) Type {
	a, b := x.args[0].base(), x.args[1].base()
	switch x.name {
	case "str_concat":
		if known {
			x.con = constant{known: true, s: a.con.s + b.con.s}
			return textType(len(x.con.s))
		}
		t := textType(c.textLen(a) + c.textLen(b))
		t.Len = min(t.Len, maxString)
		return t
	case "strstr":
		if known {
			x.con = constant{known: true, u: uint64(strings.Index(a.con.s, b.con.s))}
		}
		return int64Type
	}
	if known {
		x.con = constant{known: true, literal: true, u: b2u(strings.Contains(a.con.s, b.con.s))}
	}
	return boolType
}

// textLen is how many bytes a string has at most.
func (c *checker) textLen(b *exprBase) int {
	if b.con.known {
		return len(b.con.s)
	}
	return b.typ.Len - 1
}

func (c *checker) memcmp(x *callExpr) Type {
	n, ok := c.literal(x.args[2], "number of bytes")
	if !ok {
		return badType
	}
	least := min(b2t(x.args[0]).memory(), b2t(x.args[1]).memory())
	if n < 0 || int(n) > least {
		c.diags.Errorf(x.args[2].base().span, "memcmp() compares 0 to %d bytes of these", least)
		return badType
	}
	return int64Type
}

// comparableTypes reports whether two values that are no numbers can be compared
// for equality.
func comparableTypes(a, b Type) bool {
	switch {
	case a.Kind != b.Kind:
		return false
	case a.Kind == String || a.Kind == MAC || a.Kind == Inet || a.Kind == Buffer:
		return true
	case a.Kind == Array:
		return a.Equal(b) && a.Elem.isScalar()
	case a.Kind == Tuple || a.Kind == Record:
		_, ok := promote(a, b)
		return ok
	}
	return false
}
