package lang

import (
	"bytes"
	"encoding/binary"
)

// Value is a value of the language, by the kind of its type:
//
//   - Int, Bool, Pointer, Symbol, Time, User, Name: Int, extended to 64 bits by the
//     sign of the type
//   - Float: Int has the bits of the float or double
//   - String, Buffer: Str; Inet, MAC: Str has the 4, 16 or 6 bytes
//   - Array: Elems
//   - Tuple, Record, Struct: Elems are the values of Type.Layout.Fields
//   - Stack: Int is its number; once it is looked up, Elems are the addresses,
//     each a Symbol, the innermost first
//   - Str of a Symbol is its name, once that is looked up
type Value struct {
	Type  Type
	Int   uint64
	Str   string
	Elems []Value
}

// Decode reads a value of the type from memory. Memory that is too short reads
// as if zeros followed.
func (t Type) Decode(b []byte) Value {
	v := Value{Type: t}
	switch t.Kind {
	case String:
		v.Str = untilZero(b[:min(len(b), t.Len)])
	case Buffer:
		b = b[:min(len(b), 8+t.Len)]
		n := uintOf(b, 0, 8)
		if rest := b[min(len(b), 8):]; uint64(len(rest)) > n {
			v.Str = string(rest[:n])
		} else {
			v.Str = string(rest)
		}
	case Inet:
		b = b[:min(len(b), 24)]
		n := min(uintOf(b, 0, 8), 16)
		v.Str = string(b[min(len(b), 8):min(len(b), 8+int(n))])
	case MAC:
		v.Str = string(b[:min(len(b), 6)])
	case Array:
		size := t.Elem.memory()
		for i := range t.Count {
			v.Elems = append(v.Elems, t.Elem.Decode(from(b, i*size)))
		}
	case Tuple, Record, Struct:
		for _, f := range t.Layout.Fields {
			v.Elems = append(v.Elems, f.decode(b))
		}
	case None, bad:
	default:
		v.Int = t.truncate(uintOf(b, 0, t.memory()))
	}
	return v
}

// decode reads a field of the struct at the start of b.
func (f *Field) decode(b []byte) Value {
	if f.Bits == 0 {
		return f.Type.Decode(from(b, f.Offset))
	}
	bits := uintOf(b, f.Offset, 8) >> f.Shift
	return Value{Type: f.Type, Int: f.extract(bits)}
}

// extract is the value of a bit-field whose lowest bit is that of the word.
func (f *Field) extract(word uint64) uint64 {
	up := 64 - uint(f.Bits)
	if f.Type.Signed {
		return uint64(int64(word<<up) >> up)
	}
	return word << up >> up
}

func from(b []byte, off int) []byte { return b[min(len(b), off):] }

// uintOf reads size bytes, little-endian, as far as there are any.
func uintOf(b []byte, off, size int) uint64 {
	var word [8]byte
	copy(word[:size], from(b, off))
	return binary.LittleEndian.Uint64(word[:])
}

// untilZero is the text before the first zero byte.
func untilZero(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// KeyParts takes the words of an entry's key apart.
func (m *Map) KeyParts(words []uint64) []Value {
	b := bytesOf(words)
	var parts []Value
	for _, t := range m.Keys {
		parts = append(parts, m.named(t.Decode(b)))
		b = from(b, 8*t.Words())
	}
	return parts
}

// ValueOf is the value of an entry of a Plain map, given as the words of its cell.
func (m *Map) ValueOf(cell []uint64) Value {
	if len(m.Keys) == 0 { // the first word tells whether there is a value
		cell = cell[min(len(cell), 1):]
	}
	return m.named(m.Type.Decode(bytesOf(cell)))
}

// named is a value whose symbols and stacks have been looked up.
func (m *Map) named(v Value) Value {
	if m.Names != nil {
		m.Names(&v)
	}
	return v
}

func bytesOf(words []uint64) []byte {
	b := make([]byte, 0, 8*len(words))
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}
