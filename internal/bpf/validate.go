package bpf

import (
	"fmt"
	"math"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// Verified is a program that was proven to touch nothing but its context, its
// stack, its map cells and the event ring, and to end. Only Validate makes one.
type Verified struct {
	code   *Code
	before []*State
	branch []Branch
}

// Branch says what is known about a conditional jump.
type Branch uint8

// What a conditional jump may do.
const (
	Either Branch = iota
	Always
	Never
)

// Name is the program's name.
func (v *Verified) Name() string { return v.code.Name }

// Maps are the program's maps, by number. The caller must not change them.
func (v *Verified) Maps() []abi.MapSpec { return v.code.Maps }

// Insns are the decoded instructions. The caller must not change them.
func (v *Verified) Insns() []Insn { return v.code.Insns }

// Before is what is known before instruction i, nil if it is never reached.
func (v *Verified) Before(i int) *State { return v.before[i] }

// Branch is what is known about the conditional jump i.
func (v *Verified) Branch(i int) Branch { return v.branch[i] }

// Ends reports whether a run ends with instruction i.
func (v *Verified) Ends(i int) bool { return v.code.Ends(i) }

// Code is the decoded program. The caller must not change it.
func (v *Verified) Code() *Code { return v.code }

// Validate decodes and verifies a program. It refuses, with an InsnError that
// names the instruction: unknown instructions and helpers, jumps backwards or
// out of the program, use of what was never written, accesses outside the
// context's readable fields, the stack or a map's cell, pointers used as
// numbers, and a way past the last instruction.
func Validate(p *Program) (*Verified, error) {
	code, err := Decode(p)
	if err != nil {
		return nil, err
	}
	if code.Input != (Input{}) {
		return nil, fmt.Errorf("%w %s: only a probe's input is supported", ErrInvalid, p.Name)
	}
	n := len(code.Insns)
	v := &Verified{code, make([]*State, n), make([]Branch, n)}
	v.before[0] = entryState()
	for i := range code.Insns {
		if v.before[i] == nil {
			continue // nothing jumps backwards, so nothing can reach it any more
		}
		c := checker{v: v, at: i, in: &code.Insns[i], after: *v.before[i]}
		if reason := c.check(); reason != "" {
			return nil, &InsnError{p.Name, i, fmt.Sprint(p.Insns[i]), reason}
		}
	}
	return v, nil
}

// checker verifies one instruction. Its methods return a reason, or "".
type checker struct {
	v     *Verified
	at    int
	in    *Insn
	after State
}

func (c *checker) check() string {
	in := c.in
	var reason string
	switch in.Kind {
	case ALU:
		reason = c.alu()
	case LoadImm:
		reason = c.define(in.Dst, constant(uint64(in.Imm)))
	case LoadRef:
		reason = c.loadRef()
	case Load:
		reason = c.load()
	case Store:
		reason = c.store()
	case AtomicRMW:
		reason = c.atomic()
	case CallHelper:
		reason = c.call()
	case Jump:
		return c.jump()
	case JumpAlways:
		return c.flow(in.Target, &c.after)
	case Exit:
		return c.initialised(asm.R0)
	case CallFunc, LoadFunc:
		return "only helpers can be called"
	case CallReg, LoadValue:
		return "the instruction is not supported"
	}
	if reason != "" || c.v.Ends(c.at) {
		return reason
	}
	return c.flow(c.at+1, &c.after)
}

// flow says that the run goes on at instruction to, in state s.
func (c *checker) flow(to int, s *State) string {
	switch {
	case to <= c.at:
		return "jumps backwards"
	case c.v.before[to] == nil:
		s := *s
		c.v.before[to] = &s
	default:
		c.v.before[to].merge(s, to)
	}
	return ""
}

func (c *checker) reg(r asm.Register) Value { return c.v.before[c.at].Regs[r] }

func (c *checker) initialised(r asm.Register) string {
	if c.reg(r).Kind == Unknown {
		return fmt.Sprintf("%v may not have been written", r)
	}
	return ""
}

// define says what the instruction leaves in a register. An instruction whose
// result is the same number on every path becomes a plain LoadImm.
func (c *checker) define(r asm.Register, v Value) string {
	c.after.Regs[r] = v
	if v.Known && c.in.Kind != AtomicRMW {
		*c.in = Insn{Kind: LoadImm, Dst: r, Imm: int64(v.Const)}
	}
	return ""
}

func (c *checker) newScalar() Value { return Value{Kind: Scalar, ID: valueID(c.at)} }

// operand is the second operand of an arithmetic instruction or a jump.
func (c *checker) operand() Value {
	if c.in.UseSrc {
		return c.reg(c.in.Src)
	}
	return constant(uint64(c.in.Imm))
}

func (c *checker) alu() string {
	in := c.in
	src, dst := c.operand(), c.reg(in.Dst)
	if in.UseSrc && src.Kind == Unknown {
		return c.initialised(in.Src)
	}
	if in.ALU == asm.Mov && in.Wide {
		return c.define(in.Dst, src)
	}
	switch in.ALU {
	case asm.Mov, asm.MovSX8, asm.MovSX16, asm.MovSX32:
		dst = Value{Kind: Scalar} // overwritten
	default:
		if dst.Kind == Unknown {
			return c.initialised(in.Dst)
		}
	}
	switch {
	case dst.Kind == Scalar && src.Kind == Scalar:
		v := c.newScalar()
		if dst.Known && src.Known || src.Known && in.overwrites() {
			v = constant(in.compute(dst.Const, src.Const))
		}
		return c.define(in.Dst, v)
	case dst.Kind == PidTgid && in.ALU == asm.RSh && in.Wide && src.Known && src.Const == 32:
		return c.define(in.Dst, c.newScalar())
	case dst.Kind == PidTgid || src.Kind == PidTgid:
		return "only the upper 32 bits (the process) of get_current_pid_tgid can be used"
	}
	return c.pointerALU(dst, src)
}

// maxOffset keeps pointers near what they point to.
const maxOffset = 1 << 20

func (c *checker) pointerALU(dst, src Value) string {
	in := c.in
	if in.ALU == asm.Add && dst.Kind == Scalar {
		dst, src = src, dst
	}
	switch dst.Kind {
	case Context, Stack, Cell:
	case CellOrNull:
		return "the cell may be null"
	default:
		return "a reference is used as a number"
	}
	if !in.Wide || (in.ALU != asm.Add && in.ALU != asm.Sub) {
		return "a pointer is used as a number"
	}
	if src.Kind != Scalar || !src.Known {
		return "a pointer moves by a distance that is not constant"
	}
	dist := int64(src.Const)
	if in.ALU == asm.Sub {
		dist = -dist
	}
	off := int64(dst.Off) + dist
	if dist < math.MinInt32 || dist > math.MaxInt32 || off < -maxOffset || off > maxOffset {
		return fmt.Sprintf("a pointer moves by %d", dist)
	}
	dst.Off = int32(off)
	return c.define(in.Dst, dst)
}

func (c *checker) loadRef() string {
	if c.in.Imm == ringNumber {
		return c.define(c.in.Dst, Value{Kind: RingRef})
	}
	return c.define(c.in.Dst, Value{Kind: MapRef, Map: int32(c.in.Imm)})
}

func (c *checker) load() string {
	in := c.in
	p := c.reg(in.Src)
	off := p.Off + in.Off
	v := c.newScalar()
	switch p.Kind {
	case Context:
		field := off &^ 7
		if !readableContext(field) || off+int32(in.Size) > field+8 {
			return fmt.Sprintf("%d bytes at %d of the context cannot be read", in.Size, off)
		}
	case Stack:
		return c.loadStack(off)
	default:
		if reason := c.cellAccess(in.Src, p, off); reason != "" {
			return reason
		}
	}
	return c.define(in.Dst, v)
}

func (c *checker) loadStack(off int32) string {
	in, s := c.in, c.v.before[c.at]
	pos, reason := c.stackRange(off, in.Size)
	if reason != "" {
		return reason
	}
	if !s.initialised(pos, in.Size) {
		return fmt.Sprintf("%d bytes at r10%+d may not have been written", in.Size, off)
	}
	if v, ok := s.StackWord(off, in.Size); ok && in.Size >= 4 {
		if in.Size == 8 || v.Known && !in.Signed && v.Const>>32 == 0 {
			return c.define(in.Dst, v)
		}
	}
	if s.holdsPointer(pos, in.Size) {
		return "a part of a pointer is read"
	}
	return c.define(in.Dst, c.newScalar())
}

func (c *checker) stackRange(off int32, size int) (int, string) {
	pos := int(off) + StackSize
	switch {
	case pos < 0 || pos+size > StackSize:
		return 0, fmt.Sprintf("%d bytes at r10%+d are outside the stack of %d bytes", size, off, StackSize)
	case pos%min(size, 8) != 0:
		return 0, fmt.Sprintf("%d bytes at r10%+d are not aligned", size, off)
	}
	return pos, ""
}

// cellAccess checks an access through a pointer that must point to a cell.
func (c *checker) cellAccess(r asm.Register, p Value, off int32) string {
	switch p.Kind {
	case Unknown:
		return c.initialised(r)
	case CellOrNull:
		return fmt.Sprintf("%v may be null", r)
	case Cell:
	default:
		return fmt.Sprintf("%v does not point to memory", r)
	}
	size := c.in.Size
	if off < 0 || int(off)+size > c.v.code.Maps[p.Map].ValueSize || int(off)%size != 0 {
		return fmt.Sprintf("%d bytes at %d of a cell of %d bytes", size, off, c.v.code.Maps[p.Map].ValueSize)
	}
	return ""
}

func (c *checker) store() string {
	in := c.in
	v := c.operand()
	if v.Kind == Unknown {
		return c.initialised(in.Src)
	}
	p := c.reg(in.Dst)
	off := p.Off + in.Off
	if p.Kind == Context {
		return "the context is read-only"
	}
	if p.Kind == Stack {
		pos, reason := c.stackRange(off, in.Size)
		if reason != "" {
			return reason
		}
		if v.Kind != Scalar && in.Size != 8 {
			return "a part of a pointer is stored"
		}
		if v.Known && in.Size == 4 {
			v = constant(uint64(uint32(v.Const)))
		}
		c.after.write(pos, in.Size, v)
		return ""
	}
	if v.Kind != Scalar {
		return "a pointer is stored outside the stack"
	}
	return c.cellAccess(in.Dst, p, off)
}

func (c *checker) atomic() string {
	in := c.in
	if c.reg(in.Src).Kind != Scalar || in.Atomic == asm.CmpXchg && c.reg(asm.R0).Kind != Scalar {
		return "an operand is not a number"
	}
	p := c.reg(in.Dst)
	off := p.Off + in.Off
	if p.Kind == Stack {
		pos, reason := c.stackRange(off, in.Size)
		if reason != "" {
			return reason
		}
		s := c.v.before[c.at]
		if !s.initialised(pos, in.Size) || s.holdsPointer(pos, in.Size) {
			return fmt.Sprintf("%d bytes at r10%+d are not a number", in.Size, off)
		}
		c.after.write(pos, in.Size, c.newScalar())
	} else if reason := c.cellAccess(in.Dst, p, off); reason != "" {
		return reason
	}
	if !in.Fetches() {
		return ""
	}
	// The register holds what memory held, not what it holds now.
	v := Value{Kind: Scalar, ID: joinID(c.at, 0)}
	if in.Atomic == asm.CmpXchg {
		return c.define(asm.R0, v)
	}
	return c.define(in.Src, v)
}
