package inject

import (
	"math"
	"slices"

	"trapless/internal/abi"
	x86 "trapless/internal/asm/x86"
	"trapless/internal/plan"
)

// The signal handlers that make window boundaries and moved instructions
// invisible. One piece of code serves five signals:
//
//   - SIGTRAP and SIGILL: a thread that got to a boundary inside a window goes
//     on at the moved instruction (the pair table "boundaries");
//   - SIGSEGV, SIGBUS and SIGFPE: a fault of a moved instruction is reported at
//     the instruction's own address (the pair table "faults"), then handed on.
//
// Whatever is not ours goes to the action that the target had before, in just
// the state in which the kernel would have called it: our action has its mask
// and its flags, the arguments and the stack are untouched, and the old handler
// returns to the restorer itself.

// handledSignals are the signals that handlers can be installed for.
var handledSignals = []int{sigILL, sigTRAP, sigBUS, sigFPE, sigSEGV}

const (
	sigILL  = 4
	sigTRAP = 5
	sigBUS  = 7
	sigFPE  = 8
	sigSEGV = 11
)

// Offsets in a data block of the handlers. A copy of the handlers has its own one,
// in a data page, which is private, writable and inherited by forked children.
const (
	dataTables = 0x00  // u64: address of the directory of pair tables, 0 for none
	dataUsed   = 0x10  // u64: bit n is set if our action for signal n was ever put before the one in dataOld
	dataTraps  = 0x18  // u64: address of a counter of what the boundary tables answered, 0 for none
	dataOld    = 0x40  // kernel_sigaction[12], indexed by signal: the target's own actions
	dataNow    = 0x200 // kernel_sigaction[12]: what rt_sigaction is given or says
	dataBlock  = 0x400
	dataBlocks = 4 // in a page
)

// struct kernel_sigaction (arch/x86/include/uapi/asm/signal.h): handler, flags,
// restorer, mask; 8 bytes each.
const (
	actionSize     = 32
	actionHandler  = 0
	actionFlags    = 8
	actionRestorer = 16
	actionMask     = 24
)

const (
	saSiginfo   = 0x00000004
	saRestorer  = 0x04000000
	saOnStack   = 0x08000000
	saNoDefer   = 0x40000000
	saResetHand = 0x80000000

	sigDfl = 0
	sigIgn = 1

	ucontextRIP   = 40 + 16*8 // uc_mcontext.gregs[REG_RIP] in struct ucontext
	ucontextRSP   = 40 + 15*8 // REG_RSP
	siginfoAddr   = 16        // si_addr
	siginfoCode   = 8         // si_code; positive when the kernel raised the signal
	codeKernel    = 0x80      // SI_KERNEL: the si_code of an int3
	sysSigaction  = 13
	sysSigreturn  = 15
	sysGetpid     = 39
	sysGettid     = 186
	sysTgkill     = 234
	kernelSigsize = 8
)

// handlerCode assembles the handlers for the address at, with their data page
// at data, which has to lie within 2 GB. It returns the code and the addresses
// of the handler and of the restorer.
func handlerCode(at, data abi.Addr) (code []byte, handler, restorer abi.Addr, err error) {
	h := &handlerAsm{Asm: x86.New(at), data: data}
	h.search = h.NewLabel()
	h.chain = h.NewLabel()
	entry, rest := h.NewLabel(), h.NewLabel()
	h.Bind(entry)
	h.emitDispatch()
	h.emitChain()
	h.emitSearch()
	h.Bind(rest)
	h.MovRI(x86.RAX, sysSigreturn)
	h.Syscall()
	code, err = h.Bytes()
	return code, h.LabelAddr(entry), h.LabelAddr(rest), err
}

type handlerAsm struct {
	*x86.Asm
	data          abi.Addr
	search, chain x86.Label
}

func (h *handlerAsm) word(off int) x86.Mem { return x86.Abs(h.data + abi.Addr(off)) }

// emitDispatch: rdi signal, rsi siginfo, rdx ucontext, as for any handler.
func (h *handlerAsm) emitDispatch() {
	ill, fault := h.NewLabel(), h.NewLabel()
	lookup, moved := h.NewLabel(), h.NewLabel()
	// A signal that a process sent is never ours.
	h.OpMI(x86.Cmp, 4, x86.At(x86.RSI, siginfoCode), 0)
	h.Jcc(x86.LE, h.chain)
	h.Load(8, x86.RAX, x86.At(x86.RDX, ucontextRIP))
	h.OpRI(x86.Cmp, 4, x86.RDI, sigTRAP)
	h.Jcc(x86.NE, ill)
	h.OpRI(x86.Sub, 8, x86.RAX, 1) // int3 reports the address after it
	h.Jmp(lookup)
	h.Bind(ill)
	h.OpRI(x86.Cmp, 4, x86.RDI, sigILL)
	h.Jcc(x86.NE, fault)
	h.Bind(lookup)
	h.MovRI(x86.R9, column(boundaryTable))
	h.Call(h.search)
	h.TestRR(8, x86.RCX, x86.RCX)
	h.Jcc(x86.E, h.chain)
	stale := h.NewLabel()
	h.OpRR(x86.Cmp, 8, x86.RAX, x86.RCX)
	h.Jcc(x86.E, stale)
	h.emitCount()
	ours := h.NewLabel()
	h.Bind(ours)
	h.Store(8, x86.At(x86.RDX, ucontextRIP), x86.RCX)
	h.Ret()
	h.Bind(stale)
	h.emitStale(ours)
	h.Bind(fault)
	h.MovRI(x86.R9, column(faultTable))
	h.Call(h.search)
	h.TestRR(8, x86.RCX, x86.RCX)
	h.Jcc(x86.NE, moved)
	h.MovRI(x86.R9, column(pushedTable))
	h.Call(h.search)
	h.TestRR(8, x86.RCX, x86.RCX)
	h.Jcc(x86.E, h.chain)
	h.OpMI(x86.Add, 8, x86.At(x86.RDX, ucontextRSP), 8)
	h.Bind(moved)
	h.Store(8, x86.At(x86.RDX, ucontextRIP), x86.RCX)
	// SIGFPE tells the instruction's address a second time (sigaction(2), si_addr).
	h.OpRM(x86.Cmp, 8, x86.RAX, x86.At(x86.RSI, siginfoAddr))
	h.Jcc(x86.NE, h.chain)
	h.Store(8, x86.At(x86.RSI, siginfoAddr), x86.RCX)
}

// column is the offset of a table's address in an entry of the directory.
func column(k tableKind) uint64 { return uint64(8 + 8*k) }

// emitStale is for a trap at a place, in rax, where something of ours was. If what
// is there now does not trap, it was taken out meanwhile, and the thread tries
// again. Else it is the target's own.
func (h *handlerAsm) emitStale(ours x86.Label) {
	h.LoadZX(1, x86.R8, x86.At(x86.RAX, 0))
	for _, b := range plan.Traps {
		h.OpRI(x86.Cmp, 4, x86.R8, int32(b))
		h.Jcc(x86.E, h.chain)
	}
	h.Jmp(ours)
}

// emitCount counts a trap.
func (h *handlerAsm) emitCount() {
	none := h.NewLabel()
	h.Load(8, x86.R8, h.word(dataTraps))
	h.TestRR(8, x86.R8, x86.R8)
	h.Jcc(x86.E, none)
	h.Lock()
	h.IncM(8, x86.At(x86.R8, 0))
	h.Bind(none)
}

// emitChain does what the target's own action says.
func (h *handlerAsm) emitChain() {
	ignored, dfl, call, reset := h.NewLabel(), h.NewLabel(), h.NewLabel(), h.NewLabel()
	h.Bind(h.chain)
	h.MovRR(4, x86.RCX, x86.RDI)
	h.ShiftI(x86.Shl, 8, x86.RCX, 5) // times actionSize
	h.Lea(x86.R8, h.word(dataOld))
	h.OpRR(x86.Add, 8, x86.R8, x86.RCX)
	h.Load(8, x86.RAX, x86.At(x86.R8, actionHandler))
	h.OpRI(x86.Cmp, 8, x86.RAX, sigIgn)
	h.Jcc(x86.E, ignored)
	h.Jcc(x86.B, dfl)
	h.Load(8, x86.RCX, x86.At(x86.R8, actionFlags))
	h.TestRI(4, x86.RCX, -saResetHand) // the sign bit alone
	h.Jcc(x86.NE, reset)
	h.Bind(call)
	h.JmpReg(x86.RAX)

	h.Bind(reset)
	h.Push(x86.RAX)
	h.emitSetDefault()
	h.Pop(x86.RAX)
	h.Jmp(call)

	// The kernel does not ignore a fault that it raised itself.
	h.Bind(ignored)
	h.OpMI(x86.Cmp, 4, x86.At(x86.RSI, siginfoCode), 0)
	done := h.NewLabel()
	h.Jcc(x86.LE, done)
	h.Bind(dfl)
	h.emitSetDefault()
	h.emitDefault(done)
	h.Bind(done)
	h.Ret()
}

// emitDefault makes the default action happen: a fault of the kernel's own
// making by running the instruction again, so that a core shows it; anything
// else by sending the signal anew.
func (h *handlerAsm) emitDefault(done x86.Label) {
	raise := h.NewLabel()
	h.OpMI(x86.Cmp, 4, x86.At(x86.RSI, siginfoCode), 0)
	h.Jcc(x86.LE, raise)
	h.OpRI(x86.Cmp, 4, x86.RDI, sigTRAP)
	h.Jcc(x86.NE, done)
	h.OpMI(x86.Cmp, 4, x86.At(x86.RSI, siginfoCode), codeKernel)
	h.Jcc(x86.NE, raise)
	h.OpMI(x86.Sub, 8, x86.At(x86.RDX, ucontextRIP), 1) // int3 reports the address after it
	h.Ret()
	h.Bind(raise)
	h.emitRaise()
}

// emitSetDefault gives the signal in edi its default action, keeping rdi, rsi
// and rdx. The frame below holds a kernel_sigaction of zeros.
func (h *handlerAsm) emitSetDefault() {
	saved := []x86.Reg{x86.RDI, x86.RSI, x86.RDX}
	for _, r := range saved {
		h.Push(r)
	}
	h.OpRR(x86.Xor, 4, x86.RAX, x86.RAX)
	for range actionSize / 8 {
		h.Push(x86.RAX)
	}
	h.MovRR(8, x86.RSI, x86.RSP)
	h.OpRR(x86.Xor, 4, x86.RDX, x86.RDX)
	h.MovRI(x86.R10, kernelSigsize)
	h.MovRI(x86.RAX, sysSigaction)
	h.Syscall()
	h.Lea(x86.RSP, x86.At(x86.RSP, actionSize))
	slices.Reverse(saved)
	for _, r := range saved {
		h.Pop(r)
	}
}

// emitRaise sends the signal in edi to the thread itself.
func (h *handlerAsm) emitRaise() {
	h.Push(x86.RDI)
	h.MovRI(x86.RAX, sysGetpid)
	h.Syscall()
	h.Push(x86.RAX)
	h.MovRI(x86.RAX, sysGettid)
	h.Syscall()
	h.MovRR(8, x86.RSI, x86.RAX)
	h.Pop(x86.RDI)
	h.Pop(x86.RDX)
	h.MovRI(x86.RAX, sysTgkill)
	h.Syscall()
}

// emitSearch looks a key in rax up in the tables of the kind whose column is in
// r9; rcx becomes the pair's to, or zero. It changes r8, r10 and r11 besides.
func (h *handlerAsm) emitSearch() {
	next, other, probe, hit, out, miss := h.NewLabel(), h.NewLabel(), h.NewLabel(), h.NewLabel(), h.NewLabel(), h.NewLabel()
	h.Bind(h.search)
	h.Push(x86.RBX)
	h.Load(8, x86.R8, h.word(dataTables))
	h.TestRR(8, x86.R8, x86.R8)
	h.Jcc(x86.E, miss)
	h.Load(8, x86.R10, x86.At(x86.R8, dirCount))
	h.Lea(x86.R8, x86.At(x86.R8, dirFirst-int32(dirEntry)))
	h.Bind(next)
	h.Lea(x86.R8, x86.At(x86.R8, int32(dirEntry)))
	h.OpRI(x86.Sub, 8, x86.R10, 1)
	h.Jcc(x86.B, miss)
	h.MovRR(8, x86.RCX, x86.RAX)
	h.ShiftI(x86.Shr, 8, x86.RCX, 32)
	h.OpRM(x86.Cmp, 8, x86.RCX, x86.At(x86.R8, 0))
	h.Jcc(x86.NE, next)
	h.Load(8, x86.R11, x86.AtIndex(x86.R8, x86.R9, 1, 0))
	h.TestRR(8, x86.R11, x86.R11)
	h.Jcc(x86.E, miss)
	h.MovRR(4, x86.RCX, x86.RAX)
	h.ImulI(8, x86.RCX, x86.RCX, tableHashMul)
	h.ShiftI(x86.Shr, 8, x86.RCX, 32)
	h.Jmp(probe)
	h.Bind(other)
	h.Inc(4, x86.RCX)
	h.Bind(probe)
	h.OpRM(x86.And, 8, x86.RCX, x86.At(x86.R11, tableMask))
	h.Load(8, x86.RBX, x86.AtIndex(x86.R11, x86.RCX, 8, tableFirst))
	h.TestRR(8, x86.RBX, x86.RBX)
	h.Jcc(x86.E, miss)
	h.OpRR(x86.Cmp, 4, x86.RBX, x86.RAX)
	h.Jcc(x86.E, hit)
	h.Jmp(other)
	h.Bind(miss)
	h.OpRR(x86.Xor, 4, x86.RCX, x86.RCX)
	h.Jmp(out)
	h.Bind(hit)
	h.ShiftI(x86.Shr, 8, x86.RBX, 32)
	h.Lea(x86.RCX, x86.AtIndex(x86.RAX, x86.RBX, 1, math.MinInt32))
	h.Bind(out)
	h.Pop(x86.RBX)
	h.Ret()
}
