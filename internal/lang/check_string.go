package lang

// Limits of strings, in bytes without the zero byte that ends them. They lie on
// the stack of a program, which has 512 bytes.
const (
	defaultStrlen = 127
	maxStrlen     = 400
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

// strLength is the second argument of str(), or the limit that holds without.
func (c *checker) strLength(x *callExpr) (int, bool) {
	if len(x.args) < 2 {
		return c.config.maxStrlen, true
	}
	n, ok := c.literal(x.args[1], "length")
	if ok && (n < 1 || n > maxStrlen) {
		c.diags.Errorf(x.args[1].base().span, "a string has 1 to %d bytes, not %d", maxStrlen, n)
		ok = false
	}
	return int(n), ok
}

// strncmp checks strncmp(string, literal, length).
func (c *checker) strncmp(x *callExpr) Type {
	a, b := c.value(x.args[0]), c.value(x.args[1])
	n, ok := c.literal(x.args[2], "number of bytes")
	switch {
	case !ok || a.Kind == bad || b.Kind == bad:
		return badType
	case a.Kind != String || b.Kind != String:
		c.diags.Errorf(x.span, "strncmp() compares strings, these are %s and %s", a.a(), b.a())
		return badType
	case n < 0:
		c.diags.Errorf(x.args[2].base().span, "the number of bytes is negative")
		return badType
	}
	s, t := x.args[0].base().con, x.args[1].base().con
	if s.known && t.known {
		cut := func(s string) string { return s[:min(len(s), int(n))] }
		x.con = constant{known: true, u: b2u(cut(s.s) != cut(t.s))}
	} else {
		c.comparable(x.args[0], x.args[1], x.base())
	}
	return uint64Type
}

// comparable reports a comparison of two strings neither of which is known.
func (c *checker) comparable(x, y expr, at *exprBase) {
	a, b := x.base(), y.base()
	if a.typ.Kind == String && b.typ.Kind == String && !a.con.known && !b.con.known {
		c.diags.Errorf(at.span, "not supported yet: comparing two strings that are both read at run time").Hint("one of them may be a literal")
	}
}
