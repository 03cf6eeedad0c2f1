package bpf

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf/bound"
)

// value is what the verifier knows of a register or of a part of the stack.
// It is comparable.
type value struct {
	kind ValueKind
	num  bound.Scalar // a Scalar: the number; a pointer: its distance from what it points to, in bytes

	obj   int32 // the map, the frame of the stack (0 is the main function's), or the function
	inst  int32 // pointers with the same one point into the same object; 0 says nothing
	size  int32 // bytes of a Record
	ref   int32 // the reference that a Record stands for
	index int32 // of a Fixed cell
	fixed bool  // a cell of an array whose index is known

	// Values with the same nonzero id differ by their deltas: each is what the
	// id stands for, plus its own. With low only the bytes that were stored are.
	id, delta int32
	low       bool
}

func scalar(n bound.Scalar) value { return value{kind: Scalar, num: n} }
func known(v uint64) value        { return scalar(bound.Const(v)) }
func anyScalar() value            { return scalar(bound.Unknown()) }

// isKnown returns the number if the value is one.
func (v *value) isKnown() (uint64, bool) {
	if v.kind != Scalar {
		return 0, false
	}
	return v.num.Known()
}

// part is one store into a slot of the stack, as far as its bytes are still
// the ones that were stored.
type part struct {
	off, size uint8
	val       value
}

// slot is 8 bytes of the stack. It is never changed once others can see it.
type slot struct {
	init  uint8 // a bit for each byte that was written and may be read
	parts []part
}

// slots is the number of slots of a function's stack.
const slots = StackSize / 8

type stackState [slots]*slot // nil: never written

// frameState is a function that is running.
type frameState struct {
	regs  [11]value
	stack *stackState
	mine  bool // the stack belongs to no other frame

	fn       int // its function
	site     int // the call that it returns to
	callback bool
	refs     int // references that were held when it began
	laps     []lap
}

// ref is something that has to be given back.
type ref struct {
	id    int32
	at    int // the call that it came from
	depth int // of the function that called
}

// lap counts how often a loop was run again.
type lap struct{ head, count int32 }

// state is what is known at some point of a program. Frames may be shared with
// other states; those that may be changed are in owned.
type state struct {
	frames []*frameState // the main function's first
	owned  uint32
	refs   []ref
	nextID int32
}

// share returns a state with the same content. Neither owns a frame then.
func (s *state) share() *state {
	s.owned = 0
	c := *s
	c.frames = append([]*frameState(nil), s.frames...)
	return &c
}

func (s *state) depth() int       { return len(s.frames) - 1 }
func (s *state) top() *frameState { return s.frames[len(s.frames)-1] }

// edit returns a frame that may be changed.
func (s *state) edit(n int) *frameState {
	if s.owned>>n&1 == 0 {
		f := *s.frames[n]
		f.mine = false
		s.frames[n] = &f
		s.owned |= 1 << n
	}
	return s.frames[n]
}

// push begins a function.
func (s *state) push(f *frameState) {
	s.frames = append(s.frames, f)
	s.owned |= 1 << s.depth()
}

func (s *state) pop() {
	s.owned &^= 1 << s.depth()
	s.frames = s.frames[:s.depth()]
}

func (s *state) reg(r asm.Register) *value { return &s.top().regs[r] }

func (s *state) set(r asm.Register, v value) { s.edit(s.depth()).regs[r] = v }

// fresh is an identity that nothing has yet.
func (s *state) fresh() int32 {
	s.nextID++
	return s.nextID
}

// link gives a register's value an identity, so that a copy can have it too.
func (s *state) link(r asm.Register) value {
	v := s.reg(r)
	if v.id == 0 && !v.num.Bits.Known() && (v.kind == Scalar || v.kind.memory()) {
		v = &s.edit(s.depth()).regs[r]
		v.id, v.delta, v.low = s.fresh(), 0, false
	}
	return *v
}

// each calls f for every value of the state. f may return another value.
func (s *state) each(f func(v *value) (value, bool)) {
	for n, fr := range s.frames {
		for r := range fr.regs {
			if v, change := f(&s.frames[n].regs[r]); change {
				s.edit(n).regs[r] = v
			}
		}
		if fr.stack == nil {
			continue
		}
		for i, sl := range fr.stack {
			if sl == nil || len(sl.parts) == 0 {
				continue
			}
			for p := range sl.parts {
				if v, change := f(&s.frames[n].stack[i].parts[p].val); change {
					c := *s.frames[n].stack[i]
					c.parts = append([]part(nil), c.parts...)
					c.parts[p].val = v
					s.editStack(n)[i] = &c
				}
			}
		}
	}
}

// editStack returns a stack that may be changed.
func (s *state) editStack(n int) *stackState {
	f := s.edit(n)
	if !f.mine {
		c := new(stackState)
		if f.stack != nil {
			*c = *f.stack
		}
		f.stack, f.mine = c, true
	}
	return f.stack
}

// at returns a slot of a frame, an empty one if it was never written.
func (f *frameState) at(i int) *slot {
	if f.stack == nil || f.stack[i] == nil {
		return &emptySlot
	}
	return f.stack[i]
}

var emptySlot slot

// initialised reports whether all bytes from pos on were written. Positions
// count from the stack's lowest byte.
func (f *frameState) initialised(pos, size int) bool {
	for i := pos; i < pos+size; i++ {
		if f.at(i/8).init>>(i%8)&1 == 0 {
			return false
		}
	}
	return true
}

// holdsPointer reports whether a byte of the range belongs to something that is
// no number.
func (f *frameState) holdsPointer(pos, size int) bool {
	for i := pos / 8; i <= (pos+size-1)/8; i++ {
		for _, p := range f.at(i).parts {
			from := 8*i + int(p.off)
			if p.val.kind != Scalar && from < pos+size && pos < from+int(p.size) {
				return true
			}
		}
	}
	return false
}

// cut returns the slot without the parts that touch some bytes. What is left
// of a pointer may not be read.
func (sl *slot) cut(off, size int) slot {
	c := slot{init: sl.init}
	for _, p := range sl.parts {
		if int(p.off) < off+size && off < int(p.off+p.size) {
			if p.val.kind != Scalar {
				c.init &^= byteMask(int(p.off), int(p.size))
			}
			continue
		}
		c.parts = append(c.parts, p)
	}
	return c
}

// byteMask has a bit for each of some bytes of a slot.
func byteMask(off, size int) uint8 { return uint8(1<<size-1) << off }

// write records a store of v at a known place. Without a value the bytes are
// numbers of which nothing is known.
func (s *state) write(n, pos, size int, v *value) {
	st := s.editStack(n)
	for size > 0 {
		i, off := pos/8, pos%8
		here := min(size, 8-off)
		old := st[i]
		if old == nil {
			old = &emptySlot
		}
		c := old.cut(off, here)
		c.init |= byteMask(off, here)
		if v != nil && here == size {
			c.parts = append(c.parts, part{uint8(off), uint8(size), *v})
		}
		v = nil // a store over two slots
		st[i] = &c
		pos, size = pos+here, size-here
	}
}

// scribble records that some bytes of a range may have been written: what was
// known of them no longer is.
func (s *state) scribble(n, pos, size int) {
	st := s.editStack(n)
	for size > 0 {
		i, off := pos/8, pos%8
		here := min(size, 8-off)
		if st[i] != nil {
			c := st[i].cut(off, here)
			st[i] = &c
		}
		pos, size = pos+here, size-here
	}
}

// read returns what a load from a known place gives, which must be readable
// and no part of a pointer, before any extension of the sign.
func (f *frameState) read(pos, size int) value {
	off := pos % 8
	if off+size > 8 {
		return scalar(bound.Bytes(size, false))
	}
	sl := f.at(pos / 8)
	for _, p := range sl.parts {
		switch {
		case int(p.off) == off && int(p.size) == size:
			if p.val.low {
				v := p.val
				v.id, v.delta, v.low = 0, 0, false
				return v
			}
			return p.val
		case int(p.off) <= off && off+size <= int(p.off+p.size):
			n := bound.ALU(asm.RSh, true, p.val.num, bound.Const(uint64(8*(off-int(p.off)))))
			return scalar(bound.Swap(n, size, false))
		}
	}
	return sl.assemble(off, size)
}

// assemble puts a number together from the parts that are known.
func (sl *slot) assemble(off, size int) value {
	sum, have := uint64(0), uint8(0)
	for _, p := range sl.parts {
		c, ok := p.val.isKnown()
		if ok {
			sum |= c << (8 * p.off)
			have |= byteMask(int(p.off), int(p.size))
		}
	}
	if m := byteMask(off, size); have&m == m {
		return known(extend(sum>>(8*off), size, false))
	}
	return scalar(bound.Bytes(size, false))
}
