package x86

import (
	"fmt"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// inFrame checks that an access to the stack lies in it. A verifier has seen to
// that; nobody has for what it was told to trust.
func (o *op) inFrame() error {
	in := o.in
	r := in.Dst
	switch in.Kind {
	case bpf.Load:
		r = in.Src
	case bpf.Store, bpf.AtomicRMW:
	default:
		return nil
	}
	const records = 1 << 20 // lie below the stack
	if p := o.val(r); p.Kind == bpf.Stack && (p.Off+in.Off < -records || p.Off+in.Off > -int32(in.Size)) {
		return o.fail("the access is outside the stack")
	}
	return nil
}

// operands finds what an operation reads and writes in registers, and what it
// needs besides. A result that is static takes no operand, for it is known
// without; whether a register ever holds it depends on who wants it.
func (u *unit) operands(o *op) error {
	in := o.in
	if err := o.inFrame(); err != nil {
		return err
	}
	if o.hit {
		o.uses, o.temps = vars(slotVar), vars(temp1) // the arena may be out of reach
		return nil
	}
	switch in.Kind {
	case bpf.ALU, bpf.LoadImm, bpf.LoadRef, bpf.LoadValue, bpf.LoadFunc, bpf.Load:
		o.defs = reg(in.Dst)
		switch {
		case o.free():
			o.uses = u.address(o, o.result)
		case o.arg != 0:
		case in.Kind == bpf.ALU:
			o.aluOperands()
		case in.Kind == bpf.Load:
			o.uses = u.base(o, in.Src)
		}
	case bpf.Store:
		o.uses = u.base(o, in.Dst) | o.second(in.Size)
	case bpf.AtomicRMW:
		u.atomicOperands(o)
	case bpf.Jump:
		if o.target >= 0 {
			o.uses = o.number(in.Dst) | o.second(compareSize(in))
		}
	case bpf.Exit:
		if o.fn != 0 || o.returns {
			o.uses = reg(bpfasm.R0)
		}
	case bpf.CallFunc:
		o.defs = 0x3f // r0 to r5
	case bpf.CallReg:
		return o.fail("the helper that callx calls is not the same on every path")
	case bpf.CallHelper:
		return u.callOperands(o)
	}
	return nil
}

// fail says why an operation cannot be compiled.
func (o *op) fail(format string, args ...any) error {
	return fmt.Errorf("%w: %v: %s", ErrCompile, o.in, fmt.Sprintf(format, args...))
}

func reg(r bpfasm.Register) varSet { return 1 << r }

// number is r as an operand whose value has to be in a register. The frame
// pointer is computed into a temporary.
func (o *op) number(r bpfasm.Register) varSet {
	if r == bpfasm.R10 {
		o.temps |= vars(temp1)
		return 0
	}
	return reg(r)
}

// takesFrame reports whether the frame pointer itself is an operand.
func (o *op) takesFrame() bool {
	in := o.in
	switch in.Kind {
	case bpf.ALU:
		return !o.free() && in.UseSrc && in.Src == bpfasm.R10
	case bpf.Store, bpf.AtomicRMW:
		return in.UseSrc && in.Src == bpfasm.R10
	case bpf.Jump:
		return o.target >= 0 && (in.Dst == bpfasm.R10 || in.UseSrc && in.Src == bpfasm.R10)
	}
	return false
}

// second is the second operand if it has to be in a register for an operation
// of size bytes.
func (o *op) second(size int) varSet {
	if !o.in.UseSrc {
		return 0
	}
	if _, ok := immediate(o.val(o.in.Src), size); ok {
		return 0
	}
	return o.number(o.in.Src)
}

// base is what an access through r needs in registers.
func (u *unit) base(o *op, r bpfasm.Register) varSet {
	switch v := o.val(r); v.Kind {
	case bpf.Context, bpf.Stack:
		return 0
	default:
		if v.Static() {
			return u.address(o, v)
		}
	}
	return reg(r)
}

// address is what the address of a static value needs in registers.
func (u *unit) address(o *op, v bpf.Value) varSet {
	if v.Kind != bpf.Cell {
		return 0
	}
	if u.env.Layout.Maps[v.Map].Shared() {
		o.temps |= vars(temp1) // the arena may be out of reach
		return 0
	}
	return vars(slotVar)
}

func compareSize(in *bpf.Insn) int {
	if in.Wide {
		return 8
	}
	return 4
}

func (o *op) aluOperands() {
	in := o.in
	if o.tgid() {
		return
	}
	o.uses = o.second(compareSize(in))
	if overwrites(in) {
		o.uses = o.number(in.Src)
		return
	}
	o.uses |= reg(in.Dst)
	o.aluFixed()
}

// tgid reports whether an operation shifts the process out of what
// HelperGetCurrentPidTgid returned.
func (o *op) tgid() bool {
	n, ok := o.constant(8)
	return o.in.ALU == bpfasm.RSh && o.in.Wide && ok && n == 32 && o.val(o.in.Dst).Kind == bpf.PidTgid
}

func overwrites(in *bpf.Insn) bool {
	switch in.ALU {
	case bpfasm.Mov, bpfasm.MovSX8, bpfasm.MovSX16, bpfasm.MovSX32:
		return true
	}
	return false
}

// aluFixed finds the registers that shifts and divisions are bound to.
func (o *op) aluFixed() {
	in := o.in
	switch in.ALU {
	case bpfasm.LSh, bpfasm.RSh, bpfasm.ArSh:
		if _, ok := o.constant(compareSize(in)); !ok {
			o.fixed = asm.Regs(asm.RCX)
		}
	case bpfasm.Div, bpfasm.Mod, bpfasm.SDiv, bpfasm.SMod:
		o.fixed = asm.Regs(asm.RAX, asm.RDX)
		if _, ok := o.constant(compareSize(in)); ok {
			o.temps |= vars(temp1)
		}
	}
}

func (u *unit) atomicOperands(o *op) {
	in := o.in
	o.uses = u.base(o, in.Dst)
	switch in.Atomic {
	case bpfasm.CmpXchg:
		o.uses |= o.number(in.Src) | reg(bpfasm.R0)
		o.defs = reg(bpfasm.R0)
		o.fixed = asm.Regs(asm.RAX)
	case bpfasm.FetchAnd, bpfasm.FetchOr, bpfasm.FetchXor:
		o.uses |= reg(in.Src)
		o.defs = reg(in.Src)
		o.fixed = asm.Regs(asm.RAX)
		o.temps |= vars(temp2)
	case bpfasm.FetchAdd, bpfasm.Xchg:
		o.uses |= reg(in.Src)
		o.defs = reg(in.Src)
	default:
		o.uses |= o.second(in.Size)
	}
}

func (u *unit) callOperands(o *op) error {
	switch o.in.Helper() {
	case bpf.HelperGetCurrentPidTgid:
		o.defs, o.temps = reg(bpfasm.R0), vars(temp1)
	case bpfasm.FnKtimeGetNs, bpfasm.FnKtimeGetCoarseNs:
		o.defs, o.temps, o.fixed = reg(bpfasm.R0), vars(temp1, temp2), asm.Regs(asm.RAX, asm.RDX)
	case bpfasm.FnGetSmpProcessorId, bpfasm.FnGetNumaNodeId, bpfasm.FnGetPrandomU32,
		bpfasm.FnGetFuncIp, bpfasm.FnGetAttachCookie:
		o.defs = reg(bpfasm.R0)
	case routine.Syscall:
		o.defs, o.uses, o.across = reg(bpfasm.R0), 0x3e, asm.Regs(asm.RAX, asm.RCX, asm.RDX, asm.RSI, asm.RDI, asm.R10, asm.R11)
	case routine.ThreadWord, routine.StackPointer:
		o.defs = reg(bpfasm.R0)
	case routine.Increment:
		o.uses = reg(bpfasm.R1)
	case routine.Swap16:
		o.defs, o.uses, o.across = reg(bpfasm.R0), 0x3e, asm.Regs(asm.RAX, asm.RBX, asm.RCX, asm.RDX, asm.RSI)
	case bpf.HelperBitLength:
		o.uses, o.defs = reg(bpfasm.R1), reg(bpfasm.R0)
	case bpf.HelperContext:
		o.defs = reg(bpfasm.R0)
	case bpf.HelperTailCount:
		o.defs = reg(bpfasm.R0)
		u.progs[o.prog].tails = true
	case bpfasm.FnLoop:
		return u.loopOperands(o)
	case bpfasm.FnForEachMapElem:
		return u.eachOperands(o)
	case bpf.HelperExit:
		o.temps = vars(temp1)
	case bpf.HelperRingbufOutput, bpfasm.FnRingbufReserve, bpfasm.FnRingbufSubmit, bpfasm.FnRingbufDiscard, bpfasm.FnRingbufQuery, bpfasm.FnPerfEventOutput,
		bpfasm.FnTracePrintk, bpfasm.FnTraceVprintk:
		return u.ringOperands(o)
	case bpf.HelperMapCell:
		if o.val(bpfasm.R1).Kind != bpf.MapRef {
			return o.fail("the map is not the same on every path")
		}
		if ml := &u.env.Layout.Maps[o.val(bpfasm.R1).Map]; ml.Shared() || ml.IsHash() && ml.KeySize%8 != 0 {
			return o.fail("it does not work on map %s", ml.Name)
		}
		u.cellOperands(o)
	case bpfasm.FnMapLookupElem, bpfasm.FnMapUpdateElem, bpfasm.FnMapDeleteElem:
		return u.mapOperands(o)
	case bpfasm.FnMapLookupPercpuElem:
		return u.slotValueOperands(o)
	case bpf.HelperStackID:
		return u.stackOperands(o)
	case bpfasm.FnGetStack, bpfasm.FnGetStackid:
		return u.walkOperands(o)
	default:
		return u.routineOperands(o)
	}
	return nil
}

// cellOperands finds the key of a HelperMapCell call. A cell of an array at a
// known index is an offset in the slot: nothing is to be done for it.
func (u *unit) cellOperands(o *op) {
	ml := &u.env.Layout.Maps[o.val(bpfasm.R1).Map]
	o.key = key{ml: ml, ptr: o.val(bpfasm.R2)}
	o.defs = reg(bpfasm.R0)
	size := ml.KeySize
	if o.key.ptr.Kind == bpf.Stack && u.fnOf(o, o.key.ptr) == o.fn {
		o.findKey(size)
	}
	if o.result.Static() {
		o.key.known = true
		o.uses = u.address(o, o.result)
		return
	}
	if !ml.Shared() {
		o.uses = vars(slotVar)
	}
	switch {
	case o.key.inReg:
		o.uses |= 1 << o.key.reg
	case !o.key.known && o.key.ptr.Kind != bpf.Stack:
		o.uses |= reg(bpfasm.R2)
	}
	if ml.Kind == abi.PerSlotHash && size == 8 {
		o.temps = vars(temp1)
		if !o.key.known && (!o.key.inReg || o.key.inResult()) {
			o.temps |= vars(temp2)
		}
	}
}

// findKey looks for the value of a key on the stack, and for a register that
// holds it.
func (o *op) findKey(size int) {
	w, ok := o.before.StackWord(o.key.ptr.Off, size)
	if !ok || size > 8 || w.Kind != bpf.Scalar {
		return
	}
	o.key.known, o.key.value = w.Known, w.Const
	for r := bpfasm.R0; r < bpfasm.R10 && !w.Known; r++ {
		if v := o.val(r); w.ID != 0 && v.Kind == bpf.Scalar && v.ID == w.ID {
			o.key.inReg, o.key.reg = true, variable(r)
			break
		}
	}
}
