package object

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Value is what bytes mean by their type: a number, a text, or fields.
type Value struct {
	Text   string  // of a number, or the text itself
	Number bool    // Text is a number
	Fields []Field // of a structure, or of an array, whose fields have no names
	Many   bool    // there are fields, be it none
	Array  bool
}

// Field is a part of a Value.
type Field struct {
	Name string
	Value
}

// Decode says what bytes mean. Without a type bytes of the size of an integer are
// one, without sign, and others are written in hexadecimal.
func Decode(t btf.Type, b []byte) Value {
	if t != nil {
		t = btf.UnderlyingType(t)
	}
	if size, err := btf.Sizeof(t); t == nil || err != nil || size > len(b) || size == 0 {
		return untyped(b)
	} else {
		b = b[:size]
	}
	switch t := t.(type) {
	case *btf.Int:
		return integer(t, b)
	case *btf.Enum:
		return enum(t, b)
	case *btf.Float:
		return float(b)
	case *btf.Pointer:
		return Value{Text: fmt.Sprintf("0x%x", binary.LittleEndian.Uint64(b))}
	case *btf.Array:
		return array(t, b)
	case *btf.Struct:
		return members(t.Members, b)
	case *btf.Union:
		return members(t.Members, b)
	case *btf.Datasec:
		return variables(t, b)
	}
	return untyped(b)
}

func untyped(b []byte) Value {
	switch len(b) {
	case 1, 2, 4, 8:
		return number(strconv.FormatUint(unsigned(b), 10))
	}
	return Value{Text: hex.EncodeToString(b)}
}

func number(text string) Value { return Value{Text: text, Number: true} }

// unsigned is a number of up to 8 bytes.
func unsigned(b []byte) uint64 {
	var word [8]byte
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:])
}

func integer(t *btf.Int, b []byte) Value {
	n := unsigned(b)
	switch {
	case t.Encoding == btf.Bool:
		return number(strconv.FormatUint(n, 10))
	case len(b) > 8:
		return Value{Text: hex.EncodeToString(b)}
	case t.Encoding == btf.Signed || t.Encoding == btf.Char && t.Name == "char":
		shift := 64 - 8*len(b)
		return number(strconv.FormatInt(int64(n<<shift)>>shift, 10))
	}
	return number(strconv.FormatUint(n, 10))
}

func enum(t *btf.Enum, b []byte) Value {
	n := unsigned(b)
	for _, v := range t.Values {
		if v.Value == n || len(b) == 4 && uint32(v.Value) == uint32(n) {
			return Value{Text: v.Name}
		}
	}
	return number(strconv.FormatUint(n, 10))
}

func float(b []byte) Value {
	f, size := math.Float64frombits(unsigned(b)), 8*len(b)
	switch size {
	case 32:
		f = float64(math.Float32frombits(uint32(unsigned(b))))
	case 64:
	default:
		return Value{Text: hex.EncodeToString(b)}
	}
	return Value{Text: strconv.FormatFloat(f, 'g', -1, size), Number: !math.IsNaN(f) && !math.IsInf(f, 0)}
}

// isChar reports whether a type is C's char.
func isChar(t btf.Type) bool {
	c, ok := btf.UnderlyingType(t).(*btf.Int)
	return ok && c.Size == 1 && c.Name == "char"
}

// array is a text if its elements are of type char.
func array(t *btf.Array, b []byte) Value {
	if isChar(t.Type) {
		text, _, _ := bytes.Cut(b, []byte{0})
		return Value{Text: string(text)}
	}
	v := Value{Many: true, Array: true}
	if t.Nelems == 0 {
		return v
	}
	size := len(b) / int(t.Nelems)
	for i := range int(t.Nelems) {
		v.Fields = append(v.Fields, Field{Value: Decode(t.Type, b[i*size:(i+1)*size])})
	}
	return v
}

func members(all []btf.Member, b []byte) Value {
	v := Value{Many: true}
	for _, m := range all {
		if m.BitfieldSize != 0 {
			v.Fields = append(v.Fields, Field{m.Name, bitfield(m, b)})
			continue
		}
		if off := int(m.Offset / 8); off <= len(b) {
			v.Fields = append(v.Fields, Field{m.Name, Decode(m.Type, b[off:])})
		}
	}
	return v
}

func bitfield(m btf.Member, b []byte) Value {
	at := int(m.Offset / 8)
	n := unsigned(b[at:min(len(b), at+8)]) >> (m.Offset % 8)
	if m.BitfieldSize < 64 {
		n &= 1<<m.BitfieldSize - 1
	}
	return number(strconv.FormatUint(n, 10))
}

// variables is the variables of an ELF section.
func variables(t *btf.Datasec, b []byte) Value {
	v := Value{Many: true}
	for _, s := range t.Vars {
		if at, end := int(s.Offset), int(s.Offset+s.Size); end <= len(b) {
			name, of := s.Type.TypeName(), s.Type
			if variable, ok := of.(*btf.Var); ok {
				of = variable.Type
			}
			v.Fields = append(v.Fields, Field{name, Decode(of, b[at:end])})
		}
	}
	return v
}

// String is the value as C would write it.
func (v Value) String() string {
	if !v.Many {
		if v.Number || strings.HasPrefix(v.Text, "0x") {
			return v.Text
		}
		return strconv.Quote(v.Text)
	}
	var parts []string
	for _, f := range v.Fields {
		if f.Name == "" {
			parts = append(parts, f.Value.String())
		} else {
			parts = append(parts, "."+f.Name+" = "+f.Value.String())
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// Sum adds up the numbers in values of one type, as programs do that keep a value
// for each CPU. It reports false if there is something else in them.
func Sum(t btf.Type, values [][]byte) ([]byte, bool) {
	if len(values) == 1 {
		return values[0], true
	}
	if len(values) == 0 {
		return nil, false
	}
	sum := make([]byte, len(values[0]))
	for _, v := range values {
		if !add(t, sum, v) {
			return nil, false
		}
	}
	return sum, true
}

// add adds a value of a type to a sum.
func add(t btf.Type, sum, v []byte) bool {
	if t == nil {
		return len(v) <= 8 && addNumber(sum, v)
	}
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Int:
		return len(sum) >= int(t.Size) && len(v) >= int(t.Size) && t.Name != "char" && addNumber(sum[:t.Size], v[:t.Size])
	case *btf.Array:
		size, err := btf.Sizeof(t.Type)
		for i := 0; err == nil && i < int(t.Nelems); i++ {
			if (i+1)*size > len(sum) || !add(t.Type, sum[i*size:], v[i*size:]) {
				return false
			}
		}
		return err == nil
	case *btf.Struct:
		for _, m := range t.Members {
			off := int(m.Offset / 8)
			if m.BitfieldSize != 0 || off > len(sum) || !add(m.Type, sum[off:], v[off:]) {
				return false
			}
		}
		return true
	}
	return false
}

func addNumber(sum, v []byte) bool {
	if len(v) > 8 {
		return false
	}
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], unsigned(sum)+unsigned(v))
	copy(sum, word[:])
	return true
}
