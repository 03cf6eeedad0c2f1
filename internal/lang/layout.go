package lang

import "strings"

// Layout is how a struct, a union, a tuple or a record lies in memory.
type Layout struct {
	Name   string // as "struct timespec"; empty for tuples and records
	Fields []Field
	Size   int // bytes

	align   int
	defined bool // the script has it, or debug information: else the name alone is known
	record  bool
}

// Field is a field of a Layout. Those of a C struct lie as the compiler lays them;
// those of a tuple or record begin at multiples of 8, and a number fills 8 bytes.
type Field struct {
	Name   string // empty in a tuple, and for a struct without a name inside another
	Type   Type
	Offset int // bytes
	Bits   int // of a bit-field: its width, else 0
	Shift  int // of a bit-field: bits from Offset on
}

// Enum is an enumeration of C.
type Enum struct {
	Name   string // as "enum color"
	Values []EnumValue
}

// EnumValue is a constant of an enumeration.
type EnumValue struct {
	Name  string
	Value uint64 // extended to 64 bits
}

// NameOf is the first constant of a value, and false if there is none.
func (e *Enum) NameOf(v uint64) (string, bool) {
	for _, c := range e.Values {
		if c.Value == v {
			return c.Name, true
		}
	}
	return "", false
}

// String is the name of a struct, or the list of a tuple's or record's types.
func (l *Layout) String() string {
	if l.Name != "" {
		return l.Name
	}
	var parts []string
	for _, f := range l.Fields {
		if f.Name != "" {
			parts = append(parts, "."+f.Name+" = "+f.Type.String())
		} else {
			parts = append(parts, f.Type.String())
		}
	}
	if l.record {
		return "record { " + strings.Join(parts, ", ") + " }"
	}
	return "(" + strings.Join(parts, ",") + ")"
}

// field finds a field by its name, also in structs without a name inside. Its
// offset is that from the beginning of the whole.
func (l *Layout) field(name string) (Field, bool) {
	for _, f := range l.Fields {
		if f.Name == name && name != "" {
			return f, true
		}
		if f.Name != "" || f.Type.Kind != Struct {
			continue
		}
		if inner, ok := f.Type.Layout.field(name); ok {
			inner.Offset += f.Offset
			return inner, true
		}
	}
	return Field{}, false
}

// fieldNames are the names that field finds.
func (l *Layout) fieldNames() map[string]bool {
	names := map[string]bool{}
	for _, f := range l.Fields {
		switch {
		case f.Name != "":
			names[f.Name] = true
		case f.Type.Kind == Struct:
			for n := range f.Type.Layout.fieldNames() {
				names[n] = true
			}
		}
	}
	return names
}

// Words is the number of 8-byte words that hold a value in keys, in values of
// maps and in events.
func (t Type) Words() int { return (t.Bytes() + 7) / 8 }

// Bytes is the number of bytes that a value takes there, before it is rounded up.
func (t Type) Bytes() int {
	switch t.Kind {
	case None:
		return 0
	case String:
		return t.Len
	case Buffer:
		return 8 + t.Len
	case Array:
		return t.Count * t.Elem.memory()
	case Struct, Tuple, Record:
		return t.Layout.Size
	case Inet:
		return 24
	}
	return 8
}

// memory is the size in the target's memory: sizeof in C. A tuple has the size
// that it would have as a struct.
func (t Type) memory() int {
	switch t.Kind {
	case Int, Bool, Float:
		return max(int(t.Size), 1)
	case None:
		return 1 // as gcc counts void
	case Buffer:
		return 4 + t.Len
	case Tuple, Record:
		size := 0
		for _, f := range t.Layout.Fields {
			size = alignUp(size, f.Type.alignment()) + f.Type.memory()
		}
		return alignUp(size, t.alignment())
	case MAC:
		return 6
	case Inet:
		return 20
	}
	return t.Bytes()
}

// alignment is the number of bytes of which C takes a multiple as the address.
func (t Type) alignment() int {
	switch t.Kind {
	case String, MAC, None:
		return 1
	case Array:
		return t.Elem.alignment()
	case Struct:
		return max(1, t.Layout.align)
	case Tuple, Record:
		a := 1
		for _, f := range t.Layout.Fields {
			a = max(a, f.Type.alignment())
		}
		return a
	case Buffer, Inet:
		return 4
	}
	return min(8, t.memory())
}

func alignUp(n, align int) int { return (n + align - 1) / align * align }

// tupleOf is the type of a tuple, or of a record if there are names.
func tupleOf(elems []Type, names []string) Type {
	l := &Layout{align: 8, defined: true, record: names != nil}
	for i, t := range elems {
		f := Field{Type: t, Offset: l.Size}
		if names != nil {
			f.Name = names[i]
		}
		l.Fields = append(l.Fields, f)
		l.Size += 8 * t.Words()
	}
	kind := Tuple
	if names != nil {
		kind = Record
	}
	return Type{Kind: kind, Layout: l}
}

// Equal reports whether two types are the same.
func (t Type) Equal(u Type) bool {
	if t == u {
		return true
	}
	if t.Kind != u.Kind || t.Size != u.Size || t.Signed != u.Signed || t.flexible != u.flexible || t.Len != u.Len ||
		t.Count != u.Count || t.Enum != u.Enum || t.Format != u.Format || (t.Elem == nil) != (u.Elem == nil) {
		return false
	}
	if t.Elem != nil && !t.Elem.Equal(*u.Elem) {
		return false
	}
	if t.Kind == Struct || t.Layout == nil || u.Layout == nil {
		return t.Layout == u.Layout || t.Layout != nil && u.Layout != nil && t.Layout.Name != "" && t.Layout.Name == u.Layout.Name
	}
	if len(t.Layout.Fields) != len(u.Layout.Fields) {
		return false
	}
	for i, f := range t.Layout.Fields {
		if g := u.Layout.Fields[i]; f.Name != g.Name || !f.Type.Equal(g.Type) {
			return false
		}
	}
	return true
}

// promoteOther is promote for types of one kind that are no integers.
func promoteOther(a, b Type) (Type, bool) {
	switch a.Kind {
	case String, Buffer, Stack:
		a.Len = max(a.Len, b.Len)
		return a, a.Kind != Stack || a.Format == b.Format
	case Pointer:
		if a.Elem.Kind == None || a.Elem.Equal(*b.Elem) {
			return a, true
		}
		return b, b.Elem.Kind == None
	case Array:
		return a, a.Count == b.Count && a.Elem.Equal(*b.Elem)
	case Struct:
		return a, a.Equal(b)
	case Tuple, Record:
		return promoteFields(a, b)
	case Float:
		a.Size = max(a.Size, b.Size)
	}
	return a, true
}

// promoteFields is promote for tuples and records. The fields of records are
// found by their names.
func promoteFields(a, b Type) (Type, bool) {
	if len(a.Layout.Fields) != len(b.Layout.Fields) {
		return badType, false
	}
	var elems []Type
	var names []string
	for i, f := range a.Layout.Fields {
		g := b.Layout.Fields[i]
		if a.Kind == Record {
			var ok bool
			if g, ok = b.Layout.field(f.Name); !ok {
				return badType, false
			}
			names = append(names, f.Name)
		}
		t, ok := promote(f.Type, g.Type)
		if !ok {
			return badType, false
		}
		elems = append(elems, t)
	}
	if a.Kind == Record && names == nil {
		names = []string{}
	}
	return tupleOf(elems, names), true
}
