package lang

import (
	"fmt"
	"strings"
)

// Kind is the kind of a type.
type Kind uint8

const (
	// None is the type of what has no value, such as a call of printf.
	None Kind = iota
	Int
	Bool
	// String is the type of texts: Len bytes, of which those from the first zero
	// byte on do not count.
	String
	// Pointer is an address of the target's memory, of an Elem there.
	Pointer
	// Array is Count times Elem.
	Array
	// Struct is a struct or a union of C; Layout says how it lies in memory.
	Struct
	// Tuple and Record have the fields of Layout, those of a Tuple without names.
	Tuple
	Record
	// Buffer is bytes of any kind: a word with their number, then room for Len.
	Buffer
	// Float is a float or a double of C, as its bits.
	Float
	// Symbol is the address of code, which is printed as a symbol.
	Symbol
	// Stack is a stack of the target, which is printed as the symbols of its
	// frames: a word with its number in the map of stacks of up to Len bytes.
	Stack
	// Time is a number of nanoseconds, printed as a date by Format. Args of
	// strftime.
	Time
	// Inet is an address of the internet: a word with its size, 4 or 16, then 16
	// bytes.
	Inet
	// MAC is an address of Ethernet, 6 bytes.
	MAC
	// User is a number of a user, printed as the name.
	User
	// Name is a number that is printed as what it names: Format is ErrorNames, SignalNames
	// or CgroupPaths, which a ':' and a pattern may follow.
	Name
	// bad is the type of an expression with an error that was reported; it
	// fits everywhere, so that no error is reported twice.
	bad
)

// Type is the type of a value. Values that a register can hold are held in 64
// bits, extended by the sign of their own type.
type Type struct {
	Kind   Kind
	Size   uint8 // bytes: 1, 2, 4 or 8, of an Int, Float or Bool
	Signed bool
	// flexible marks a type that comes from literals that are not negative: it
	// takes the sign of what it is combined with.
	flexible bool
	Len      int // bytes of a String, a Buffer or a Stack
	Count    int // of an Array
	Elem     *Type
	Layout   *Layout
	Enum     *Enum  // of an Int that is an enumeration
	Format   string // of a Time, or the mode of a Stack
}

var (
	noneType   = Type{Kind: None}
	boolType   = Type{Kind: Bool, Size: 1}
	stringType = Type{Kind: String}
	badType    = Type{Kind: bad}
	int64Type  = Type{Kind: Int, Size: 8, Signed: true}
	uint64Type = Type{Kind: Int, Size: 8}
)

// kindNames are the names of types that are called by their kind alone.
var kindNames = map[Kind]string{
	None: "none", Bool: "bool", String: "string", Buffer: "buffer", Symbol: "usym_t", Stack: "ustack_t",
	Time: "timestamp", Inet: "inet", MAC: "mac_address", User: "username",
}

// String is the type's name in the language.
func (t Type) String() string {
	switch t.Kind {
	case Int:
		if t.Enum != nil {
			return t.Enum.Name
		}
		sign := "u"
		if t.Signed {
			sign = ""
		}
		return fmt.Sprintf("%sint%d", sign, int(t.Size)*8)
	case Float:
		if t.Size == 4 {
			return "float"
		}
		return "double"
	case Pointer:
		return t.Elem.pointee() + "*"
	case Array:
		return fmt.Sprintf("%s[%d]", t.Elem, t.Count)
	case Struct, Tuple, Record:
		return t.Layout.String()
	}
	if t.Kind == Name {
		name, _, _ := strings.Cut(t.Format, ":")
		return name + "_t"
	}
	if name := kindNames[t.Kind]; name != "" {
		return name
	}
	return "error"
}

// pointee is the type's name in that of a pointer to it.
func (t *Type) pointee() string {
	if t.Kind == None {
		return "void"
	}
	return t.String() + strings.Repeat(" ", btoi(t.Kind == Struct))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// a is the type's name with its article.
func (t Type) a() string {
	name := t.String()
	if t.Kind != Pointer && name != "" && strings.IndexByte("aeio", name[0]) >= 0 {
		return "an " + name
	}
	return "a " + name
}

// isScalar reports whether a register can hold a value of the type.
func (t Type) isScalar() bool {
	switch t.Kind {
	case Int, Bool, Pointer, Symbol, Stack, Time, User, Name, Float, bad:
		return true
	}
	return false
}

// isTruth reports whether a value of the type may decide a condition.
func (t Type) isTruth() bool {
	return t.Kind == Int || t.Kind == Bool || t.Kind == Pointer || t.Kind == bad
}

// typeNames are the names that a cast or a declaration may use. The names with
// _t and C's own come from C headers, as bpftrace takes them from BTF.
var typeNames = map[string]Type{
	"bool": boolType,
	"int8": intType(1, true), "int16": intType(2, true), "int32": intType(4, true), "int64": int64Type,
	"uint8": intType(1, false), "uint16": intType(2, false), "uint32": intType(4, false), "uint64": uint64Type,
	"int8_t": intType(1, true), "int16_t": intType(2, true), "int32_t": intType(4, true), "int64_t": int64Type,
	"uint8_t": intType(1, false), "uint16_t": intType(2, false), "uint32_t": intType(4, false), "uint64_t": uint64Type,
	"char": intType(1, true), "short": intType(2, true), "int": intType(4, true), "long": int64Type,
	"size_t": uint64Type, "ssize_t": int64Type, "uintptr_t": uint64Type, "intptr_t": int64Type,
}

func intType(size uint8, signed bool) Type { return Type{Kind: Int, Size: size, Signed: signed} }

// literalType is the type of a literal that is not negative.
func literalType(u uint64) Type {
	t := Type{Kind: Int, Size: 8, Signed: true, flexible: true}
	switch {
	case u < 1<<7:
		t.Size = 1
	case u < 1<<15:
		t.Size = 2
	case u < 1<<31:
		t.Size = 4
	case u >= 1<<63:
		return uint64Type
	}
	return t
}

// negativeType is the type of a negative literal.
func negativeType(v int64) Type {
	size := uint8(8)
	switch {
	case v >= -1<<7:
		size = 1
	case v >= -1<<15:
		size = 2
	case v >= -1<<31:
		size = 4
	}
	return intType(size, true)
}

// promote is the type that holds values of both, and false if there is none.
// Two integers of different sign need a larger signed type; where there is
// none, it is an int64 all the same.
func promote(a, b Type) (Type, bool) {
	switch {
	case a == b, b.Kind == bad:
		return a, true
	case a.Kind == bad:
		return b, true
	case a.Kind != b.Kind:
		return badType, false
	case a.Kind != Int:
		return promoteOther(a, b)
	case a.Enum != nil || b.Enum != nil:
		if a.Enum == b.Enum {
			return a, true
		}
		a.Enum, b.Enum = nil, nil
	}
	size := max(a.Size, b.Size)
	switch {
	case a.Signed == b.Signed:
		return Type{Kind: Int, Size: size, Signed: a.Signed, flexible: a.flexible && b.flexible}, true
	case a.flexible:
		return intType(size, b.Signed), true
	case b.flexible:
		return intType(size, a.Signed), true
	}
	signed, unsigned := a, b
	if b.Signed {
		signed, unsigned = b, a
	}
	if signed.Size > unsigned.Size {
		return intType(signed.Size, true), true
	}
	return intType(min(2*size, 8), true), true
}

// fits reports whether every value of t is one of u.
func (t Type) fits(u Type) bool {
	switch {
	case t.Kind == bad || u.Kind == bad:
		return true
	case t.Kind != u.Kind:
		return false
	case t.Kind != Int:
		return true
	case t.Signed == u.Signed || t.flexible:
		return t.Size <= u.Size
	}
	return u.Signed && t.Size < u.Size
}

// truncate converts the 64 bits of any integer to the type.
func (t Type) truncate(v uint64) uint64 {
	switch {
	case t.Kind == Bool:
		return b2u(v != 0)
	case t.Kind != Int || t.Size == 8:
		return v
	}
	shift := 64 - 8*uint(t.Size)
	if t.Signed {
		return uint64(int64(v<<shift) >> shift)
	}
	return v << shift >> shift
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// textType is the type of strings of so many bytes and the zero byte that ends
// them.
func textType(length int) Type { return Type{Kind: String, Len: (length + 8) &^ 7} }

func pointerTo(t Type) Type { return Type{Kind: Pointer, Size: 8, Elem: &t} }
