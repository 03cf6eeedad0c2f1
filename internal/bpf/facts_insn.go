package bpf

import (
	"math"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// refValue is a reference to a map or to the ring.
func refValue(in *Insn) Value {
	if in.Imm == ringNumber {
		return Value{Kind: RingRef}
	}
	return Value{Kind: MapRef, Map: int32(in.Imm)}
}

// valueAddress is what LoadValue leaves.
func (a *analyser) valueAddress() Value {
	return Value{Kind: Cell, Fixed: true, Map: int32(a.in.Imm), Off: a.in.Off}
}

// alu is the result of an arithmetic instruction.
func (a *analyser) alu() Value {
	in := a.in
	dst, src := a.reg(in.Dst), a.operand()
	switch {
	case in.ALU == asm.Mov && in.Wide:
		return src
	case src.Known && (dst.Known || in.overwrites()):
		return constant(in.compute(dst.Const, src.Const))
	case in.ALU == asm.Neg && dst.Known || in.ALU == asm.Swap && dst.Known:
		return constant(in.compute(dst.Const, 0))
	case dst.Kind == PidTgid && in.ALU == asm.RSh && in.Wide && src.Known && src.Const == 32:
		return a.some()
	case in.Wide && (in.ALU == asm.Add || in.ALU == asm.Sub):
		return a.moved(dst, src)
	}
	return a.some()
}

// moved is a pointer, moved by a number.
func (a *analyser) moved(dst, src Value) Value {
	if a.in.ALU == asm.Add && dst.Kind == Scalar {
		dst, src = src, dst
	}
	dist := int64(src.Const)
	if a.in.ALU == asm.Sub {
		dist = -dist
	}
	movable := dst.Kind == Context || dst.Kind == Stack || dst.Kind == Cell
	off := int64(dst.Off) + dist
	if dst.Kind == Cell && !src.Known && a.in.ALU == asm.Add { // to an element of the value
		return Value{Kind: Cell, Map: dst.Map, ID: valueID(a.at)}
	}
	if !movable || !src.Known || off != int64(int32(off)) || dist < math.MinInt32 || dist > math.MaxInt32 {
		return a.some()
	}
	if dst.Kind == Cell && !dst.Fixed { // the register itself is moved
		return Value{Kind: Cell, Map: dst.Map, Off: 0, ID: valueID(a.at)}
	}
	dst.Off = int32(off)
	return dst
}

// load is the result of a load.
func (a *analyser) load() Value {
	in := a.in
	p := a.reg(in.Src)
	if c, ok := a.content(p); ok {
		return c
	}
	if p.Kind != Stack || p.Func != int32(a.fn) {
		return a.some()
	}
	w, ok := a.before[a.at].StackWord(p.Off+in.Off, in.Size)
	switch {
	case !ok:
		return a.some()
	case in.Size == 8:
		return w
	case w.Known:
		return constant(extend(w.Const, in.Size, in.Signed))
	}
	return a.some()
}

// content is what a load finds in a map that nothing writes to. What a verifier
// has concluded from it must not depend on memory that the target can change.
func (a *analyser) content(p Value) (Value, bool) {
	b, ok := a.code.Constants[int(p.Map)]
	at := int64(p.Index) + int64(p.Off) + int64(a.in.Off)
	if !ok || p.Kind != Cell || !p.Fixed || p.Index != 0 || at < 0 || at+int64(a.in.Size) > int64(len(b)) {
		return Value{}, false
	}
	return constant(extend(loadBytes(b[at:], a.in.Size), a.in.Size, a.in.Signed)), true
}

// storeTo records that size bytes at p+off become v.
func (a *analyser) storeTo(p Value, off int32, size int, v Value) {
	switch {
	case p.Kind == Stack && p.Func == int32(a.fn):
		a.after.write(int(p.Off+off)+StackSize, size, v)
	case p.Kind != Stack && a.escapes:
		a.after.forgetStack()
	}
}

func (a *analyser) store() {
	v := a.operand()
	if v.Known && a.in.Size == 4 {
		v = constant(uint64(uint32(v.Const)))
	}
	a.storeTo(a.reg(a.in.Dst), a.in.Off, a.in.Size, v)
}

func (a *analyser) atomic() {
	in := a.in
	a.storeTo(a.reg(in.Dst), in.Off, in.Size, Value{Kind: Scalar})
	old := a.some()
	switch {
	case in.Atomic == asm.CmpXchg:
		a.define(asm.R0, old)
	case in.Fetches():
		a.define(in.Src, old)
	}
}

// helper is the effect of a helper on what is known.
func (a *analyser) helper(id asm.BuiltinFunc) {
	h, reason := LookupHelper(id)
	if reason != "" {
		a.clobberCall()
		return
	}
	for i, t := range h.Args {
		if t == ArgWrite || t == ArgWriteOrNull {
			a.writes(asm.R1+asm.Register(i), a.reg(asm.R1+asm.Register(i)+1))
		}
		if f := a.reg(asm.R1 + asm.Register(i)); t == ArgFunc && f.Kind == FuncRef {
			a.callWith(int(f.Func), a.callbackArgs(id))
			a.clobberCall()
		}
	}
	result := a.some()
	switch id {
	case HelperGetCurrentPidTgid:
		result = Value{Kind: PidTgid}
	case HelperContext:
		result = Value{Kind: Context}
	case asm.FnRingbufReserve:
		result = a.record()
	case asm.FnTracePrintk:
		a.trace(3)
	case asm.FnTraceVprintk:
		if size := a.reg(asm.R4); size.Known {
			a.trace(size.Const / 8)
		}
	case HelperMapCell, asm.FnMapLookupElem:
		result = a.cell()
	}
	a.define(asm.R0, result)
	for r := asm.R1; r <= asm.R5; r++ {
		a.after.Regs[r] = Value{}
	}
}

// callbackArgs is what is known of the arguments of a function that a helper calls.
func (a *analyser) callbackArgs(id asm.BuiltinFunc) *[6]Value {
	if id != asm.FnForEachMapElem {
		return &[6]Value{asm.R1: {Kind: Scalar}, asm.R2: a.reg(asm.R3)}
	}
	args := &[6]Value{asm.R1: a.reg(asm.R1), asm.R2: {Kind: Scalar}, asm.R3: {Kind: Scalar}, asm.R4: a.reg(asm.R3)}
	if m := a.reg(asm.R1); m.Kind == MapRef {
		args[asm.R3] = Value{Kind: Cell, Map: m.Map}
	}
	return args
}

// writes records that a helper writes to where r points.
func (a *analyser) writes(r asm.Register, size Value) {
	p := a.reg(r)
	switch {
	case p.Kind != Stack && !a.escapes:
	case p.Kind == Stack && p.Func != int32(a.fn):
	case p.Kind == Stack && size.Known && size.Const <= StackSize:
		if size.Const > 0 {
			a.after.write(int(p.Off)+StackSize, int(size.Const), Value{Kind: Scalar})
			a.after.forgetBytes(int(p.Off)+StackSize, int(size.Const))
		}
	default:
		a.after.forgetStack()
	}
}

// forgetBytes makes a part of the stack unknown.
func (k *Known) forgetBytes(pos, size int) {
	for u := max(0, pos/4); u <= min(units-1, (pos+size-1)/4); u++ {
		k.forget(u)
	}
}

// record is what ringbuf_reserve returns: always a record, for its place is in
// the function's own frame. What does not fit the ring is dropped, and counted,
// when it is submitted.
func (a *analyser) record() Value {
	ring, size := a.reg(asm.R1), a.reg(asm.R2)
	if r, ok := a.records[a.at]; ok {
		return r.At
	}
	if ring.Kind != MapRef || !size.Known || size.Const == 0 || size.Const > abi.MaxRecord {
		return a.some()
	}
	return a.place(int(ring.Map), int(size.Const))
}

// trace takes a place for the record of a trace_printk of so many arguments.
func (a *analyser) trace(args uint64) {
	format := a.reg(asm.R2)
	if _, ok := a.records[a.at]; ok || !format.Known || format.Const == 0 || format.Const > maxTraceFormat || args > maxTraceArgs {
		return
	}
	a.place(TraceMap, int(traceHeader+8*args+format.Const))
}

// place takes a place for a record.
func (a *analyser) place(ring, size int) Value {
	f := &a.code.Funcs[a.fn]
	a.reserve[a.fn] += (size + 7) &^ 7
	at := Value{Kind: Stack, Func: int32(a.fn), Off: -int32((f.Stack+7)&^7 + a.reserve[a.fn])}
	a.records[a.at] = Reserved{ring, size, at}
	return at
}

// cell is what HelperMapCell or map_lookup_elem returns.
func (a *analyser) cell() Value {
	ref, key := a.reg(asm.R1), a.reg(asm.R2)
	if ref.Kind != MapRef {
		return a.some()
	}
	cell := Value{Kind: CellOrNull, Map: ref.Map, ID: valueID(a.at)}
	spec := &a.code.Maps[ref.Map]
	if spec.IsHash() || spec.Kind == abi.PerThread || key.Kind != Stack || key.Func != int32(a.fn) {
		return cell
	}
	if w, ok := a.before[a.at].StackWord(key.Off, 4); ok && w.Known && w.Const < uint64(spec.MaxEntries) {
		cell.Kind, cell.Fixed, cell.Index = Cell, true, int32(w.Const)
	}
	return cell
}
