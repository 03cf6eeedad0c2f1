package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// What is kept of a bpf_loop in the frame of the function that calls it, in
// bytes from its place.
const (
	loopCount = 0
	loopRound = 8
	loopArg   = 16
	loopSize  = 24
)

// callsBack reports whether an instruction is a helper that calls a function.
func callsBack(in *bpf.Insn) bool {
	return isCall(in, bpfasm.FnLoop) || isCall(in, bpfasm.FnForEachMapElem)
}

// loopSize is how many bytes are kept of the loop that an operation runs.
func (u *unit) loopSize(o *op) int32 {
	if ref := o.val(bpfasm.R1); isCall(o.in, bpfasm.FnForEachMapElem) && ref.Kind == bpf.MapRef {
		return int32(routine.EachKey + 8*u.env.Layout.Maps[ref.Map].KeyWords())
	}
	return loopSize
}

// maxLoop is the largest number of rounds (include/linux/bpf.h, BPF_MAX_LOOPS).
const maxLoop = 1 << 23

func (u *unit) loopOperands(o *op) error {
	if err := u.callbackOperands(o); err != nil {
		return err
	}
	if _, ok := immediate(o.val(bpfasm.R1), 8); !ok {
		o.uses |= reg(bpfasm.R1)
	}
	return nil
}

// callbackOperands finds what helpers read that call a function.
func (u *unit) callbackOperands(o *op) error {
	if o.callee == 0 {
		return o.fail("the function is not the same on every path")
	}
	if flags := o.val(bpfasm.R4); !flags.Known || flags.Const != 0 {
		return o.fail("the flags must be 0")
	}
	f := &u.progs[o.prog].Code().Funcs[o.val(bpfasm.R2).Func]
	o.charge = f.End - f.Start
	u.progs[o.prog].spend = true
	o.defs = 0x3f // r0 to r5
	if !o.knowsArg() {
		o.uses = reg(bpfasm.R3)
	}
	return nil
}

// knowsArg reports whether the argument of a function that is called back is known without a
// register.
func (o *op) knowsArg() bool {
	v := o.val(bpfasm.R3)
	return v.Known || v.Static() && v.Kind != bpf.PidTgid
}

// passes is the known pointer that a helper puts into the function's register,
// if any.
func (u *unit) passes(o *op) (bpf.Value, bool) {
	if o.callee == 0 || o.in.Kind == bpf.CallFunc || !o.knowsArg() {
		return bpf.Value{}, false
	}
	return o.val(bpfasm.R3), u.ops[u.funcs[o.callee].first].liveIn.has(variable(o.passed()))
}

// passed is the register in which the function gets the argument.
func (o *op) passed() bpfasm.Register {
	if isCall(o.in, bpfasm.FnForEachMapElem) {
		return bpfasm.R4
	}
	return bpfasm.R2
}

// loop emits bpf_loop, whose count, round and argument are kept in the frame,
// for the function may use every register.
func (g *generator) loop(o *op) {
	kept := g.frame.funcs[g.fn].loop
	d := g.r(bpfasm.R0)
	spent := g.spent(o)
	b := &g.bodies[g.copyNumber()][o.callee]
	head, done, tooBig := g.NewLabel(), g.NewLabel(), g.NewLabel()
	g.keepCount(o, kept)
	g.keepArg(o, kept+loopArg, d)
	g.StoreI(8, g.stack(kept+loopRound), 0)
	g.OpMI(asm.Cmp, 8, g.stack(kept+loopCount), maxLoop)
	g.Jcc(asm.A, tooBig)
	g.Bind(head)
	g.Load(8, d, g.stack(kept+loopRound))
	g.OpRM(asm.Cmp, 8, d, g.stack(kept+loopCount))
	g.Jcc(asm.E, done)
	g.charge(o, spent)
	g.loopArgs(o, kept)
	g.callBody(o, b, spent)
	g.IncM(8, g.stack(kept+loopRound))
	g.TestRR(8, d, d)
	g.Jcc(asm.E, head)
	g.Load(8, d, g.stack(kept+loopRound))
	g.Bind(done)
	g.later(func() {
		g.Bind(tooBig)
		e := int64(errTooBig)
		g.MovRI(d, uint64(e))
		g.Jmp(done)
	})
}

// keepCount stores the number of rounds.
func (g *generator) keepCount(o *op, kept int32) {
	if imm, ok := immediate(o.val(bpfasm.R1), 8); ok {
		g.StoreI(8, g.stack(kept+loopCount), imm)
		return
	}
	g.Store(8, g.stack(kept+loopCount), g.r(bpfasm.R1))
}

// keepArg stores the argument of the function.
func (g *generator) keepArg(o *op, at int32, d asm.Reg) {
	v := o.val(bpfasm.R3)
	switch {
	case !g.funcTakes(o, o.passed()):
	case v.Known:
		g.MovRI(d, v.Const)
		g.Store(8, g.stack(at), d)
	case o.knowsArg():
		g.materialize(o, d, v)
		g.Store(8, g.stack(at), d)
	default:
		g.Store(8, g.stack(at), g.r(bpfasm.R3))
	}
}

// loopArgs passes the round and the argument.
func (g *generator) loopArgs(o *op, kept int32) {
	if g.funcTakes(o, bpfasm.R1) {
		g.Load(8, g.r(bpfasm.R1), g.stack(kept+loopRound))
	}
	if g.funcTakes(o, bpfasm.R2) {
		g.Load(8, g.r(bpfasm.R2), g.stack(kept+loopArg))
	}
}

// funcTakes reports whether the function reads an argument from its register.
func (g *generator) funcTakes(o *op, r bpfasm.Register) bool {
	return g.ops[g.funcs[o.callee].first].liveIn.has(variable(r))
}
