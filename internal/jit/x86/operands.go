package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// operands finds what an operation reads and writes in registers, and what it
// needs besides. Static values need no register, and constants seldom do.
func (u *unit) operands(o *op) {
	in := o.in
	switch in.Kind {
	case bpf.ALU:
		o.aluOperands()
	case bpf.LoadImm:
		o.defs = reg(in.Dst)
	case bpf.Load:
		o.loadOperands()
	case bpf.Store:
		o.uses = o.address(in.Dst) | o.second(in.Size)
	case bpf.AtomicRMW:
		o.atomicOperands()
	case bpf.Jump:
		if o.target >= 0 {
			o.uses = reg(in.Dst) | o.second(compareSize(in))
		}
	case bpf.CallHelper:
		u.callOperands(o)
	}
}

func reg(r bpfasm.Register) varSet { return 1 << r }

// register is r if its value has to be in a register.
func (o *op) register(r bpfasm.Register) varSet {
	if o.val(r).Static() {
		return 0
	}
	return reg(r)
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
	return o.register(o.in.Src)
}

// address is what an access through r needs in registers.
func (o *op) address(r bpfasm.Register) varSet {
	v := o.val(r)
	if v.Kind == bpf.Cell && v.Fixed {
		return vars(slotVar)
	}
	return o.register(r)
}

func compareSize(in *bpf.Insn) int {
	if in.Wide {
		return 8
	}
	return 4
}

func (o *op) aluOperands() {
	in := o.in
	dst := o.val(in.Dst)
	switch in.ALU {
	case bpfasm.Mov, bpfasm.MovSX8, bpfasm.MovSX16, bpfasm.MovSX32:
		if !o.val(in.Src).Static() {
			o.uses, o.defs = reg(in.Src), reg(in.Dst)
		}
		return
	}
	switch {
	case dst.Kind == bpf.PidTgid:
		o.defs = reg(in.Dst)
		return
	case dst.Kind != bpf.Scalar:
		return // a pointer: its distance is kept in bpf.Value.Off
	case in.UseSrc && o.val(in.Src).Kind != bpf.Scalar:
		if o.uses = o.register(in.Src); o.uses != 0 {
			o.defs = reg(in.Dst)
		}
		return
	}
	o.uses = reg(in.Dst) | o.second(compareSize(in))
	o.defs = reg(in.Dst)
	o.aluFixed()
}

// aluFixed finds the registers that shifts and divisions are bound to.
func (o *op) aluFixed() {
	in := o.in
	switch in.ALU {
	case bpfasm.LSh, bpfasm.RSh, bpfasm.ArSh:
		if in.UseSrc && o.uses.has(variable(in.Src)) {
			o.fixed = asm.Regs(asm.RCX)
		}
	case bpfasm.Div, bpfasm.Mod, bpfasm.SDiv, bpfasm.SMod:
		o.fixed = asm.Regs(asm.RAX, asm.RDX)
		if !in.UseSrc || !o.uses.has(variable(in.Src)) {
			o.temps = vars(temp1)
		}
	}
}

func (o *op) loadOperands() {
	in := o.in
	p := o.val(in.Src)
	o.uses = o.address(in.Src)
	o.defs = reg(in.Dst)
	if p.Kind != bpf.Stack {
		return
	}
	if w, ok := o.before.StackWord(p.Off+in.Off, in.Size); ok && w.Static() {
		o.defs = 0
	}
}

func (o *op) atomicOperands() {
	in := o.in
	o.uses = o.address(in.Dst)
	switch in.Atomic {
	case bpfasm.CmpXchg:
		o.uses |= reg(in.Src) | reg(bpfasm.R0)
		o.defs = reg(bpfasm.R0)
		o.fixed = asm.Regs(asm.RAX)
	case bpfasm.FetchAnd, bpfasm.FetchOr, bpfasm.FetchXor:
		o.uses |= reg(in.Src)
		o.defs = reg(in.Src)
		o.fixed = asm.Regs(asm.RAX)
		o.temps = vars(temp1)
	case bpfasm.FetchAdd, bpfasm.Xchg:
		o.uses |= reg(in.Src)
		o.defs = reg(in.Src)
	default:
		o.uses |= o.second(in.Size)
	}
}

func (u *unit) callOperands(o *op) {
	switch bpfasm.BuiltinFunc(o.in.Imm) {
	case bpf.HelperExit:
		o.temps = vars(temp1)
	case bpf.HelperRingbufOutput:
		o.uses, o.defs, o.temps = vars(slotVar), reg(bpfasm.R0), vars(temp1)
	case bpf.HelperMapCell:
		u.cellOperands(o)
	}
}

// cellOperands finds the key of a HelperMapCell call. A cell of an array at a
// known index is an offset in the slot: nothing is to be done for it.
func (u *unit) cellOperands(o *op) {
	ml := &u.env.Layout.Maps[o.val(bpfasm.R1).Map]
	o.key = key{ml: ml, off: o.val(bpfasm.R2).Off}
	size := ml.KeySize
	if w, ok := o.before.StackWord(o.key.off, size); ok && size <= 8 && w.Kind == bpf.Scalar {
		o.key.known, o.key.value = w.Known, w.Const
		for r := bpfasm.R0; r < bpfasm.R10 && !w.Known; r++ {
			if v := o.val(r); w.ID != 0 && v.Kind == bpf.Scalar && v.ID == w.ID {
				o.key.inReg, o.key.reg = true, variable(r)
				break
			}
		}
	}
	if ml.Kind == abi.PerSlotArray && o.key.known && o.key.value < uint64(ml.MaxEntries) {
		return
	}
	o.defs, o.uses = reg(bpfasm.R0), vars(slotVar)
	if o.key.inReg {
		o.uses |= 1 << o.key.reg
	}
	if ml.Kind == abi.PerSlotHash && size == 8 {
		o.temps = vars(temp1)
		if !o.key.known && (!o.key.inReg || o.key.inResult()) {
			o.temps |= vars(temp2)
		}
	}
}
