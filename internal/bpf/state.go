package bpf

import "github.com/cilium/ebpf/asm"

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

// State is what is known before an instruction.
type State struct {
	Regs  [11]Value
	words [units]word
	init  [StackSize / 64]uint64 // a bit per byte, from the stack's lowest
}

func entryState() *State {
	s := &State{}
	s.Regs[asm.R1] = Value{Kind: Context}
	s.Regs[asm.R10] = Value{Kind: Stack}
	return s
}

// StackWord returns the content of the size bytes (4 or 8) at r10+off if they
// were written as one.
func (s *State) StackWord(off int32, size int) (Value, bool) {
	pos := int(off) + StackSize
	if pos < 0 || pos+size > StackSize || pos%size != 0 {
		return Value{}, false
	}
	w := s.words[pos/4]
	return w.val, int(w.size) == size
}

// initialised reports whether all bytes of the range were written.
func (s *State) initialised(pos, size int) bool {
	for i := pos; i < pos+size; i++ {
		if s.init[i/64]>>(i%64)&1 == 0 {
			return false
		}
	}
	return true
}

// holdsPointer reports whether a byte of the range belongs to a pointer.
func (s *State) holdsPointer(pos, size int) bool {
	for u := pos / 4; u <= (pos+size-1)/4; u++ {
		w := s.words[u]
		if w.tail {
			w = s.words[u-1]
		}
		if w.size != 0 && w.val.Kind != Scalar {
			return true
		}
	}
	return false
}

// write records a store of v.
func (s *State) write(pos, size int, v Value) {
	for u := pos / 4; u <= (pos+size-1)/4; u++ {
		s.forget(u)
	}
	for i := pos; i < pos+size; i++ {
		s.init[i/64] |= 1 << (i % 64)
	}
	if size < 4 || pos%size != 0 {
		return
	}
	s.words[pos/4] = word{val: v, size: uint8(size)}
	if size == 8 {
		s.words[pos/4+1] = word{tail: true}
	}
}

// forget makes a unit plain bytes, with the other half of its word. What is
// left of a pointer counts as never written.
func (s *State) forget(u int) {
	if s.words[u].tail {
		u--
	}
	w := s.words[u]
	if w.size == 0 {
		return
	}
	s.words[u] = word{}
	if w.size == 8 {
		s.words[u+1] = word{}
	}
	if w.val.Kind != Scalar {
		for i := 4 * u; i < 4*u+int(w.size); i++ {
			s.init[i/64] &^= 1 << (i % 64)
		}
	}
}

// merge keeps in s what holds in o too. At is the instruction where the paths
// meet; contents that differ get a new identity there.
func (s *State) merge(o *State, at int) {
	for r := range s.Regs {
		s.Regs[r] = meet(s.Regs[r], o.Regs[r], joinID(at, r))
	}
	for i := range s.init {
		s.init[i] &= o.init[i]
	}
	for u := range s.words {
		s.mergeWord(u, o, at)
	}
}

func (s *State) mergeWord(u int, o *State, at int) {
	a, b := s.words[u], o.words[u]
	if a == b || a.tail {
		return
	}
	if a.size == b.size && a.size != 0 {
		if v := meet(a.val, b.val, joinID(at, len(s.Regs)+u)); v.Kind != Unknown {
			s.words[u].val = v
			return
		}
	}
	// Different pointers, or a pointer and bytes: neither may be read.
	pointer := a.size != 0 && a.val.Kind != Scalar || o.holdsPointer(4*u, 4)
	s.forget(u)
	if pointer {
		s.init[u/16] &^= 0xf << (u % 16 * 4)
	}
}

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
