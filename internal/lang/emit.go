package lang

import (
	"math"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// emitter collects instructions and resolves jumps.
type emitter struct {
	insns  []asm.Instruction
	labels []int // index of the instruction that each label names, -1 while unbound
	jumps  []jump
	jumped bool // a jump was kept: code is no longer in one line
}

type jump struct {
	at    int // index of the jump
	label label
}

type label int

func (e *emitter) emit(in asm.Instruction) { e.insns = append(e.insns, in) }

func (e *emitter) newLabel() label {
	e.labels = append(e.labels, -1)
	return label(len(e.labels) - 1)
}

// bind makes a label name the next instruction. A jump to it that would jump
// over nothing goes away.
func (e *emitter) bind(l label) {
	for n := len(e.jumps); n > 0; n = len(e.jumps) {
		last := e.jumps[n-1]
		if last.label != l || last.at != len(e.insns)-1 || e.insns[last.at].OpCode.JumpOp() != asm.Ja {
			break
		}
		e.jumps, e.insns = e.jumps[:n-1], e.insns[:last.at]
		for i := range e.labels {
			e.labels[i] = min(e.labels[i], last.at)
		}
	}
	e.labels[l] = len(e.insns)
}

// used reports whether something jumps to the label.
func (e *emitter) used(l label) bool {
	for _, j := range e.jumps {
		if j.label == l {
			return true
		}
	}
	return false
}

func (e *emitter) jumpTo(l label) {
	e.branch(asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja)}, l)
}

func (e *emitter) jumpImm(op asm.JumpOp, r asm.Register, imm int32, l label) {
	e.branch(asm.Instruction{OpCode: op.Op(asm.ImmSource), Dst: r, Constant: int64(imm)}, l)
}

func (e *emitter) jumpReg(op asm.JumpOp, a, b asm.Register, l label) {
	e.branch(asm.Instruction{OpCode: op.Op(asm.RegSource), Dst: a, Src: b}, l)
}

func (e *emitter) branch(in asm.Instruction, l label) {
	e.jumps = append(e.jumps, jump{len(e.insns), l})
	e.emit(in)
}

// finish resolves the jumps. Distances count 8-byte units, of which the load
// of a 64-bit constant takes two.
func (e *emitter) finish() asm.Instructions {
	units := make([]int, len(e.insns)+1)
	for i := range e.insns {
		units[i+1] = units[i] + int(e.insns[i].Width())
	}
	for _, j := range e.jumps {
		to := e.labels[j.label]
		dist := units[to] - units[j.at] - 1
		// Where it is cut the program is too long for other reasons, and will be refused.
		e.insns[j.at].Offset = int16(max(math.MinInt16, min(dist, math.MaxInt16)))
	}
	return e.insns
}

// small reports whether an immediate operand can hold the value.
func small(v uint64) bool { return uint64(int64(int32(v))) == v }

func (e *emitter) mov(dst, src asm.Register) {
	if dst != src {
		e.emit(asm.Mov.Reg(dst, src))
	}
}

// movImm loads a constant.
func (e *emitter) movImm(dst asm.Register, v uint64) {
	if small(v) {
		e.emit(asm.Mov.Imm(dst, int32(v)))
		return
	}
	e.emit(asm.LoadImm(dst, int64(v), asm.DWord))
}

func (e *emitter) aluImm(op asm.ALUOp, dst asm.Register, v int32) { e.emit(op.Imm(dst, v)) }
func (e *emitter) aluReg(op asm.ALUOp, dst, src asm.Register)     { e.emit(op.Reg(dst, src)) }

// load and store access 8 bytes of the stack at r10+off.
func (e *emitter) load(dst asm.Register, off int16) {
	e.emit(asm.LoadMem(dst, asm.R10, off, asm.DWord))
}

func (e *emitter) store(off int16, src asm.Register) {
	e.emit(asm.StoreMem(asm.R10, off, src, asm.DWord))
}

// storeImm stores a constant. (asm.StoreImm has no form for 8 bytes, though
// the instruction exists: RFC 9669, 5.1.)
func (e *emitter) storeImm(off int16, v int32) {
	op := asm.OpCode(asm.StClass).SetMode(asm.MemMode).SetSize(asm.DWord)
	e.emit(asm.Instruction{OpCode: op, Dst: asm.R10, Offset: off, Constant: int64(v)})
}

// stackAddr makes dst point to r10+off.
func (e *emitter) stackAddr(dst asm.Register, off int16) {
	e.mov(dst, asm.R10)
	e.aluImm(asm.Add, dst, int32(off))
}

// add is an atomic add of src to the 8 bytes at r0+off.
func (e *emitter) add(off int16, src asm.Register) {
	e.emit(asm.AddAtomic.Mem(asm.R0, src, asm.DWord, off))
}

func (e *emitter) call(h asm.BuiltinFunc) { e.emit(bpf.Call(h)) }

// truncate converts the value in r to a type.
func (e *emitter) truncate(r asm.Register, t Type) {
	switch {
	case t.Kind == Bool:
		done := e.newLabel()
		e.jumpImm(asm.JEq, r, 0, done)
		e.movImm(r, 1)
		e.bind(done)
	case t.Kind != Int || t.Size == 8:
	case !t.Signed && t.Size == 4:
		e.emit(asm.Mov.Reg32(r, r))
	case !t.Signed:
		e.aluImm(asm.And, r, 1<<(8*t.Size)-1)
	case t.Size == 4:
		e.aluReg(asm.MovSX32, r, r)
	case t.Size == 2:
		e.aluReg(asm.MovSX16, r, r)
	default:
		e.aluReg(asm.MovSX8, r, r)
	}
}
