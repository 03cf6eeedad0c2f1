package plan

import (
	"cmp"
	"runtime"
	"slices"
	"sync"

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
	Value                       // what may be one of these, or a constant that may be an address
)

// Sweep is what one reading of a module's whole code brings to light. Functions
// are told apart by their starts alone.
type Sweep struct {
	// Crossings is complete but for what only data or indirect jumps know.
	Crossings []Crossing // ascending by To
	// NoReturn are functions that do not return: callees of direct calls behind
	// which their function ends, in one place if padding follows and else in two,
	// and functions without a way out. Ascending.
	NoReturn []abi.Addr

	starts []abi.Addr
	called marks
	taken  marks
	jumpy  marks     // functions with indirect jumps, or with bytes that are no code
	fixed  bool      // constants may be addresses
	code   abi.Range // where code lies
	stubs  []abi.Range
	flags  flagUse
	last   []abi.Addr // callees of calls behind which the next function begins at once
}

// NewSweep makes an empty one. starts are the starts of all functions of the
// module, and other known instruction boundaries, ascending; code is from the
// first byte of its code to the last. fixed says that the module was linked to a
// fixed address, so that code may hold its addresses as constants. In stubs lie
// the jumps to functions of other modules.
func NewSweep(starts []abi.Addr, code abi.Range, fixed bool, stubs []abi.Range) *Sweep {
	return &Sweep{starts: starts, called: newMarks(len(starts) + 1), taken: newMarks(len(starts) + 1), jumpy: newMarks(len(starts) + 1),
		code: code, fixed: fixed, stubs: stubs}
}

// Called reports whether a direct call leads to a start.
func (s *Sweep) Called(start abi.Addr) bool {
	i, ok := slices.BinarySearch(s.starts, start)
	return ok && s.called.has(i)
}

// Taken reports whether code holds the address of a start.
func (s *Sweep) Taken(start abi.Addr) bool {
	i, ok := slices.BinarySearch(s.starts, start)
	return ok && s.taken.has(i)
}

// sweepLeast is how many bytes of code are worth a processor.
const sweepLeast = 1 << 20

// Read reads one stretch of code, on all processors, with Finish behind the last one.
func (s *Sweep) Read(at abi.Addr, code []byte) {
	whole := Data{at, code}
	n := max(1, min(runtime.GOMAXPROCS(0), len(code)/sweepLeast))
	parts := make([]*Sweep, n)
	var reading sync.WaitGroup
	from := at
	for i := range parts {
		to := at + abi.Addr(len(code))
		if next, _ := slices.BinarySearch(s.starts, at+abi.Addr((i+1)*len(code)/n)); i+1 < n && next < len(s.starts) {
			to = max(from, min(to, s.starts[next]))
		}
		part := NewSweep(s.starts, s.code, s.fixed, s.stubs)
		parts[i] = part
		begin := from
		reading.Go(func() { part.read(whole, begin, to) })
		from = to
	}
	reading.Wait()
	for _, part := range parts {
		s.merge(part)
	}
}

// read reads what lies between two addresses, functions as a whole.
func (s *Sweep) read(whole Data, at, end abi.Addr) {
	next, _ := slices.BinarySearch(s.starts, at)
	s.flags.text = whole
	for at < end {
		code := whole.Bytes[at-whole.Start:]
		size := int(end - at)
		if next < len(s.starts) && s.starts[next]-at < abi.Addr(size) {
			size = int(s.starts[next] - at)
		}
		if s.function(at, code[:size], code) && next > 0 {
			s.jumpy.add(next - 1)
		}
		at += abi.Addr(size)
		next++
	}
}

// merge adds what another sweep of the same module has found.
func (s *Sweep) merge(o *Sweep) {
	s.Crossings = append(s.Crossings, o.Crossings...)
	s.NoReturn = append(s.NoReturn, o.NoReturn...)
	s.last = append(s.last, o.last...)
	s.called.union(o.called)
	s.taken.union(o.taken)
	s.jumpy.union(o.jumpy)
	s.flags.reading = append(s.flags.reading, o.flags.reading...)
	s.flags.passing = append(s.flags.passing, o.flags.passing...)
	s.flags.left = append(s.flags.left, o.flags.left...)
}

// Finish sorts what was found.
func (s *Sweep) Finish() {
	slices.SortFunc(s.Crossings, func(x, y Crossing) int {
		return cmp.Or(cmp.Compare(x.To, y.To), cmp.Compare(x.From, y.From), cmp.Compare(x.Kind, y.Kind))
	})
	s.Crossings = slices.Compact(s.Crossings)
	slices.Sort(s.last)
	for i, callee := range s.last {
		if i > 0 && callee == s.last[i-1] {
			s.NoReturn = append(s.NoReturn, callee)
		}
	}
	slices.Sort(s.NoReturn)
	s.NoReturn, s.last = slices.Compact(s.NoReturn), nil
}

// Settle completes what depends on the whole module. noReturn are the functions
// that do not return, ascending; code tells code from what lies between
// functions, where data may look like jumps. Call it after Finish.
func (s *Sweep) Settle(noReturn []abi.Addr, code func(abi.Addr) bool) {
	for i := range s.Crossings {
		if !code(s.Crossings[i].From) {
			s.Crossings[i].Kind = Value
		}
	}
	s.flags.finish(noReturn, code)
}

// flagsInto reports whether code that is called, or jumped to in place of a
// return, may read flags that it has not set.
func (s *Sweep) flagsInto(to abi.Addr) bool {
	if s == nil || s.flags.reads(to) {
		return true
	}
	_, known := slices.BinarySearch(s.starts, to)
	return !known && s.code.Contains(to) && !s.isStub(to)
}

// isStub reports whether a function of another module stands behind an address.
func (s *Sweep) isStub(a abi.Addr) bool {
	return slices.ContainsFunc(s.stubs, func(r abi.Range) bool { return r.Contains(a) })
}

// flagsAway is flagsInto of a place that is not known.
func (s *Sweep) flagsAway() bool { return s == nil || len(s.flags.reading) > 0 }

// flagsLeft reports whether code may read flags that a function has left when it
// returned.
func (s *Sweep) flagsLeft() bool { return s == nil || len(s.flags.left) > 0 }

// function reads what lies between two starts. more are the bytes from the first
// start on: an instruction that ends behind the second start makes no sense. It
// reports indirect jumps, and bytes that are no code.
func (s *Sweep) function(start abi.Addr, code, more []byte) (jumpy bool) {
	end := start + abi.Addr(len(code))
	t := tail{endless: true}
	s.flags.enter(start)
	for off := 0; off < len(code); {
		in, err := insn.Decode(more[off:], insn.Mode64)
		if err != nil {
			off++
			t = tail{}
			jumpy = true
			continue
		}
		if off+int(in.Len) > len(code) {
			return true
		}
		at := start + abi.Addr(off)
		off += int(in.Len)
		jumpy = jumpy || in.Branch == insn.BranchJmpInd && !in.RIPRel()
		s.flags.pass(&in, at)
		t.pass(&in, at, start, end)
		if in.Branch != insn.BranchNone || in.ImmLen >= 4 || in.DispLen == 4 && isLea(&in) {
			s.instruction(&in, at, start, end)
		}
	}
	switch {
	case t.callee != 0 && t.padded:
		s.NoReturn = append(s.NoReturn, t.callee)
	case t.callee != 0: // or the next symbol is a label, and this function goes on there
		s.last = append(s.last, t.callee)
	}
	if t.endless && (t.callee != 0 && t.padded || t.stops) {
		s.NoReturn = append(s.NoReturn, start)
	}
	return jumpy
}

// Straight reports whether all of a function's code was understood and none of
// it is an indirect jump, but for those through slots in memory.
func (s *Sweep) Straight(r abi.Range) bool {
	i, ok := slices.BinarySearch(s.starts, r.Start)
	for ; ok && i < len(s.starts) && s.starts[i] < r.End; i++ {
		ok = !s.jumpy.has(i)
	}
	return ok
}

// tail is what is known of a function's end.
type tail struct {
	callee  abi.Addr // if the last instruction but padding is a direct call
	stops   bool     // it is one that control does not pass, or jumps back
	padded  bool     // padding follows
	endless bool     // there is no way out of the function but calls
}

// pass lets an instruction of a function between two addresses pass.
func (t *tail) pass(in *insn.Inst, at, start, end abi.Addr) {
	if (t.callee != 0 || t.stops) && isPadding(*in) {
		t.padded = true
		return
	}
	*t = tail{endless: t.endless}
	to, direct := in.Target(at)
	switch in.Branch {
	case insn.BranchNone, insn.BranchSyscall:
	case insn.BranchCall:
		t.callee = to
	case insn.BranchTrap:
		t.stops = in.Opcode != breakpoint
	case insn.BranchJmp, insn.BranchJcc, insn.BranchLoop:
		t.stops = in.Branch == insn.BranchJmp
		t.endless = t.endless && direct && to >= start && to < end
	case insn.BranchCallInd:
	default:
		t.endless, t.stops = false, true
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
	default:
		return
	}
	if to >= start && to < end && (to != start || kind != Call) || !s.code.Contains(to) || s.isStub(to) {
		return
	}
	i, exact := slices.BinarySearch(s.starts, to)
	switch {
	case exact && kind == Call:
		s.called.add(i)
	case exact && kind != Jump:
		s.taken.add(i)
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
