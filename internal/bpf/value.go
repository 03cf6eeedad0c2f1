package bpf

// ValueKind is what a register or a stack word is known to hold.
type ValueKind uint8

// The kinds of values.
const (
	Unknown    ValueKind = iota // never written, or different things on different paths
	Scalar                      // a number
	Context                     // pointer into the context, at Off
	Stack                       // pointer to r10+Off, in the frame of function Func
	MapRef                      // reference to map Map
	RingRef                     // reference to the ring
	Cell                        // pointer into a cell of map Map, at Off
	CellOrNull                  // the same, or 0
	PidTgid                     // what HelperGetCurrentPidTgid returned
	FuncRef                     // reference to function Func

	// Kinds that only the verifier tells apart.
	MapValue       // pointer into a value of a map that all threads share
	MapValueOrNull // the same, or 0
	MapKey         // pointer into a key of a map that a helper passed to a function; read-only
	Record         // pointer into a record
	RecordOrNull   // the same, or 0
	InputMem       // pointer into the memory that is the program's Input
	Released       // what pointed into a record that was given back
	Mixed          // one kind of thing on one path, another on another
)

// Value is what is known about the content of a register or a stack word. It
// is comparable. Two values of the same kind with the same nonzero ID are equal
// whenever both can be seen; a CellOrNull or Cell of the same call too.
type Value struct {
	Kind  ValueKind
	Known bool   // a Scalar that is Const on every path
	Fixed bool   // a Cell of an array whose index is Index on every path
	Map   int32  // of MapRef and cells
	Func  int32  // of Stack and FuncRef
	Off   int32  // of pointers
	Index int32  // of a Fixed cell
	ID    int32  // equal numbers mean equal content; 0 says nothing
	Const uint64 // of a Known scalar
}

// Static reports whether the value is known so well that no register has to
// hold it: every pointer that is neither null nor into a cell that has to be
// looked up, every reference, and the process.
func (v Value) Static() bool {
	switch v.Kind {
	case Context, Stack, MapRef, RingRef, PidTgid, FuncRef:
		return true
	}
	return v.Kind == Cell && v.Fixed
}

func constant(c uint64) Value { return Value{Kind: Scalar, Known: true, Const: c} }

// units is the number of 4-byte units that the stack is tracked in.
const units = StackSize / 4

// word is what a unit of the stack holds.
type word struct {
	val  Value
	size uint8 // 8 or 4: val lies here; 0: any bytes
	tail bool  // upper half of the 8 bytes that start in the unit before
}

// Branch says what is known about a conditional jump.
type Branch uint8

// What a conditional jump may do.
const (
	Either Branch = iota
	Always
	Never
)

// joinID and valueID number the places where a content can arise.
func joinID(at, loc int) int32 { return int32((at+1)*256 + 1 + loc) }
func valueID(at int) int32     { return int32((at + 1) * 256) }

// meet is what holds for a value that is either a or b. Pointers into an array
// at different known indexes do not meet: neither is held in a register.
func meet(a, b Value, id int32) Value {
	if a == b {
		return a
	}
	if a.Kind == Scalar && b.Kind == Scalar {
		return Value{Kind: Scalar, ID: id}
	}
	cells := (a.Kind == Cell || a.Kind == CellOrNull) && (b.Kind == Cell || b.Kind == CellOrNull)
	if !cells || a.Fixed || b.Fixed || a.Map != b.Map || a.Off != b.Off {
		return Value{}
	}
	v := Value{Kind: Cell, Map: a.Map, Off: a.Off, ID: id}
	if a.Kind == CellOrNull || b.Kind == CellOrNull {
		v.Kind = CellOrNull
	}
	return v
}
