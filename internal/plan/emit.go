package plan

import (
	"fmt"
	"math"
	"slices"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	insn "trapless/internal/insn/x86"
	"trapless/internal/reloc"
)

// PCPair says where an instruction of a window runs now.
type PCPair struct {
	Orig  abi.Addr
	Moved abi.Addr // the instruction itself
	// Entry is where a thread goes on that arrives at Orig: at the site's
	// programs if Orig is one, else at Moved. It is 0 in a second pair of the
	// same instruction.
	Entry abi.Addr
	// Pushed: at Moved, a call has pushed its return address already. Before
	// the call the stack pointer was 8 higher.
	Pushed bool
}

// RelocatedSize is the number of bytes that Emit will emit besides programs; it
// does not depend on the address.
func (w *Window) RelocatedSize() int {
	if w.Bare {
		return 0
	}
	if w.Call {
		return reloc.CalleeJumpSize(w.Insts[0].Inst) + lateEntryLen
	}
	last := w.Insts[len(w.Insts)-1]
	n := last.Moved + movedSize(last)
	if w.fallsOut() {
		n += jmpLen
	}
	return n
}

// EmitRelocated is Emit without programs.
func (w *Window) EmitRelocated(a *asm.Asm) ([]PCPair, error) {
	return w.Emit(a, func(int) error { return nil })
}

// Emit emits the window's instructions for where the assembler stands, and the
// jump back behind the window. Where the programs of site number i are to run,
// it calls program(i), which emits them. It returns the new place of each
// instruction. It fails if something that they refer to is out of reach.
//
// A branch from the window into its own inside goes to the moved instruction,
// and to the programs before it; one to its start goes there, because that is a
// hit.
func (w *Window) Emit(a *asm.Asm, program func(i int) error) ([]PCPair, error) {
	if w.Bare {
		return nil, nil
	}
	m := &mover{Asm: a, w: w, program: program, entries: make([]abi.Addr, len(w.Insts))}
	for range w.Insts {
		m.marks = append(m.marks, a.NewLabel())
	}
	for k := range w.Insts {
		if err := m.inst(k); err != nil {
			return nil, err
		}
	}
	if err := m.programs(len(w.Insts)); err != nil {
		return nil, err
	}
	switch {
	case w.Call:
		m.lateEntry()
	case w.fallsOut():
		a.JmpAddr(w.End())
	}
	return m.pairs, nil
}

// lateEntry is the entry of a call's detour for a thread that comes to the call
// by a trap: its return address has not been pushed.
func (m *mover) lateEntry() {
	m.pairs[0].Entry = m.PC()
	ret := m.NewLabel()
	m.PushM(asm.AtLabel(ret))
	m.JmpAddr(m.entries[0])
	m.Bind(ret)
	m.Quad(uint64(m.w.End()))
}

// lateEntryLen is what lateEntry emits, in bytes.
const lateEntryLen = 6 + jmpLen + 8

// mover emits one window.
type mover struct {
	*asm.Asm
	w       *Window
	program func(i int) error
	site    int // the next one
	marks   []asm.Label
	entries []abi.Addr // of each instruction emitted so far
	pairs   []PCPair
}

// programs lets the programs be emitted that run before instruction number k.
func (m *mover) programs(k int) error {
	for ; m.site < len(m.w.Sites) && m.w.Sites[m.site].Inst == k; m.site++ {
		if err := m.program(m.site); err != nil {
			return err
		}
	}
	return nil
}

// inst emits instruction number k.
func (m *mover) inst(k int) error {
	in := m.w.Insts[k]
	m.entries[k] = m.PC()
	m.Bind(m.marks[k])
	if isBreakpointPad(in) {
		return nil
	}
	if err := m.programs(k); err != nil {
		return err
	}
	from, to := m.w.Start+abi.Addr(in.Off), m.PC()
	if in.Branch == insn.BranchCall || in.Branch == insn.BranchCallInd {
		return m.call(k, from, to)
	}
	target, _ := in.Target(from)
	inside := m.w.instAt(target)
	if inside > 0 && inside <= k {
		target = m.entries[inside]
	}
	ahead := inside > k && !isBreakpointPad(m.w.Insts[inside])
	if ahead {
		target = to // in reach, for now
	}
	code, err := reloc.MoveBranch(in.Inst, m.w.Old[in.Off:], from, to, target)
	if err != nil {
		return fmt.Errorf("instruction at %v: %w", from, err)
	}
	if ahead {
		m.branchAhead(in, code, m.marks[inside])
	} else {
		m.Raw(code...)
	}
	m.pairs = append(m.pairs, PCPair{from, to, m.entries[k], false})
	return nil
}

// call emits the jump of a call that was made already, or a call that is made
// here with the return address of the original.
func (m *mover) call(k int, from, to abi.Addr) error {
	in := m.w.Insts[k]
	move := reloc.EmulateCall
	if m.w.Call {
		move = reloc.CalleeJump
	}
	code, err := move(in.Inst, m.w.Old[in.Off:], from, to)
	if err != nil {
		return fmt.Errorf("call at %v: %w", from, err)
	}
	m.Raw(code...)
	if m.w.Call {
		m.pairs = append(m.pairs, PCPair{from, to, m.entries[k], true})
		return nil
	}
	jump := to + abi.Addr(len(code)-8-reloc.CalleeJumpSize(in.Inst))
	m.pairs = append(m.pairs, PCPair{from, to, m.entries[k], false}, PCPair{from, jump, 0, true})
	return nil
}

// branchAhead emits moved code that ends with a branch, but to a label.
func (m *mover) branchAhead(in Inst, code []byte, to asm.Label) {
	if in.Branch == insn.BranchJcc {
		m.Raw(code[:len(code)-jccLen]...)
		m.Jcc(asm.Cond(in.Opcode&0x0f), to)
		return
	}
	m.Raw(code[:len(code)-jmpLen]...)
	m.Jmp(to)
}

// jccLen is the length of jcc rel32.
const jccLen = 6

// layOut gives each instruction its offset in the relocated code.
// Precondition: each can be moved, but for breakpoints in padding.
func (w *Window) layOut() {
	at := 0
	for i := range w.Insts {
		w.Insts[i].Moved = at
		at += movedSize(w.Insts[i])
	}
}

func movedSize(in Inst) int {
	if isBreakpointPad(in) {
		return 0
	}
	if reloc.CanEmulate(in.Inst) {
		return reloc.EmulateCallSize(in.Inst)
	}
	n, err := reloc.Size(in.Inst)
	if err != nil {
		panic("BUG: plan: a window holds an instruction that cannot be moved: " + err.Error())
	}
	return n
}

// isBreakpointPad reports padding that is never reached and stays where it is.
func isBreakpointPad(in Inst) bool { return in.Pad && in.Branch == insn.BranchTrap }

// fallsOut reports whether control can leave the window at its end: behind the last
// instruction that is not a breakpoint in padding.
func (w *Window) fallsOut() bool {
	for _, in := range slices.Backward(w.Insts) {
		if !isBreakpointPad(in) {
			return in.Branch.Falls() && !reloc.CanEmulate(in.Inst)
		}
	}
	return false
}

// margin is more than any instruction's length, moved or not.
const margin = 64

// setReach intersects what the window's instructions refer to.
func (w *Window) setReach() {
	lo, hi := abi.Addr(0), abi.Addr(math.MaxUint64)
	limit := func(to abi.Addr) {
		lo = max(lo, below(to, math.MaxInt32-margin))
		hi = min(hi, above(to, math.MaxInt32-margin))
	}
	limit(w.End())
	for _, in := range w.Insts {
		if to, ok := reloc.Reference(in.Inst, w.Start+abi.Addr(in.Off)); ok {
			limit(to)
		}
	}
	w.reach = abi.Range{Start: lo, End: max(lo, hi)}
}

func below(a abi.Addr, n uint64) abi.Addr {
	if uint64(a) < n {
		return 0
	}
	return a - abi.Addr(n)
}

func above(a abi.Addr, n uint64) abi.Addr {
	if a > math.MaxUint64-abi.Addr(n) {
		return math.MaxUint64
	}
	return a + abi.Addr(n)
}
