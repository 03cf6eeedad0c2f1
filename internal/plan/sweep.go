package plan

import (
	"cmp"
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// Crossing is code of one function that leads into another one: a branch or
// call to elsewhere than its start, a jump to its start, or the taking of an
// address inside it.
type Crossing struct {
	From, To abi.Addr
	Kind     CrossingKind
}

// CrossingKind is how code leads from one function into another.
type CrossingKind uint8

// The kinds of crossings.
const (
	Jump    CrossingKind = iota // jmp, jcc, loop, xbegin
	Call                        // a direct call
	Address                     // lea of a RIP-relative operand
	Value                       // a constant that may be an address
)

// Sweep is what one reading of a module's whole code brings to light. Functions
// are told apart by their starts alone.
type Sweep struct {
	// Crossings is complete but for what only data or indirect jumps know.
	Crossings []Crossing // ascending by To
	// Last are the callees of direct calls behind which their function ends:
	// functions that do not return. Ascending.
	Last []abi.Addr

	starts []abi.Addr
	called marks
	fixed  bool // constants may be addresses
	end    abi.Addr
}

// NewSweep makes an empty one. starts are the starts of all functions of the
// module, and other known instruction boundaries, ascending. fixed says that the
// code was linked to a fixed address, so that it may hold its addresses as
// constants.
func NewSweep(starts []abi.Addr, fixed bool) *Sweep {
	s := &Sweep{starts: starts, called: newMarks(len(starts) + 1), fixed: fixed}
	if len(starts) > 0 {
		s.end = starts[len(starts)-1]
	}
	return s
}

// Called reports whether a direct call leads to a start.
func (s *Sweep) Called(start abi.Addr) bool {
	i, ok := slices.BinarySearch(s.starts, start)
	return ok && s.called.has(i)
}

// Read reads one stretch of code, with Finish behind the last one.
func (s *Sweep) Read(at abi.Addr, code []byte) {
	next, _ := slices.BinarySearch(s.starts, at)
	for len(code) > 0 {
		size := len(code)
		if next < len(s.starts) && s.starts[next]-at < abi.Addr(size) {
			size = int(s.starts[next] - at)
		}
		s.function(at, code[:size], code)
		at, code = at+abi.Addr(size), code[size:]
		next++
	}
}

// Finish sorts what was found.
func (s *Sweep) Finish() {
	slices.SortFunc(s.Crossings, func(x, y Crossing) int {
		return cmp.Or(cmp.Compare(x.To, y.To), cmp.Compare(x.From, y.From), cmp.Compare(x.Kind, y.Kind))
	})
	s.Crossings = slices.Compact(s.Crossings)
	slices.Sort(s.Last)
	s.Last = slices.Compact(s.Last)
}

// function reads what lies between two starts. more are the bytes from the first
// start on: an instruction that ends behind the second start makes no sense.
func (s *Sweep) function(start abi.Addr, code, more []byte) {
	end := start + abi.Addr(len(code))
	var last abi.Addr // the callee, if the last instruction but padding is a call
	padded := false
	for off := 0; off < len(code); {
		in, err := insn.Decode(more[off:], insn.Mode64)
		if err != nil {
			off++
			last = 0
			continue
		}
		if off+int(in.Len) > len(code) {
			return
		}
		at := start + abi.Addr(off)
		off += int(in.Len)
		if in.Branch == insn.BranchNone && in.ImmLen < 4 && (in.DispLen < 4 || !isLea(&in)) {
			if last != 0 && isPadding(in) {
				padded = true
				continue
			}
			last = 0
			continue
		}
		padding := last != 0 && in.Branch == insn.BranchTrap && in.Opcode == breakpoint
		padded = padded || padding
		if !padding {
			last = 0
		}
		if in.Branch == insn.BranchCall {
			last, _ = in.Target(at)
		}
		s.instruction(&in, at, start, end)
	}
	if last != 0 && padded {
		s.Last = append(s.Last, last)
	}
}

// instruction looks where an instruction of the function between two addresses
// leads.
func (s *Sweep) instruction(in *insn.Inst, at, start, end abi.Addr) {
	to, ok := in.Target(at)
	kind := Jump
	switch {
	case ok && in.Branch == insn.BranchCall:
		kind = Call
	case ok:
	case isLea(in) && in.RIPRel():
		kind, to = Address, at+abi.Addr(in.Len)+abi.Addr(int64(in.Disp))
	case s.fixed && mayHoldAddress(in):
		kind, to = Value, addressIn(in)
		if to > s.end {
			return
		}
	default:
		return
	}
	if to >= start && to < end && (to != start || kind != Call) || len(s.starts) == 0 || to < s.starts[0] {
		return
	}
	i, exact := slices.BinarySearch(s.starts, to)
	switch {
	case exact && kind == Call:
		s.called.add(i)
	case !exact || kind == Jump:
		s.Crossings = append(s.Crossings, Crossing{at, to, kind})
	}
}

// Enter notes in a function what leads into it from outside.
func (s *Sweep) Enter(f *Func) {
	end := f.End() + abi.Addr(len(f.Pad))
	i, _ := slices.BinarySearchFunc(s.Crossings, f.Start+1, func(c Crossing, a abi.Addr) int { return cmp.Compare(c.To, a) })
	for ; i < len(s.Crossings) && s.Crossings[i].To < end; i++ {
		c := s.Crossings[i]
		switch {
		case c.From >= f.Start && c.From < f.End():
		case c.Kind == Value:
			f.Taken = append(f.Taken, c.To)
		default:
			f.Inbound = append(f.Inbound, c.To)
		}
	}
	slices.Sort(f.Inbound)
	f.Inbound = slices.Compact(f.Inbound)
}

// Outward is where the function's switch tables lead outside of it, to its
// other parts. It reports false if some table is not understood.
func Outward(f *Func) ([]abi.Addr, bool) {
	b := read(f)
	var out []abi.Addr
	for _, j := range b.indirect {
		out = append(out, j.outside...)
	}
	slices.Sort(out)
	return slices.Compact(out), b.unknown == ""
}
