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

// Registers of a read.
const (
	dest   = asm.R6
	left   = asm.R7 // bytes to come
	source = asm.R8
	chunk  = asm.R9 // bytes to come on this page
)

// ProbeReadUser is probe_read_user: (destination, size, address) 0 or -EFAULT.
// The target's memory is asked for page by page, so that a bad pointer is an
// error and never a signal; what remains is a page that another thread unmaps
// between the question and the read.
func ProbeReadUser() *bpf.Program {
	c := &code{ml: &abi.MapLayout{}}
	c.add(asm.StoreMem(asm.R10, -8, asm.R1, asm.DWord), asm.StoreMem(asm.R10, -16, asm.R2, asm.DWord),
		asm.Mov.Reg(dest, asm.R1), asm.Mov.Reg32(left, asm.R2), asm.Mov.Reg(source, asm.R3))
	c.bind("page")
	c.add(asm.JEq.Imm(left, 0, "done"))
	c.page("fault")
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
	c.bind("fault")
	c.clear()
	return c.named("probe_read_user")
}

// ProbeReadUserStr is probe_read_user_str: (destination, size, address) the
// length with the zero byte, which ends the string in any case, or -EFAULT.
func ProbeReadUserStr() *bpf.Program {
	c := &code{ml: &abi.MapLayout{}}
	c.add(asm.StoreMem(asm.R10, -8, asm.R1, asm.DWord), asm.StoreMem(asm.R10, -16, asm.R2, asm.DWord),
		asm.Mov.Reg(dest, asm.R1), asm.Mov.Reg32(left, asm.R2), asm.Mov.Reg(source, asm.R3), asm.JEq.Imm(left, 0, "empty"))
	c.bind("page")
	c.page("fault")
	c.bind("byte")
	c.add(asm.LoadMem(asm.R0, source, 0, asm.Byte), asm.StoreMem(dest, 0, asm.R0, asm.Byte), asm.Add.Imm(dest, 1), asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Sub.Imm(left, 1), asm.JEq.Imm(left, 0, "cut"), asm.Add.Imm(source, 1), asm.Sub.Imm(chunk, 1),
		asm.JNE.Imm(chunk, 0, "byte"), asm.Ja.Label("page"))
	c.bind("cut")
	c.add(asm.Mov.Imm(asm.R0, 0), asm.StoreMem(dest, -1, asm.R0, asm.Byte))
	c.bind("end")
	c.add(asm.LoadMem(asm.R1, asm.R10, -8, asm.DWord), asm.Mov.Reg(asm.R0, dest), asm.Sub.Reg(asm.R0, asm.R1), asm.Return())
	c.bind("empty")
	c.ret(0)
	c.bind("fault")
	c.clear()
	return c.named("probe_read_user_str")
}

// page asks whether the page of the source can be read, and finds how many
// bytes are left on it.
func (c *code) page(fault string) {
	c.add(asm.Mov.Imm(asm.R1, SysRtSigprocmask), asm.Mov.Imm(asm.R2, invalidHow), asm.Mov.Reg(asm.R3, source),
		asm.And.Imm(asm.R3, -abi.PageSize), asm.Mov.Imm(asm.R4, 0), asm.Mov.Imm(asm.R5, 8), Syscall.Call(),
		asm.JNE.Imm(asm.R0, errInval, fault), // -EFAULT, or a filter's answer
		asm.Mov.Reg(asm.R0, source), asm.And.Imm(asm.R0, abi.PageSize-1), asm.Mov.Imm(chunk, abi.PageSize), asm.Sub.Reg(chunk, asm.R0))
}

// clear fills the destination with zeros and returns -EFAULT.
func (c *code) clear() {
	c.add(asm.LoadMem(dest, asm.R10, -8, asm.DWord), asm.LoadMem(left, asm.R10, -16, asm.DWord), asm.Mov.Reg32(left, left), asm.Mov.Imm(asm.R0, 0))
	c.bind("clear")
	c.add(asm.JEq.Imm(left, 0, "cleared"), asm.StoreMem(dest, 0, asm.R0, asm.Byte), asm.Add.Imm(dest, 1), asm.Sub.Imm(left, 1), asm.Ja.Label("clear"))
	c.bind("cleared")
	c.ret(errFault)
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

// helpers are the helpers that are routines of the runtime, but for those of
// maps, with the number of their arguments and the system calls that they make.
var helpers = []Helper{
	{asm.FnProbeReadUser, ProbeReadUser, []int{SysRtSigprocmask}},
	{asm.FnProbeReadUserStr, ProbeReadUserStr, []int{SysRtSigprocmask}},
	{asm.FnProbeRead, ProbeReadUser, []int{SysRtSigprocmask}},
	{asm.FnProbeReadStr, ProbeReadUserStr, []int{SysRtSigprocmask}},
	{asm.FnGetCurrentUidGid, UidGid, []int{SysGetuid, SysGetgid}},
	{asm.FnGetCurrentComm, Comm, []int{SysPrctl}},
	{asm.FnKtimeGetBootNs, BootNs, []int{SysClockGettime}},
	{asm.FnStrncmp, Strncmp, nil},
	{asm.FnGetCurrentPidTgid, Tid, []int{SysGettid}}, // of the thread alone
}

// Helper is a helper that is a routine.
type Helper struct {
	ID       asm.BuiltinFunc
	Program  func() *bpf.Program
	Syscalls []int
}

// Helpers lists them.
func Helpers() []Helper { return helpers }
