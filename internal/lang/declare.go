package lang

// NewLayout makes the layout of a struct, a union or a class of which only the name is known yet, as "struct
// timespec". Types may refer to it before Define tells how it lies.
func NewLayout(name string) *Layout { return &Layout{Name: name} }

// Define tells how a struct lies in memory: its fields, its size and its alignment in bytes.
func (l *Layout) Define(fields []Field, size, align int) {
	l.Fields, l.Size, l.align, l.defined = fields, size, max(1, align), true
}

// EnumType is the type of an enumeration's values.
func EnumType(e *Enum, size int, signed bool) Type {
	return Type{Kind: Int, Size: uint8(size), Signed: signed, Enum: e}
}
