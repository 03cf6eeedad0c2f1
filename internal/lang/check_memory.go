package lang

import "strconv"

// valueType is the type of a value that is read from memory of the type: a text
// gets a zero byte at its end.
func valueType(t Type, inStruct bool) Type {
	if t.Kind == String && inStruct {
		return textType(t.Len)
	}
	return t
}

// field types x.name.
func (c *checker) field(x *fieldExpr) {
	if isConfig(x.x) {
		c.configField(x)
		return
	}
	x.typ = badType
	t := c.value(x.x)
	switch {
	case t.Kind == bad:
		return
	case t.Kind == Pointer && t.Elem.Kind == Struct:
		t = *t.Elem
	case t.Kind == Struct, t.Kind == Record, t.Kind == Tuple:
	default:
		c.diags.Errorf(x.span, "Can not access field '%s' on expression of type '%s'", x.name, t).Hint("cast it to a pointer to a struct, as in ((struct name *)x).field")
		return
	}
	if t.Kind == Tuple {
		n, err := strconv.ParseUint(x.name, 10, 31)
		if err != nil {
			c.diags.Errorf(x.nameAt, "the fields of a tuple are numbered from 0")
			return
		}
		c.element(x, t, n)
		return
	}
	f, ok := t.Layout.field(x.name)
	if !ok {
		c.noField(x.nameAt, t, x.name)
		return
	}
	x.field = f
	x.typ = valueType(f.Type, t.Kind == Struct)
	if x.typ.Kind == Struct && !x.typ.Layout.defined {
		c.diags.Errorf(x.span, "%s is not defined", x.typ)
		x.typ = badType
	}
	x.typ.flexible = false
}

// element types an element of a tuple.
func (c *checker) element(x *fieldExpr, t Type, n uint64) {
	if n >= uint64(len(t.Layout.Fields)) {
		c.diags.Errorf(x.nameAt, "Invalid tuple index: %d. Found %d elements in tuple.", n, len(t.Layout.Fields))
		return
	}
	x.field = t.Layout.Fields[n]
	x.typ = x.field.Type
}

// index types x[i].
func (c *checker) index(x *indexExpr) {
	x.typ = badType
	t := c.value(x.x)
	i := c.value(x.index)
	con := x.index.base().con
	switch {
	case t.Kind == bad || i.Kind == bad:
		return
	case i.Kind != Int:
		c.diags.Errorf(x.index.base().span, "The array index operator [] only accepts non-negative integer indices. Got: %s", i)
		return
	case t.Kind == Pointer && t.Elem.Kind == None:
		c.diags.Errorf(x.span, "The array index operator [] cannot be used on a pointer to an unsized type (void *).").Hint("cast it to a pointer to another type")
		return
	case t.Kind == Pointer:
		x.typ = valueType(*t.Elem, true)
		return
	case t.Kind == Tuple:
		if !con.known || int64(con.u) < 0 || con.u >= uint64(len(t.Layout.Fields)) {
			c.diags.Errorf(x.index.base().span, "Array-style access for tuples only valid for integer literals from 0 to %d", len(t.Layout.Fields)-1)
			return
		}
		x.typ = t.Layout.Fields[con.u].Type
		return
	case t.Kind == String:
		x.typ = intType(1, true)
		return
	case t.Kind != Array:
		c.diags.Errorf(x.span, "The array index operator [] can only be used on arrays, pointers, and tuples, found %s.", t)
		return
	}
	if con.known && t.Count > 0 && (int64(con.u) < 0 || con.u >= uint64(t.Count)) { // one of 0 has as many as follow
		c.diags.Errorf(x.index.base().span, "the index %d is out of bounds for array of size %d", int64(con.u), t.Count)
		return
	}
	x.typ = valueType(*t.Elem, true)
}

// deref types *x.
func (c *checker) deref(x *derefExpr) {
	x.typ = badType
	t := c.value(x.x)
	switch {
	case t.Kind == bad:
	case t.Kind != Pointer:
		c.diags.Errorf(x.span, "Can not dereference type '%s'. It is not a pointer.", t).Hint("cast it: *(uint64 *)x")
	case t.Elem.Kind == None:
		c.diags.Errorf(x.span, "nothing can be read through a void*").Hint("cast it to a pointer to another type")
	case t.Elem.Kind == Struct && !t.Elem.Layout.defined:
		c.diags.Errorf(x.span, "%s is not defined", t.Elem)
	default:
		x.typ = valueType(*t.Elem, true)
	}
}

// tuple types a tuple or a record.
func (c *checker) tuple(x *tupleExpr) {
	var elems []Type
	failed := false
	for _, e := range x.elems {
		t := c.value(e)
		failed = failed || t.Kind == bad
		elems = append(elems, c.stored(e.base(), t))
	}
	x.typ = badType
	if !failed {
		x.typ = tupleOf(elems, x.names)
	}
}

// stored is the type of a value that is kept: a text that is known has the size
// that it needs.
func (c *checker) stored(b *exprBase, t Type) Type {
	if t.Kind == String && b.con.known {
		return textType(len(b.con.s))
	}
	return t
}

// cast types (type)x.
func (c *checker) cast(x *castExpr) {
	t := c.value(x.x)
	to := c.resolve(x.ref)
	x.to, x.typ = to, badType
	if t.Kind == bad || to.Kind == bad {
		return
	}
	if to.Kind == Array && to.Count < 0 {
		size := t.memory()
		if con := x.x.base().con; t.Kind == String && con.known {
			size = len(con.s) + 1
		}
		if size%max(1, to.Elem.memory()) != 0 {
			c.diags.Errorf(x.span, "%s has %d bytes, which are no whole number of %s", t.a(), size, to.Elem)
			return
		}
		to.Count = size / max(1, to.Elem.memory())
		x.to = to
	}
	if why := castProblem(t, to); why != "" {
		c.diags.Errorf(x.span, "Cannot cast from \"%s\" to \"%s\"%s", t, to, why)
		return
	}
	x.typ = to
	x.typ.flexible = false
	if con := x.x.base().con; con.known && to.isScalar() && t.isScalar() {
		x.con = constant{known: true, u: to.truncate(con.u)}
	} else if con.known && t.Kind == String && to.Kind == String {
		x.con = con
		x.con.s = con.s[:min(len(con.s), to.Len-1)]
	}
}

// castProblem is why a value cannot be cast, "" if it can.
func castProblem(from, to Type) string {
	switch {
	case from.isScalar() && to.isScalar():
		return ""
	case from.Kind == to.Kind && (from.Kind == String || from.Kind == Buffer || from.Equal(to)):
		return ""
	case from.Kind == Tuple && to.Kind == Tuple, from.Kind == Record && to.Kind == Record:
		if _, ok := promote(from, to); ok {
			return ""
		}
	case to.Kind == Array && (from.isScalar() || from.Kind == Array), from.Kind == Array && to.isScalar():
		literal := from.flexible && from.memory() < to.memory()
		if from.memory() != to.memory() && !literal || from.Kind == Array && !from.Elem.isScalar() || to.Kind == Array && !to.Elem.isScalar() {
			return ": their sizes are not the same"
		}
		return ""
	case from.Kind == String && to.Kind == Array && to.Elem.memory() == 1, from.Kind == Array && to.Kind == String && from.Elem.memory() == 1:
		return ""
	case from.isScalar() && to.Kind == String, from.isScalar() && to.Kind == Buffer:
		return "; str() reads a string"
	}
	return wrongCast
}

const wrongCast = "; there is no such conversion"

// addr types &x.
func (c *checker) addr(x *addrExpr) {
	x.typ = badType
	switch y := x.x.(type) {
	case *varExpr, *mapExpr:
		if t := c.value(y); t.Kind != bad {
			c.diags.Errorf(x.span, "not supported yet: the address of a variable or map")
		}
	default:
		if u, ok := c.userAddress(x.x); ok {
			x.typ = u
		}
	}
}

// userAddress types &x of what lies in the target's memory.
func (c *checker) userAddress(x expr) (Type, bool) {
	t := c.value(x)
	if t.Kind == bad {
		return badType, false
	}
	if !liesInTarget(x) {
		c.diags.Errorf(x.base().span, "'&' takes the address of what lies in the target's memory")
		return badType, false
	}
	if f, ok := x.(*fieldExpr); ok {
		t = f.field.Type
	}
	return pointerTo(t), true
}

// liesInTarget reports whether an expression names memory of the target.
func liesInTarget(x expr) bool {
	switch x := x.(type) {
	case *derefExpr:
		return true
	case *fieldExpr:
		return b2t(x.x).Kind == Pointer || liesInTarget(x.x)
	case *indexExpr:
		return b2t(x.x).Kind == Pointer || liesInTarget(x.x)
	}
	return false
}
