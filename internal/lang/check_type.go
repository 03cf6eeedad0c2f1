package lang

import "trapless/internal/diag"

// TypeSource knows types that the script does not declare, as debug information
// does. Types that it returns lie in the target's memory as C's do.
type TypeSource interface {
	// Use says that the script has an attach point, whose file's types may be named.
	Use(a *AttachPoint)
	// Named finds "struct name", "union name", "enum name" or the name of a typedef.
	Named(name string) (Type, bool)
	// Args are the parameters of the function at an attach point, as the fields
	// of a struct that each have 8 bytes, in their order, and its result.
	Args(a *AttachPoint) (args *Layout, result Type, ok bool)
	// Lines are the addresses, as in the file's symbol table, of the line of source
	// that an attach point names.
	Lines(a *AttachPoint) ([]uint64, error)
	// Address finds a symbol of the file of an attach point that names one function: how
	// far behind the function's start it is, and its size in bytes, 0 if it is not known.
	Address(a *AttachPoint, name string) (delta int64, size uint64, err error)
}

// resolve finds the type that is written.
func (c *checker) resolve(r *typeRef) Type {
	if r == nil {
		return noneType
	}
	t := badType
	switch {
	case r.in != nil:
		t = c.resolve(r.in)
	case r.of != nil:
		t = c.typeOf(r.of)
	case r.name != "":
		t = c.namedType(r)
	}
	mods := r.mods
	if len(mods) > 0 && !mods[0].pointer && !mods[0].open && (t.Kind == String || t.Kind == Buffer) && r.in == nil && r.of == nil {
		n := mods[0].count
		if n == 0 || n > maxString {
			c.diags.Errorf(r.span, "%s has between 1 and %d bytes", t.a(), maxString)
			return badType
		}
		t.Len = alignUp(int(n), 8)
		mods = mods[1:]
	}
	for _, m := range mods {
		t = c.modified(r, t, m)
	}
	return t
}

// modified makes a pointer or an array of a type.
func (c *checker) modified(r *typeRef, t Type, m typeMod) Type {
	elem := t
	switch {
	case t.Kind == bad:
		return t
	case m.pointer:
		return pointerTo(t)
	case t.Kind == None:
		c.diags.Errorf(r.span, "there are no arrays of void")
	case m.open:
		return Type{Kind: Array, Count: -1, Elem: &elem}
	case m.count > maxArray || int(m.count)*t.memory() > maxArray:
		c.diags.Errorf(r.span, "the array is too large, the limit is %d bytes", maxArray)
	default:
		return Type{Kind: Array, Count: int(m.count), Elem: &elem}
	}
	return badType
}

// typeOf is the type of an expression that is not computed.
func (c *checker) typeOf(x expr) Type {
	c.push()
	defer c.pop()
	if m, ok := x.(*mapExpr); ok && !m.indexed {
		if info := c.maps[m.name]; info != nil && info.agg != 0 && len(info.keys) > 0 {
			return info.value
		}
	}
	t := c.value(x)
	t.flexible = false
	return t
}

// typeAliases are names of types that are no C.
var typeAliases = map[string]Type{
	"string": {Kind: String}, "buffer": {Kind: Buffer}, "inet": {Kind: Inet}, "username": {Kind: User, Size: 8}, "timestamp": {Kind: Time, Size: 8},
	"usym_t": {Kind: Symbol, Size: 8}, "ustack_t": {Kind: Stack, Len: 8 * defaultDepth}, "mac_address": {Kind: MAC}, "macaddr_t": {Kind: MAC},
	"unsigned int": intType(4, false), "unsigned char": intType(1, false), "unsigned short": intType(2, false), "unsigned long": uint64Type,
	"s8": intType(1, true), "s16": intType(2, true), "s32": intType(4, true), "s64": int64Type,
	"u8": intType(1, false), "u16": intType(2, false), "u32": intType(4, false), "u64": uint64Type,
	"__s8": intType(1, true), "__s16": intType(2, true), "__s32": intType(4, true), "__s64": int64Type,
	"__u8": intType(1, false), "__u16": intType(2, false), "__u32": intType(4, false), "__u64": uint64Type,
	"pid_t": intType(4, true), "uid_t": intType(4, false), "gid_t": intType(4, false), "off_t": int64Type, "time_t": int64Type,
	"mode_t": intType(4, false), "socklen_t": intType(4, false), "sa_family_t": intType(2, false), "in_addr_t": intType(4, false), "in_port_t": intType(2, false),
}

func (c *checker) namedType(r *typeRef) Type {
	name := r.name
	if r.tag != "" {
		name = r.tag + " " + r.name
	}
	if t, ok := c.findType(name); ok {
		return t
	}
	if c.opts.Types != nil {
		if t, ok := c.opts.Types.Named(name); ok {
			return t
		}
	}
	if r.tag == "" { // C++ and bpftrace take the name of a struct alone
		for _, tag := range []string{"struct ", "union ", "enum "} {
			if t, ok := c.findType(tag + name); ok {
				return t
			}
		}
	}
	d := c.diags.Errorf(r.span, "Cannot resolve unknown type \"%s\"", name)
	if near := nearest(name, typeNames); near != "" {
		d.Hint("did you mean %s?", near)
	} else if r.tag != "" {
		d.Hint("define it before the probes, or attach to a program with debug information")
	}
	return badType
}

func (c *checker) findType(name string) (Type, bool) {
	if t := c.types.typedefs[name]; t != nil {
		return *t, true
	}
	if l := c.types.tags[name]; l != nil {
		return Type{Kind: Struct, Layout: l}, true
	}
	if e := c.types.enums[name]; e != nil {
		return enumType(e), true
	}
	if t, ok := typeNames[name]; ok {
		return t, true
	}
	if t, ok := typeAliases[name]; ok {
		if t.Kind == String || t.Kind == Buffer {
			t.Len = textType(c.config.maxStrlen()).Len
		}
		return t, true
	}
	return cBasic(name)
}

// sizeof checks sizeof and offsetof, which are constants.
func (c *checker) sizeof(x *sizeofExpr) {
	x.typ = badType
	var t Type
	if x.ref != nil {
		t = c.resolve(x.ref)
	} else {
		t = c.typeOf(x.x)
	}
	if t.Kind == bad {
		return
	}
	n := 0
	switch {
	case x.offset:
		var ok bool
		if n, ok = c.offsetof(x.span, t, x.fields); !ok {
			return
		}
	case t.Kind == Struct && !t.Layout.defined:
		c.diags.Errorf(x.span, "%s is not defined", t)
		return
	case x.x != nil && x.x.base().con.known && t.Kind == String:
		n = len(x.x.base().con.s) + 1
	default:
		n = t.memory()
	}
	x.typ, x.con = uint64Type, constant{known: true, literal: true, u: uint64(n)}
}

func (c *checker) offsetof(at diag.Span, t Type, fields []string) (int, bool) {
	n := 0
	for _, name := range fields {
		if t.Kind != Struct && t.Kind != Record {
			c.diags.Errorf(at, "Can not access field '%s' on expression of type '%s'", name, t)
			return 0, false
		}
		f, ok := t.Layout.field(name)
		if !ok {
			c.noField(at, t, name)
			return 0, false
		}
		n += f.Offset
		t = f.Type
	}
	return n, true
}

func (c *checker) noField(at diag.Span, t Type, name string) {
	if t.Kind == Struct && !t.Layout.defined {
		c.diags.Errorf(at, "%s is not defined, so its fields are not known", t).Hint("define it before the probes")
		return
	}
	d := c.diags.Errorf(at, "%s does not contain a field named '%s'", map[bool]string{true: "Record", false: "Struct/union of type '" + t.String() + "'"}[t.Kind == Record], name)
	if near := nearest(name, t.Layout.fieldNames()); near != "" {
		d.Hint("did you mean %s?", near)
	}
}
