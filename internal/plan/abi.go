package plan

import insn "trapless/internal/insn/x86"

// What calling conventions say of registers and flags where control leaves a
// function.
//
// Of C's (System V ABI) only the flags are used, and only as far as the module's
// code is seen to keep to it: a caller may rely on any register that a function
// does not change (gcc's -fipa-ra), code in assembly passes values in any, and
// neither is told from the rest. Go's compiler has one convention for all that
// it makes.

// Registers of Go's ABIInternal (cmd/compile/abi-internal.md): arguments and
// results, the closure's context, the goroutine, and those that are the same
// everywhere (the stack, the frame, with -dynlink the global offset table).
const (
	goValues = 1<<insn.RAX | 1<<insn.RBX | 1<<insn.RCX | 1<<insn.RDI | 1<<insn.RSI |
		1<<insn.R8 | 1<<insn.R9 | 1<<insn.R10 | 1<<insn.R11
	goContext = 1 << insn.RDX
	goFixed   = 1<<insn.R14 | 1<<insn.RSP | 1<<insn.RBP | 1<<insn.R15
)

const (
	allRegs     = liveSet(insn.AllRegs)
	statusFlags = liveSet(insn.StatusFlags) << 32
	otherFlags  = liveSet(insn.AllFlags&^insn.StatusFlags) << 32
)

// compiledGo reports a function that keeps to ABIInternal.
func (f *Func) compiledGo() bool { return f.Go && !f.Asm }

// call is what a call with index i does. What the callee overwrites is not
// known; some functions of Go's runtime keep all registers.
func (b *body) call(i int) transfer {
	if b.f.compiledGo() {
		return transfer{read: goValues | goContext | goFixed | otherFlags, kill: statusFlags}
	}
	t := transfer{read: allRegs | otherFlags}
	if b.flagsInto(i) {
		t.read |= statusFlags
	}
	if !b.f.Sweep.flagsLeft() {
		t.kill = statusFlags
	}
	return t
}

// flagsInto reports whether code that the call or jump with index i leads to,
// outside of the function, may read flags.
func (b *body) flagsInto(i int) bool {
	if to, ok := b.insts[i].Target(b.addr(b.at[i])); ok {
		return b.f.Sweep.flagsInto(to)
	}
	return b.f.Sweep.flagsAway()
}

// exit is what is live where control leaves the function behind the instruction
// with index i, the last one of a block; 0 if it does not.
func (b *body) exit(i int) liveSet {
	in := &b.insts[i]
	regs := allRegs | otherFlags
	switch in.Branch {
	case insn.BranchRet:
		return b.atReturn()
	case insn.BranchCall, insn.BranchCallInd:
		if b.noReturn(i) {
			return 0
		}
		return b.fallsOff(i)
	case insn.BranchJcc, insn.BranchLoop, insn.BranchJmp:
		if to, _ := in.Target(b.addr(b.at[i])); b.inside(to) {
			return b.fallsOff(i)
		}
		if !b.flagsInto(i) {
			return regs | b.fallsOff(i)
		}
	case insn.BranchJmpInd:
		j := b.indirectAt(i)
		if j.kind == Tabled && len(j.outside) == 0 {
			return 0
		}
		if j.leaves && !b.flagsInto(i) {
			return regs
		}
	case insn.BranchNone, insn.BranchSyscall:
		return b.fallsOff(i)
	}
	return allLive
}

// fallsOff is what is live behind the function's last instruction, if that is the
// one with index i and control may go on.
func (b *body) fallsOff(i int) liveSet {
	if i+1 == len(b.insts) && b.insts[i].Branch.Falls() {
		return allLive
	}
	return 0
}

// atReturn is what is live at the function's return.
func (b *body) atReturn() liveSet {
	switch {
	case b.f.compiledGo():
		return goValues | goFixed | otherFlags
	case b.f.Sweep.flagsLeft():
		return allLive
	}
	return allRegs | otherFlags
}
