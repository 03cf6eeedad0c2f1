package lang

import "fmt"

// Kind is the kind of a type.
type Kind uint8

const (
	// None is the type of what has no value, such as a call of printf.
	None Kind = iota
	Int
	Bool
	// String is the type of texts.
	String
	// bad is the type of an expression with an error that was reported; it
	// fits everywhere, so that no error is reported twice.
	bad
)

// Type is the type of a value. Values are held in 64 bits, extended by the
// sign of their own type.
type Type struct {
	Kind   Kind
	Size   uint8 // bytes: 1, 2, 4 or 8 (Int only)
	Signed bool
	Len    uint16 // of a String that is read at run time: the bytes that hold it, a multiple of 8
	// flexible marks a type that comes from literals that are not negative: it
	// takes the sign of what it is combined with.
	flexible bool
}

var (
	noneType   = Type{Kind: None}
	boolType   = Type{Kind: Bool, Size: 1}
	stringType = Type{Kind: String}
	badType    = Type{Kind: bad}
	int64Type  = Type{Kind: Int, Size: 8, Signed: true}
	uint64Type = Type{Kind: Int, Size: 8}
)

// String is the type's name in the language.
func (t Type) String() string {
	switch t.Kind {
	case None:
		return "none"
	case Bool:
		return "bool"
	case String:
		return "string"
	case Int:
		sign := "u"
		if t.Signed {
			sign = ""
		}
		return fmt.Sprintf("%sint%d", sign, int(t.Size)*8)
	}
	return "error"
}

// a is the type's name with its article.
func (t Type) a() string {
	if t.Kind == Int && t.Signed {
		return "an " + t.String()
	}
	return "a " + t.String()
}

// isScalar reports whether a register can hold a value of the type.
func (t Type) isScalar() bool { return t.Kind == Int || t.Kind == Bool || t.Kind == bad }

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
	case a.Kind == String:
		a.Len = max(a.Len, b.Len)
		return a, true
	case a.Kind != Int:
		return a, true
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

// Words is the number of 8-byte words that hold a value in keys and events.
func (t Type) Words() int {
	if t.Kind == String {
		return int(t.Len) / 8
	}
	return 1
}

// textType is the type of strings of so many bytes and the zero byte that ends
// them.
func textType(length int) Type { return Type{Kind: String, Len: uint16(length+8) &^ 7} }
