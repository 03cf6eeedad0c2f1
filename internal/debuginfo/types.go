package debuginfo

import (
	"debug/dwarf"

	"trapless/internal/lang"
)

// convert makes a type of the language. A type that the language does not have is bytes.
func (p *part) convert(d dwarf.Type) lang.Type {
	if d == nil {
		return lang.Type{}
	}
	if p.depth++; p.depth > maxDepth || !ends(d) {
		p.depth--
		return bytesOf(0)
	}
	defer func() { p.depth-- }()
	size := uint8(d.Size())
	switch d := d.(type) {
	case *dwarf.CharType, *dwarf.IntType:
		return lang.Type{Kind: lang.Int, Size: size, Signed: true}
	case *dwarf.UcharType, *dwarf.UintType, *dwarf.AddrType:
		return lang.Type{Kind: lang.Int, Size: size}
	case *dwarf.BoolType:
		return lang.Type{Kind: lang.Bool, Size: size}
	case *dwarf.FloatType:
		if size == 4 || size == 8 {
			return lang.Type{Kind: lang.Float, Size: size, Signed: true}
		}
	case *dwarf.PtrType:
		elem := p.pointee(d.Type)
		return lang.Type{Kind: lang.Pointer, Size: 8, Elem: &elem}
	case *dwarf.StructType:
		return lang.Type{Kind: lang.Struct, Layout: p.layout(d)}
	case *dwarf.ArrayType:
		if _, text := strip(d.Type).(*dwarf.CharType); text && d.Count > 0 {
			return lang.Type{Kind: lang.String, Len: int(d.Count)}
		}
		elem := p.convert(d.Type)
		return lang.Type{Kind: lang.Array, Count: int(max(d.Count, 0)), Elem: &elem}
	case *dwarf.EnumType:
		return p.enum(d)
	case *dwarf.TypedefType:
		return p.convert(d.Type)
	case *dwarf.QualType:
		return p.convert(d.Type)
	case *dwarf.VoidType, *dwarf.FuncType, *dwarf.UnspecifiedType, nil:
		return lang.Type{}
	case *dwarf.UnsupportedType:
		if d.Tag == dwarf.TagReferenceType || d.Tag == dwarf.TagRvalueReferenceType {
			none := lang.Type{}
			return lang.Type{Kind: lang.Pointer, Size: 8, Elem: &none}
		}
	}
	return bytesOf(int(max(d.Size(), 0)))
}

// maxDepth bounds types in types; only a crafted file has more.
const maxDepth = 64

// ends reports whether a chain of names, qualifiers and arrays comes to an end: its size can be asked for.
func ends(d dwarf.Type) bool {
	for range maxDepth {
		switch t := d.(type) {
		case *dwarf.TypedefType:
			d = t.Type
		case *dwarf.QualType:
			d = t.Type
		case *dwarf.ArrayType:
			d = t.Type
		default:
			return true
		}
	}
	return false
}

// bytesOf is memory of which nothing is known but its size.
func bytesOf(n int) lang.Type {
	elem := lang.Type{Kind: lang.Int, Size: 1}
	return lang.Type{Kind: lang.Array, Count: n, Elem: &elem}
}

// pointee converts what a pointer points to. A struct need not be there.
func (p *part) pointee(d dwarf.Type) lang.Type {
	if d == nil {
		return lang.Type{}
	}
	return p.convert(d)
}

// layout makes a struct's layout, once: it may point to itself.
func (p *part) layout(d *dwarf.StructType) *lang.Layout {
	kind := d.Kind
	if kind == "class" {
		kind = "struct"
	}
	if l := p.layouts[d]; l != nil {
		return l
	}
	l := lang.NewLayout(kind + " " + d.StructName)
	if p.layouts == nil {
		p.layouts = map[*dwarf.StructType]*lang.Layout{}
	}
	p.layouts[d] = l
	if d.Incomplete {
		if at, ok := p.byName[kind+" "+d.StructName]; ok { // another unit has it
			if whole, err := p.data.Type(at); err == nil {
				if s, ok := whole.(*dwarf.StructType); ok && !s.Incomplete {
					return p.layout(s)
				}
			}
		}
		return l
	}
	var fields []lang.Field
	for _, m := range d.Field {
		field := lang.Field{Name: m.Name, Type: p.convert(m.Type), Offset: int(m.ByteOffset)}
		if m.BitSize > 0 {
			field.Bits = int(m.BitSize)
			bit := m.DataBitOffset
			if m.BitOffset != 0 || m.ByteSize != 0 { // DWARF 2: from the highest bit of a storage unit
				bit = m.ByteOffset*8 + m.ByteSize*8 - m.BitOffset - m.BitSize
			}
			field.Offset, field.Shift = int(bit/8), int(bit%8)
		}
		fields = append(fields, field)
	}
	l.Define(fields, int(d.ByteSize), int(alignment(d, 0)))
	return l
}

// alignment is the largest of a type's parts.
func alignment(d dwarf.Type, depth int) int64 {
	if depth > maxDepth || !ends(d) {
		return 1
	}
	depth++
	switch d := d.(type) {
	case *dwarf.StructType:
		most := int64(1)
		for _, m := range d.Field {
			most = max(most, alignment(m.Type, depth))
		}
		return most
	case *dwarf.ArrayType:
		return alignment(d.Type, depth)
	case *dwarf.TypedefType:
		return alignment(d.Type, depth)
	case *dwarf.QualType:
		return alignment(d.Type, depth)
	case nil:
		return 1
	}
	return min(max(d.Size(), 1), 16)
}

func (p *part) enum(d *dwarf.EnumType) lang.Type {
	e := &lang.Enum{Name: "enum " + d.EnumName}
	signed := false
	for _, v := range d.Val {
		signed = signed || v.Val < 0
		e.Values = append(e.Values, lang.EnumValue{Name: v.Name, Value: uint64(v.Val)})
	}
	return lang.EnumType(e, int(d.ByteSize), signed)
}
