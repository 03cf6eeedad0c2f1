package lang

import "trapless/internal/diag"

// structLayout lays out fields one after the other.
type structLayout struct {
	union  bool
	packed bool
	least  int // alignment that is asked for
	fields []cField
}

type cField struct {
	name string
	typ  Type
	bits int // -1 where it is none
	at   diag.Span
}

// lay lays the fields out.
func (l *structLayout) lay(to *Layout) {
	bits, align := 0, 1 // so far; the largest of the fields'
	end := 0
	for _, f := range l.fields {
		if l.union {
			bits = 0
		}
		var field Field
		field, bits = l.put(f, bits)
		if f.bits != 0 && (f.name != "" || f.bits < 0) {
			align = max(align, l.alignment(f))
			to.Fields = append(to.Fields, field)
		}
		end = max(end, bits)
	}
	if l.least > 0 {
		align = max(align, l.least)
	}
	to.align = align
	to.Size = alignUp((end+7)/8, align)
	to.defined = true
}

func (l *structLayout) alignment(f cField) int {
	if l.packed {
		return 1
	}
	return f.typ.alignment()
}

// put places a field behind so many bits, and returns how many there are then.
func (l *structLayout) put(f cField, bits int) (Field, int) {
	size := 8 * f.typ.memory()
	field := Field{Name: f.name, Type: f.typ}
	switch {
	case f.bits < 0:
		bits = alignUp(bits, 8*l.alignment(f))
		field.Offset = bits / 8
		return field, bits + size
	case f.bits == 0: // the next one begins anew
		return field, alignUp(bits, size)
	case l.packed:
		field.Offset, field.Shift = bits/8, bits%8
	default:
		if bits/size != (bits+f.bits-1)/size {
			bits = alignUp(bits, size)
		}
		field.Offset, field.Shift = bits/size*(size/8), bits%size
	}
	field.Bits = f.bits
	return field, bits + f.bits
}
