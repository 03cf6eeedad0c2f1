package bpf

import (
	"fmt"
	"math"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf/bound"
)

// span is where an access may fall: all of [low, high) for some offset between.
type span struct {
	low, high int64 // from the start of the object; of the stack, from r10
	size      int
	fixed     bool // low is the only offset
}

// reach finds where size bytes at a pointer and an offset may lie.
func (w *walker) reach(r asm.Register, p *value, off int32, size int) (span, *rejection) {
	low, high := p.num.Wide.SMin, p.num.Wide.SMax
	const far = 1 << 32
	if low < -far || high > far {
		return span{}, w.refuse(ReasonUnbounded, fmt.Sprintf("%v may point anywhere: its offset is %v", r, p.num),
			"compare what was added to the pointer with a constant first, or mask it")
	}
	return span{low + int64(off), high + int64(off) + int64(size), size, low == high}, nil
}

// within requires that an access stays in an object of so many bytes.
func (w *walker) within(s span, from, to int64, object string) *rejection {
	if from <= s.low && s.high <= to {
		return nil
	}
	at := fmt.Sprint(s.low)
	if !s.fixed {
		at = fmt.Sprintf("%d to %d", s.low, s.high-int64(s.size))
	}
	hint := "use another offset, or a larger object"
	switch {
	case s.fixed:
	case s.low < from:
		hint = fmt.Sprintf("make sure that the offset is at least %d: use an unsigned variable, compare it first, or mask it", from)
	default:
		hint = fmt.Sprintf("compare the offset first, so that it is at most %d, or mask it", to-int64(s.size))
	}
	return w.refuse(ReasonOutside, fmt.Sprintf("%s at %s of %s", byteCount(s.size), at, object), hint)
}

func byteCount(n int) string {
	if n == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", n)
}

// access checks a load or a store of the instruction's size through a
// pointer. For the stack it returns where.
func (w *walker) access(r asm.Register, p *value, write bool) (span, *rejection) {
	return w.memory(r, p, w.in.Off, w.in.Size, write)
}

// memory checks an access of some bytes through a pointer.
func (w *walker) memory(r asm.Register, p *value, off int32, size int, write bool) (span, *rejection) {
	switch {
	case p.kind.nonNull() != p.kind:
		return span{}, w.maybeNull(r, p)
	case p.kind == Scalar:
		return span{}, w.refuse(ReasonNotPointer, fmt.Sprintf("%v is a number, not a pointer: %v", r, p.num),
			"memory of the process is read by probe_read_user")
	case !p.kind.memory():
		return span{}, w.refuse(ReasonNotPointer, fmt.Sprintf("%v is %s: no memory can be read or written through it", r, p.kind.describe()),
			"pass it to a helper")
	}
	s, rej := w.reach(r, p, off, size)
	if rej != nil {
		return s, rej
	}
	if write && p.kind == MapKey {
		return s, w.refuse(ReasonReadOnly, fmt.Sprintf("%v points to a map's key, which is read-only", r), "copy it to the stack")
	}
	if write && w.isConstant(p) {
		return s, w.refuse(ReasonReadOnly, fmt.Sprintf("%s points to constants, which are read-only", regText(r, true)), "make the variable a global one that is not const")
	}
	from, to, object := w.object(p)
	return s, w.within(s, from, to, object)
}

// object is the extent of what a pointer points into, and its name.
func (w *walker) object(p *value) (from, to int64, name string) {
	switch p.kind {
	case Stack:
		return -StackSize, 0, fmt.Sprintf("the stack, which lies at -%d to 0 of r10", StackSize)
	case InputMem:
		return 0, int64(p.size), fmt.Sprintf("the input of %d bytes", p.size)
	case Record:
		return 0, int64(p.size), fmt.Sprintf("a record of %d bytes", p.size)
	}
	m := &w.code.Maps[p.obj]
	if p.kind == MapKey {
		return 0, int64(m.KeySize), fmt.Sprintf("a key of %d bytes of %s", m.KeySize, mapName(m))
	}
	return 0, int64(m.ValueSize), fmt.Sprintf("a value of %d bytes of %s", m.ValueSize, mapName(m))
}

func (w *walker) load() *rejection {
	in := w.in
	p, r := w.use(in.Src)
	if r != nil {
		return r
	}
	if p.kind == Context {
		return w.loadContext(p)
	}
	s, r := w.access(in.Src, p, false)
	if r != nil {
		return r
	}
	if b := w.constants(p); b != nil && s.fixed && s.high <= int64(len(b)) {
		return w.define(in.Dst, known(extend(loadBytes(b[s.low:], in.Size), in.Size, in.Signed)))
	}
	if p.kind != Stack {
		return w.define(in.Dst, scalar(bound.Bytes(in.Size, in.Signed)))
	}
	v, r := w.loadStack(p, s)
	if r != nil {
		return r
	}
	return w.define(in.Dst, v)
}

// isConstant reports whether a pointer points into a map that nothing changes.
func (w *walker) isConstant(p *value) bool {
	if p.kind != MapValue && p.kind != Cell {
		return false
	}
	_, ok := w.code.Constants[int(p.obj)]
	return ok
}

// constants are what a pointer points to if nothing changes it.
func (w *walker) constants(p *value) []byte {
	if w.isConstant(p) && p.fixed && p.index == 0 {
		return w.code.Constants[int(p.obj)]
	}
	return nil
}

func (w *walker) loadContext(p *value) *rejection {
	in := w.in
	c, ok := p.num.Known()
	if !ok {
		return w.refuse(ReasonContext, fmt.Sprintf("the context is read at an offset that is not constant: %v", p.num), "use a constant offset")
	}
	off := int64(c) + int64(in.Off)
	if off < 0 || off >= ContextEnd || !readableContext(int32(off&^7)) || off&7+int64(in.Size) > 8 {
		return w.refuse(ReasonContext, fmt.Sprintf("%s at %d of the context cannot be read", byteCount(in.Size), off),
			"the context is struct pt_regs and, behind it, the arguments: read one field of 8 bytes, or a part of one; orig_rax, cs, eflags and ss cannot be read")
	}
	w.reads |= 1 << (off / 8)
	return w.define(in.Dst, scalar(bound.Bytes(in.Size, in.Signed)))
}

// pos turns an offset from r10 into one from the stack's lowest byte.
func pos(off int64) int { return int(off) + StackSize }

// loadStack is what a load from the stack gives.
func (w *walker) loadStack(p *value, s span) (value, *rejection) {
	in, f := w.in, w.st.frames[p.obj]
	w.touch(p, s.low)
	if r := w.readable(f, s); r != nil {
		return value{}, r
	}
	if !s.fixed {
		return scalar(bound.Bytes(in.Size, in.Signed)), w.noPointer(f, s)
	}
	at := pos(s.low)
	if in.Size == 8 && at%8 == 0 {
		if v := f.read(at, 8); v.kind != Scalar {
			return v, nil
		}
	}
	if r := w.noPointer(f, s); r != nil {
		return value{}, r
	}
	v := f.read(at, in.Size)
	if in.Signed {
		v = scalar(bound.ALU(signExtensions[in.Size], true, bound.Scalar{}, v.num))
	}
	return v, nil
}

var signExtensions = map[int]asm.ALUOp{1: asm.MovSX8, 2: asm.MovSX16, 4: asm.MovSX32}

// readable requires that all bytes were written.
func (w *walker) readable(f *frameState, s span) *rejection {
	if f.initialised(pos(s.low), int(s.high-s.low)) {
		return nil
	}
	for off := s.low; off < s.high; off++ {
		if !f.initialised(pos(off), 1) {
			return w.refuse(ReasonUninitialisedStack, fmt.Sprintf("the byte at r10%+d may not have been written", off),
				"write all bytes first, also the gaps between the fields of a structure")
		}
	}
	return nil
}

// noPointer requires that no byte belongs to a pointer.
func (w *walker) noPointer(f *frameState, s span) *rejection {
	if f.holdsPointer(pos(s.low), int(s.high-s.low)) {
		return w.refuse(ReasonPointerPart, fmt.Sprintf("there is a pointer among the %s at r10%+d", byteCount(int(s.high-s.low)), s.low),
			"load all 8 bytes of a pointer at once, and keep it out of keys and events")
	}
	return nil
}

func (w *walker) store() *rejection {
	in := w.in
	v, r := w.operand()
	if r != nil {
		return r
	}
	p, r := w.use(in.Dst)
	if r != nil {
		return r
	}
	if p.kind == Context {
		return w.refuse(ReasonReadOnly, "the context is read-only", "a probe must not change the registers of the process")
	}
	s, r := w.access(in.Dst, p, true)
	if r != nil {
		return r
	}
	switch {
	case p.kind == Stack:
		return w.storeStack(p, s, v)
	case v.kind != Scalar:
		return w.refuse(ReasonPointerStored, fmt.Sprintf("%s is stored where others could change it", w.what(in.Src, v)), "pointers can only be kept in registers and on the stack")
	}
	return nil
}

func (w *walker) storeStack(p *value, s span, v *value) *rejection {
	in, n := w.in, int(p.obj)
	w.touch(p, s.low)
	if v.kind != Scalar {
		switch {
		case in.Size != 8:
			return w.refuse(ReasonPointerPart, fmt.Sprintf("a part of %s is stored", w.what(in.Src, v)), "store all 8 bytes")
		case !s.fixed || pos(s.low)%8 != 0:
			return w.refuse(ReasonPointerStored, fmt.Sprintf("%s is stored at r10%+d, which is not a multiple of 8 on every path", w.what(in.Src, v), s.low), "store it at a constant, aligned place")
		case v.kind == Stack && v.obj > p.obj:
			return w.refuse(ReasonPointerStored, fmt.Sprintf("%s is stored in the stack of a caller", w.what(in.Src, v)), "what it points to is gone when the function returns")
		}
	}
	if !s.fixed {
		w.st.scribble(n, pos(s.low), int(s.high-s.low))
		return nil
	}
	stored := *v
	if in.UseSrc && (v.kind == Scalar || v.kind.memory()) {
		stored = w.st.link(in.Src)
	}
	if in.Size < 8 {
		stored = truncated(stored, in.Size)
	}
	w.st.write(n, pos(s.low), in.Size, &stored)
	return nil
}

// truncated is what is left of a number in the lower bytes.
func truncated(v value, size int) value {
	t := v
	t.num = bound.Swap(v.num, size, false)
	t.low = v.id != 0 && (v.low || v.num.Wide.UMax > math.MaxUint64>>(64-8*size))
	return t
}

// touch notes how deep a function's stack is used.
func (w *walker) touch(p *value, low int64) {
	fn := w.st.frames[p.obj].fn
	w.depths[fn] = max(w.depths[fn], int(-low))
}

func (w *walker) atomic() *rejection {
	in := w.in
	if _, r := w.number(in.Src); r != nil {
		return r
	}
	if in.Atomic == asm.CmpXchg {
		if _, r := w.number(asm.R0); r != nil {
			return r
		}
	}
	p, r := w.use(in.Dst)
	if r != nil {
		return r
	}
	if p.kind == Context {
		return w.refuse(ReasonReadOnly, "the context is read-only", "a probe must not change the registers of the process")
	}
	s, r := w.access(in.Dst, p, true)
	if r != nil {
		return r
	}
	if r := w.aligned(p); r != nil {
		return r
	}
	old := scalar(bound.Bytes(in.Size, false))
	if p.kind == Stack {
		if old, r = w.atomicStack(p, s); r != nil {
			return r
		}
	}
	switch {
	case in.Atomic == asm.CmpXchg:
		return w.define(asm.R0, old)
	case in.Fetches():
		return w.define(in.Src, old)
	}
	return nil
}

// number returns a register that must hold a number.
func (w *walker) number(r asm.Register) (*value, *rejection) {
	v, rej := w.use(r)
	if rej == nil && v.kind != Scalar {
		rej = w.refuse(ReasonNotNumber, fmt.Sprintf("%v is %s, not a number", r, v.kind.describe()), "load a number into it")
	}
	return v, rej
}

// aligned requires that an atomic access does not cross a line: the processor
// would lock the bus, or the kernel end the process (Linux,
// Documentation/arch/x86/buslock.rst).
func (w *walker) aligned(p *value) *rejection {
	if at := bound.ALU(asm.Add, true, p.num, bound.Const(uint64(int64(w.in.Off)))); (at.Bits.Value|at.Bits.Mask)&uint64(w.in.Size-1) != 0 {
		return w.refuse(ReasonUnaligned, fmt.Sprintf("an atomic operation on %d bytes at an offset that may not be a multiple of %d", w.in.Size, w.in.Size),
			"align the variable")
	}
	return nil
}

func (w *walker) atomicStack(p *value, s span) (value, *rejection) {
	f, n := w.st.frames[p.obj], int(p.obj)
	w.touch(p, s.low)
	if r := w.readable(f, s); r != nil {
		return value{}, r
	}
	if r := w.noPointer(f, s); r != nil {
		return value{}, r
	}
	if !s.fixed {
		w.st.scribble(n, pos(s.low), int(s.high-s.low))
		return scalar(bound.Bytes(w.in.Size, false)), nil
	}
	old := f.read(pos(s.low), w.in.Size)
	w.st.write(n, pos(s.low), w.in.Size, nil)
	return old, nil
}
