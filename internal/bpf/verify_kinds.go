package bpf

// memory reports whether it is a pointer to bytes.
func (k ValueKind) memory() bool {
	switch k {
	case Stack, Cell, MapValue, MapKey, Record, InputMem:
		return true
	}
	return false
}

// nonNull is what a pointer is when it is not null.
func (k ValueKind) nonNull() ValueKind {
	switch k {
	case CellOrNull:
		return Cell
	case MapValueOrNull:
		return MapValue
	case RecordOrNull:
		return Record
	}
	return k
}

// orNull is the kind for what may also be null, Unknown if there is none.
func (k ValueKind) orNull() ValueKind {
	switch k {
	case Cell:
		return CellOrNull
	case MapValue:
		return MapValueOrNull
	case Record:
		return RecordOrNull
	}
	return Unknown
}

var kindTexts = map[ValueKind][2]string{
	Unknown: {"?", "nothing that was written"}, Scalar: {"scalar", "a number"}, Context: {"ctx", "the context"},
	Stack: {"fp", "a pointer to the stack"}, MapRef: {"map_ptr", "a map"}, RingRef: {"ring", "the ring"},
	Cell: {"map_value", "a pointer to a value of a map"}, CellOrNull: {"map_value_or_null", "a pointer to a value of a map, or 0"},
	MapValue: {"map_value", "a pointer to a value of a map"}, MapValueOrNull: {"map_value_or_null", "a pointer to a value of a map, or 0"},
	MapKey: {"map_key", "a pointer to a key of a map"}, Record: {"ringbuf_mem", "a pointer to a record"},
	RecordOrNull: {"ringbuf_mem_or_null", "a pointer to a record, or 0"}, InputMem: {"mem", "a pointer to the input"},
	Released: {"released", "a pointer to a record that was given back"},
	FuncRef:  {"func", "a function"}, Mixed: {"mixed", "one thing on one path and another on another"},
}

// String is the kernel verifier's name for it, where it has one.
func (k ValueKind) String() string { return kindTexts[k][0] }

func (k ValueKind) describe() string { return kindTexts[k][1] }
