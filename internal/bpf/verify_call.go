package bpf

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf/bound"
)

// call verifies a call of a helper.
func (w *walker) call() (goesOn bool, r *rejection) {
	id := w.in.Helper()
	if w.in.Kind == CallReg {
		v, r := w.use(w.in.Dst)
		if r != nil {
			return false, r
		}
		c, ok := v.isKnown()
		if !ok || c > math.MaxInt32 {
			return false, w.refuse(ReasonCallTarget, fmt.Sprintf("the helper to call, in %v, is not the same 31-bit number on every path", w.in.Dst), "load a constant into it")
		}
		id = asm.BuiltinFunc(c)
	}
	h, why := LookupHelper(id)
	if why != "" && !(h != nil && w.missing) {
		return false, w.refuse(ReasonHelper, why, "leave the call out")
	}
	a := &arguments{walker: w, helper: h}
	if r := a.check(); r != nil {
		return false, r
	}
	if a.callback >= 0 {
		if w.in.Kind == CallReg {
			return false, w.refuse(ReasonCallTarget, h.Name+" is called through a register", "call it directly")
		}
		if r := w.callBack(a); r != nil {
			return false, r
		}
	}
	return w.result(a)
}

// result leaves what the helper returned in r0.
func (w *walker) result(a *arguments) (goesOn bool, r *rejection) {
	h := a.helper
	if h.Ret == RetNever {
		if w.st.depth() > 0 {
			return false, w.refuse(ReasonNotInMain, h.Name+" is called in a function", "call it in the main function")
		}
		return false, w.allReturned("the run ends")
	}
	a.release()
	for r := asm.R0; r <= asm.R5; r++ {
		w.st.set(r, value{})
	}
	v := anyScalar()
	switch h.Ret {
	case RetVoid:
		return true, nil
	case RetScalar:
		v = scalar(a.limits())
	case RetValueOrNull:
		v = value{kind: MapValueOrNull, obj: a.mapNumber, inst: w.st.fresh()}
		if h.ID == asm.FnMapLookupElem && !w.code.Maps[a.mapNumber].Shared() {
			v.kind = CellOrNull // the thread's own
		}
	case RetContext:
		if w.code.Input.Memory {
			return false, w.refuse(ReasonContext, "the program has no context", "leave the call out")
		}
		v = value{kind: Context}
	case RetCellOrNull:
		v = a.cell()
	case RetRecordOrNull:
		if len(w.st.refs) == maxRefs {
			return false, w.refuse(ReasonReference, fmt.Sprintf("more than %d records would be held at a time", maxRefs), "submit or discard some first")
		}
		if slices.ContainsFunc(w.st.refs, func(r ref) bool { return r.at == w.at }) {
			return false, w.refuse(ReasonReference, "the record that this call returned before is still held", "submit or discard it first: a record has one place for each call")
		}
		id := w.st.fresh()
		w.st.refs = append(slices.Clone(w.st.refs), ref{id, w.at, w.st.depth()})
		v = value{kind: RecordOrNull, size: int32(a.size.UMax), ref: id, inst: w.st.fresh()}
	}
	return true, w.define(asm.R0, v)
}

// maxRefs bounds the references that are held at a time.
const maxRefs = 8

// arguments checks a helper's arguments.
type arguments struct {
	*walker
	helper    *Helper
	mapNumber int32
	key       value       // what points to the key
	size      bound.Range // of the memory whose size was given last
	record    int32       // the reference that is given back
	callback  int32       // the function that is called back, -1 if none
}

func (a *arguments) check() *rejection {
	a.callback, a.mapNumber = -1, -1
	for i, t := range a.helper.Args {
		if t == ArgNone {
			break
		}
		r := asm.R1 + asm.Register(i)
		if t == ArgOptional && a.st.reg(r).kind == Unknown {
			continue
		}
		v, rej := a.use(r)
		if rej == nil {
			rej = a.one(t, r, v)
		}
		if rej != nil {
			return rej
		}
	}
	if rule := helperRules[a.helper.ID]; rule != nil {
		return rule(a)
	}
	return nil
}

func (a *arguments) wrong(r asm.Register, v *value, want string) *rejection {
	return a.refuse(ReasonArgument, fmt.Sprintf("%s takes %s in %v, which is %s", a.helper.Name, want, r, v.kind.describe()),
		fmt.Sprintf("pass %s", want))
}

func (a *arguments) one(t ArgType, r asm.Register, v *value) *rejection {
	switch t {
	case ArgAnything, ArgOptional:
		if v.kind != Scalar && !v.kind.memory() {
			return a.wrong(r, v, "a number")
		}
	case ArgContext:
		if v.kind != Context || !v.num.Is(0) {
			return a.wrong(r, v, "the context as the program got it")
		}
	case ArgMap:
		return a.mapArg(r, v)
	case ArgKey:
		a.key = *v
		return a.region(r, v, a.code.Maps[a.mapNumber].KeySize, "key")
	case ArgValue:
		return a.region(r, v, a.code.Maps[a.mapNumber].ValueSize, "value")
	case ArgKeyWrite:
		return a.filled(r, v, a.code.Maps[a.mapNumber].KeySize, "key")
	case ArgValueWrite:
		return a.filled(r, v, a.code.Maps[a.mapNumber].ValueSize, "value")
	case ArgRead, ArgReadOrNull, ArgWrite, ArgWriteOrNull:
		return a.sized(t, r, v)
	case ArgSize, ArgSizeOrZero: // checked with the memory
	case ArgConstSize:
		return a.constSize(r, v)
	case ArgString:
		return a.stringArg(r, v)
	case ArgFunc:
		if v.kind != FuncRef {
			return a.wrong(r, v, "a function of the program")
		}
		a.callback = v.obj
	case ArgStackOrNull:
		if v.kind != Stack && !(v.kind == Scalar && v.num.Is(0)) {
			return a.wrong(r, v, "a pointer to the stack, or 0,")
		}
	case ArgRecord:
		if v.kind.nonNull() != v.kind {
			return a.maybeNull(r, v)
		}
		if v.kind != Record || !v.num.Is(0) {
			return a.wrong(r, v, "a record as ringbuf_reserve returned it")
		}
		a.record = v.ref
	}
	return nil
}

func (a *arguments) mapArg(r asm.Register, v *value) *rejection {
	if v.kind == RingRef && takesRing(a.helper.ID) {
		return nil
	}
	if v.kind != MapRef {
		return a.wrong(r, v, "a map")
	}
	a.mapNumber = v.obj
	m := &a.code.Maps[v.obj]
	if !a.helper.TakesMap(m.Kind) {
		return a.refuse(ReasonMapType, fmt.Sprintf("%s does not work on %s", a.helper.Name, mapName(m)), "use a map of another type")
	}
	return nil
}

// takesRing reports whether a helper takes the session's own ring.
func takesRing(id asm.BuiltinFunc) bool { return id == HelperRingbufOutput }

// region requires that so many bytes can be read.
func (a *arguments) region(r asm.Register, v *value, size int, what string) *rejection {
	return a.whole(r, v, size, what, false)
}

// filled requires that so many bytes can be written.
func (a *arguments) filled(r asm.Register, v *value, size int, what string) *rejection {
	return a.whole(r, v, size, what, true)
}

func (a *arguments) whole(r asm.Register, v *value, size int, what string, write bool) *rejection {
	if v.kind == Scalar || v.kind == Context {
		return a.wrong(r, v, fmt.Sprintf("a pointer to a %s of %d bytes", what, size))
	}
	return a.buffer(r, v, int64(size), int64(size), write)
}

// buffer checks memory of least to most bytes that a helper reads or writes.
func (a *arguments) buffer(r asm.Register, v *value, least, most int64, write bool) *rejection {
	if most == 0 {
		_, rej := a.memory(r, v, 0, 0, write)
		return rej
	}
	s, rej := a.memory(r, v, 0, int(most), write)
	if rej != nil || v.kind != Stack {
		return rej
	}
	f, n := a.st.frames[v.obj], int(v.obj)
	a.touch(v, s.low)
	if !write {
		if rej := a.readable(f, s); rej != nil || printsPointers(a.helper.ID) {
			return rej
		}
		return a.noPointer(f, s)
	}
	a.st.scribble(n, pos(s.low), int(s.high-s.low))
	if s.fixed {
		a.st.write(n, pos(s.low), int(least), nil)
	}
	return nil
}

// printsPointers reports whether a helper's data may be pointers: the arguments
// of a format are, where they are strings.
func printsPointers(id asm.BuiltinFunc) bool {
	return id == asm.FnSnprintf || id == asm.FnTraceVprintk
}

// sized checks memory whose size is in the next register.
func (a *arguments) sized(t ArgType, r asm.Register, v *value) *rejection {
	n, rej := a.use(r + 1)
	if rej != nil {
		return rej
	}
	if n.kind != Scalar {
		return a.wrong(r+1, n, "a size")
	}
	least, most := n.num.Wide.SMin, n.num.Wide.SMax
	zero := int64(1)
	if a.helper.Args[r-asm.R1+1] == ArgSizeOrZero {
		zero = 0
	}
	switch {
	case least < 0:
		return a.refuse(ReasonSize, fmt.Sprintf("the size in %v may be negative: %v", r+1, n.num), "use an unsigned variable, or mask it: size &= 127")
	case least < zero:
		return a.refuse(ReasonSize, fmt.Sprintf("the size in %v may be 0: %v", r+1, n.num), fmt.Sprintf("%s needs at least 1 byte: test the size first", a.helper.Name))
	case most > math.MaxInt32:
		return a.refuse(ReasonSize, fmt.Sprintf("the size in %v has no limit: %v", r+1, n.num), "compare it with the size of the memory first: if (size > 64) size = 64")
	}
	a.size = bound.Range{UMin: uint64(least), UMax: uint64(most)}
	orNull := t == ArgReadOrNull || t == ArgWriteOrNull
	switch {
	case orNull && v.kind == Scalar && v.num.Is(0):
		if most != 0 {
			return a.refuse(ReasonSize, fmt.Sprintf("%v is 0, but the size in %v may be more: %v", r, r+1, n.num), "pass the size 0 with no memory")
		}
		return nil
	case v.kind == Scalar || v.kind == Context:
		return a.wrong(r, v, "a pointer to memory of the program")
	}
	return a.buffer(r, v, least, most, t == ArgWrite || t == ArgWriteOrNull)
}

// stringArg requires a string that ends, among the constants.
func (a *arguments) stringArg(r asm.Register, v *value) *rejection {
	b, ok := a.constants(v), v.num.Bits.Known()
	if at := v.num.Bits.Value; b == nil || !ok || at >= uint64(len(b)) || bytes.IndexByte(b[at:], 0) < 0 {
		return a.wrong(r, v, "a constant string, with a zero byte at its end,")
	}
	return nil
}

// format requires a format that can be printed, with the arguments in the memory
// whose size is in another register.
func (a *arguments) format(r, size asm.Register) *rejection {
	n, ok := a.st.reg(size).isKnown()
	if !ok || n%8 != 0 || n > 8*maxTraceArgs {
		return a.refuse(ReasonSize, fmt.Sprintf("%s takes up to %d arguments of 8 bytes: the size in %v must be a constant", a.helper.Name, maxTraceArgs, size),
			"pass an array of u64, and its size")
	}
	v := a.st.reg(r)
	text, _, _ := bytes.Cut(a.constants(v)[v.num.Bits.Value:], []byte{0})
	pieces, err := parseFormat(string(text))
	switch want := conversions(pieces); {
	case err != nil:
		return a.refuse(ReasonFormat, fmt.Sprintf("%v: %q", err, text), "use %d, %u, %x, %X, %c, %s or %p, with l or ll before integers")
	case want > int(n/8):
		return a.refuse(ReasonFormat, fmt.Sprintf("the format %q takes %d arguments, there are %d", text, want, n/8), "pass one for each conversion")
	}
	return nil
}

func (a *arguments) constSize(r asm.Register, v *value) *rejection {
	c, ok := v.isKnown()
	if !ok || c == 0 || c > math.MaxInt32 {
		return a.refuse(ReasonSize, fmt.Sprintf("%s takes a size in %v that is a constant of at least 1", a.helper.Name, r), "pass a constant")
	}
	a.size = bound.Range{UMin: c, UMax: c}
	return nil
}

// release gives a record back: no pointer into it may be used any more.
func (a *arguments) release() {
	id := a.record
	if id == 0 {
		return
	}
	a.st.drop(id)
	a.st.each(func(v *value) (value, bool) { return value{kind: Released}, v.ref == id })
}

// cell is what HelperMapCell returns. The cell of an array is always there if
// its index is known.
func (a *arguments) cell() value {
	m := &a.code.Maps[a.mapNumber]
	v := value{kind: CellOrNull, obj: a.mapNumber, inst: a.st.fresh()}
	if m.Kind != abi.PerSlotArray || a.key.kind != Stack {
		return v
	}
	at, ok := a.key.num.Known()
	if !ok {
		return v
	}
	key := a.st.frames[a.key.obj].read(pos(int64(at)), 4)
	if i, ok := key.isKnown(); ok && i < uint64(m.MaxEntries) {
		v.kind, v.fixed, v.index, v.inst = Cell, true, int32(i), 0
	}
	return v
}

// limits is what the helper can return.
func (a *arguments) limits() bound.Scalar {
	switch a.helper.ID {
	case asm.FnProbeReadStr, asm.FnProbeReadUserStr, asm.FnProbeReadKernelStr, asm.FnGetStack:
		const maxErrno = 4095 // include/linux/err.h
		n := bound.Unknown()
		n, _, _ = bound.Refine(asm.JSGE, true, true, n, bound.Const(math.MaxUint64-maxErrno+1))
		n, _, _ = bound.Refine(asm.JSLE, true, true, n, bound.Const(a.size.UMax))
		return n
	case HelperTailCount:
		n, _, _ := bound.Refine(asm.JLE, true, true, bound.Unknown(), bound.Const(1))
		return n
	case HelperBitLength:
		n, _, _ := bound.Refine(asm.JLE, true, true, bound.Unknown(), bound.Const(64))
		return n
	case asm.FnGetSmpProcessorId, asm.FnGetNumaNodeId, asm.FnGetPrandomU32:
		return bound.Bytes(4, false)
	}
	return bound.Unknown()
}

// noFlags requires flags that are 0.
func (a *arguments) noFlags(r asm.Register) *rejection {
	if v := a.st.reg(r); v.kind != Scalar || !v.num.Is(0) {
		return a.wrong(r, v, "flags that are 0")
	}
	return nil
}

// helperRules are demands of single helpers.
var helperRules = map[asm.BuiltinFunc]func(a *arguments) *rejection{
	HelperRingbufOutput: func(a *arguments) *rejection {
		if a.st.reg(asm.R1).kind == RingRef && a.size.UMax > MaxEvent {
			return a.refuse(ReasonSize, fmt.Sprintf("an event of up to %d bytes", a.size.UMax), fmt.Sprintf("the limit is %d", MaxEvent))
		}
		return nil
	},
	asm.FnRingbufReserve: func(a *arguments) *rejection {
		if a.size.UMax > abi.MaxRecord-abi.RecPayload {
			return a.refuse(ReasonSize, fmt.Sprintf("a record of %d bytes", a.size.UMax), fmt.Sprintf("the limit is %d", abi.MaxRecord-abi.RecPayload))
		}
		return nil
	},
	HelperBitLength: func(a *arguments) *rejection {
		if v := a.st.reg(asm.R1); v.kind != Scalar {
			return a.wrong(asm.R1, v, "a number")
		}
		return nil
	},
	asm.FnLoop: func(a *arguments) *rejection {
		if v := a.st.reg(asm.R1); v.kind != Scalar {
			return a.wrong(asm.R1, v, "a number of rounds")
		}
		return a.noFlags(asm.R4)
	},
	asm.FnForEachMapElem: func(a *arguments) *rejection { return a.noFlags(asm.R4) },
	asm.FnSnprintf:       func(a *arguments) *rejection { return a.format(asm.R3, asm.R5) },
	asm.FnTailCall:       func(a *arguments) *rejection { return a.allReturned("another program takes over") },
}
