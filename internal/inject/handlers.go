package inject

import (
	"cmp"
	"encoding/binary"
	"slices"

	"trapless/internal/abi"
	x86 "trapless/internal/asm/x86"
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
	dataBoundaries = 0x00  // u64: address of the boundary table, 0 for none
	dataFaults     = 0x08  // u64: address of the fault table, 0 for none
	dataUsed       = 0x10  // u64: bit n is set if our action for signal n was ever put before the one in dataOld
	dataTraps      = 0x18  // u64: address of a counter of what the boundary table answered, 0 for none
	dataOld        = 0x40  // kernel_sigaction[12], indexed by signal: the target's own actions
	dataNow        = 0x200 // kernel_sigaction[12]: what rt_sigaction is given or says
	dataBlock      = 0x400
	dataBlocks     = 4 // in a page
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
	siginfoCode   = 8         // si_code; positive when the kernel raised the signal
	codeKernel    = 0x80      // SI_KERNEL: the si_code of an int3
	sysSigaction  = 13
	sysSigreturn  = 15
	sysGetpid     = 39
	sysGettid     = 186
	sysTgkill     = 234
	kernelSigsize = 8
)

// pair is an entry of a boundary or fault table.
type pair struct{ from, to abi.Addr }

// pushedFlag marks the address of a call in a fault table, of which the return
// address has been pushed: the stack pointer is reported as it was before.
const pushedFlag abi.Addr = 1 << 63

// encodeTable lays a pair table out as the handlers read it: a count, then the
// pairs in ascending order of from.
func encodeTable(pairs []pair) []byte {
	pairs = slices.Clone(pairs)
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Compare(a.from, b.from) })
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(pairs)))
	for _, p := range pairs {
		out = binary.LittleEndian.AppendUint64(out, uint64(p.from))
		out = binary.LittleEndian.AppendUint64(out, uint64(p.to))
	}
	return out
}

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
	lookup, plain := h.NewLabel(), h.NewLabel()
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
	h.Load(8, x86.R8, h.word(dataBoundaries))
	h.Call(h.search)
	h.TestRR(8, x86.RCX, x86.RCX)
	h.Jcc(x86.E, h.chain)
	h.Store(8, x86.At(x86.RDX, ucontextRIP), x86.RCX)
	h.emitCount()
	h.Ret()
	h.Bind(fault)
	h.Load(8, x86.R8, h.word(dataFaults))
	h.Call(h.search)
	h.TestRR(8, x86.RCX, x86.RCX)
	h.Jcc(x86.E, h.chain)
	h.Jcc(x86.NS, plain)
	h.OpMI(x86.Add, 8, x86.At(x86.RDX, ucontextRSP), 8) // the push of a call has been done
	h.ShiftI(x86.Shl, 8, x86.RCX, 1)
	h.ShiftI(x86.Shr, 8, x86.RCX, 1)
	h.Bind(plain)
	h.Store(8, x86.At(x86.RDX, ucontextRIP), x86.RCX)
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

// emitSearch is a binary search: rax key, r8 table or zero; rcx becomes the
// pair's to, or zero. It changes r9, r10 and r11 besides.
func (h *handlerAsm) emitSearch() {
	loop, above, found, miss := h.NewLabel(), h.NewLabel(), h.NewLabel(), h.NewLabel()
	h.Bind(h.search)
	h.TestRR(8, x86.R8, x86.R8)
	h.Jcc(x86.E, miss)
	h.Load(8, x86.R9, x86.At(x86.R8, 0))
	h.OpRR(x86.Xor, 4, x86.R10, x86.R10)
	h.Bind(loop)
	h.OpRR(x86.Cmp, 8, x86.R10, x86.R9)
	h.Jcc(x86.AE, miss)
	h.Lea(x86.R11, x86.AtIndex(x86.R10, x86.R9, 1, 0))
	h.ShiftI(x86.Shr, 8, x86.R11, 1)
	h.MovRR(8, x86.RCX, x86.R11)
	h.ShiftI(x86.Shl, 8, x86.RCX, 4)
	h.OpRM(x86.Cmp, 8, x86.RAX, x86.AtIndex(x86.R8, x86.RCX, 1, 8))
	h.Jcc(x86.E, found)
	h.Jcc(x86.A, above)
	h.MovRR(8, x86.R9, x86.R11)
	h.Jmp(loop)
	h.Bind(above)
	h.Lea(x86.R10, x86.At(x86.R11, 1))
	h.Jmp(loop)
	h.Bind(found)
	h.Load(8, x86.RCX, x86.AtIndex(x86.R8, x86.RCX, 1, 16))
	h.Ret()
	h.Bind(miss)
	h.OpRR(x86.Xor, 4, x86.RCX, x86.RCX)
	h.Ret()
}
