package routine

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// Syscall (number, four arguments) makes a system call and returns its result.
// It exists in routines only.
const Syscall asm.BuiltinFunc = 0x20000

// System calls that routines make (arch/x86/entry/syscalls/syscall_64.tbl).
const (
	SysRtSigprocmask = 14
	SysGetuid        = 102
	SysGetgid        = 104
	SysPrctl         = 157
	SysGettid        = 186
	SysClockGettime  = 228
)

const errFault = -14

// invalidHow is no operation of rt_sigprocmask: the kernel copies the new mask
// from its address, finds that it must do nothing with it, and says which of
// the two failed (kernel/signal.c).
const invalidHow = 0x7fffffff

// Memory says what of the target's memory can be read without asking.
type Memory struct {
	// Stack is where every thread has the address of its stack and behind it the
	// size, in bytes from its thread pointer, as glibc keeps them; 0 if that is not
	// known. A first thread has 0 for the address, and for the size the end.
	Stack int32
	// Permanent are segments that stay readable.
	Permanent []abi.Range
}

// MainStack is how far below its end the first thread's stack can be, and nothing
// else. The kernel leaves more room (mmap_base in arch/x86/mm/mmap.c).
const MainStack = 8 << 20

// Intrinsics of reads, which exist in routines only.
const (
	ThreadWord   asm.BuiltinFunc = 0x20002 // (constant) the word so many bytes from the thread pointer
	StackPointer asm.BuiltinFunc = 0x20003 // () about where the stack pointer is; not higher than the program's
	Increment    asm.BuiltinFunc = 0x20004 // (address) adds one to a word that this thread alone writes
)

// Registers of a read.
const (
	dest   = asm.R6
	left   = asm.R7 // bytes to come
	source = asm.R8
	chunk  = asm.R9 // bytes that can be read from the source on
)

// Places on the stack during a read.
const (
	keptDest = -8
	keptSize = -16
	keptAt   = -24 // the slot
)

// read takes the arguments of a read.
func (c *code) read() {
	c.add(asm.StoreMem(asm.R10, keptDest, asm.R1, asm.DWord), asm.StoreMem(asm.R10, keptSize, asm.R2, asm.DWord), asm.StoreMem(asm.R10, keptAt, asm.R4, asm.DWord),
		asm.Mov.Reg(dest, asm.R1), asm.Mov.Reg32(left, asm.R2), asm.Mov.Reg(source, asm.R3))
}

// ProbeReadUser is probe_read_user: (destination, size, address, slot) 0 or -EFAULT.
// The target's memory is asked for page by page, so that a bad pointer is an
// error and never a signal; what remains is a page that another thread unmaps
// between the question and the read. The thread's own stack and what stays mapped
// is read at once.
func ProbeReadUser(m *Memory) *bpf.Program {
	c := &code{ml: &abi.MapLayout{}}
	c.read()
	c.bind("page")
	c.add(asm.JEq.Imm(left, 0, "done"))
	c.page(m, "fault")
	c.add(asm.JLE.Reg(chunk, left, "words"), asm.Mov.Reg(chunk, left))
	c.bind("words")
	c.add(asm.Sub.Reg(left, chunk))
	c.bind("word")
	c.add(asm.JLT.Imm(chunk, 8, "bytes"), asm.LoadMem(asm.R0, source, 0, asm.DWord), asm.StoreMem(dest, 0, asm.R0, asm.DWord),
		asm.Add.Imm(source, 8), asm.Add.Imm(dest, 8), asm.Sub.Imm(chunk, 8), asm.Ja.Label("word"))
	c.bind("bytes")
	c.add(asm.JEq.Imm(chunk, 0, "page"), asm.LoadMem(asm.R0, source, 0, asm.Byte), asm.StoreMem(dest, 0, asm.R0, asm.Byte),
		asm.Add.Imm(source, 1), asm.Add.Imm(dest, 1), asm.Sub.Imm(chunk, 1), asm.Ja.Label("bytes"))
	c.bind("done")
	c.ret(0)
	c.fault()
	return c.named("probe_read_user")
}

// Numbers that find a zero byte in a word (Mycroft, 1987; Warren, Hacker's Delight, 6-1).
const (
	eachByte = 0x0101010101010101
	eachHigh = 0x8080808080808080
)

// ProbeReadUserStr is probe_read_user_str: (destination, size, address, slot) the
// length with the zero byte, which ends the string in any case, or -EFAULT. What the
// string leaves of the destination becomes zero, for programs may read it.
func ProbeReadUserStr(m *Memory) *bpf.Program {
	c := &code{ml: &abi.MapLayout{}}
	c.read()
	c.add(asm.JEq.Imm(left, 0, "empty"))
	c.bind("page")
	c.page(m, "fault")
	c.bind("word")
	c.add(asm.JLT.Imm(chunk, 8, "byte"), asm.JLE.Imm(left, 8, "byte"), asm.LoadMem(asm.R0, source, 0, asm.DWord))
	c.number(asm.R1, eachByte)
	c.number(asm.R2, eachHigh)
	c.add(asm.Mov.Reg(asm.R3, asm.R0), asm.Sub.Reg(asm.R3, asm.R1), asm.And.Reg(asm.R3, asm.R2), asm.Mov.Reg(asm.R1, asm.R0), asm.Xor.Imm(asm.R1, -1),
		asm.And.Reg(asm.R3, asm.R1), asm.JNE.Imm(asm.R3, 0, "last"),
		asm.StoreMem(dest, 0, asm.R0, asm.DWord), asm.Add.Imm(dest, 8), asm.Add.Imm(source, 8), asm.Sub.Imm(left, 8), asm.Sub.Imm(chunk, 8),
		asm.JNE.Imm(chunk, 0, "word"), asm.Ja.Label("page"))
	c.bind("last") // the lowest bit of r3 is the highest of the zero byte
	c.add(asm.Mov.Reg(asm.R1, asm.R3), asm.Neg.Imm(asm.R1, 0), asm.And.Reg(asm.R3, asm.R1), asm.RSh.Imm(asm.R3, 7), asm.Sub.Imm(asm.R3, 1),
		asm.And.Reg(asm.R0, asm.R3), asm.StoreMem(dest, 0, asm.R0, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R3), bpf.Call(bpf.HelperBitLength), asm.RSh.Imm(asm.R0, 3), asm.Add.Imm(asm.R0, 1), // the bytes with the zero
		asm.Add.Reg(asm.R0, dest), asm.LoadMem(asm.R1, asm.R10, keptDest, asm.DWord), asm.Sub.Reg(asm.R0, asm.R1),
		asm.Add.Imm(dest, 8), asm.Sub.Imm(left, 8), asm.Ja.Label("clear"))
	c.bind("byte")
	c.add(asm.LoadMem(asm.R0, source, 0, asm.Byte), asm.StoreMem(dest, 0, asm.R0, asm.Byte), asm.Add.Imm(dest, 1), asm.Sub.Imm(left, 1),
		asm.JEq.Imm(asm.R0, 0, "end"), asm.JEq.Imm(left, 0, "cut"), asm.Add.Imm(source, 1), asm.Sub.Imm(chunk, 1),
		asm.JNE.Imm(chunk, 0, "word"), asm.Ja.Label("page"))
	c.bind("cut")
	c.add(asm.Mov.Imm(asm.R0, 0), asm.StoreMem(dest, -1, asm.R0, asm.Byte))
	c.bind("end")
	c.add(asm.LoadMem(asm.R1, asm.R10, keptDest, asm.DWord), asm.Mov.Reg(asm.R0, dest), asm.Sub.Reg(asm.R0, asm.R1), asm.Ja.Label("clear"))
	c.bind("empty")
	c.ret(0)
	c.fault()
	return c.named("probe_read_user_str")
}

// page finds how many bytes can be read from the source on: all that is left of what
// need not be asked for, or of its page, if that can be read.
func (c *code) page(m *Memory, fault string) {
	readable := c.fresh("readable")
	if m.Stack != 0 {
		c.stack(m.Stack, readable)
	}
	for _, r := range m.Permanent {
		next := c.fresh("elsewhere")
		c.number(chunk, uint64(r.End))
		c.add(asm.JGE.Reg(source, chunk, next))
		c.number(asm.R0, uint64(r.Start))
		c.add(asm.JLT.Reg(source, asm.R0, next), asm.Sub.Reg(chunk, source), asm.Mov.Imm(asm.R1, abi.SlotReads), asm.Ja.Label(readable))
		c.bind(next)
	}
	c.add(asm.Mov.Imm(asm.R1, SysRtSigprocmask), asm.Mov.Imm(asm.R2, invalidHow), asm.Mov.Reg(asm.R3, source),
		asm.And.Imm(asm.R3, -abi.PageSize), asm.Mov.Imm(asm.R4, 0), asm.Mov.Imm(asm.R5, 8), Syscall.Call(),
		asm.JNE.Imm(asm.R0, errInval, fault), // -EFAULT, or a filter's answer
		asm.Mov.Reg(asm.R0, source), asm.And.Imm(asm.R0, abi.PageSize-1), asm.Mov.Imm(chunk, abi.PageSize), asm.Sub.Reg(chunk, asm.R0),
		asm.Mov.Imm(asm.R1, abi.SlotAsked))
	c.bind(readable)
	c.add(asm.LoadMem(asm.R0, asm.R10, keptAt, asm.DWord), asm.Add.Reg(asm.R1, asm.R0), Increment.Call())
}

// stack finds whether the source is on the stack that the thread runs on, between
// the stack pointer and the end: that is mapped.
func (c *code) stack(at int32, readable string) {
	elsewhere, low := c.fresh("no_stack"), c.fresh("low")
	c.add(asm.Mov.Imm(asm.R1, at+8), ThreadWord.Call(), asm.Mov.Reg(chunk, asm.R0), asm.Mov.Imm(asm.R1, at), ThreadWord.Call(),
		asm.Add.Reg(chunk, asm.R0), asm.JGE.Reg(source, chunk, elsewhere), asm.JNE.Imm(asm.R0, 0, low),
		asm.Mov.Reg(asm.R0, chunk), asm.Sub.Imm(asm.R0, MainStack))
	c.bind(low)
	c.add(asm.StoreMem(asm.R10, keptLow, asm.R0, asm.DWord), StackPointer.Call(), asm.JLT.Reg(source, asm.R0, elsewhere), asm.JGE.Reg(asm.R0, chunk, elsewhere),
		asm.LoadMem(asm.R1, asm.R10, keptLow, asm.DWord), asm.JLT.Reg(asm.R0, asm.R1, elsewhere),
		asm.Sub.Reg(chunk, source), asm.Mov.Imm(asm.R1, abi.SlotReads), asm.Ja.Label(readable))
	c.bind(elsewhere)
}

const keptLow = -32

// fault fills the destination with zeros and returns -EFAULT.
func (c *code) fault() {
	c.bind("fault")
	c.add(asm.LoadMem(dest, asm.R10, keptDest, asm.DWord), asm.LoadMem(left, asm.R10, keptSize, asm.DWord), asm.Mov.Reg32(left, left), asm.Mov.Imm(asm.R0, errFault))
	c.clearLeft()
}

// clearLeft is "clear": it makes the bytes that are left of the destination zero, and
// returns r0.
func (c *code) clearLeft() {
	c.bind("clear")
	c.add(asm.Mov.Imm(asm.R1, 0))
	c.bind("clear_word")
	c.add(asm.JLT.Imm(left, 8, "clear_byte"), asm.StoreMem(dest, 0, asm.R1, asm.DWord), asm.Add.Imm(dest, 8), asm.Sub.Imm(left, 8), asm.Ja.Label("clear_word"))
	c.bind("clear_byte")
	c.add(asm.JEq.Imm(left, 0, "cleared"), asm.StoreMem(dest, 0, asm.R1, asm.Byte), asm.Add.Imm(dest, 1), asm.Sub.Imm(left, 1), asm.Ja.Label("clear_byte"))
	c.bind("cleared")
	c.add(asm.Return())
}

func (c *code) named(name string) *bpf.Program {
	return &bpf.Program{Name: name, Insns: c.insns, Input: bpf.Input{Memory: true}}
}

// UidGid is get_current_uid_gid: () the group in the upper half, the user in the
// lower.
func UidGid() *bpf.Program {
	c := &code{}
	c.call(SysGetgid)
	c.add(asm.LSh.Imm(asm.R0, 32), asm.Mov.Reg(asm.R6, asm.R0))
	c.call(SysGetuid)
	c.add(asm.Mov.Reg32(asm.R0, asm.R0), asm.Or.Reg(asm.R0, asm.R6), asm.Return())
	return c.named("get_current_uid_gid")
}

// Tid returns the running thread's number.
func Tid() *bpf.Program {
	c := &code{}
	c.call(SysGettid)
	c.add(asm.Mov.Reg32(asm.R0, asm.R0), asm.Return())
	return c.named("gettid")
}

// call makes a system call without arguments.
func (c *code) call(number int32) {
	c.add(asm.Mov.Imm(asm.R1, number))
	for r := asm.R2; r <= asm.R5; r++ {
		c.add(asm.Mov.Imm(r, 0))
	}
	c.add(Syscall.Call())
}

const (
	prGetName = 16 // include/uapi/linux/prctl.h
	nameSize  = 16
)

// Comm is get_current_comm: (destination, size) 0. The name ends with a zero
// byte, and zeros fill the rest.
func Comm() *bpf.Program {
	c := &code{}
	c.add(asm.Mov.Reg(dest, asm.R1), asm.Mov.Reg32(left, asm.R2),
		asm.Mov.Imm(asm.R1, SysPrctl), asm.Mov.Imm(asm.R2, prGetName), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -nameSize),
		asm.Mov.Imm(asm.R4, 0), asm.Mov.Imm(asm.R5, 0), Syscall.Call(),
		asm.Mov.Reg(source, asm.R10), asm.Add.Imm(source, -nameSize), asm.Mov.Imm(chunk, nameSize-1),
		asm.JEq.Imm(asm.R0, 0, "byte"), asm.Mov.Imm(chunk, 0))
	c.bind("byte") // chunk bytes of the name may still come
	c.add(asm.JEq.Imm(left, 0, "out"), asm.Mov.Imm(asm.R0, 0), asm.JEq.Imm(chunk, 0, "put"), asm.JEq.Imm(left, 1, "put"),
		asm.LoadMem(asm.R0, source, 0, asm.Byte), asm.Add.Imm(source, 1), asm.Sub.Imm(chunk, 1), asm.JNE.Imm(asm.R0, 0, "put"), asm.Mov.Imm(chunk, 0))
	c.bind("put")
	c.add(asm.StoreMem(dest, 0, asm.R0, asm.Byte), asm.Add.Imm(dest, 1), asm.Sub.Imm(left, 1), asm.Ja.Label("byte"))
	c.bind("out")
	c.ret(0)
	return c.named("get_current_comm")
}

// Strncmp is strncmp: (string, its size, string) less than, equal to or greater
// than 0. It looks at size bytes at most, and stops at a zero byte.
func Strncmp() *bpf.Program {
	c := &code{}
	c.add(asm.Mov.Reg32(asm.R2, asm.R2))
	c.bind("byte")
	c.add(asm.JEq.Imm(asm.R2, 0, "equal"), asm.LoadMem(asm.R0, asm.R1, 0, asm.Byte), asm.LoadMem(asm.R4, asm.R3, 0, asm.Byte),
		asm.JNE.Reg(asm.R0, asm.R4, "differ"), asm.JEq.Imm(asm.R0, 0, "equal"),
		asm.Add.Imm(asm.R1, 1), asm.Add.Imm(asm.R3, 1), asm.Sub.Imm(asm.R2, 1), asm.Ja.Label("byte"))
	c.bind("differ")
	c.add(asm.JLT.Reg(asm.R0, asm.R4, "less"))
	c.ret(1)
	c.bind("less")
	c.ret(-1)
	c.bind("equal")
	c.ret(0)
	return c.named("strncmp")
}

const clockBoottime = 7 // include/uapi/linux/time.h

// BootNs is ktime_get_boot_ns: () nanoseconds since the start, with the time that
// the machine was suspended.
func BootNs() *bpf.Program {
	c := &code{}
	c.add(asm.Mov.Imm(asm.R1, SysClockGettime), asm.Mov.Imm(asm.R2, clockBoottime), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -16),
		asm.Mov.Imm(asm.R4, 0), asm.Mov.Imm(asm.R5, 0), Syscall.Call(),
		asm.LoadMem(asm.R0, asm.R10, -16, asm.DWord), asm.Mul.Imm(asm.R0, 1e9), asm.LoadMem(asm.R1, asm.R10, -8, asm.DWord),
		asm.Add.Reg(asm.R0, asm.R1), asm.Return())
	return c.named("ktime_get_boot_ns")
}

// Call is a system call as a seccomp filter sees it.
type Call struct {
	Number int
	Args   []uint64
}

// somewhere stands for an address that is not known yet.
const somewhere = 0x7f0000001000

// Ask is how memory is asked for.
var Ask = []Call{{SysRtSigprocmask, []uint64{invalidHow, somewhere, 0, 8}}}

// helpers are the helpers that are routines of the runtime, but for those of
// maps, with the system calls that they make.
var helpers = []Helper{
	{asm.FnProbeReadUser, ProbeReadUser, Ask, true},
	{asm.FnProbeReadUserStr, ProbeReadUserStr, Ask, true},
	{asm.FnProbeRead, ProbeReadUser, Ask, true},
	{asm.FnProbeReadStr, ProbeReadUserStr, Ask, true},
	{asm.FnGetCurrentUidGid, alone(UidGid), []Call{{SysGetuid, nil}, {SysGetgid, nil}}, false},
	{asm.FnGetCurrentComm, alone(Comm), []Call{{SysPrctl, []uint64{prGetName, somewhere}}}, false},
	{asm.FnKtimeGetBootNs, alone(BootNs), []Call{{SysClockGettime, []uint64{clockBoottime, somewhere}}}, false},
	{asm.FnStrncmp, alone(Strncmp), nil, false},
	{asm.FnSnprintf, Snprintf, Ask, true},
	{asm.FnGetCurrentPidTgid, alone(Tid), []Call{{SysGettid, nil}}, false}, // of the thread alone
}

func alone(f func() *bpf.Program) func(*Memory) *bpf.Program {
	return func(*Memory) *bpf.Program { return f() }
}

// Helper is a helper that is a routine.
type Helper struct {
	ID       asm.BuiltinFunc
	Program  func(*Memory) *bpf.Program
	Syscalls []Call
	Slot     bool // the slot's address is an argument behind the others
}

// Helpers lists them.
func Helpers() []Helper { return helpers }

// LookupHelper finds one, nil if there is none.
func LookupHelper(id asm.BuiltinFunc) *Helper {
	for i := range helpers {
		if helpers[i].ID == id {
			return &helpers[i]
		}
	}
	return nil
}
