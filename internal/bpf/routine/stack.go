package routine

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// Registers of a walk. r0 to r5 are used for anything.
const (
	walkIP   = asm.R6
	walkSP   = asm.R7
	walkBP   = asm.R8
	walkHash = asm.R9
)

// Places on the stack during a walk.
const (
	walkCount = -8  // frames so far
	walkInto  = -16 // where they are written; 0 when only the hash is wanted
	walkPage  = -24 // that can be read, the last one that was asked for
	walkExact = -32 // 1 if the frame was interrupted at its address; else it is a return address
	walkRule  = -40
	walkCFA   = -48
	walkNext  = -56 // the caller's address
	walkKept  = -64 // an address that is asked for
	startSP   = -72
	startBP   = -80
	startIP   = -88
	wantHash  = -96
	walkID    = -104
	walkLimit = -112 // how many frames there may be
	stackSize = -120 // of the memory for the frames, in bytes
)

// StackID is HelperStackID for a map of stacks: (stack pointer, frame pointer, address) the number of the stack.
//
// The stack is walked twice if it is new: once for its hash, and again to write it down. So it needs no memory
// besides the map's. What is read of the stack is asked for page by page (see ProbeReadUser). A walk ends where
// the table says so, where it has no rule that can be followed, and at the map's depth.
func StackID(ml *abi.MapLayout, l *abi.Layout, arena abi.Addr) *bpf.Program {
	c := &code{ml: ml, arena: arena}
	c.add(asm.StoreMem(asm.R10, startSP, asm.R1, asm.DWord), asm.StoreMem(asm.R10, startBP, asm.R2, asm.DWord), asm.StoreMem(asm.R10, startIP, asm.R3, asm.DWord),
		asm.Mov.Imm(asm.R0, 0), asm.StoreMem(asm.R10, walkInto, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, int32(ml.ValueSize/8)), asm.StoreMem(asm.R10, walkLimit, asm.R0, asm.DWord))
	c.walk(l)
	c.enterStack()
	return c.program("stack_id")
}

// GetStack is get_stack: (stack pointer, frame pointer, address, where to, size) how many bytes the addresses of
// the stack's frames have there, the innermost first. Zeros fill the rest.
func GetStack(l *abi.Layout, arena abi.Addr) *bpf.Program {
	c := &code{ml: &abi.MapLayout{}, arena: arena}
	c.add(asm.StoreMem(asm.R10, startSP, asm.R1, asm.DWord), asm.StoreMem(asm.R10, startBP, asm.R2, asm.DWord), asm.StoreMem(asm.R10, startIP, asm.R3, asm.DWord),
		asm.StoreMem(asm.R10, walkInto, asm.R4, asm.DWord), asm.Mov.Reg32(asm.R5, asm.R5), asm.StoreMem(asm.R10, stackSize, asm.R5, asm.DWord),
		asm.Mov.Imm(asm.R0, 0), asm.StoreMem(asm.R10, walkCount, asm.R0, asm.DWord),
		asm.RSh.Imm(asm.R5, 3), asm.StoreMem(asm.R10, walkLimit, asm.R5, asm.DWord), asm.JEq.Imm(asm.R5, 0, "done"))
	c.walk(l)
	c.bind("done")
	c.add(asm.LoadMem(asm.R0, asm.R10, walkCount, asm.DWord), asm.LSh.Imm(asm.R0, 3), asm.LoadMem(dest, asm.R10, walkInto, asm.DWord), asm.Add.Reg(dest, asm.R0),
		asm.LoadMem(left, asm.R10, stackSize, asm.DWord), asm.Sub.Reg(left, asm.R0))
	c.clearLeft()
	return c.named("get_stack")
}

// walk walks the stack from the registers at startSP on, and goes on at "done".
func (c *code) walk(l *abi.Layout) {
	c.bind("walk")
	c.add(asm.LoadMem(walkSP, asm.R10, startSP, asm.DWord), asm.LoadMem(walkBP, asm.R10, startBP, asm.DWord), asm.LoadMem(walkIP, asm.R10, startIP, asm.DWord),
		asm.Mov.Imm(asm.R0, 0), asm.StoreMem(asm.R10, walkCount, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, 1), asm.StoreMem(asm.R10, walkExact, asm.R0, asm.DWord), asm.StoreMem(asm.R10, walkPage, asm.R0, asm.DWord))
	c.number(walkHash, abi.HashMul)
	c.frame()
	c.findRule(l)
	c.follow()
	c.callerOfFrame()
}

// frame takes a frame down, and goes on at "done" when there are enough.
func (c *code) frame() {
	c.bind("frame")
	c.add(asm.JEq.Imm(walkIP, 0, "done"), asm.Xor.Reg(walkHash, walkIP))
	c.number(asm.R0, abi.HashMul)
	c.add(asm.Mul.Reg(walkHash, asm.R0), asm.Mov.Reg(asm.R0, walkHash), asm.RSh.Imm(asm.R0, 29), asm.Xor.Reg(walkHash, asm.R0),
		asm.LoadMem(asm.R1, asm.R10, walkCount, asm.DWord), asm.LoadMem(asm.R2, asm.R10, walkInto, asm.DWord), asm.JEq.Imm(asm.R2, 0, "counted"),
		asm.Mov.Reg(asm.R0, asm.R1), asm.LSh.Imm(asm.R0, 3), asm.Add.Reg(asm.R0, asm.R2), asm.StoreMem(asm.R0, 0, walkIP, asm.DWord))
	c.bind("counted")
	c.add(asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R10, walkCount, asm.R1, asm.DWord), asm.LoadMem(asm.R0, asm.R10, walkLimit, asm.DWord),
		asm.JGE.Reg(asm.R1, asm.R0, "done"))
}

// findRule finds the rule for the frame's address, by halves. Rows that the table does not have are none.
func (c *code) findRule(l *abi.Layout) {
	c.add(asm.LoadMem(asm.R0, asm.R10, walkExact, asm.DWord), asm.Mov.Reg(asm.R1, walkIP), asm.Add.Reg(asm.R1, asm.R0), asm.Sub.Imm(asm.R1, 1),
		asm.Mov.Imm(asm.R0, 0), asm.StoreMem(asm.R10, walkExact, asm.R0, asm.DWord))
	c.address(asm.R2, l.Unwind)
	c.add(asm.LoadMem(asm.R4, asm.R2, 0, asm.DWord), asm.Mov.Reg(asm.R3, asm.R4), asm.RSh.Imm(asm.R3, 32), asm.Mov.Reg32(asm.R4, asm.R4))
	c.number(asm.R5, uint64(l.UnwindRows))
	c.add(asm.JGT.Reg(asm.R3, asm.R5, "norule"), asm.Sub.Reg(asm.R5, asm.R3), asm.JGT.Reg(asm.R4, asm.R5, "norule"),
		asm.LSh.Imm(asm.R3, 4), asm.Add.Reg(asm.R2, asm.R3), asm.Add.Imm(asm.R2, abi.UnwindHead), asm.Mov.Imm(asm.R3, 0))
	c.bind("search")
	c.add(asm.JGE.Reg(asm.R3, asm.R4, "found"), asm.Mov.Reg(asm.R5, asm.R3), asm.Add.Reg(asm.R5, asm.R4), asm.RSh.Imm(asm.R5, 1),
		asm.Mov.Reg(asm.R0, asm.R5), asm.LSh.Imm(asm.R0, 4), asm.Add.Reg(asm.R0, asm.R2), asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord),
		asm.JGT.Reg(asm.R0, asm.R1, "lower"), asm.Mov.Reg(asm.R3, asm.R5), asm.Add.Imm(asm.R3, 1), asm.Ja.Label("search"))
	c.bind("lower")
	c.add(asm.Mov.Reg(asm.R4, asm.R5), asm.Ja.Label("search"))
	c.bind("norule")
	c.add(asm.Mov.Imm(asm.R3, 0))
	c.bind("found")
	c.add(asm.Mov.Imm(asm.R1, abi.UnwindFrame), asm.JEq.Imm(asm.R3, 0, "rule"), asm.LSh.Imm(asm.R3, 4), asm.Add.Reg(asm.R3, asm.R2),
		asm.LoadMem(asm.R1, asm.R3, 8-abi.UnwindRowSize, asm.DWord))
	c.bind("rule")
	c.add(asm.StoreMem(asm.R10, walkRule, asm.R1, asm.DWord), asm.Mov.Reg(asm.R2, asm.R1), asm.LSh.Imm(asm.R2, 32), asm.ArSh.Imm(asm.R2, 40),
		asm.And.Imm(asm.R1, abi.UnwindKindMask))
}

// follow finds the CFA by the kind in r1 and the offset in r2, and goes on at "cfa" with it in r0, or at "frame".
func (c *code) follow() {
	for kind, label := range []string{abi.UnwindFrame: "chain", abi.UnwindSP: "sp", abi.UnwindBP: "bp", abi.UnwindAtBP: "atbp",
		abi.UnwindAtSP: "atsp", abi.UnwindStub: "stub", abi.UnwindSignal: "signal"} {
		c.add(asm.JEq.Imm(asm.R1, int32(kind), label))
	}
	c.add(asm.Ja.Label("done"))
	c.bind("sp")
	c.add(asm.Mov.Reg(asm.R0, walkSP), asm.Add.Reg(asm.R0, asm.R2), asm.Ja.Label("cfa"))
	c.bind("bp")
	c.add(asm.Mov.Reg(asm.R0, walkBP), asm.Add.Reg(asm.R0, asm.R2), asm.Ja.Label("cfa"))
	c.bind("atbp")
	c.add(asm.Add.Reg(asm.R2, walkBP))
	c.readWord()
	c.add(asm.Ja.Label("cfa"))
	c.bind("atsp")
	c.add(asm.Add.Reg(asm.R2, walkSP))
	c.readWord()
	c.add(asm.Ja.Label("cfa"))
	c.bind("stub")
	c.add(asm.Mov.Reg(asm.R0, walkSP), asm.Add.Imm(asm.R0, 8), asm.Mov.Reg(asm.R1, walkIP), asm.And.Imm(asm.R1, 15),
		asm.JLT.Reg(asm.R1, asm.R2, "cfa"), asm.Add.Imm(asm.R0, 8), asm.Ja.Label("cfa"))
	c.bind("signal")
	for _, r := range []struct {
		off int32
		reg asm.Register
	}{{abi.UcontextIP, walkIP}, {abi.UcontextBP, walkBP}, {abi.UcontextSP, walkSP}} {
		c.add(asm.Mov.Reg(asm.R2, walkSP), asm.Add.Imm(asm.R2, r.off))
		c.readWord()
		c.add(asm.Mov.Reg(r.reg, asm.R0))
	}
	c.add(asm.Mov.Imm(asm.R0, 1), asm.StoreMem(asm.R10, walkExact, asm.R0, asm.DWord), asm.Ja.Label("frame"))
	c.bind("chain")
	c.add(asm.JLT.Reg(walkBP, walkSP, "done"), asm.Mov.Reg(asm.R2, walkBP), asm.Add.Imm(asm.R2, 8))
	c.readWord()
	c.add(asm.Mov.Reg(walkIP, asm.R0), asm.Mov.Reg(asm.R2, walkBP))
	c.readWord()
	c.add(asm.Mov.Reg(walkSP, walkBP), asm.Add.Imm(walkSP, 16), asm.Mov.Reg(walkBP, asm.R0), asm.Ja.Label("frame"))
}

// callerOfFrame goes on with the caller, whose stack pointer was r0. It lies above ours.
func (c *code) callerOfFrame() {
	c.bind("cfa")
	c.add(asm.JLE.Reg(asm.R0, walkSP, "done"), asm.StoreMem(asm.R10, walkCFA, asm.R0, asm.DWord), asm.Mov.Reg(asm.R2, asm.R0), asm.Add.Imm(asm.R2, -8))
	c.readWord()
	c.add(asm.StoreMem(asm.R10, walkNext, asm.R0, asm.DWord), asm.LoadMem(asm.R1, asm.R10, walkRule, asm.DWord),
		asm.Mov.Reg(asm.R0, asm.R1), asm.And.Imm(asm.R0, abi.UnwindSavedBP|abi.UnwindBPAtBP), asm.JEq.Imm(asm.R0, 0, "up"),
		asm.Mov.Reg(asm.R2, walkBP), asm.JEq.Imm(asm.R0, abi.UnwindBPAtBP, "readbp"),
		asm.LoadMem(asm.R2, asm.R10, walkCFA, asm.DWord), asm.ArSh.Imm(asm.R1, 32), asm.Add.Reg(asm.R2, asm.R1))
	c.bind("readbp")
	c.readWord()
	c.add(asm.Mov.Reg(walkBP, asm.R0))
	c.bind("up")
	c.add(asm.LoadMem(walkSP, asm.R10, walkCFA, asm.DWord), asm.LoadMem(walkIP, asm.R10, walkNext, asm.DWord), asm.Ja.Label("frame"))
}

// readWord makes r0 the word at r2, or goes on at "done" where none can be read. Words of a stack are aligned.
func (c *code) readWord() {
	known := c.fresh("known")
	c.add(asm.Mov.Reg(asm.R0, asm.R2), asm.And.Imm(asm.R0, 7), asm.JNE.Imm(asm.R0, 0, "done"),
		asm.Mov.Reg(asm.R0, asm.R2), asm.And.Imm(asm.R0, -abi.PageSize), asm.LoadMem(asm.R3, asm.R10, walkPage, asm.DWord), asm.JEq.Reg(asm.R0, asm.R3, known),
		asm.StoreMem(asm.R10, walkPage, asm.R0, asm.DWord), asm.StoreMem(asm.R10, walkKept, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R1, SysRtSigprocmask), asm.Mov.Imm(asm.R2, invalidHow), asm.Mov.Reg(asm.R3, asm.R0), asm.Mov.Imm(asm.R4, 0), asm.Mov.Imm(asm.R5, 8),
		Syscall.Call(), asm.JNE.Imm(asm.R0, errInval, "done"), asm.LoadMem(asm.R2, asm.R10, walkKept, asm.DWord))
	c.bind(known)
	c.add(asm.LoadMem(asm.R0, asm.R2, 0, asm.DWord))
}

// enterStack is "done": it finds the stack's entry by its hash, and has the stack walked again to be written.
func (c *code) enterStack() {
	c.bind("done")
	c.add(asm.LoadMem(asm.R0, asm.R10, walkInto, asm.DWord), asm.JNE.Imm(asm.R0, 0, "written"), asm.JNE.Imm(walkHash, 0, "hashed"), asm.Mov.Imm(walkHash, 1))
	c.bind("hashed")
	c.number(asm.R3, abi.HashMul)
	c.add(asm.Mul.Reg(asm.R3, walkHash))
	if c.ml.DirBits == 0 {
		c.add(asm.Mov.Imm(asm.R3, 0))
	} else {
		c.add(asm.RSh.Imm(asm.R3, int32(64-c.ml.DirBits)))
	}
	c.add(asm.Mov.Imm(asm.R5, int32(min(abi.StackTries, 1<<c.ml.DirBits))))
	c.bind("try")
	c.add(asm.Mov.Reg(asm.R1, asm.R3), asm.Mul.Imm(asm.R1, int32(c.ml.Entry())))
	c.address(asm.R2, c.ml.Values)
	c.add(asm.Add.Reg(asm.R1, asm.R2), asm.LoadMem(asm.R0, asm.R1, abi.StackHash, asm.DWord), asm.JEq.Reg(asm.R0, walkHash, "same"), asm.JNE.Imm(asm.R0, 0, "other"),
		asm.CmpXchg.Mem(asm.R1, walkHash, asm.DWord, abi.StackHash), asm.JEq.Imm(asm.R0, 0, "write"), asm.JEq.Reg(asm.R0, walkHash, "same"))
	c.bind("other")
	c.add(asm.Add.Imm(asm.R3, 1), asm.And.Imm(asm.R3, 1<<c.ml.DirBits-1), asm.Sub.Imm(asm.R5, 1), asm.JNE.Imm(asm.R5, 0, "try"))
	c.address(asm.R0, abi.HdrDrops)
	c.add(asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0))
	c.ret(errExist)
	c.bind("same")
	c.add(asm.LoadMem(asm.R0, asm.R1, abi.StackCount, asm.DWord), asm.JEq.Imm(asm.R0, 0, "write"), asm.Mov.Reg(asm.R0, asm.R3), asm.Return())
	c.bind("write")
	c.add(asm.StoreMem(asm.R10, walkInto, asm.R1, asm.DWord), asm.StoreMem(asm.R10, wantHash, walkHash, asm.DWord), asm.StoreMem(asm.R10, walkID, asm.R3, asm.DWord),
		asm.Ja.Label("walk"))
	c.bind("written")
	c.add(asm.LoadMem(asm.R1, asm.R10, wantHash, asm.DWord), asm.JNE.Imm(walkHash, 0, "compare"), asm.Mov.Imm(walkHash, 1))
	c.bind("compare")
	c.add(asm.JNE.Reg(asm.R1, walkHash, "end"), asm.LoadMem(asm.R1, asm.R10, walkCount, asm.DWord), asm.StoreMem(asm.R0, abi.StackCount, asm.R1, asm.DWord))
	c.bind("end")
	c.add(asm.LoadMem(asm.R0, asm.R10, walkID, asm.DWord), asm.Return())
}
